"""Turns of requesters at a slice of HBM3 with 8 pseudo-channels, interleaved; time in ps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.components.hbm.banked import BankedMemory, Stretch
from kernbench.components.hbm.slice import Request, Slice
from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_timing import HBM3, interleave

MIB = 1 << 20
RCD, BURST = 19_400, 1400
QUANTUM = 2048
PEAK = 8 * 32 / 1.25


class Asked(Request):
    """Remembers what it was promised: (from, to, first ps, last ps) of its bytes."""

    def __init__(self, requester: int, pa: int, nbytes: int, write: bool = False, since: int = 0) -> None:
        super().__init__(requester, Access(pa, nbytes), write, since)
        self.turns: list[tuple[int, int, int, int]] = []

    def begin(self, first: int, stretch: Stretch) -> None:
        self.turns.append((first, stretch.end, stretch.first_ps, stretch.last_ps))

    def cut(self, end: int) -> None:
        first, promised, start, last = self.turns.pop()
        self.turns.append((first, end, start, start + (last - start) * (end - first) // (promised - first)))

    @property
    def served_bytes(self) -> int:
        return sum(end - first for first, end, _, _ in self.turns)

    @property
    def last_ps(self) -> int:
        return max(last for *_, last in self.turns)


def memory() -> BankedMemory:
    return BankedMemory(HBM3, 8, interleave(8, xor=True), 64, QUANTUM)


def run(*asked: tuple[int, Asked]) -> Clock:
    """Each request at its time."""
    clock = Clock()
    slice_ = Slice(memory(), clock)
    for when, request in asked:
        clock.call_at(when, slice_.submit, request)
    clock.advance()
    return clock


def test_an_access_alone_is_one_promise():
    clock = Clock()
    slice_ = Slice(memory(), clock)
    assert slice_.access(5000, "pe0", 0, 32, False) == (5000 + RCD, 5000 + RCD + BURST)
    assert slice_.access(900_000, "pe0", 32, 32, False) == (900_000, 900_000 + BURST)


def test_an_access_alone_costs_no_event():
    request = Asked(0, 0, MIB)
    assert run((0, request)).n_events == 1  # the test's own
    assert len(request.turns) == 1


def test_accesses_of_a_requester_end_in_their_order():
    first, second = Asked(0, 0, MIB), Asked(0, MIB, MIB)
    run((0, first), (0, second))
    alone = Asked(0, 0, MIB)
    run((0, alone))
    assert first.turns == alone.turns
    assert first.last_ps < second.last_ps
    # The second one begins when the first has left the queues to it: its bytes follow at once.
    assert second.last_ps == pytest.approx(2 * first.last_ps, rel=0.02)


@pytest.mark.parametrize("when", [0, 1, 100_000, 2_345_678])
def test_a_small_access_waits_for_the_queues_and_a_quantum(when):
    """At most 32 bursts of each pseudo-channel are queued, the quantum has 8, and its row is opened after that."""
    big, small = Asked(0, 0, MIB), Asked(1, 16 * MIB + 64 * 37, 64)
    run((0, big), (when, small))
    longest = (32 + 8 + 2) * BURST + RCD + 16_300 + 50_390
    assert small.last_ps - when <= longest
    assert big.served_bytes == MIB


def test_what_was_promised_of_quanta_that_had_their_turn_stands():
    alone, big, small = Asked(0, 0, MIB), Asked(0, 0, MIB), Asked(1, 16 * MIB, 64)
    run((0, alone))
    run((0, big), (1_000_000, small))
    (_, cut_at, start, last), *rest = big.turns
    assert cut_at % QUANTUM == 0
    assert start == alone.turns[0][2]
    assert last == start + (alone.last_ps - start) * cut_at // MIB
    assert rest[0][0] == cut_at


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("nbytes", [64, 4096, MIB])
def test_equal_requesters_share(n, nbytes):
    each = max(MIB // 8, nbytes)
    asked = [[Asked(i, i * 16 * MIB + k * nbytes, nbytes) for k in range(each // nbytes)] for i in range(n)]
    # The queues take 8 KiB at once: nobody is to have them all to itself at the start.
    run(*((0, request) for together in zip(*asked, strict=True) for request in together))
    ends = [max(request.last_ps for request in requests) for requests in asked]
    assert max(ends) <= 1.05 * min(ends)


ACCESSES = st.tuples(
    st.integers(0, 3_000_000),
    st.integers(0, 3),
    st.integers(0, 64 * MIB // 64).map(lambda k: k * 64),
    st.integers(1, 200_000),
    st.booleans(),
)


@settings(deadline=None, max_examples=25)
@given(st.lists(ACCESSES, min_size=1, max_size=12))
def test_bytes_are_served_once_and_no_faster_than_the_peak(accesses):
    accesses.sort(key=lambda access: access[0])
    asked = [(at, Asked(who, pa, nbytes, write, at)) for at, who, pa, nbytes, write in accesses]
    run(*asked)
    for _, request in asked:
        assert request.turns[0][0] == 0
        assert [end for _, end, _, _ in request.turns] == [
            *(first for first, _, _, _ in request.turns[1:]),
            request.access.nbytes,
        ]
    # All bytes within a window: its peak, and what the queues of 4 channels take of writes and hold of reads.
    start = min(at for at, _ in asked)
    end = max(request.last_ps for _, request in asked)
    total = sum(request.access.nbytes for _, request in asked)
    assert total <= PEAK * (end - start) / 1000 + 2 * 4 * 64 * 32 + 64 * len(asked)


@settings(deadline=None, max_examples=10)
@given(st.lists(ACCESSES, min_size=2, max_size=8))
def test_runs_are_repeatable(accesses):
    accesses.sort(key=lambda access: access[0])
    twice = []
    for _ in range(2):
        asked = [(at, Asked(who, pa, nbytes, write, at)) for at, who, pa, nbytes, write in accesses]
        run(*asked)
        twice.append([request.turns for _, request in asked])
    assert twice[0] == twice[1]
