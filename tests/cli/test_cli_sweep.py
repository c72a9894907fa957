"""``kernbench sweep``."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from kernbench.cli import sweep_command
from kernbench.evaluation import sweep_table
from kernbench.evaluation.sweep_driver import Chunked, InlineWorker, SweepProgress
from kernbench.evaluation.sweep_folder import folder_lock
from kernbench.evaluation.sweep_point import PointChunk
from kernbench.library import sweeps

Run = Callable[..., Any]
GRID = """\
bench: gemm-single-pe
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1, bench.k: 32, bench.n: 32 }
grid: { cube.hbm.slices: [8, 7], bench.m: [32, 64] }
plots: []
"""
PLOTTED = GRID.replace("[]", "[{ kind: pareto, cost: bench.m }]")


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

    def submit(self, chunk: PointChunk) -> Chunked:
        if self.chunks == self.most:
            raise KeyboardInterrupt
        self.chunks += 1
        return super().submit(chunk)


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes have tests of their own."""
    monkeypatch.setattr(sweeps, "LocalWorkers", Inline)
    monkeypatch.setattr(sweep_command, "begin_server", lambda: None)


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "grid.yaml").write_text(GRID)
    return "grid.yaml"


def test_a_sweep(kernbench: Run, spec: str, tmp_path: Path) -> None:
    (tmp_path / spec).write_text(PLOTTED)
    ran = kernbench("sweep", spec)
    assert ran.code == 1
    wrong, verdict, status, *_ = ran.out.splitlines()
    assert wrong.startswith("2 points failed: ")
    assert verdict.startswith("fastest at ")
    assert status == "grid: 2 of 4 points ok, 2 failed"
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
    assert kernbench("sweep", spec, "--json", "--out", "here", "--set", "bench.k=64", "--force").out == ran.out


def test_interrupted_and_resumed(kernbench: Run, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inline, "most", 1)
    ran = kernbench("sweep", spec, "--out", "here")
    assert ran.code == 130
    assert "interrupted: 1 of 4 points are finished, in here/journal.jsonl; continue with --resume" in ran.err
    monkeypatch.setattr(Inline, "most", 1000)
    again = kernbench("sweep", spec, "--out", "here")
    assert (again.code, again.out) == (2, "")
    assert "1 of 4 points are finished already" in again.err
    other = kernbench("sweep", spec, "--out", "here", "--resume", "--set", "bench.k=64")
    assert (other.code, other.out) == (2, "")
    assert "belongs to another sweep" in other.err
    assert kernbench("sweep", spec, "--out", "here", "--resume", "--allow-failures").code == 0


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int) -> None:
    """Ctrl-C, once, at the end of a call: the one numbered ``at``, from 1."""
    plain, calls = getattr(owner, name), []

    def call(*arguments: object, **named: object) -> Any:
        calls.append(name)
        made = plain(*arguments, **named)
        if len(calls) == at:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(owner, name, call)


@pytest.mark.parametrize(
    ("owner", "name", "at", "finished"),
    [
        (os, "fsync", 1, 0),  # of the folder: the journal has its first line
        (os, "fsync", 3, 2),  # of the second point: it is on disk, and in the count of nobody yet
        (sweep_table.pq, "write_table", 1, 4),
    ],
)
def test_an_interrupted_sweep_counts_as_resume_does(
    kernbench: Run, spec: str, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, at: int, finished: int
) -> None:
    with monkeypatch.context() as patched:
        interrupt(patched, owner, name, at)
        ran = kernbench("sweep", spec, "--out", "here", "--json")
    assert ran.code == 130
    assert f"interrupted: {finished} of 4 points are finished, in here/journal.jsonl; continue with --resume" in ran.err
    assert json.loads(ran.out)["finished"] == finished
    resumed = kernbench("sweep", spec, "--out", "here", "--resume")
    assert resumed.err.splitlines()[0].startswith(f"[{finished}/4]")


def content(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_a_finished_sweep_is_overwritten_by_force_only(kernbench: Run, spec: str) -> None:
    kernbench("sweep", spec, "--out", "here")
    before = content("here")
    ran = kernbench("sweep", spec, "--out", "here")
    assert (ran.code, ran.out) == (2, "")
    assert "error: here: holds a finished sweep, 4 of 4 points (journal.jsonl, sweep.parquet, wall_s.csv, " in ran.err
    assert "; --resume writes its results again, --force restarts and overwrites the results, another" in ran.err
    assert content("here") == before
    assert kernbench("sweep", spec, "--out", "there").code == 1  # two of its machines are not possible
    assert kernbench("sweep", spec, "--out", "here", "--resume").code == 1
    assert kernbench("sweep", spec, "--out", "here", "--set", "bench.k=64", "--force").code == 1
    assert content("here")["sweep.parquet"] != before["sweep.parquet"]


def test_force_begins_anew_where_a_sweep_was_interrupted(
    kernbench: Run, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Inline, "most", 1)
    kernbench("sweep", spec, "--out", "here")
    monkeypatch.setattr(Inline, "most", 1000)
    ran = kernbench("sweep", spec, "--out", "here", "--force")
    assert (ran.code, ran.err.splitlines()[0]) == (1, "[0/4] 0 s")


@pytest.mark.parametrize(
    "name", ["sweep.parquet", "wall_s.csv", "provenance.json", "topology.resolved.yaml", "1_lines.png"]
)
@pytest.mark.parametrize("options", [(), ("--resume",)])
def test_results_without_a_journal_are_not_overwritten_either(
    kernbench: Run, spec: str, name: str, options: tuple[str, ...]
) -> None:
    Path("here").mkdir()
    (Path("here") / name).write_text("kept")
    ran = kernbench("sweep", spec, "--out", "here", *options)
    assert (ran.code, ran.out) == (2, "")
    assert f"here: holds results ({name}); --force restarts" in ran.err
    assert content("here") == {name: b"kept"}


def test_another_sweep_that_is_finished_cannot_be_resumed(kernbench: Run, spec: str) -> None:
    kernbench("sweep", spec, "--out", "here")
    ran = kernbench("sweep", spec, "--out", "here", "--set", "bench.k=64")
    assert ran.code == 2
    assert "here: holds a finished sweep" in ran.err
    assert "--resume" not in ran.err


def test_resume_and_force_are_one_or_the_other(kernbench: Run, spec: str) -> None:
    ran = kernbench("sweep", spec, "--resume", "--force")
    assert (ran.code, ran.out) == (2, "")
    assert "--resume continues from existing results, --force overwrites them: give one of them" in ran.err
    assert not Path("results").exists()


def test_interrupted_as_json(kernbench: Run, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Inline, "most", 1)
    ran = kernbench("sweep", spec, "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["status"], document["finished"], document["points"]) == (130, "INTERRUPTED", 1, 4)


def test_nothing_went_well(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("bench: matmul-composite\ngrid: { cube.hbm.slices: [7, 9] }\n")
    ran = kernbench("sweep", "grid.yaml")
    assert (ran.code, ran.out.splitlines()[2]) == (1, "grid: 0 of 2 points ok, 2 failed")
    assert kernbench("sweep", "grid.yaml", "--allow-failures", "--force").code == 0


def test_a_sweep_in_which_all_is_well(kernbench: Run, spec: str, tmp_path: Path) -> None:
    (tmp_path / spec).write_text(GRID.replace("[8, 7]", "[8]"))
    ran = kernbench("sweep", spec, "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["status"], document["error"], document["failures"]) == (0, "OK", None, [])


BENCH = """\
import sys
from pydantic import NonNegativeInt
from kernbench.common.config import ConfigModel
from kernbench.runtime_api.bench_registry import bench


class Params(ConfigModel):
    m: NonNegativeInt = 1
    n: NonNegativeInt = 1


@bench("leaving", "leaves at some sizes", params=Params)
def run(torch):
    m = torch.params.m
    print("a word of the bench")
    if m == 2:
        sys.exit(0)
    if m >= 3:
        raise ValueError("three is \\x1b[31mtoo\\x1b[0m many")
    torch.zeros(m, 32, dtype="f16")
"""
LEAVING = """\
bench: BENCH
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1 }
grid: { bench.m: [1, 2, 3, 4], bench.n: [5, 6] }
plots: []
"""


@pytest.fixture(scope="module")
def leaving_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A bench is registered once, so all tests take it from one file."""
    path = tmp_path_factory.mktemp("benches") / "leaving.py"
    path.write_text(BENCH)
    return LEAVING.replace("BENCH", str(path))


@pytest.fixture
def leaving(leaving_text: str, tmp_path: Path) -> str:
    (tmp_path / "leaving.yaml").write_text(leaving_text)
    return "leaving.yaml"


def test_failures_are_summed_up_by_error(kernbench: Run, leaving: str) -> None:
    ran = kernbench("sweep", leaving, "--json")
    document = json.loads(ran.out)
    assert ran.code == 1
    assert (document["status"], document["error"], document["failed"]) == ("FAILED", "6 of 8 points failed", 6)
    many, gone = document["failures"]
    assert (many["count"], many["more"], many["status"]) == (4, 0, "failed")
    assert many["points"][0] == {"point": 4, "bench.m": 3, "bench.n": 5}
    assert "too" in many["error"]
    assert gone["count"] == 2
    assert "exit" in gone["error"].lower()
    assert [row["status"] for row in document["rows"]] == ["ok"] * 2 + ["failed"] * 6


def test_a_summary_of_failures_for_people(kernbench: Run, leaving: str, leaving_text: str, tmp_path: Path) -> None:
    (tmp_path / leaving).write_text(leaving_text.replace("[1, 2, 3, 4]", "{ start: 1, stop: 9, step: 1 }"))
    ran = kernbench("sweep", leaving)
    assert (ran.code, ran.out.splitlines()[2]) == (1, "leaving: 2 of 18 points ok, 16 failed")
    said = " ".join(ran.out.split())
    assert "bench.m=3 bench.n=5; bench.m=3 bench.n=6;" in said
    assert "and 9 more" in said
    assert "a word of the bench" not in ran.out


def test_failed_points_are_finished(kernbench: Run, leaving: str) -> None:
    first = kernbench("sweep", leaving)
    journal = Path("results/sweep/leaving/journal.jsonl")
    before = journal.read_bytes()
    again = kernbench("sweep", leaving, "--resume")
    assert (again.code, again.out) == (1, first.out)
    assert journal.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.yaml",), "none.yaml: no such file"),
        (("grid.yaml", "--executor", "slurm"), "found 'slurm'; write local, dask://local, or dask://HOST:PORT"),
        (("grid.yaml", "--set", "bench.m=3"), "the grid varies bench.m"),
        (("grid.yaml", "--set", "bench.x=3"), "unknown key 'x'"),
        (("grid.yaml", "--topology", "none.yaml"), "none.yaml: no such file"),
        (("grid.yaml", "--out", "grid.yaml"), "cannot create the folder"),
        (("grid.yaml", "--jobs", "0"), "0 is not in the range"),
    ],
)
def test_bad_input(kernbench: Run, spec: str, arguments: tuple[str, ...], message: str) -> None:
    ran = kernbench("sweep", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err


def test_an_executor_is_one_mistake_among_others(kernbench: Run, spec: str) -> None:
    ran = kernbench("sweep", spec, "--executor", "slurm", "--set", "bench.x=3")
    assert ran.code == 2
    assert "found 'slurm'" in ran.err
    assert "unknown key 'x'" in ran.err


def test_dask_that_is_not_installed(kernbench: Run, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "DASK", "kernbench.no_such_module")
    ran = kernbench("sweep", spec, "--executor", "dask://local")
    assert ran.code == 2
    assert "pip install 'kernbench[cluster]'" in ran.err


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        (
            (200, 40, 2, 0),
            "[ 40/200] 2 failed, 12 s, about 48 s left",
        ),
        (
            (200, 100, 0, 80),
            "[100/200] 12 s, about 60 s left",
        ),
        (
            (200, 80, 0, 80),
            "[ 80/200] 12 s, 80 were finished before",
        ),
        ((200, 200, 0, 0), "[200/200] 12 s"),
    ],
)
def test_a_line_of_progress(counts: tuple[int, int, int, int], line: str) -> None:
    assert str(SweepProgress(*counts, elapsed_s=12.0)) == line


OTHER_GRIDS = [
    ("bench.m: [32, 64]", "bench.m: [32, 64, 96]", "axis bench.m has other values: 96 added"),
    ("bench.m: [32, 64]", "bench.m: [32]", "axis bench.m has other values: 64 removed"),
    (", bench.m: [32, 64]", "", "axis bench.m is gone, it had 32, 64"),
    ("[32, 64] }", "[32, 64], bench.dtype: [f16] }", 'axis bench.dtype is new: "f16"'),
    (
        "cube.hbm.slices: [8, 7], bench.m: [32, 64]",
        "bench.m: [32, 64], cube.hbm.slices: [8, 7]",
        "the axes were in the order cube.hbm.slices, bench.m, are bench.m, cube.hbm.slices",
    ),
]


def test_another_grid_is_not_resumed(kernbench: Run, spec: str, tmp_path: Path) -> None:
    kernbench("sweep", spec)
    journal = Path("results/sweep/grid/journal.jsonl")
    before = journal.read_bytes()
    for was, now, said in OTHER_GRIDS:
        (tmp_path / spec).write_text(GRID.replace(was, now))
        ran = kernbench("sweep", spec, "--resume", "--json")
        assert (ran.code, ran.out) == (2, ""), said
        assert f"cannot be compared with these: {said}; choose another --out, or remove it" in ran.err
        assert journal.read_bytes() == before, said


def test_a_folder_that_another_sweep_writes_into(kernbench: Run, spec: str) -> None:
    Path("here").mkdir()
    for options in ((), ("--resume",), ("--json",), ("--allow-failures", "--executor", "local")):
        with folder_lock(Path("here")):
            ran = kernbench("sweep", spec, "--out", "here", *options)
        assert (ran.code, ran.out) == (2, ""), options
        assert f"here: another sweep is writing into this folder (process {os.getpid()} on " in ran.err
        assert list(Path("here").iterdir()) == [], options
    assert kernbench("sweep", spec, "--out", "here", "--allow-failures").code == 0


def no_space(*_: object, **__: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("owner", "name", "file"),
    [
        (sweep_table.pq, "write_table", "sweep.parquet"),
        (Path, "replace", "sweep.parquet"),
        (Path, "write_text", "provenance.json"),
        (Figure, "savefig", "1_pareto.png"),
        (Path, "mkdir", "cannot create the folder"),
        (os, "pwrite", "sweep.lock: cannot be locked"),
        (os, "fsync", "journal.jsonl: cannot be read or written"),
    ],
)
def test_a_full_disk(
    kernbench: Run, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, file: str
) -> None:
    (tmp_path / spec).write_text(PLOTTED if owner is Figure else GRID)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, no_space)
        ran = kernbench("sweep", spec, "--out", "here")
    assert (ran.code, ran.out) == (2, "")
    (said,) = [line for line in ran.err.splitlines() if line.startswith("error: ")]
    assert file in said
    assert "No space left on device" in said
    left = {path.name for path in Path("here").iterdir()} if Path("here").exists() else set()
    assert not any(each.endswith(".tmp") for each in left)
    again = kernbench("sweep", spec, "--out", "here", "--resume", "--json")
    assert json.loads(again.out)["points"] == 4


SMALL_SLOTS = "defaults: { slot_size: 64, n_slots: 1 }\nalgorithms: { mine: { module: intercube_allreduce, topology: intercube, mapper: pe0_of_every_cube, validator: row_per_cube } }\n"  # noqa: E501
COLLECTIVE = """\
bench: ccl-allreduce
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 2 }
grid: { bench.n_elem: [512] }
plots: []
"""


def times(kernbench: Run, *options: str) -> list[float]:
    ran = kernbench("sweep", "ccl/ccl_grid.yaml", "--json", *options)
    assert ran.code == 0, ran.err
    return [row["sim_ns"] for row in json.loads(ran.out)["rows"]]


def test_collectives_as_a_file_says(kernbench: Run, tmp_path: Path) -> None:
    folder = tmp_path / "ccl"
    folder.mkdir()
    (folder / "ccl_grid.yaml").write_text(COLLECTIVE)
    (folder / "mine.yaml").write_text(SMALL_SLOTS)
    packaged = times(kernbench, "--out", "a")
    by_option = times(kernbench, "--out", "b", "--ccl", "ccl/mine.yaml")
    (folder / "ccl_grid.yaml").write_text(f"{COLLECTIVE}ccl: mine.yaml\n")
    by_key = times(kernbench, "--out", "c")
    assert by_option == by_key
    assert by_key > packaged
    provenance = json.loads(Path("c/provenance.json").read_text())["parameters"]
    assert provenance["ccl file"] == str(folder / "mine.yaml")
    assert provenance["ccl"]["algorithms"]["mine"]["slot_size"] == 64
    assert "what differs: ccl." in kernbench("compare", "a", "b").out
    # The file at the same place says something else now.
    (folder / "mine.yaml").write_text(SMALL_SLOTS.replace("slot_size: 64", "slot_size: 128"))
    ran = kernbench("sweep", "ccl/ccl_grid.yaml", "--out", "c", "--resume")
    assert (ran.code, ran.out) == (2, "")
    assert "ccl.algorithms.mine.slot_size was 64, is 128" in ran.err
    # And ./ccl.yaml is what there is without a name.
    Path("ccl.yaml").write_text(SMALL_SLOTS)
    (folder / "ccl_grid.yaml").write_text(COLLECTIVE)
    assert times(kernbench, "--out", "d") == by_key


def test_collectives_that_are_wrong(kernbench: Run, spec: str) -> None:
    Path("bad.yaml").write_text("defaults: { n_slots: many }\nalgorithms: { x: { module: y } }\n")
    ran = kernbench("sweep", spec, "--ccl", "bad.yaml", "--set", "bench.x=3")
    assert (ran.code, ran.out) == (2, "")
    assert "bad.yaml:1:22: defaults.n_slots: found 'many'" in ran.err
    assert "unknown key 'x'" in ran.err
    assert kernbench("sweep", spec, "--ccl", "none.yaml").code == 2


LOADING = """
def run(torch):
    torch.zeros(8, dtype="f32", name="weights")
    torch.operators.end_loading("mm mine.py:4")
    for at in range(torch.frontends.torch.cubes):
        torch.zeros(8, dtype="f32", name=f"x{at}")
"""
OF_FRONTENDS = """\
bench: mine.py
topology: one-cube
grid: { torch.cubes: [1, 2] }
plots: []
"""


def test_settings_of_front_ends_are_axes(kernbench: Run, tmp_path: Path) -> None:
    """Points have the settings of front ends; the table and the document say them, and what loading took."""
    (tmp_path / "mine.py").write_text(LOADING)
    (tmp_path / "mine.yaml").write_text(OF_FRONTENDS)
    table = kernbench("sweep", "mine.yaml", "--out", "a")
    assert table.code == 0, table.err
    assert "loading: not counted; --from-load counts it" in table.out
    assert "loading ns" in table.out
    left_out = json.loads(kernbench("sweep", "mine.yaml", "--out", "a", "--resume", "--json").out)
    counted = json.loads(kernbench("sweep", "mine.yaml", "--out", "b", "--from-load", "--json").out)
    assert (left_out["set"], counted["set"]) == ({}, {"torch.from_load": True})
    assert [row["torch.cubes"] for row in counted["rows"]] == [1, 2]
    for mine, all_of_it in zip(left_out["rows"], counted["rows"], strict=True):
        assert mine["load_ns"] == all_of_it["load_ns"] > 0
        assert all_of_it["sim_ns"] == pytest.approx(mine["sim_ns"] + mine["load_ns"])
    one, two = left_out["rows"]
    assert two["sim_ns"] == pytest.approx(2 * one["sim_ns"])
    assert "what differs: torch.from_load false → true" in kernbench("compare", "a", "b").out


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("torch.cube=2", "did you mean 'cubes'?"),
        ("torch.cubes=2", "the grid varies torch.cubes"),
        ("triton.order=up", "cyclic, blocked"),
    ],
)
def test_settings_that_front_ends_do_not_take(kernbench: Run, tmp_path: Path, setting: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(LOADING)
    (tmp_path / "mine.yaml").write_text(OF_FRONTENDS)
    ran = kernbench("sweep", "mine.yaml", "--set", setting)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err


STUDY = """\
bench: gemm-single-pe
set: { bench.k: 32, bench.n: 32 }
grid: { machine: [one-cube, edge], bench.m: [32, 64] }
columns: { rows_s: bench.m / sim_ns * 1e9 }
work: [bench.m]
plots: [{ kind: pareto, cost: rows_s }]
"""


def test_machines_and_derived_columns_at_equal_work(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    ran = kernbench("sweep", "study.yaml", "--out", "a")
    assert ran.code == 0
    assert ran.out.startswith("fastest of equal work: bench.m 32 at machine ")
    assert "axis bench.m (work): 2: 32, 64" in ran.out
    assert "column rows_s: bench.m / sim_ns * 1e9" in ran.out
    assert "machine: one-cube, edge" in ran.out
    assert kernbench("sweep", "study.yaml", "--topology", "edge").code == 2
    (tmp_path / "study.yaml").write_text(
        STUDY.replace("rows_s: bench.m / ", "m_s: bench.m / ").replace("rows_s", "m_s")
    )
    again = kernbench("sweep", "study.yaml", "--out", "a", "--resume", "--json")
    assert "[4/4] 0 s, 4 were finished before" in again.err
    rows = json.loads(again.out)["rows"]
    assert [row["machine"] for row in rows] == ["one-cube", "one-cube", "edge", "edge"]
    assert rows[0]["m_s"] == 32 / rows[0]["sim_ns"] * 1e9
    compared = kernbench("compare", "a/sweep.parquet:0", "a/sweep.parquet:2")
    assert "columns: m_s " in compared.out


def test_an_expression_that_is_wrong(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY.replace("sim_ns", "sim_n").replace("cost: rows_s", "cost: bench.m"))
    ran = kernbench("sweep", "study.yaml")
    assert ran.code == 2
    assert "study.yaml:4:20: columns.rows_s: character 11 of 'bench.m / sim_n * 1e9': 'sim_n' is no column" in ran.err
    assert "did you mean 'sim_ns'?" in ran.err
    assert not Path("results").exists()
