"""Running a grid: rows, the journal, what a kill leaves, workers that die, and the files at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from pathlib import Path

import pytest

from kernbench.common.config import Document
from kernbench.common.errors import InputError, RunError
from kernbench.evaluation import sweep_driver, sweep_point
from kernbench.evaluation.sweep_driver import Chunked, InlineWorker, SweepProgress, run_sweep
from kernbench.evaluation.sweep_journal import JOURNAL_FILE, Journal, begin_journal, resume_journal
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_measure import list_columns
from kernbench.evaluation.sweep_plan import BASE, SweepPlan
from kernbench.evaluation.sweep_point import PointChunk, PointOutcome, run_chunk
from kernbench.evaluation.sweep_results import TABLE_FILE, pareto_front, write_results
from kernbench.evaluation.sweep_table import read_sweep_table
from kernbench.observe.critical_path_model import PathPart
from kernbench.result.run_columns import CAUSES, time_column
from kernbench.runtime_api.run_request import RunRequest
from kernbench.topology.builder import Topology, compile_topology

GRID = """\
bench: user.py
verify: true
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1 }
grid:
  cube.hbm.slices: [8, 7]
  bench.m: [32, 48, 64]
"""
BENCH = """\
from kernbench.common.config import ConfigModel
from kernbench.kernels.gemm import gemm_composite
from kernbench.runtime_api.bench_registry import bench
from pydantic import PositiveInt


class Params(ConfigModel):
    m: PositiveInt = 32


@bench("user-gemm", "a small product", params=Params)
def run(torch):
    print("a word from the bench")
    m = torch.params.m
    if m == 48:
        raise ValueError("no 48")
    x = torch.ones(m, 32, dtype="f16", name="x")
    y = torch.empty(m, 32, dtype="f16", name="y")
    torch.launch("gemm", gemm_composite, x, torch.ones(32, 32, dtype="f16", name="w"), y, m, 32, 32, "f16")
    torch.testing.assert_close(y, y.numpy() * 0 + 32 + (m == 64))
"""


@pytest.fixture(scope="module")
def user_bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file for all tests: a bench is registered once."""
    path = tmp_path_factory.mktemp("benches") / "user.py"
    path.write_text(BENCH)
    return path


@pytest.fixture(scope="module")
def plan(user_bench: Path, tmp_path_factory: pytest.TempPathFactory) -> SweepPlan:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "grid.yaml").write_text(GRID.replace("user.py", str(user_bench)))
    return plan_sweep(folder / "grid.yaml", RunRequest.of(topology="default"))


@pytest.fixture(scope="module", autouse=True)
def one_by_one() -> Iterator[None]:
    """How many points travel together depends on how long they take; here, one does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sweep_driver, "MOST_IN_CHUNK", 1)
        yield


def without_plots(plan: SweepPlan) -> SweepPlan:
    return replace(plan, spec=plan.spec.model_copy(update={"plots": ()}))


def new_journal(plan: SweepPlan, folder: Path) -> Journal:
    folder.mkdir(exist_ok=True)
    return begin_journal(folder / JOURNAL_FILE, plan.identity(), plan.n_points)


def ignore(_: SweepProgress) -> None:
    """Nobody looks."""


class Stop(Exception):  # noqa: N818 - not an error of the sweep
    """Somebody ends the sweep."""


class Stopping(InlineWorker):
    """Stops the sweep after ``left`` chunks."""

    def __init__(self, left: int) -> None:
        self.left = left

    def submit(self, chunk: PointChunk) -> Chunked:
        if not self.left:
            raise Stop
        self.left -= 1
        return super().submit(chunk)


class Dying(InlineWorker):
    """Workers that die of the point ``deadly``; ``handed``: the points in the order in which they got them."""

    slots = 4

    def __init__(self, deadly: int) -> None:
        self.deadly = deadly
        self.handed: list[int] = []

    def submit(self, chunk: PointChunk) -> Chunked:
        self.handed += [point.index for point in chunk.points]
        if all(point.index != self.deadly for point in chunk.points):
            return super().submit(chunk)
        future: Chunked = Future()
        future.set_exception(BrokenExecutor("died"))
        return future

    def is_loss(self, error: BaseException) -> bool:
        return isinstance(error, BrokenExecutor)


def test_rows(plan: SweepPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with new_journal(plan, tmp_path / "out") as journal:
        run_sweep(plan, journal, InlineWorker(), ignore)
        table, _ = write_results(tmp_path / "out", without_plots(plan), journal)
    assert capsys.readouterr().out == ""
    good, raised, wrong, *impossible = table.rows
    assert [row["status"] for row in table.rows] == ["ok", "failed", "failed", "invalid", "invalid", "invalid"]
    assert (good["verdict"], good["max_abs_error"], good["launch.bound"]) == ("PASS", 0.0, "latency: PCIe overhead")
    for kind, names in (("path", PathPart), ("resources", CAUSES)):
        times = (good.get(time_column("run", kind, name)) for name in names)
        assert sum(float(str(ns or 0)) for ns in times) == pytest.approx(good["sim_ns"])
    assert (good["run.bound"], good["used.cubes"], good["used.within"]) == ("copies", 1, "sip0.cube0")
    assert raised["error"] == "ValueError: no 48"
    assert str(wrong["error"]).startswith("FAIL y: 2048 of 2048 elements wrong")
    assert wrong["max_abs_error"] == 1.0
    assert all("cube.hbm.slices: found 7, must be a multiple" in str(row["error"]) for row in impossible)
    assert json.loads(str(good["changed"]))["sip.cube_mesh.w"] == 1
    assert {name for row in table.rows for name in row} <= {"point", *plan.axes, *list_columns()}


def test_the_table_as_a_file(plan: SweepPlan, tmp_path: Path) -> None:
    with new_journal(plan, tmp_path / "out") as journal:
        run_sweep(plan, journal, InlineWorker(), ignore)
        table, files = write_results(tmp_path / "out", plan, journal)
    read = read_sweep_table(tmp_path / "out" / TABLE_FILE)
    assert read.axes == ("cube.hbm.slices", "bench.m")
    assert [row["sim_ns"] for row in read.rows] == [row.get("sim_ns") for row in table.rows]
    assert read.about["configuration"]["cube.hbm.slices"] == 8
    assert [path.name for path in files if path.exists()] == [
        "sweep.parquet",
        "wall_s.csv",
        "provenance.json",
        "1_lines.png",
        "2_heat_map.png",
    ]


@pytest.mark.parametrize("left", [0, pytest.param(1, marks=pytest.mark.slow), 4])
def test_an_interrupted_sweep_ends_the_same(plan: SweepPlan, tmp_path: Path, left: int) -> None:
    plan, whole, parts = without_plots(plan), tmp_path / "whole", tmp_path / "parts"
    with new_journal(plan, whole) as journal:
        run_sweep(plan, journal, InlineWorker(), ignore)
        write_results(whole, plan, journal)
    with new_journal(plan, parts) as journal, pytest.raises(Stop):
        run_sweep(plan, journal, Stopping(left), ignore)
    with (parts / JOURNAL_FILE).open("ab") as file:
        file.write(b'{"point":5,"wall')  # torn by a kill
    seen: list[SweepProgress] = []
    with resume_journal(parts / JOURNAL_FILE, plan.identity(), plan.n_points) as journal:
        run_sweep(plan, journal, InlineWorker(), seen.append)
        write_results(parts, plan, journal)
    assert (seen[0].resumed, seen[-1].finished) == (left, 6)
    points = [json.loads(line)["point"] for line in (parts / JOURNAL_FILE).read_text().splitlines()[1:]]
    assert sorted(points) == list(range(6))
    assert (parts / TABLE_FILE).read_bytes() == (whole / TABLE_FILE).read_bytes()


def test_points_of_several_machines_travel_together(
    plan: SweepPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keeping(InlineWorker):
        def submit(self, chunk: PointChunk) -> Chunked:
            handed.append(chunk)
            return super().submit(chunk)

    def compiled(document: Document) -> Topology:
        machines.append(document)
        return compile_topology(document)

    handed: list[PointChunk] = []
    machines: list[Document] = []
    monkeypatch.setattr(sweep_driver, "MOST_IN_CHUNK", 64)
    monkeypatch.setattr(sweep_driver, "CHUNK_S", 1e9)
    with new_journal(plan, tmp_path / "out") as journal:
        run_sweep(plan, journal, Keeping(), ignore)
    # One by itself to see how long it takes, then a half of what is left.
    assert [len(chunk.points) for chunk in handed] == [1, 2, 1, 1, 1]
    monkeypatch.setattr(sweep_point, "compile_topology", compiled)
    together = PointChunk(handed[0].job, tuple(point for chunk in handed for point in chunk.points))
    assert {each.index: each.row for each in run_chunk(together)} == {
        index: each.row for index, each in journal.finished.items()
    }
    assert len(machines) == 2


@pytest.fixture(scope="module")
def two_points(plan: SweepPlan, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with new_journal(plan, tmp_path_factory.mktemp("half")) as journal, pytest.raises(Stop):
        run_sweep(plan, journal, Stopping(2), ignore)
    return journal.path.read_bytes()


@pytest.fixture
def half(two_points: bytes, tmp_path: Path) -> Path:
    """The journal of a sweep of which two points are finished."""
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(two_points)
    return path


def test_finished_points_are_not_overwritten(plan: SweepPlan, half: Path) -> None:
    with pytest.raises(InputError, match="2 of 6 points are finished already; continue with --resume"):
        begin_journal(half, plan.identity(), plan.n_points)


def test_another_sweep_is_not_continued(plan: SweepPlan, half: Path) -> None:
    changed = plan.identity() | {"verify": False, "kernbench": "9"}
    with pytest.raises(InputError, match=r'kernbench was .*, is "9"; verify was true, is false'):
        resume_journal(half, changed, plan.n_points)


def test_a_journal_that_is_none(plan: SweepPlan, half: Path) -> None:
    lines = half.read_text().splitlines(keepends=True)
    half.write_text("".join([lines[0], "no json\n", lines[2]]))
    with pytest.raises(InputError, match=r"journal\.jsonl:2: this line does not belong to the journal"):
        resume_journal(half, plan.identity(), plan.n_points)


@pytest.mark.parametrize(
    "line",
    [
        '{"point":3}',
        '{"point":6,"wall_s":1.0,"row":{"status":"ok"}}',
        '{"point":"3","wall_s":1.0,"row":{"status":"ok"}}',
        '{"point":3,"wall_s":1.0,"row":{"state":"ok"}}',
        '{"point":3,"wall_s":1.0,"row":[]}',
        '{"point":true,"wall_s":1.0,"row":{"status":"ok"}}',
        '{"point":3.0,"wall_s":1.0,"row":{"status":"ok"}}',
        '{"point":3,"wall_s":null,"row":{"status":"ok"}}',
        '{"point":3,"wall_s":"1","row":{"status":"ok"}}',
        '{"point":3,"wall_s":NaN,"row":{"status":"ok"}}',
        '{"point":3,"wall_s":1e999,"row":{"status":"ok"}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"fine"}}',
        '{"point":3,"wall_s":1.0,"row":{"status":null}}',
        '{"point":3,"wall_s":1.0,"row":{}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"ok","events":1.5}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"ok","events":true}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"ok","events":1000000000000000000000}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"ok","sim_ns":"soon"}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"ok","sim_ns":[1]}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"ok","error":"\\ud800"}}',
        '{"point":3,"wall_s":1.0,"row":{"status":"ok","error":' + "[" * 100_000 + "]" * 100_000 + "}}",
    ],
    ids=lambda line: line[:70],
)
def test_a_line_of_something_else(plan: SweepPlan, half: Path, line: str) -> None:
    # Not the last one: that may be torn.
    half.write_text(f'{half.read_text()}{line}\n{{"point":4,"wall_s":1.0,"row":{{"status":"failed"}}}}\n')
    with pytest.raises(InputError, match=r"journal\.jsonl:4: this line does not belong to the journal of this sweep"):
        resume_journal(half, plan.identity(), plan.n_points)


@pytest.mark.parametrize(
    "header",
    [
        b'{"journal":"kernbench sweep"}',
        b'{"journal":"kernbench sweep","points":true,"identity":{}}',
        b'{"journal":"kernbench sweep","points":6,"identity":[]}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
    ids=repr,
)
def test_a_header_of_something_else(plan: SweepPlan, half: Path, header: bytes) -> None:
    half.write_bytes(header + b"\n" + half.read_bytes().partition(b"\n")[2])
    for begin in (begin_journal, resume_journal):
        with pytest.raises(InputError, match=r"journal\.jsonl:1: this line does not belong"):
            begin(half, plan.identity(), plan.n_points)


@pytest.mark.parametrize("section", ["configuration", "grid", "set", "ccl"])
@pytest.mark.parametrize("value", [None, 3, "x", [1], {"a": []}], ids=repr)
def test_an_identity_of_another_kind(plan: SweepPlan, half: Path, section: str, value: object) -> None:
    header, _, rest = half.read_bytes().partition(b"\n")
    document = json.loads(header)
    document["identity"][section] = value
    half.write_bytes(json.dumps(document).encode() + b"\n" + rest)
    with pytest.raises(InputError, match="belongs to another sweep"):
        resume_journal(half, plan.identity(), plan.n_points)


def test_axes_in_another_order_are_another_sweep(plan: SweepPlan, half: Path) -> None:
    """Points are numbered in the order of the axes, so rows would stand at the wrong values."""
    turned = dict(reversed(plan.identity()["grid"].items()))
    with pytest.raises(InputError, match=r"the axes were in the order cube\.hbm\.slices, bench\.m, are bench\.m, cube"):
        resume_journal(half, plan.identity() | {"grid": turned}, plan.n_points)


def test_another_machine_is_named_by_what_differs(plan: SweepPlan, half: Path) -> None:
    machine = plan.machines[BASE].configuration | {"cube.hbm.slices": 16}
    changed = plan.identity() | {"machine": "another digest", "configuration": machine}
    with pytest.raises(InputError, match=r"with these: cube\.hbm\.slices was 8, is 16; choose another"):
        resume_journal(half, changed, plan.n_points)


def test_no_space_is_left(plan: SweepPlan, half: Path) -> None:
    with (
        Journal(half, Path("/dev/full").open("wb"), {}) as journal,
        pytest.raises(InputError, match=r"cannot be read or written: No space left on device; .* with --resume"),
    ):
        journal.append([PointOutcome(0, {"status": "ok"}, 1.0)])


def test_a_journal_that_is_a_folder(plan: SweepPlan, tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).mkdir()
    for begin in (begin_journal, resume_journal):
        with pytest.raises(InputError, match="cannot be"):
            begin(tmp_path / JOURNAL_FILE, plan.identity(), plan.n_points)


def test_pictures_of_a_sweep_before_are_removed(plan: SweepPlan, tmp_path: Path) -> None:
    names = ["2_pareto.png", "10_heat_map.png", "1_mine.png", "mine_lines.png"]
    for name in names:
        (tmp_path / name).touch()
    unseen = replace(plan, spec=plan.spec.model_copy(update={"plots": ()}))
    with new_journal(plan, tmp_path) as journal:
        run_sweep(unseen, journal, InlineWorker(), ignore)
        write_results(tmp_path, unseen, journal)
    assert [name for name in names if (tmp_path / name).exists()] == ["1_mine.png", "mine_lines.png"]


def test_to_resume_what_was_never_begun(plan: SweepPlan, tmp_path: Path) -> None:
    with resume_journal(tmp_path / JOURNAL_FILE, plan.identity(), plan.n_points) as journal:
        assert journal.finished == {}


def test_a_point_that_kills_its_worker(plan: SweepPlan, tmp_path: Path) -> None:
    workers = Dying(deadly=2)
    with new_journal(plan, tmp_path / "out") as journal:
        run_sweep(plan, journal, workers, ignore)
    assert workers.handed.count(2) == 2
    assert [journal.finished[index].row["status"] for index in range(3)] == ["ok", "failed", "lost"]


def test_a_worker_of_another_version(plan: SweepPlan, tmp_path: Path) -> None:
    class Old(InlineWorker):
        def submit(self, chunk: PointChunk) -> Chunked:
            future: Chunked = Future()
            with pytest.raises(RunError) as caught:
                run_chunk(replace(chunk, job=replace(chunk.job, version="0.0.1")))
            future.set_exception(caught.value)
            return future

    with new_journal(plan, tmp_path / "out") as journal, pytest.raises(RunError, match=r"started by 0\.0\.1"):
        run_sweep(plan, journal, Old(), ignore)


@pytest.mark.parametrize("how", ["cancelled", "broken"])
def test_workers_that_go_away(plan: SweepPlan, tmp_path: Path, how: str) -> None:
    class Gone(Stopping):
        def submit(self, chunk: PointChunk) -> Chunked:
            if self.left:
                return super().submit(chunk)
            future: Chunked = Future()
            if how == "cancelled":
                future.cancel()
                future.set_running_or_notify_cancel()
            else:
                future.set_exception(OSError("no route"))
            return future

    said = r"workers are gone: .*; 2 of 6 points are finished; continue with --resume"
    with new_journal(plan, tmp_path / "out") as journal, pytest.raises(RunError, match=said):
        run_sweep(plan, journal, Gone(2), ignore)


def test_the_pareto_front() -> None:
    assert pareto_front([(1, 9), (2, 9), (2, 5), (3, 6), (4, 5), (5, 1), (5, 1)]) == [0, 2, 5]
    assert pareto_front([]) == []


def test_no_table(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("nothing")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_sweep_table(tmp_path / "x.parquet")
