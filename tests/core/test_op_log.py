"""The log itself, and that what is written to a file comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kernbench.common.dtypes import BF16, F8E4M3, F16, F32
from kernbench.common.errors import InputError, RunError
from kernbench.core.op_log import OpLog, OpRecord
from kernbench.messages.commands import NOWHERE, Epilogue, Operand, Params
from kernbench.observe.op_log_io import read_op_log, write_op_log

A = Operand("hbm", (0, 3), 1 << 50, 48, (4, 6), F16, strides=(24, 2), valid=(3, 6), other=float("-inf"))
B = Operand("tcm", (1, 2, 7), 64, 24, (6, 1), F32, segments=((64, 8), (NOWHERE, 16)))
C = Operand("sram", (1, 2), 0, 4, (4, 1), F8E4M3)


def sample_log() -> OpLog:
    log = OpLog()
    write = log.begin(
        component="host", kind="memory_write", t_start_ps=0, t_read_ps=0, output=C, data=np.zeros((4, 1), np.int8)
    )
    log.finish(write, 1500)
    params = Params(
        axis=-1,
        perm=(1, 0),
        trans_b=True,
        epilogue=(Epilogue("bias", B), Epilogue("scale", 0.5), Epilogue("relu")),
        old=C,
    )
    log.begin(
        component="sip0.cube0.pe1.pe_gemm",
        kind="gemm",
        t_start_ps=10,
        t_read_ps=20,
        name="ref_ref",
        inputs=(A, B, 2.5),
        output=C,
        params=params,
        kernel="mm",
        launch_id=3,
        line=17,
    )
    log.begin(
        component="x", kind="fetch", t_start_ps=10, t_read_ps=20, tile=(1, 0, 2), params=Params(pattern=b"\0\x7f")
    )
    return log


def test_sequence_numbers_and_open_records() -> None:
    log = sample_log()
    assert [r.seq for r in log] == [0, 1, 2]
    assert [r.seq for r in log.open_records] == [1, 2]
    log.finish(log[1], 40)
    assert (log[1].t_commit_ps, log[1].t_end_ps, log[1].t_start, log[1].t_end) == (40, 40, 0.01, 0.04)
    assert [r.seq for r in log.open_records] == [2]
    assert [r.seq for r in log.since(1)] == [1, 2]
    assert len(log) == 3


def test_commit_and_end_may_differ() -> None:
    log = sample_log()
    log.finish(log[1], 60, 30)
    log.commit(log[2], 25)
    log.finish(log[2], 70)
    assert [(r.t_commit_ps, r.t_end_ps) for r in log.since(1)] == [(30, 60), (25, 70)]


def test_mistakes() -> None:
    log = sample_log()
    with pytest.raises(RunError, match=r"record 0 .*twice"):
        log.finish(log[0], 10)
    with pytest.raises(RunError, match="commits at 19 ps, before it reads at 20 ps"):
        log.commit(log[1], 19)


def test_which_records_have_data() -> None:
    base = OpRecord(seq=0, component="x", kind="math", t_start_ps=0, t_read_ps=0)
    assert not base.has_data
    assert replace(base, output=C).has_data
    assert not replace(base, kind="memory_read").has_data
    assert replace(base, kind="memory_read", inputs=(A,)).has_data


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_is_written_comes_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log.{suffix}"
    write_op_log(sample_log(), path)
    assert read_op_log(path) == list(sample_log())
    first = path.read_bytes()
    write_op_log(sample_log(), path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_files_from_before_a_column_are_read(tmp_path: Path) -> None:
    """``order`` came later: what has none waited for nothing."""
    rows, table = tmp_path / "log.jsonl", tmp_path / "log.parquet"
    write_op_log(sample_log(), rows)
    write_op_log(sample_log(), table)
    old = [json.loads(line) for line in rows.read_text().splitlines()]
    rows.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "order"}) + "\n" for row in old))
    pq.write_table(pq.read_table(table).drop_columns("order"), table)
    assert read_op_log(rows) == read_op_log(table) == list(sample_log())
    pq.write_table(pq.read_table(table).drop_columns("line"), table)
    with pytest.raises(InputError, match="column line is not there"):
        read_op_log(table)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_what_waited_and_what_was_named_by_address_come_back(tmp_path: Path, suffix: str) -> None:
    named = replace(next(iter(sample_log())), seq=0, order="range", output=replace(B, by_address=True))
    path = tmp_path / f"log.{suffix}"
    write_op_log([named], path)
    (found,) = read_op_log(path)
    assert (found, found.order) == (named, "range")


def test_host_arrays_are_described_and_lines_are_strict_json(tmp_path: Path) -> None:
    write_op_log(sample_log(), tmp_path / "log.jsonl")
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert rows[0]["data"] == {"shape": [4, 1], "dtype": "int8"}
    assert rows[1]["inputs"][0]["operand"]["other"] == "-inf"


def test_parquet_columns(tmp_path: Path) -> None:
    write_op_log(sample_log(), tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    assert table["t_start_ps"].to_pylist() == [0, 10, 10]
    assert table["line"].to_pylist() == [0, 17, 0]


def test_an_empty_log_and_a_failed_write(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.parquet"):
        write_op_log(OpLog(), tmp_path / name)
        assert read_op_log(tmp_path / name) == []

    def failing():
        yield from sample_log()
        raise OSError(28, "No space left on device")

    for name in ("a.jsonl", "a.parquet"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(InputError, match="No space left on device"):
            write_op_log(failing(), tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2


def test_an_unknown_suffix() -> None:
    with pytest.raises(InputError, match=r"one of .jsonl, .parquet"):
        write_op_log([], "log.csv")


def test_operands_are_values() -> None:
    assert A == replace(A) != replace(A, dtype=BF16)
