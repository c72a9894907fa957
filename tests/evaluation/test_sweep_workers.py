"""Worker processes: the same table from any number of them, of any kind, and after a kill."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from kernbench.common.errors import RunError
from kernbench.evaluation.sweep_driver import (
    ChunkWorkers,
    InlineWorker,
    LocalWorkers,
    SweepProgress,
    run_sweep,
    worker_pool,
)
from kernbench.evaluation.sweep_journal import JOURNAL_FILE, begin_journal
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.evaluation.sweep_plan import SweepPlan
from kernbench.evaluation.sweep_processes import begin_server
from kernbench.evaluation.sweep_results import TABLE_FILE, write_results

GRID = """\
bench: gemm-single-pe
topology: default
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1, bench.k: 32, bench.n: 32 }
grid:
  cube.hbm.slices: [8, 7, 4]
  bench.m: [32, 64, 96, 128]
plots: []
"""
MAIN = "import sys; from kernbench.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def plan(tmp_path: Path) -> SweepPlan:
    (tmp_path / "grid.yaml").write_text(GRID)
    return plan_sweep(tmp_path / "grid.yaml")


def ignore(_: SweepProgress) -> None:
    """Nobody looks."""


def table_of(plan: SweepPlan, folder: Path, workers: ChunkWorkers) -> bytes:
    folder.mkdir()
    with begin_journal(folder / JOURNAL_FILE, plan.identity(), plan.n_points) as journal:
        run_sweep(plan, journal, workers, ignore)
        write_results(folder, plan, journal)
    return (folder / TABLE_FILE).read_bytes()


def test_processes_make_the_same_table(plan: SweepPlan, tmp_path: Path) -> None:
    inline = table_of(plan, tmp_path / "inline", InlineWorker())
    with LocalWorkers(2) as workers:
        assert table_of(plan, tmp_path / "local", workers) == inline


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs the extra 'cluster'")
def test_a_cluster_makes_the_same_table(plan: SweepPlan, tmp_path: Path) -> None:
    from kernbench.evaluation.sweep_dask import DaskWorkers  # noqa: PLC0415 - it may not be installed

    inline = table_of(plan, tmp_path / "inline", InlineWorker())
    with DaskWorkers(None, 2) as workers:
        assert table_of(plan, tmp_path / "cluster", workers) == inline


def _sleep_long() -> None:
    time.sleep(600)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_pool_after_an_error_is_not_waited_for() -> None:
    def interrupted() -> None:
        with worker_pool(1) as pool:
            future = pool.submit(_sleep_long)
            while not future.running():
                time.sleep(0.005)
            raise KeyboardInterrupt

    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    for process in set(multiprocessing.active_children()) - before:
        process.join()


def test_a_process_of_a_pool_that_dies() -> None:
    with pytest.raises(RunError, match="a worker process died"), worker_pool(1) as pool:
        pool.submit(_die).result()


DYING = """\
import os
import signal
import sys
from kernbench.common.config import ConfigModel
from kernbench.runtime_api.bench_registry import bench


class Params(ConfigModel):
    how: str = "well"


@bench("dying", "ends its process", params=Params)
def run(torch):
    how = torch.params.how
    torch.zeros(4, 32, dtype="f16")
    if how == "leaves":
        sys.exit(0)
    if how == "kills":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "ends":
        os._exit(0)
"""
DYING_GRID = """\
bench: dying.py
topology: default
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1 }
grid: { bench.how: [well, leaves, ends, kills, good] }
plots: []
"""


def test_a_program_that_ends_its_process_ends_its_point(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    (tmp_path / "dying.yaml").write_text(DYING_GRID)
    plan = plan_sweep(tmp_path / "dying.yaml")
    with (
        LocalWorkers(2) as workers,
        begin_journal(tmp_path / JOURNAL_FILE, plan.identity(), plan.n_points) as journal,
    ):
        run_sweep(plan, journal, workers, ignore)
    rows = [journal.finished[at].row for at in range(5)]
    assert [row["status"] for row in rows] == ["ok", "failed", "lost", "lost", "ok"]
    assert "exit" in str(rows[1]["error"]).lower()
    assert "the worker died" in str(rows[2]["error"])


def test_the_server_of_workers_leaves_ctrl_c_to_us(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: seen.append(signal.getsignal(signal.SIGINT)))
    begin_server()
    assert seen == [signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_killed_and_resumed(plan: SweepPlan, tmp_path: Path) -> None:
    journal = tmp_path / "out" / JOURNAL_FILE
    command = [sys.executable, "-c", MAIN, "sweep", "grid.yaml", "--jobs", "1", "--out", "out"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert process.poll() is None, "it ended by itself"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = journal.read_bytes()[: journal.read_bytes().rfind(b"\n") + 1]
    resumed = subprocess.run([*command, "--resume"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert resumed.returncode == 1  # four of the machines are not possible
    assert journal.read_bytes().startswith(finished)
    assert journal.read_bytes().count(b"\n") == 13
    assert (tmp_path / "out" / TABLE_FILE).read_bytes() == table_of(plan, tmp_path / "inline", InlineWorker())
