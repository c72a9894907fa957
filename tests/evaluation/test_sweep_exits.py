"""Benches of a sweep that are left by ``sys.exit``: their point has failed, the others go on."""

from __future__ import annotations

from pathlib import Path

from kernbench.evaluation.sweep_driver import InlineWorker, run_sweep
from kernbench.evaluation.sweep_journal import begin_journal
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.runtime_api.run_request import RunRequest

BENCH = """\
import sys
from kernbench.common.config import ConfigModel
from kernbench.runtime_api.bench_registry import bench


class Params(ConfigModel):
    n: int = 1


def kernel(x, *, tl):
    sys.exit("enough")


@bench("leaves-at-times", "It does.", params=Params)
def run(torch):
    x = torch.zeros(4)
    if torch.params.n == 2:
        sys.exit(0)
    if torch.params.n == 3:
        torch.multiprocessing.spawn(lambda rank: sys.exit(), nprocs=1)
    if torch.params.n == 4:
        torch.launch("leaves", kernel, x)
    if torch.params.n == 6:
        raise BaseException("as pytest.fail() does")
"""
GRID = """\
bench: leaves.py
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1 }
grid:
  bench.n: [1, 2, 3, 4, 6, 5]
"""


def test_leaving_fails_its_point(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(BENCH)
    (tmp_path / "grid.yaml").write_text(GRID.replace("leaves.py", str(tmp_path / "leaves.py")))
    plan = plan_sweep(tmp_path / "grid.yaml", RunRequest.of(topology="default"))
    with begin_journal(tmp_path / "journal", plan.identity(), plan.n_points) as journal:
        run_sweep(plan, journal, InlineWorker(), lambda _: None)
        rows = [outcome.row for _, outcome in sorted(journal.finished.items())]
    assert [row["status"] for row in rows] == ["ok", "failed", "failed", "failed", "failed", "ok"]
    assert rows[1]["error"] == "ProgramExitError: left by sys.exit(0)"
    assert "rank 0 failed: SystemExit: left by sys.exit()" in str(rows[2]["error"])
    assert rows[3]["error"] == "ProgramExitError: left by sys.exit: enough"
    assert rows[4]["error"] == "RunError: left by BaseException: as pytest.fail() does"
