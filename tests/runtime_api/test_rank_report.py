"""The report of ranks: bubbles of launches that passed, and rows of uneven exchanges by hand."""

from __future__ import annotations

import pytest
from machines import run_ranks

from compiled import SPREAD
from engine_support import two_cubes
from kernbench.common.data_policy import DataPolicy
from kernbench.engine.engine import GraphEngine
from kernbench.observe.works import Works
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.rank_report import ExchangeUse, PipelineKey, PipelineUse, RankNotes, RanksReport
from kernbench.runtime_api.run_request import ReuseRules
from kernbench.triton_emu.tl_context import TLContext as Tl

N = 12
STEPS = PipelineKey("steps", (0, 1), 1)


def double(x, n, *, tl: Tl):
    """Double ``n`` elements of each PE's shard."""
    at = x + tl.program_id(0) * n * 4
    block = tl.load(at, (n,), "f32")
    tl.store(at, block + block)


def report_of(engine: GraphEngine, notes: RankNotes) -> RanksReport:
    log = engine.machine.log
    return notes.report(engine, Works(log, log.columns(), engine.machine.passed))


def measure(rules: ReuseRules | None) -> tuple[PipelineUse, int]:
    """Return the use of a step in which rank 1 launches half as often as rank 0, and how many launches passed."""
    engine = GraphEngine(two_cubes(SPREAD, "system.sips.count=2"), DataPolicy(keep=False))
    with RuntimeContext(engine, reuse=rules) as torch:

        def program(rank: int) -> None:
            x = torch.empty(1 << 15, dp=DPPolicy("replicate", "row_wise", num_pes=2))
            first = len(engine.handles)
            for _ in range(N // (1 + rank)):
                torch.launch("double", double, x, 1 << 14)
            torch.rank_notes.note_step(STEPS, rank, range(first, len(engine.handles)))

        run_ranks(torch, program)
        (use,) = report_of(engine, torch.rank_notes).pipelines
    return use, len(engine.machine.passed.launches)


def test_kernels_of_launches_that_passed_are_no_bubbles():
    (simulated, none), (reused, passed) = measure(None), measure(ReuseRules())
    assert (none, passed > N // 2) == (0, True)
    assert reused.ns == pytest.approx(simulated.ns, rel=0.02)
    assert simulated.bubble_ns[0] < simulated.bubble_ns[1] < simulated.ns
    assert reused.bubble_ns == pytest.approx(simulated.bubble_ns, rel=0.05)


def test_a_step_begins_with_its_first_operator_and_not_with_a_receive_before():
    engine = GraphEngine(two_cubes(SPREAD, "system.sips.count=2"), DataPolicy(keep=False))
    with RuntimeContext(engine) as torch:

        def program(rank: int) -> None:
            x = torch.empty(1 << 15, dp=DPPolicy("replicate", "row_wise", num_pes=2))
            first = len(engine.handles)
            if rank == 0:
                torch.launch("double", double, x, 1 << 14)
                first = len(engine.handles)
                torch.launch("double", double, x, 1 << 14)
                torch.distributed.isend(x, 1).wait()
            else:
                torch.distributed.irecv(x, 0).wait()
                torch.launch("double", double, x, 1 << 14)
            torch.rank_notes.note_step(STEPS, rank, range(first, len(engine.handles)))

        run_ranks(torch, program)
        (use,) = report_of(engine, torch.rank_notes).pipelines
    doubles = [handle for handle in engine.handles if handle.msg.name == "double"]
    messages = [handle for handle in engine.handles if handle.msg.title.startswith("send_recv")]
    begin = sorted(handle.begun_ps for handle in doubles)[1]
    assert min(handle.begun_ps for handle in messages) < begin
    assert use.ns == (max(handle.ended_ps for handle in doubles) - begin) / 1000


def test_an_exchange_reports_its_rows_and_its_worst_call():
    engine, notes = GraphEngine(two_cubes(SPREAD), DataPolicy(keep=False)), RankNotes()
    calls = [((2, 6), (4, 4)), ((3, 3), (1, 5))]
    for sent, received in calls:
        for rank in (0, 1):
            notes.note_exchange("all_to_all", rank, (0, 1), sent[rank], received[rank], 8 * received[rank])
    report = report_of(engine, notes)
    assert report.exchanges == (
        ExchangeUse(name="all_to_all", calls=2, sent=(5, 9), received=(5, 9), received_bytes=(40, 72), imbalance=5 / 3),
    )
    assert report.imbalance == 5 / 3
