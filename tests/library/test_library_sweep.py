"""Tests of ``kb.sweep``: the same sweep as the command's, its pictures, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernbench as kb
from kernbench.cli.main import main
from kernbench.evaluation.sweep_driver import SweepProgress

GRID: dict[str, Any] = {"bench.m": [32, 64], "cube.hbm.num_pcs": [4, 8]}
FIXED = {"bench.k": 64, "bench.n": 32}
SPEC = "bench: matmul-composite\nset: {bench.k: 64, bench.n: 32}\ngrid: {bench.m: [32, 64], cube.hbm.num_pcs: [4, 8]}\n"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> kb.Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    return kb.sweep("matmul-composite", "one-cube", grid=GRID, overrides=FIXED, workers=1, folder=folder)


def test_a_sweep_and_its_table(found: kb.Sweep) -> None:
    assert found.axes == ("bench.m", "cube.hbm.num_pcs")
    assert found.table.column("bench.m") == [32, 32, 64, 64]
    assert found.table.to_arrow().num_rows == 4
    assert not len(found.failed)
    best = found.best()
    assert best["sim_ns"] == min(found.table.column("sim_ns"))  # type: ignore[type-var]
    lines = repr(found).splitlines()
    assert lines[0].startswith("fastest at bench.m 32, ")
    assert lines[1] == "matmul-composite: 4 of 4 points ok"
    assert len(lines) <= 10


@pytest.mark.parametrize(
    "asked",
    [
        {"x": "bench.m", "y": "launch.ns", "by": "cube.hbm.num_pcs"},
        {"x": "bench.m", "y": "cube.hbm.num_pcs", "kind": "heat-map", "value": "launch.ns"},
        {"x": "cube.hbm.num_pcs", "y": "sim_ns", "kind": "pareto"},
    ],
)
def test_a_picture_of_each_kind(found: kb.Sweep, asked: dict[str, Any]) -> None:
    assert found.plot(**asked).axes[0].has_data()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"x": "bench.mm", "y": "sim_ns"}, "did you mean 'bench.m'"),
        ({"x": "bench.m", "y": "sim"}, "no point has numbers in sim; did you mean 'sim_ns'"),
        ({"x": "bench.m", "y": "sim_ns", "kind": "pie"}, "must be one of: lines, heat-map, pareto"),
        ({"x": "bench.m", "y": "sim_ns", "by": "bench.m"}, "an axis can be drawn once"),
    ],
)
def test_a_picture_that_cannot_be(found: kb.Sweep, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(kb.InputError, match=message):
        found.plot(**asked)


def test_a_sweep_of_the_command_is_the_same(found: kb.Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    Path("matmul-composite.yaml").write_text(SPEC)
    assert (
        main(["sweep", "matmul-composite.yaml", "--topology", "one-cube", "--jobs", "1", "--out", "out", "--json"]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    files = [Path(each).name for each in document.pop("files")]
    ours = found.to_dict()
    assert files == [Path(each).name for each in ours.pop("files")]
    assert document == ours
    assert found.folder is not None
    assert (Path("out") / "sweep.parquet").read_bytes() == (found.folder / "sweep.parquet").read_bytes()
    loaded = kb.load("out")
    assert isinstance(loaded, kb.Sweep)
    assert loaded.table.to_dicts() == found.table.to_dicts()
    assert loaded.plot("bench.m", "sim_ns").axes


COLUMNS = {"rows_s": "bench.m / sim_ns * 1e9", "channels": "cube.hbm.slices * cube.hbm.num_pcs"}
"""Derived columns"""


@pytest.fixture(scope="module")
def studied() -> kb.Sweep:
    grid = {"machine": ["one-cube", Path("edge")], "bench.m": [32, 64]}
    return kb.sweep("matmul-composite", grid=grid, overrides=FIXED, columns=COLUMNS, work=["bench.m"], workers=1)


def test_derived_columns_and_machines(studied: kb.Sweep) -> None:
    assert studied.axes == ("machine", "bench.m")
    assert studied.table.column("machine") == ["one-cube", "one-cube", "edge", "edge"]
    times = [float(str(ns)) for ns in studied.table.column("sim_ns")]
    assert studied.table.column("rows_s") == [m / ns * 1e9 for m, ns in zip((32, 64, 32, 64), times, strict=True)]
    assert studied.table.columns["rows_s"] == COLUMNS["rows_s"]
    assert studied.table.column("channels") == [64, 64, 16, 16]
    document = studied.to_dict()
    assert (document["columns"], document["work"]) == (COLUMNS, ["bench.m"])
    assert document["topology"] == "one-cube, edge"
    assert document["rows"][3]["channels"] == 16
    alone = kb.sweep("matmul-composite", "edge", grid={"bench.m": [32, 64]}, overrides=FIXED, workers=1)
    assert alone.table.column("sim_ns") == times[2:]
    assert alone.table.column("machine") == studied.table.column("machine_digest")[2:]


def test_the_best_of_equal_work(studied: kb.Sweep) -> None:
    best = studied.best_per_work("rows_s", largest=True)
    assert [row["bench.m"] for row in best] == [32, 64]
    assert studied.best("rows_s", largest=True, work={"bench.m": 64}) == best[1]
    assert studied.verdict.startswith("fastest of equal work: bench.m 32 at machine ")
    assert "; bench.m 64 at machine " in studied.verdict
    with pytest.raises(
        kb.InputError,
        match=r"points of different work have no common best; choose one with work=: bench.m 32; bench.m 64",
    ):
        studied.best()
    with pytest.raises(kb.InputError, match="no successful point has the work"):
        studied.best(work={"bench.m": 48})
    with pytest.raises(kb.InputError, match=r"'bench.k' is no axis of work; there are: bench.m"):
        studied.best(work={"bench.k": 48})
    with pytest.raises(kb.InputError, match=r"did you mean 'rows_s'.*there are: machine, bench.m, rows_s, channels,"):
        studied.best("row_s")
    assert len(studied.plot("channels", "rows_s", kind="pareto", largest=True).axes[0].get_lines()) == 2


class StopError(Exception):
    """Stops a sweep."""


def stop_after(count: int) -> Callable[[SweepProgress], None]:
    def tell(state: SweepProgress) -> None:
        if state.finished >= count:
            raise StopError

    return tell


def test_a_sweep_begun_by_one_is_resumed_by_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    asked: dict[str, Any] = {"grid": GRID, "overrides": FIXED, "workers": 1, "folder": "out"}
    with pytest.raises(StopError):
        kb.sweep("matmul-composite", "one-cube", **asked, on_progress=stop_after(2))
    Path("grid.yaml").write_text(SPEC)
    command = ["sweep", "grid.yaml", "--topology", "one-cube", "--jobs", "1", "--out", "out", "--resume", "--json"]
    assert main(command) == 0
    journal = (Path("out") / "journal.jsonl").read_text().splitlines()
    assert len(journal) == 1 + 4
    seen: list[SweepProgress] = []
    again = kb.sweep("matmul-composite", "one-cube", **asked, on_progress=seen.append)
    assert (seen[0].resumed, len(again.table)) == (4, 4)


def test_a_function_runs_here_and_what_fails_is_a_row() -> None:
    def program(torch: Any) -> None:
        if torch.topology.cube.hbm.num_pcs == 8:
            raise ValueError("eight")
        torch.zeros(64, dtype="f16", name="x")

    found = kb.sweep(program, "one-cube", grid={"cube.hbm.num_pcs": np.array([4, 8])})
    assert found.table.column("status") == ["ok", "failed"]
    assert found.failed.column("error") == ["ValueError: eight"]
    assert found.folder is None


SETTINGS = """
def run(torch):
    torch.zeros(torch.frontends.torch.cubes * (2 if torch.frontends.triton.order == "blocked" else 1), dtype="i64")
"""


def test_settings_of_front_ends_are_the_same_at_all_points(capsys: pytest.CaptureFixture[str]) -> None:
    Path("program.py").write_text(SETTINGS)
    grid, fixed = {"torch.cubes": [1, 2]}, {"triton.order": "blocked"}
    swept = kb.sweep("program.py", "one-cube", grid=grid, settings=fixed, workers=1, folder="out")
    assert swept.to_dict()["set"] == fixed
    times = swept.table.column("sim_ns")
    assert times[0] == kb.run("program.py", "one-cube", settings={**fixed, "torch.cubes": 1}).latency_ns
    assert times[1] == kb.run("program.py", "one-cube", settings={**fixed, "torch.cubes": 2}).latency_ns
    (Path("spec.yaml")).write_text("bench: program.py\nset: {triton.order: blocked}\ngrid: {torch.cubes: [1, 2]}\n")
    assert main(["sweep", "spec.yaml", "--out", "of-command", "--jobs", "1", "--topology", "one-cube", "--json"]) == 0
    assert [row["sim_ns"] for row in json.loads(capsys.readouterr().out)["rows"]] == times


@pytest.mark.parametrize(
    ("program", "asked", "message"),
    [
        ("matmul-composite", {"grid": {}}, "grid: found a mapping, must be a mapping of paths to lists"),
        ("matmul-composite", {"grid": {"bench.m": []}}, "must have at least one value"),
        ("matmul-composite", {"grid": {"bench.mm": [1]}}, "unknown key 'mm'; allowed here: m, k, n"),
        ("matmul-composite", {"grid": {"cube.hbm.num_pc": [1]}}, "did you mean 'num_pcs'"),
        ("matmul-composit", {"grid": GRID}, "did you mean 'matmul-composite'"),
        ("matmul-composite", {"grid": GRID, "workers": 0}, "workers: found 0, must be a number from 1"),
        ("matmul-composite", {"grid": GRID, "machine": "one"}, "unknown machine 'one'"),
        ("matmul-composite", {"grid": GRID, "settings": {"torch.cubez": 4}}, "did you mean 'cubes'"),
        ("matmul-composite", {"grid": GRID, "settings": {"bench.k": 4}}, "'bench.k' is no frontend setting"),
        ("matmul-composite", {"grid": GRID, "settings": 3}, "settings: found 3, must be a mapping"),
        (
            "matmul-composite",
            {"grid": GRID, "settings": {"torch.cubes": 4}, "overrides": {"torch.cubes": 2}},
            "torch.cubes: in overrides and in settings",
        ),
        ("matmul-composite", {"grid": {"torch.cubes": [1, 4]}, "settings": {"torch.cubes": 4}}, "torch.cubes"),
        ("matmul-composite", {"grid": {"machine": ["edge"]}}, "machine: the grid varies machine"),
        ("matmul-composite", {"grid": {"machine": ["edg"]}, "machine": None}, "unknown machine 'edg'"),
        ("matmul-composite", {"grid": GRID, "columns": {"a": "sim_n"}}, "did you mean 'sim_ns'"),
        ("matmul-composite", {"grid": GRID, "columns": {"a": 3}}, "columns.a: found 3, must be text"),
        ("matmul-composite", {"grid": GRID, "columns": ["a"]}, "columns: .*must be a mapping"),
        ("matmul-composite", {"grid": GRID, "work": "bench.m"}, "work: found 'bench.m', must be a list"),
        ("matmul-composite", {"grid": GRID, "work": ["bench.mm"]}, "did you mean 'bench.m'"),
        (print, {"grid": GRID, "folder": "out"}, "a function object exists in this process only"),
        (print, {"grid": GRID, "workers": 2}, "a function runs in this process"),
    ],
)
def test_wrong_calls_raise_with_what_is_allowed(program: Any, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(kb.InputError, match=message):
        kb.sweep(program, **{"machine": "one-cube", **asked})


def test_what_is_no_sweep_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(kb.InputError, match="kernbench sweep SPEC"):
        kb.load(tmp_path)


@pytest.mark.slow
def test_a_script_without_a_guard_may_sweep_on_workers() -> None:
    script = (
        "import kernbench as kb\n"
        f"found = kb.sweep('matmul-composite', 'one-cube', grid={GRID!r}, overrides={FIXED!r}, workers=2)\n"
        "print(len(found.table), len(found.failed))\n"
    )
    Path("script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "4 0\n"
