"""Machines as an axis of a sweep: packaged machines and files, their order, their files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernbench.common.config import load_document
from kernbench.common.errors import ConfigError, InputError
from kernbench.evaluation.compare_inputs import take_table
from kernbench.evaluation.compare_results import compare_results
from kernbench.evaluation.sweep_driver import Chunked, InlineWorker, LocalWorkers, run_sweep
from kernbench.evaluation.sweep_folder import machine_files_in
from kernbench.evaluation.sweep_journal import begin_journal, resume_journal
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_measure import PointRow
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_point import PointChunk, PointOutcome
from kernbench.evaluation.sweep_results import write_results
from kernbench.evaluation.sweep_table import SweepTable, read_sweep_table, sweep_table
from kernbench.runtime_api.run_request import RunRequest
from kernbench.topology.builder import compile_topology, packaged_machines

GRID = """\
bench: matmul-composite
set: { bench.m: 32, bench.k: 32, bench.n: 32 }
grid: { bench.variant: [ref_ref, load_ref], machine: [one-cube, ./small.yaml], cube.hbm.num_pcs: [2, 4] }
columns: { slices: cube.hbm.slices, edge: 1 if machine == 'one-cube' else 2 }
plots: []
"""


def small_machine(folder: Path, slices: int = 4) -> Path:
    text = Path(packaged_machines()["one-cube"]).read_text(encoding="utf-8")
    document = load_document(packaged_machines()["one-cube"])
    assert document.data["cube"]["hbm"]["slices"] == 8
    (folder / "small.yaml").write_text(text.replace("slices: 8", f"slices: {slices}"))
    return folder / "small.yaml"


def plan(folder: Path, text: str = GRID) -> SweepPlan:
    path = folder / "grid.yaml"
    path.write_text(text)
    return plan_sweep(path)


class Counting(InlineWorker):
    """Workers that remember their chunks."""

    def __init__(self) -> None:
        self.chunks: list[PointChunk] = []

    def submit(self, chunk: PointChunk) -> Chunked:
        self.chunks.append(chunk)
        return super().submit(chunk)


def run(plan: SweepPlan, folder: Path, workers: InlineWorker | LocalWorkers) -> tuple[SweepTable, tuple[Path, ...]]:
    folder.mkdir(exist_ok=True)
    with begin_journal(folder / "journal.jsonl", plan.identity(), plan.n_points) as journal, workers:
        run_sweep(plan, journal, workers, lambda _: None)
        return write_results(folder, plan, journal)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machines")
    small_machine(folder)
    return folder


@pytest.fixture(scope="module")
def workers() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def table(folder: Path, workers: Counting) -> SweepTable:
    return run(plan(folder), folder / "out", workers)[0]


def test_rows_in_the_order_of_the_grid(table: SweepTable) -> None:
    assert [(row["bench.variant"], row["machine"], row["cube.hbm.num_pcs"]) for row in table.rows] == [
        (variant, machine, channels)
        for variant in ("ref_ref", "load_ref")
        for machine in ("one-cube", "./small.yaml")
        for channels in (2, 4)
    ]
    assert {row["status"] for row in table.rows} == {"ok"}
    assert [row["slices"] for row in table.rows] == [8, 8, 4, 4] * 2
    assert [row["edge"] for row in table.rows] == [1, 1, 2, 2] * 2
    assert [json.loads(str(row["changed"])) for row in table.rows[::2]] == [{"cube.hbm.num_pcs": 2}] * 4


def test_a_point_has_the_machine_of_a_sweep_of_its_own(table: SweepTable, folder: Path) -> None:
    text = GRID.replace("machine: [one-cube, ./small.yaml], ", "").replace("bench:", "topology: small.yaml\nbench:")
    lone = plan(folder, text.replace("edge: 1 if machine == 'one-cube' else 2", "edge: 2 * cube.hbm.slices / 4"))
    rows, _ = run(lone, folder / "alone", InlineWorker())
    same = [row for row in table.rows if row["machine"] == "./small.yaml"]
    for row, other in zip(same, rows.rows, strict=True):
        assert row["machine_digest"] == other["machine"]
        assert _without(row, "point", "machine", "machine_digest") == _without(other, "point", "machine")


def _without(row: PointRow, *names: str) -> PointRow:
    return {name: cell for name, cell in row.items() if name not in names}


def test_each_machine_is_compiled_once(table: SweepTable, workers: Counting) -> None:
    """Points of a machine with equal changes are adjacent."""
    handed = [(chunk.job.base.source, point.changes.machine) for chunk in workers.chunks for point in chunk.points]
    runs = [key for at, key in enumerate(handed) if at == 0 or key != handed[at - 1]]
    assert len(handed) == len(table.rows)
    assert len(runs) == len(set(runs)) == 4


def test_processes_give_the_same_bytes(table: SweepTable, folder: Path) -> None:
    run(plan(folder), folder / "local", LocalWorkers(2))
    assert (folder / "local" / "sweep.parquet").read_bytes() == (folder / "out" / "sweep.parquet").read_bytes()


def test_files(table: SweepTable, folder: Path) -> None:
    """Each machine is a file that compiles to it."""
    assert read_sweep_table(folder / "out" / "sweep.parquet").about == table.about
    machines = json.loads((folder / "out" / "provenance.json").read_text())["parameters"]["machines"]
    digests = {name: base.topology.digest for name, base in plan(folder).machines.items()}
    assert {name: machine["digest"] for name, machine in machines.items()} == digests
    for name, machine in machines.items():
        assert compile_topology(load_document(folder / "out" / machine["file"])).digest == digests[name]
    assert {path.name for path in machine_files_in(folder / "out")} == {each["file"] for each in machines.values()}


def test_comparison_knows_each_points_machine(table: SweepTable) -> None:
    file = take_table("a", table)
    assert [each.configuration["cube.hbm.slices"] for each in file.results] == [8, 8, 4, 4] * 2
    assert not compare_results(file, file).differing


def test_a_changed_file_is_another_sweep(tmp_path: Path) -> None:
    small_machine(tmp_path)
    before = plan(tmp_path)
    begin_journal(tmp_path / "journal.jsonl", before.identity(), before.n_points)
    small_machine(tmp_path, slices=16)
    after = plan(tmp_path)
    with pytest.raises(InputError, match=r"machine \./small\.yaml\.cube\.hbm\.slices was 4, is 16"):
        resume_journal(tmp_path / "journal.jsonl", after.identity(), after.n_points)


def problems(folder: Path, text: str, topology: str | None = None) -> list[str]:
    path = folder / "grid.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        plan_sweep(path, RunRequest.of(topology=topology))
    return [f"{each.line}:{each.column} {each.path}: {each.message}" for each in caught.value.problems]


def test_machines_that_do_not_exist(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("system: 3\n")
    text = "bench: matmul-composite\ngrid:\n  machine: [one-cube, ./none.yaml, edgy, 3, wrong.yaml]\n"
    found = problems(tmp_path, text)
    assert found[0].startswith("3:23 grid.machine[1]: ")
    assert found[0].endswith("none.yaml: no such file")
    assert found[1].startswith("3:36 grid.machine[2]: unknown machine 'edgy'; there are: ")
    assert "did you mean 'edge'?" in found[1]
    assert found[2] == "3:42 grid.machine[3]: found 3, must be the name of a packaged machine or a file"
    assert any("system: found 3" in each for each in found[3:])


def test_the_machine_in_two_places(tmp_path: Path) -> None:
    text = "bench: matmul-composite\ntopology: edge\nset: { machine: edge }\ngrid: { machine: [one-cube] }\n"
    found = problems(tmp_path, text, topology="edge")
    why = "the grid varies machine; give the machine in one place"
    assert found[0] == f"2:1 topology: {why}"
    assert found[1].startswith("3:8 set.machine: ")
    assert found[-1] == f"0:0 : {why}"


def test_values_are_checked_against_each_machine(tmp_path: Path) -> None:
    """An axis is an error if one machine refuses all its values, which is then named."""
    small = small_machine(tmp_path)
    router = "kind: noc_router, impl: builtin.noc_router"
    assert router in small.read_text()
    small.write_text(small.read_text().replace(router, "kind: noc_router, impl: examples.slow_routers.SlowRouter"))
    text = """\
bench: matmul-composite
set: { cube.hbm.slicez: 3 }
grid:
  machine: [one-cube, ./small.yaml]
  cube.components.noc_router.attrs.factor: [2.0, 3.0]
  bench.m: [32]
"""
    found = problems(tmp_path, text)
    assert [each.split(": ")[0] for each in found] == [
        "2:25 set.cube.hbm.slicez",
        "5:44 grid.cube.components.noc_router.attrs.factor",
    ]
    assert "(machine" not in found[0]
    assert found[1].endswith("(machine one-cube)")


def test_the_table_of_points_without_results(folder: Path) -> None:
    """A failed point has the axis, and no digest."""
    planned = plan(folder)
    row: PointRow = {"status": "failed", "error": "no"}
    table = sweep_table(planned, {at: PointOutcome(at, row, 0.1) for at in range(planned.n_points)})
    assert {row["machine"] for row in table.rows} == {"one-cube", "./small.yaml"}
    assert "machine_digest" not in table.columns
