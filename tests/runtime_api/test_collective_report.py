"""The report of collectives by hand: bytes on links of a ring, times from the last rank's start, hidden times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernbench.engine.requests import Outcome, RequestHandle
from kernbench.messages.control import PeReport
from kernbench.messages.requests import KernelLaunchMsg, KernelRef
from kernbench.runtime_api.collective_report import CollectiveTallies
from kernbench.runtime_api.requests import Work

KERNEL = KernelRef(name="kernel", function=lambda: None)


def launch(sip: int, start_ps: int, end_ps: int, algorithm: str | None = None) -> RequestHandle:
    """Return a launch on two PEs of a SIP, whose kernels run from ``start_ps`` to ``end_ps`` together."""
    targets = (sip, 0, 0), (sip, 0, 1)
    message = KernelLaunchMsg(kernel=KERNEL, args=(), targets=targets, algorithm=algorithm)
    middle = (start_ps + end_ps) // 2
    times = (start_ps, middle + 1), (middle, end_ps)
    reports = tuple(
        PeReport(pe=pe, start_ps=begin, end_ps=end) for pe, (begin, end) in zip(targets, times, strict=True)
    )
    return RequestHandle(message, start_ps, start_ps, end_ps, Outcome(reports=reports))


def note(tallies: CollectiveTallies, name: str, nbytes: int, *handles: RequestHandle) -> None:
    """Note a call, of which each rank has a part."""
    for rank, handle in enumerate(handles):
        work = cast("Work", SimpleNamespace(handles=(handle,)))
        tallies.note(name, nbytes, len(handles), None, rank, work)


@pytest.mark.parametrize(
    ("name", "on_a_link"),
    [
        ("all_reduce", 2 * 3 / 4),
        *((name, 3 / 4) for name in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")),
        *((name, 1) for name in ("broadcast", "reduce", "send_recv")),
    ],
)
def test_a_link_of_a_ring_passes_a_share_of_the_bytes(name: str, on_a_link: float) -> None:
    tallies = CollectiveTallies()
    for begin_ps in (0, 5000):
        note(tallies, name, 800, *(launch(sip, begin_ps, begin_ps + 2000, "ring") for sip in range(4)))
    (use,) = tallies.uses([], 0)
    assert (use.name, use.algorithm, use.calls, use.nbytes, use.ns) == (name, "ring", 2, 1600, 4.0)
    assert use.bus_gbs == pytest.approx(1600 * on_a_link / 4.0)


def test_the_time_counts_from_the_start_of_the_last_rank() -> None:
    """The last of two ranks starts at 400 ps. Kernels of rank 0 hide 200 of its 600 ps, those of rank 1 all 500."""
    tallies = CollectiveTallies()
    note(tallies, "all_gather", 64, launch(0, 100, 1000, "ring"), launch(1, 400, 900, "ring"))
    kernels = [launch(0, 0, 500), launch(0, 450, 500), launch(0, 900, 2000), launch(1, 0, 3000)]
    (use,) = tallies.uses(kernels, 0)
    assert (use.ns, use.hidden) == (0.6, 700 / 1100)
    assert use.bus_gbs == pytest.approx(32 / 0.6)
    assert tallies.exposed_ps(kernels, 0) == 400
    assert tallies.uses(kernels, 200) == ()


def test_a_send_that_ends_before_its_receive_begins_has_no_negative_time() -> None:
    tallies: Any = CollectiveTallies()
    note(tallies, "send_recv", 64, launch(0, 0, 100, "exchange"), launch(1, 300, 500, "exchange"))
    (use,) = tallies.uses([launch(1, 400, 450)], 0)
    assert (use.ns, use.hidden) == (0.2, 0.25)
    assert tallies.exposed_ps([], 0) == 200
