"""The log itself, and its files."""

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
from kernbench.observe.op_log_io import write_op_log

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


def rows_of(path: Path) -> list[dict[str, object]]:
    """Return the rows of a file, with the texts of JSON for infinite numbers."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    texts = json.dumps(pq.read_table(path).to_pylist()).replace("-Infinity", '"-inf"')
    return json.loads(texts)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_equal_logs_are_identical_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"log.{suffix}"
    write_op_log(sample_log(), path)
    first = path.read_bytes()
    write_op_log(sample_log(), path)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_rows_are_equal_in_both_formats(tmp_path: Path) -> None:
    rows, table = tmp_path / "log.jsonl", tmp_path / "log.parquet"
    write_op_log(sample_log(), rows)
    write_op_log(sample_log(), table)
    write, gemm, fetch = rows_of(rows)
    assert rows_of(table) == [write, gemm, fetch]
    assert (write["kind"], write["t_end_ps"], fetch["tile"], fetch["params"]["pattern"]) == (
        "memory_write",
        1500,
        [1, 0, 2],
        "007f",
    )
    assert [x["number"] for x in gemm["inputs"]] == [None, None, 2.5]
    a, b = (x["operand"] for x in gemm["inputs"][:2])
    assert (a["space"], a["owner"], a["address"], a["shape"], a["dtype"]) == ("hbm", [0, 3], 1 << 50, [4, 6], "f16")
    assert (a["strides"], a["valid"], a["other"]) == ([24, 2], [3, 6], "-inf")
    assert b["segments"] == [{"address": 64, "nbytes": 8}, {"address": NOWHERE, "nbytes": 16}]
    assert [(step["name"], step["number"]) for step in gemm["params"]["epilogue"]] == [
        ("bias", None),
        ("scale", 0.5),
        ("relu", None),
    ]
    assert gemm["params"]["old"]["space"] == "sram"


def test_a_wait_is_a_column(tmp_path: Path) -> None:
    named = replace(next(iter(sample_log())), seq=0, order="range", output=replace(B, by_address=True))
    write_op_log([named], tmp_path / "log.jsonl")
    assert rows_of(tmp_path / "log.jsonl")[0]["order"] == "range"


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
        assert rows_of(tmp_path / name) == []

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
