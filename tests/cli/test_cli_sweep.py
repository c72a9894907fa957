"""``kernbench sweep``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli import sweep_command, sweep_run
from kernbench.cli.sweep_progress import progress_line
from kernbench.evaluation.sweep_driver import Chunked, Progress
from kernbench.evaluation.sweep_point import Chunk
from kernbench.evaluation.sweep_workers import InlineWorker

Run = Callable[..., Any]
GRID = """\
bench: gemm-single-pe
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1, bench.k: 32, bench.n: 32 }
grid: { cube.hbm.slices: [8, 7], bench.m: [32, 64] }
plots: [{ kind: pareto, cost: bench.m }]
"""


class Inline(InlineWorker):
    """As many workers as asked for, all of them this process."""

    chunks = 0
    most = 1000

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def submit(self, chunk: Chunk) -> Chunked:
        if self.chunks == self.most:
            raise KeyboardInterrupt
        self.chunks += 1
        return super().submit(chunk)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes have tests of their own."""
    monkeypatch.setattr(sweep_run, "LocalWorkers", Inline)
    monkeypatch.setattr(sweep_command, "begin_server", lambda: None)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "grid.yaml").write_text(GRID)
    return "grid.yaml"


def test_a_sweep(kernbench: Run, spec: str) -> None:
    ran = kernbench("sweep", spec)
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == "grid: 2 of 4 points ok, 2 failed"
    assert "must be a multiple of the 4 corners" in ran.out
    assert "[4/4] 2 failed" in ran.err
    folder = Path("results/sweep/grid")
    assert {path.name for path in folder.iterdir()} == {
        "1_pareto.png",
        "journal.jsonl",
        "provenance.json",
        "sweep.parquet",
        "topology.resolved.yaml",
        "wall_s.csv",
    }


def test_as_json(kernbench: Run, spec: str) -> None:
    ran = kernbench("sweep", spec, "--json", "--out", "here", "--set", "bench.k=64")
    document = json.loads(ran.out)
    assert (document["points"], document["failed"]) == (4, 2)
    assert [row["bench.m"] for row in document["rows"]] == [32, 64, 32, 64]
    assert document["files"][0] == "here/sweep.parquet"
    assert kernbench("sweep", spec, "--json", "--out", "here", "--set", "bench.k=64").out == ran.out


def test_interrupted_and_resumed(kernbench: Run, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inline, "most", 1)
    ran = kernbench("sweep", spec, "--out", "here")
    assert ran.code == 130
    assert "interrupted: 1 of 4 points are finished, in here/journal.jsonl; go on with --resume" in ran.err
    monkeypatch.setattr(Inline, "most", 1000)
    again = kernbench("sweep", spec, "--out", "here")
    assert (again.code, again.out) == (2, "")
    assert "1 of 4 points are finished already" in again.err
    other = kernbench("sweep", spec, "--out", "here", "--resume", "--set", "bench.k=64")
    assert (other.code, other.out) == (2, "")
    assert "belongs to another sweep" in other.err
    assert kernbench("sweep", spec, "--out", "here", "--resume").code == 0


def test_nothing_went_well(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("bench: matmul-composite\ngrid: { cube.hbm.slices: [7, 9] }\n")
    ran = kernbench("sweep", "grid.yaml")
    assert (ran.code, ran.out.splitlines()[-1]) == (1, "grid: 0 of 2 points ok, 2 failed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.yaml",), "none.yaml: no such file"),
        (("grid.yaml", "--executor", "slurm"), "found 'slurm'; write local, dask://local, or dask://HOST:PORT"),
        (("grid.yaml", "--set", "bench.m=3"), "the grid varies bench.m"),
        (("grid.yaml", "--set", "bench.x=3"), "unknown key 'x'"),
        (("grid.yaml", "--topology", "none.yaml"), "none.yaml: no such file"),
        (("grid.yaml", "--out", "grid.yaml"), "no folder can be made there"),
        (("grid.yaml", "--jobs", "0"), "0 is not in the range"),
    ],
)
def test_bad_input(kernbench: Run, spec: str, arguments: tuple[str, ...], message: str) -> None:
    ran = kernbench("sweep", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_dask_that_is_not_installed(kernbench: Run, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_run, "DASK", "kernbench.no_such_module")
    ran = kernbench("sweep", spec, "--executor", "dask://local")
    assert ran.code == 2
    assert "pip install 'kernbench[cluster]'" in ran.err


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (Progress(points=200, finished=40, failed=2, found=0), "[ 40/200] 2 failed, 12 s, about 48 s left"),
        (Progress(points=200, finished=100, failed=0, found=80), "[100/200] 12 s, about 60 s left"),
        (Progress(points=200, finished=80, failed=0, found=80), "[ 80/200] 12 s, 80 were finished before"),
        (Progress(points=200, finished=200, failed=0, found=0), "[200/200] 12 s"),
    ],
)
def test_a_line_of_progress(state: Progress, line: str) -> None:
    assert progress_line(state, 12.0) == line
