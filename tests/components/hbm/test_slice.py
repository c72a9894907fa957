"""Turns of requesters at a slice of HBM3 with 8 pseudo-channels, interleaved; time in ps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slice_support import MIB, QUANTUM, Asked, banked, ideal, refreshed
from slice_support import run as run_at

from covering import covering
from kernbench.components.hbm.banks import BankedMemory
from kernbench.core.clock import Clock
from kernbench.topology.hbm_refresh import NO_REFRESH

RCD, BURST = 19_400, 1400
MEMORIES = {"banks": banked, "refreshed": refreshed, "ideal": ideal}


def run(*asked: tuple[int, Asked]) -> Clock:
    """At a slice with banks."""
    return run_at(banked(), *asked)


def test_an_access_alone_is_one_promise():
    first, hit = Asked(0, 0, 32), Asked(0, 32, 32)
    run((5000, first), (900_000, hit))
    assert first.turns == [(0, 32, 5000 + RCD, 5000 + RCD + BURST)]
    assert hit.turns == [(0, 32, 900_000, 900_000 + BURST)]


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


class Leaving(Asked):
    """A read whose first ``left`` bytes have left when it is cut."""

    left = 100_000

    def bytes_left_port(self, now: int) -> int:
        return self.left


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
def test_what_has_left_is_not_served_again(memory):
    """Data leave at an even pace, quanta have their turns as banks allow: more may have left than had their turn.

    These bytes are on links. If they had another turn, they would come twice, and later than they left.
    """
    big, small = Leaving(0, 0, MIB), Asked(1, 16 * MIB, 64)
    run_at(memory(), (0, big), (100_000, small))
    assert [first for first, *_ in big.turns][:2] == [0, 100_352]  # the end of the quantum that the last of them is in
    assert big.served_bytes == MIB


def test_what_has_not_left_waits_for_others():
    """The other side of it: a stretch is cut as early as what has left allows."""
    big, small = Leaving(0, 0, MIB), Asked(1, 16 * MIB, 64)
    big.left = 0
    run((0, big), (100_000, small))
    assert 0 < big.turns[1][0] < Leaving.left


@pytest.mark.parametrize(("kind", "n", "nbytes"), covering(MEMORIES, (2, 4, 8), (64, 4096, MIB)))
def test_equal_requesters_share(kind, n, nbytes):
    """They end within a round of turns. An outage between two ends is nothing: the time of banks stands still in it."""
    memory, length = MEMORIES[kind](), max(MIB // 8, nbytes)
    asked = [[Asked(i, i * 16 * MIB + k * nbytes, nbytes) for k in range(length // nbytes)] for i in range(n)]
    # The queues take 8 KiB at once: nobody is to have them all to itself at the start.
    run_at(memory, *((0, request) for together in zip(*asked, strict=True) for request in together))
    clock = memory.clock if isinstance(memory, BankedMemory) else NO_REFRESH
    ends = [clock.into(max(request.last_ps for request in requests)) for requests in asked]
    assert max(ends) <= 1.05 * min(ends)


ACCESSES = st.tuples(
    st.integers(0, 3_000_000),
    st.integers(0, 3),
    st.integers(0, 64 * MIB // 64).map(lambda k: k * 64),
    st.integers(1, 200_000),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("memory", "peak_gbs", "queues"),
    [
        # Of 4 channels, each with 64 bursts of reads and as many of writes.
        (banked, 8 * 32 / 1.25, 2 * 4 * 64 * 32),
        (refreshed, 8 * 32 / 1.25, 2 * 4 * 64 * 32),
        (ideal, 204.8, 0),
    ],
    ids=MEMORIES,
)
@given(accesses=st.lists(ACCESSES, min_size=1, max_size=12))
def test_bytes_are_served_once_and_no_faster_than_the_peak(memory, peak_gbs, queues, accesses):
    accesses.sort(key=lambda access: access[0])
    asked = [(at, Asked(who, pa, nbytes, write, at)) for at, who, pa, nbytes, write in accesses]
    run_at(memory(), *asked)
    for _, request in asked:
        assert request.turns[0][0] == 0
        assert [end for _, end, _, _ in request.turns] == [
            *(first for first, _, _, _ in request.turns[1:]),
            request.access.nbytes,
        ]
    # A stretch that was cut left a quantum of its own to come a little later than it had been promised.
    turns = [turn for _, request in asked for turn in request.turns]
    for since in {start for *_, start, _ in turns}:
        within = sorted((last, end - first) for first, end, start, last in turns if start >= since)
        moved = 0
        for last, nbytes in within:
            moved += nbytes
            assert moved <= peak_gbs * (last - since) / 1000 + queues + QUANTUM * len(asked)


@pytest.mark.parametrize("memory", MEMORIES.values(), ids=MEMORIES)
@given(accesses=st.lists(ACCESSES, min_size=2, max_size=8))
def test_runs_are_repeatable(memory, accesses):
    accesses.sort(key=lambda access: access[0])
    twice = []
    for _ in range(2):
        asked = [(at, Asked(who, pa, nbytes, write, at)) for at, who, pa, nbytes, write in accesses]
        run_at(memory(), *asked)
        twice.append([request.turns for _, request in asked])
    assert twice[0] == twice[1]
