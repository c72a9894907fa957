"""Accesses in turn: a quantum each while several wait, a single step when alone."""

from __future__ import annotations

from kernbench.components.memory_server import Job, MemoryServer, pace_of
from kernbench.core.clock import Clock
from kernbench.transport import Pace


class Probe(Job):
    """Remembers what it was promised; ``stretches`` are (first, count, start)."""

    __slots__ = ("stretches",)

    def __init__(self, packets: int, pace: Pace) -> None:
        super().__init__(packets, pace)
        self.stretches: list[tuple[int, int, int]] = []

    def begin(self, first: int, count: int, start: int) -> None:
        self.stretches.append((first, count, start))

    def cut(self, count: int) -> None:
        first, _, start = self.stretches.pop()
        self.stretches.append((first, count - first, start))

    @property
    def end(self) -> int:
        first, count, start = self.stretches[-1]
        return start + self.span(first, count)


def serve(quantum: int, *arrivals: tuple[int, int, int]) -> tuple[list[Probe], MemoryServer, Clock]:
    """Jobs given as (arrival, packets, ps per packet), all served."""
    clock = Clock()
    server = MemoryServer(clock, quantum)
    jobs = [Probe(packets, Pace(each, each)) for _, packets, each in arrivals]
    for (when, _, _), job in zip(arrivals, jobs, strict=True):
        clock.call_at(when, server.submit, job)
    clock.advance()
    return jobs, server, clock


def test_alone_is_one_step_and_one_event() -> None:
    (job,), server, clock = serve(2, (0, 100, 10))
    assert job.stretches == [(0, 100, 0)]
    assert clock.n_events == 1  # the arrival itself
    assert server.busy_ps == 1000


def test_two_at_once_take_turns() -> None:
    (a, b), server, _ = serve(2, (0, 4, 10), (0, 4, 10))
    assert a.stretches == [(0, 2, 0), (2, 2, 40)]
    assert b.stretches == [(0, 2, 20), (2, 2, 60)]
    assert server.busy_ps == 80


def test_a_small_access_waits_for_the_quantum_under_way_only() -> None:
    (large, small), _, _ = serve(2, (0, 1000, 10), (105, 1, 10))
    assert small.stretches == [(0, 1, 120)]
    assert large.stretches == [(0, 12, 0), (12, 988, 130)]
    assert large.end == 10_010


def test_an_arrival_in_the_last_quantum_cuts_nothing() -> None:
    (a, b), _, _ = serve(2, (0, 3, 10), (25, 1, 10))
    assert a.stretches == [(0, 3, 0)]
    assert b.stretches == [(0, 1, 30)]


def test_work_is_conserved_and_nobody_is_starved() -> None:
    jobs, server, _ = serve(2, *[(i * 7, 10 + i, 10) for i in range(6)])
    work = sum(10 * (10 + i) for i in range(6))
    assert server.busy_ps == work
    assert max(job.end for job in jobs) == work  # the server never idles: the first comes at 0
    for job in jobs:
        assert sum(count for _, count, _ in job.stretches) == job.packets


def test_pace_spreads_all_of_the_time() -> None:
    for nbytes in (1, 1024, 1025, 5000, 1 << 20):
        pace = pace_of(nbytes, 1024, 12_345)
        assert (nbytes - 1) // 1024 * pace.packet_ps + pace.last_ps == 12_345
