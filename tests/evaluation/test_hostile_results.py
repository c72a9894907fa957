"""Result files that are broken, or were made to break who reads them: one clear line, exit 2, no traceback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kernbench.cli.main import main
from kernbench.common.errors import InputError
from kernbench.common.files import parse_json
from kernbench.evaluation import gemm_report
from kernbench.evaluation.compare_inputs import read_compared
from kernbench.evaluation.compare_results import compare_results
from kernbench.library.comparisons import SideBySide

ABOUT = {"axes": ["bench.m"], "bench": "b", "configuration": {"cube.hbm.slices": 8}}
ROWS = [{"point": at, "bench.m": 32 + at, "status": "ok", "sim_ns": 10.0 + at, "params": "{}"} for at in range(2)]
KINDS = {"point": pa.int64(), "bench.m": pa.int64(), "status": pa.string(), "sim_ns": pa.float64()}
TYPES: dict[str, pa.DataType] = KINDS | {"params": pa.string()}
KEY = b"kernbench.sweep"


def table(about: object = ABOUT, rows: Any = ROWS, types: Any = TYPES) -> pa.Table:
    """A table as a sweep writes it, but for what is asked to be otherwise; ``about`` in bytes as it stands."""
    text = about if isinstance(about, bytes) else json.dumps(about).encode()
    return pa.Table.from_pylist(rows, pa.schema(list(types.items()), metadata={KEY: text}))


def changed(name: str, value: object) -> list[dict[str, Any]]:
    return [ROWS[0], ROWS[1] | {name: value}]


def column(name: str, values: pa.Array) -> pa.Table:
    """A good table with another column in place of ``name``."""
    found = table()
    return found.set_column(found.schema.get_field_index(name), name, values)


BAD_TABLES: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "no metadata": (lambda: table().replace_schema_metadata(None), "no metadata 'kernbench.sweep'"),
    "other metadata": (lambda: table().replace_schema_metadata({"a": "b"}), "no metadata 'kernbench.sweep'"),
    "metadata no JSON": (lambda: table(b"axes: [a]"), "Expecting value"),
    "metadata no text": (lambda: table(b"\xff\xfe{}"), "not UTF-8 text: byte 0xff"),
    "metadata empty": (lambda: table(b""), "Expecting value"),
    "metadata a list": (lambda: table([1]), "its metadata are [1], must be a mapping"),
    "metadata null": (lambda: table(None), "its metadata are nothing, must be a mapping"),
    "metadata NaN": (lambda: table(b'{"axes": NaN}'), "found NaN"),
    "metadata deep": (lambda: table(b"[" * 100_000), "nested too deeply"),
    "metadata as deep as JSON goes": (lambda: table(b'{"a":' * 900 + b"1" + b"}" * 900), "nested too deeply"),
    "a long number": (lambda: table(b'{"axes": ' + b"9" * 10_000 + b"}"), "Exceeds the limit"),
    "half a character": (lambda: table(b'{"axes": ["\\ud800"]}'), "half of a character"),
    "no axes": (lambda: table({"bench": "b", "configuration": {}}), "have nothing as axes, must be a list"),
    "axes a text": (lambda: table(ABOUT | {"axes": "bench.m"}), "have 'bench.m' as axes, must be a list"),
    "axes no names": (lambda: table(ABOUT | {"axes": [1, {}]}), "have [1, a mapping] as axes, must be names"),
    "axes huge": (lambda: table(ABOUT | {"axes": ["a" * 10**6]}), "column 'aaaa"),
    "bench a number": (lambda: table(ABOUT | {"bench": 3}), "have 3 as bench, must be a text"),
    "machine a list": (lambda: table(ABOUT | {"configuration": []}), "have [] as configuration, must be a mapping"),
    "an axis without column": (lambda: table(ABOUT | {"axes": ["bench.k"]}), "column 'bench.k' exists 0 times"),
    "no point": (lambda: table().drop_columns("point"), "column 'point' exists 0 times"),
    "no status": (lambda: table().drop_columns("status"), "column 'status' exists 0 times"),
    "no time": (lambda: table().drop_columns("sim_ns"), "sim_ns is nothing, must be a number where status is ok"),
    "a column twice": (lambda: table().append_column("status", pa.array(["a", "b"])), "'status' exists 2 times"),
    "times as text": (lambda: column("sim_ns", pa.array(["1", "2"])), "is of type string, must be double"),
    "points as reals": (lambda: column("point", pa.array([0.0, 1.0])), "is of type double, must be int64"),
    "all null": (lambda: column("status", pa.nulls(2)), "is of type null, must be string"),
    "an axis of lists": (lambda: column("bench.m", pa.array([[1], [2]])), "'bench.m', an axis, is of type list"),
    "a status of none": (lambda: table(rows=changed("status", None)), "point 1: status is nothing, must be one of"),
    "a status unknown": (lambda: table(rows=changed("status", "fine\x1b[31m")), r"status is 'fine\x1b[31m'"),
    "a point of none": (lambda: table(rows=changed("point", None)), "'point' must be 0, 1, 2"),
    "a point twice": (lambda: table(rows=changed("point", 0)), "'point' must be 0, 1, 2"),
    "an axis of none": (lambda: table(rows=changed("bench.m", None)), "point 1: bench.m is empty"),
    "no number": (lambda: table(rows=changed("sim_ns", math.nan)), "point 1: sim_ns is nan"),
    "no end": (lambda: table(rows=changed("sim_ns", math.inf)), "point 1: sim_ns is inf"),
    "parameters no JSON": (lambda: table(rows=changed("params", "{'m': 3}")), "point 1: params is not JSON"),
    "parameters a list": (lambda: table(rows=changed("params", "[1]")), "point 1: params is [1], must be a mapping"),
    "parameters deep": (lambda: table(rows=changed("params", '{"a":' * 5000)), "params is not JSON"),
    "no rows": (lambda: table(rows=[]), "'point' must be 0, 1, 2"),
}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says that finds bad input."""
    capsys.readouterr()
    code = main(arguments)
    ran = capsys.readouterr()
    assert (code, ran.out) == (2, ""), ran.err
    assert "Traceback" not in ran.err
    (line,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert len(line) < 1000
    return line


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.parquet"
    pq.write_table(table(), path)
    return path


def test_the_table_of_these_tests_is_good(good: Path) -> None:
    assert main(["compare", str(good), str(good)]) == 0


@pytest.mark.parametrize("name", BAD_TABLES)
def test_tables(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    make, said = BAD_TABLES[name]
    path = tmp_path / "bad.parquet"
    pq.write_table(make(), path)
    line = refused(capsys, "compare", str(good), str(path))
    assert str(path) in line
    assert said in line
    with pytest.raises(InputError):
        read_compared(f"{path}:0")


def broken_text(at: int) -> pa.Table:
    """A column of texts of which one is no UTF-8."""
    values = pa.array([b"ok", b"\xff\xfe"][:2], pa.binary()).view(pa.string())
    return column("status", values) if at else table()


def as_files(path: Path, content: bytes | None) -> None:
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read as Parquet"),
        (b"PAR1", "cannot be read as Parquet"),
        (b"PAR1" + bytes(1000) + b"PAR1", "cannot be read as Parquet"),
        (b"{}", "cannot be read as Parquet"),
        (None, "no such file"),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", ""])
def test_files_that_are_no_parquet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str, suffix: str
) -> None:
    path = tmp_path / f"x.{suffix}"
    as_files(path, content)
    line = refused(capsys, "compare", str(path), str(path), "--json")
    assert str(path) in line
    assert said in line


def test_a_table_that_is_cut(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = good.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 100):
        good.write_bytes(whole[:length])
        assert "cannot be read as Parquet" in refused(capsys, "compare", str(good), str(good))


def test_a_table_with_broken_pages(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = good.read_bytes()
    good.write_bytes(whole[:4] + b"\xaa" * 200 + whole[204:])
    assert str(good) in refused(capsys, "compare", str(good), str(good))


def test_texts_that_are_none(good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.parquet"
    pq.write_table(broken_text(1), path)
    assert str(path) in refused(capsys, "compare", str(good), str(path))


def test_a_folder_in_place_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sweep.parquet").mkdir()
    assert "sweep.parquet: cannot be read as Parquet: Is a directory" in refused(
        capsys, "compare", str(tmp_path), str(tmp_path)
    )


def test_a_name_that_looks_like_a_column(tmp_path: Path) -> None:
    folder = tmp_path / "bench.m=3"
    folder.mkdir()
    pq.write_table(table(), folder / "sweep.parquet")
    assert [each.configuration["bench.m"] for each in read_compared(str(folder)).results] == [32, 33]


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_a_file_without_permission(
    good: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = good.rename(good.with_suffix(f".{suffix}"))
    monkeypatch.setattr(Path, "open", denied)
    assert "Permission denied" in refused(capsys, "compare", str(path), str(path))


RUN: dict[str, Any] = {
    "bench": "b",
    "status": "OK",
    "sim_ns": 5.0,
    "params": {},
    "configuration": {},
    "phases": [{"phase": "launch", "busy_ns": 3.0}],
    "engines": [{"engine": "GEMM", "busy_ns": 2.0}],
    "launches": [{"name": "x", "total_ns": 3.0, "kernel_ns": 2.0}],
    "explanation": {
        "critical_path": {"total_ps": 5000, "parts": [{"part": "GEMM", "ps": 5000}]},
        "roofline": {"binding": "HBM", "bounds": [{"resource": "HBM", "ps": 4000}]},
        "launches": [],
    },
}


def test_the_run_of_these_tests_is_good(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(RUN))
    assert main(["compare", str(tmp_path / "run.json"), str(tmp_path / "run.json")]) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON: Expecting value"),
        (b"\xff", "not UTF-8 text: byte 0xff"),
        (b"[]", "found [], must be a mapping"),
        (b"null", "must be a mapping"),
        (b"3", "must be a mapping"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 500 + b"1" + b"}" * 500, "nested too deeply"),
        (None, "no such file"),
        (json.dumps({"status": 5}).encode(), "status 5"),
        (json.dumps({"sweep": "x", "status": "OK"}).encode(), "missing key 'bench'"),
    ],
)
def test_files_that_are_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    path = tmp_path / "run.json"
    as_files(path, content)
    line = refused(capsys, "compare", str(path), str(path))
    assert str(path) in line
    assert said in line


def paths(value: object, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document but its root."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([at] if at else []), *(path for key, each in inside for path in paths(each, (*at, key)))]


def with_other(document: Any, path: tuple[Any, ...], value: object) -> Any:
    """A copy with ``value`` at ``path``."""
    made = json.loads(json.dumps(document))
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return made


def compare(one: str, other: str) -> None:
    a, b = read_compared(one), read_compared(other)
    json.dumps(SideBySide(a, b, compare_results(a, b)).to_dict())


def complaint_of(action: Callable[[], object]) -> str | None:
    """What an action says is wrong with its input; None when nothing is."""
    try:
        action()
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("value", [None, -1, 10**30, True, "\x1b[31m", [0], {"a": []}], ids=repr)
def test_every_part_of_a_run_of_another_kind(tmp_path: Path, value: object) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(RUN))
    for path in paths(RUN):
        bad.write_text(json.dumps(with_other(RUN, path, value)))
        said = complaint_of(lambda: compare(str(good), str(bad)))
        assert said is None or str(bad) in said, path


@pytest.mark.parametrize("bench", ["gemm", "ccl"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"runs": NaN}', "found NaN"),
        (b"[]", "not the results of this version"),
        (b'{"topology_hash": "x", "runs": [{"shape": "\x1b[31m"}]}', "not the results|not JSON"),
        (b'{"topology_hash": "x", "runs": []}', "there are no runs|own"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_results_that_are_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bench: str, content: bytes | None, said: str
) -> None:
    as_files(tmp_path / f"{bench}_sweep.json", content)
    line = refused(
        capsys,
        "run",
        "--bench",
        f"milestone-1h-{bench}",
        "--topology",
        "default",
        "--out",
        str(tmp_path),
        "--render-only",
    )
    assert f"{bench}_sweep.json" in line
    assert any(each in line for each in said.split("|"))


FIGURES = Path(__file__).parents[2] / "docs" / "figures"


@pytest.mark.parametrize(
    ("bench", "part", "value", "said"),
    [
        ("gemm", ("runs", 0, "stages"), [], "has no size, no time, no stages"),
        ("gemm", ("runs", 0, "ideal", "floors"), [], "has no size, no time, no stages"),
        ("gemm", ("runs", 0, "ideal", "ns"), 0, "has no size, no time, no stages"),
        ("gemm", ("runs", 0, "pe"), None, "runs.0.pe: Input should be"),
        ("gemm", ("runs", 0, "shape", "m"), "many", "runs.0.shape.m: Input should be a valid integer"),
        ("ccl", ("collectives",), [], "there are no collectives"),
        ("ccl", ("collectives", 0, "fabric", "kind"), "star", "collectives.0.fabric.kind: Input should be"),
        ("ccl", ("collectives", 0, "fabric", "sips"), 999, "there are no collectives of"),
        ("ccl", ("cubes",), {"w": 0, "h": 0}, "cubes are 0×0"),
        ("ccl", ("cubes",), {"w": 10**9, "h": 10**9}, "cubes are 1000000000×1000000000"),
        ("ccl", ("root_cube",), -1, "cube -1 is the root"),
    ],
)
def test_results_of_which_no_figure_can_be(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    bench: str,
    part: tuple[Any, ...],
    value: object,
    said: str,
) -> None:
    name = f"{bench}_sweep.json"
    (tmp_path / name).write_text(json.dumps(with_other(json.loads((FIGURES / name).read_text()), part, value)))
    line = refused(
        capsys,
        "run",
        "--bench",
        f"milestone-1h-{bench}",
        "--topology",
        "default",
        "--out",
        str(tmp_path),
        "--render-only",
    )
    assert name in line
    assert said in line


def test_numbers_that_no_figure_can_be_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_figure(*_: object) -> None:
        raise OverflowError("too\nmany")

    (tmp_path / "gemm_sweep.json").write_bytes((FIGURES / "gemm_sweep.json").read_bytes())
    monkeypatch.setattr(gemm_report, "draw_utilisation", no_figure)
    line = refused(capsys, "run", "--bench", "milestone-1h-gemm", "--out", str(tmp_path), "--render-only")
    assert "gemm_sweep.json: cannot draw figures of these results: OverflowError: too many" in line


@pytest.mark.parametrize(
    "text", ["1", "[1, {}]", '"\\ud83d\\ude00"', '{"a": [null, true, 1.5e300]}', "[" * 99 + "]" * 99]
)
def test_json_that_is_good(text: str) -> None:
    assert parse_json(text) == json.loads(text) == parse_json(text.encode())
