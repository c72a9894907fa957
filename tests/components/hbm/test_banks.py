"""A slice of HBM3: histories that are found again, sweeps that are repeated, and what must not change either."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from slice_support import counters_of

from covering import covering
from kernbench.components.hbm import banks as banks_module
from kernbench.components.hbm.banks import BankedMemory, Grant, Histories
from kernbench.components.hbm.channel import FAR
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import HBM2, HBM3, MAPPINGS, AddressMapping, HbmTiming, Refresh, interleave

QUANTUM = 2048
RCD = 19_400
LATER = 1_000_000
ALL = {
    **MAPPINGS,
    "interleave": interleave(8, xor=True),
    "hash": interleave(8, xor=True, fold_row=True),
}
each_mapping = pytest.mark.parametrize("mapping", ALL.values(), ids=ALL)


class Kind:
    """Slices of one kind, with histories in common or of their own."""

    def __init__(
        self, mapping: AddressMapping, pcs: int = 8, refresh: Refresh = "all-bank", timing: HbmTiming = HBM3
    ) -> None:
        self.given = timing, pcs, mapping, 64, refresh
        self.histories = Histories(*self.given)

    def make(self, *, shared: bool, base: int = 0) -> BankedMemory:
        return BankedMemory(self.histories if shared else Histories(*self.given), QUANTUM, base)


def serve(made: BankedMemory, access: Access, write: bool, at: int, until: int = FAR) -> Grant:
    return made.serve(access, write, 0, access.nbytes, at, until)


def seen(made: BankedMemory) -> tuple[object, ...]:
    """What was done, and what is to be; the ends in ``counters`` are times of histories, which begin at any time.

    So does the end of all bytes where none was on a bus.
    """
    done = counters_of(made).done
    return done, made.pending_bursts, made.end_ps if done[0] else 0


# -- an access --


@pytest.mark.parametrize("pcs", [1, 2, 3, 8])
def test_the_pcs_of_a_channel_open_rows_one_after_another(pcs):
    timing = HBM3.model_copy(update={"pcs_per_channel": pcs})
    memory = BankedMemory(Histories(timing, 8, interleave(8, xor=True), 64, "none"), QUANTUM)
    # All PCs at once: a row of each, of which eight bursts are read in one group.
    last = serve(memory, Access(0, 2048), False, 0).last_ps
    assert last == pytest.approx((pcs - 1) * 1250 + RCD + 7 * 2500 + 1250, abs=1250)


def test_addresses_count_from_the_base_of_the_slice():
    kind = Kind(ALL["hash"])
    here, there = kind.make(shared=False), kind.make(shared=False, base=6 << 30)
    for pa in (0, 4096, 1 << 20):
        access, moved = Access(pa, 512), Access(pa + (6 << 30), 512)
        assert serve(here, access, False, 0) == serve(there, moved, False, 0)


def test_nothing_begins_after_until_but_what_has_left():
    memory = Kind(ALL["interleave"]).make(shared=False)
    access = Access(0, 1 << 20)
    saved = memory.at
    whole = serve(memory, access, False, 0)
    memory.at = saved
    cut = serve(memory, access, False, 0, whole.over_ps // 2)
    assert 0 < cut.end < whole.end
    assert cut.end % QUANTUM == 0
    assert cut.over_ps > whole.over_ps // 2
    memory.at = saved
    assert memory.serve(access, False, 0, access.nbytes, 0, 0, 100_000).end == 100_352  # the end of its quantum


# -- what an access in pieces comes to --

ACCESSES = st.tuples(
    st.sampled_from([(32, 1), (64, 1), (1024, 1), (128, 64), (2048, 1), (16_384, 1), (65_536, 1)]),
    st.integers(0, 1 << 9),
    st.sampled_from([0, 32, 256]),
    st.sampled_from([0, 0, 100, 5_000, 200_000, 3_900_000, 10**8]),
    st.booleans(),
)


def access_of(drawn: tuple[tuple[int, int], int, int, int, bool]) -> tuple[Access, int, bool]:
    (nbytes, rows), place, offset, pause, write = drawn
    return Access(2048 * place + offset, nbytes, rows, 1024), pause, write


@each_mapping
@given(st.lists(ACCESSES, min_size=1, max_size=15), st.sampled_from(["spread", "none"]))
def test_pieces_are_as_the_whole(mapping, accesses, refresh):
    """An access whose quanta are asked for one by one, each when the one before has entered.

    Without outages: a channel that idles in one keeps its rows in the middle of a grant, but not between two.
    """
    kind = Kind(mapping, 4, refresh)
    whole, pieces, now = kind.make(shared=False), kind.make(shared=False), 0
    for access, pause, write in map(access_of, accesses):
        now += pause
        found = serve(whole, access, write, now)
        over, ends = now, []
        for begin in range(0, access.nbytes, QUANTUM):
            end = min(begin + QUANTUM, access.nbytes)
            grant = pieces.serve(access, write, begin, end, over)
            over = grant.over_ps
            ends.append(grant.last_ps)
        assert (found.over_ps, found.last_ps) == (over, max(ends))
        assert seen(whole) == seen(pieces)
        now = over


@each_mapping
@given(st.lists(ACCESSES, min_size=1, max_size=20))
def test_grants_make_sense(mapping, accesses):
    made, now, bursts = Kind(mapping, 4).make(shared=False), 0, 0
    for access, pause, write in map(access_of, accesses):
        now += pause
        before = counters_of(made)
        grant = serve(made, access, write, now)
        assert now <= grant.first_ps <= grant.last_ps
        assert now <= grant.over_ps
        assert grant.end == access.nbytes
        done = counters_of(made)
        assert all(new >= old for old, new in zip(before.done, done.done, strict=True))
        assert made.end_ps >= 0
        if not write:
            assert done.done[0] > before.done[0]
        now = grant.over_ps
    # Everything is served once all is idle.
    bursts = sum(_bursts(access) for access, _, _ in map(access_of, accesses))
    for pa in range(0, 8192, 256):
        serve(made, Access(pa, 32), False, now + 10**9)
    assert made.pending_bursts == 0
    assert counters_of(made).done[0] == bursts + 32


def _bursts(access: Access) -> int:
    """Bursts of an access: those that rows share inside a quantum count once."""
    found = 0
    for begin in range(0, access.nbytes, QUANTUM):
        touched = set()
        for at in range(begin, min(begin + QUANTUM, access.nbytes), 32):
            row, column = divmod(at, access.row_bytes)
            start = access.pa + row * access.stride + column
            touched |= {start // 32, (start + min(32, access.row_bytes - column) - 1) // 32}
        found += len(touched)
    return found


# -- histories in common --

OPERATIONS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["serve", "cut", "look"]), ACCESSES), min_size=5, max_size=40
)


@each_mapping
@pytest.mark.parametrize("most", [1 << 14, 6, 1], ids=["kept", "few kept", "none kept"])
@given(OPERATIONS)
@example(
    [
        *[(0, "serve", ((32, 1), 0, 0, 0, False))] * 3,
        (1, "serve", ((1024, 1), 1, 256, 200_000, True)),
        (0, "serve", ((128, 64), 0, 0, 0, False)),
        (1, "serve", ((1024, 1), 0, 256, 100, True)),
        (1, "look", ((32, 1), 0, 0, 0, False)),
    ]
)
def test_histories_in_common_are_as_ones_own(mapping, most, operations):
    """Three slices whose histories are one tree, and three each with its own: in any order, with cuts."""
    kind = Kind(mapping, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(banks_module, "MOST_STEPS", most)
        together = [kind.make(shared=True) for _ in range(3)]
        alone = [kind.make(shared=False) for _ in range(3)]
        now = [0, 0, 0]
        for number, what, drawn in operations:
            access, pause, write = access_of(drawn)
            # Few different accesses, so that slices do the same.
            access = Access(access.pa % 8192, access.row_bytes, access.rows, access.stride if access.rows > 1 else 0)
            now[number] += pause
            if what == "look":
                assert seen(together[number]) == seen(alone[number])
                continue
            found = [_do(each[number], what, access, write, now[number]) for each in (together, alone)]
            assert found[0] == found[1]
            now[number] = found[0].over_ps
        assert [seen(each) for each in together] == [seen(each) for each in alone]


def _do(made: BankedMemory, what: str, access: Access, write: bool, now: int) -> Grant:
    if what == "serve":
        return serve(made, access, write, now)
    saved = made.at
    whole = serve(made, access, write, now)
    made.at = saved
    return serve(made, access, write, now, (now + whole.over_ps) // 2)


@given(OPERATIONS)
def test_who_looks_changes_nothing(operations):
    kind = Kind(ALL["interleave"], 4)
    looked_at, left_alone, now = kind.make(shared=True), kind.make(shared=True), 0
    looked_at.observed = True
    for _, what, drawn in operations:
        access, pause, write = access_of(drawn)
        now += pause
        first = _do(looked_at, what, access, write, now)
        seen(looked_at)
        if looked_at.took is not None:
            looked_at.took.split(now, max(first.last_ps, now))
        assert first == _do(left_alone, what, access, write, now)
        now = first.over_ps
    assert left_alone.took is None
    assert seen(looked_at) == seen(left_alone)


def test_what_was_saved_is_as_it_was():
    made = Kind(ALL["MOP4CLXOR"]).make(shared=False)
    serve(made, Access(0, 100_000), False, 0)
    serve(made, Access(1 << 20, 5000), True, 0)
    saved, before = made.at, seen(made)
    answers = []
    for _ in range(3):
        answers.append(
            (serve(made, Access(64, 300_000), False, LATER), serve(made, Access(0, 4096), True, 2 * LATER), seen(made))
        )
        made.at = saved
        assert seen(made) == before
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("refresh", ["spread", "none"])
@given(st.lists(ACCESSES, min_size=1, max_size=10), st.lists(ACCESSES, min_size=1, max_size=5), st.integers(1, 10**9))
def test_idle_time_is_forgotten(refresh, accesses, more, longer):
    """Once all is settled, what comes is served as if it had come at any later time. Histories are of each its own."""
    kind = Kind(ALL["interleave"], 4, refresh)
    short, long = kind.make(shared=False), kind.make(shared=False)
    now = 0
    for access, pause, write in map(access_of, accesses):
        now += pause
        grant = serve(short, access, write, now)
        assert serve(long, access, write, now) == grant
        now = grant.over_ps
    settled = max(now, short.at.history.settled_ps + short.at.began)
    at = settled
    for access, pause, write in map(access_of, more):
        at += pause
        one, other = serve(short, access, write, at), serve(long, access, write, at + longer)
        moved = [ps + longer for ps in (one.over_ps, one.first_ps, one.last_ps)]
        assert moved == [other.over_ps, other.first_ps, other.last_ps]
        assert counters_of(short).done == counters_of(long).done
        at = one.over_ps


# -- sweeps that repeat --


class GoesThrough(BankedMemory):
    """Never repeats a sweep."""

    def _first_mark(self, access: Access, begin: int, end: int) -> int:
        return FAR


def both(
    mapping: AddressMapping, refresh: Refresh = "all-bank", pcs: int = 2, timing: HbmTiming = HBM3
) -> tuple[BankedMemory, BankedMemory]:
    """One that repeats, and one that does not."""
    repeats, through = (
        kind(Histories(timing, pcs, mapping, 64, refresh), QUANTUM) for kind in (BankedMemory, GoesThrough)
    )
    return repeats, through


AFTER = (
    (Access(0, 64), False, 0),
    (Access(40_960, 20_000), True, 0),
    (Access(8192, 128, 40, 1024), False, 700),
    (Access(70_000, 3000), False, 50_000),
    (Access(1 << 19, 40_000), True, 0),
    (Access(0, 4096), False, LATER),
)


SLICES: dict[str, tuple[Refresh, int, HbmTiming]] = {
    "hbm3": ("all-bank", 2, HBM3),
    "hbm2": ("spread", 2, HBM2),
    "hbm3 of 8": ("none", 8, HBM3),
}


@pytest.mark.parametrize(
    ("kind", "pa", "write"),
    covering(product(ALL, SLICES), [0, 2048, 4096 + 32, 3 * 65_536 + 5 * 2048 + 7], [False, True]),
    ids=str,
)
def test_repeated_sweeps_are_exact(kind, pa, write):
    repeats, through = both(ALL[kind[0]], *SLICES[kind[1]])
    pcs, timing = SLICES[kind[1]][1:]
    sweep = pcs * timing.banks_per_pc * timing.row_bytes
    access, now = Access(pa, 12 * sweep + 5000), 0
    for first in (Access(1 << 18, 3000), access):
        found = serve(repeats, first, write, now)
        assert found == serve(through, first, write, now)
        now = found.over_ps
    assert seen(repeats) == seen(through)
    for other, writes, pause in AFTER:
        now += pause
        found = serve(repeats, other, writes, now)
        assert found == serve(through, other, writes, now)
        now = found.over_ps
        assert seen(repeats) == seen(through)


@each_mapping
@given(
    st.integers(0, 200_000),
    st.integers(3, 9),
    st.integers(0, 70_000),
    st.booleans(),
    st.lists(ACCESSES, min_size=1, max_size=6),
    st.lists(ACCESSES, min_size=1, max_size=6),
)
def test_repeated_sweeps_are_exact_whatever_was_before(mapping, pa, sweeps, rest, write, before, after):
    repeats, through = both(mapping)
    long = (Access(pa, sweeps * 65_536 + rest), 0, write)
    now = 0
    for access, pause, writes in (*map(access_of, before), long, *map(access_of, after)):
        now += pause
        found = serve(repeats, access, writes, now)
        assert found == serve(through, access, writes, now)
        assert seen(repeats) == seen(through)
        now = found.over_ps


@pytest.mark.parametrize(("mapping", "place"), covering(ALL, product([0.2, 0.5, 0.9], [2, 8])), ids=str)
def test_a_cut_in_repeated_sweeps_is_exact(mapping, place):
    part, pcs = place
    found = []
    for made in both(ALL[mapping], pcs=pcs):
        access, saved = Access(0, 20 * made.quantum * 32 * pcs // 2), made.at
        whole = serve(made, access, False, 0)
        made.at = saved
        cut = serve(made, access, False, 0, int(whole.over_ps * part))
        found.append((whole, cut, seen(made), serve(made, Access(64, 4096), True, cut.over_ps), seen(made)))
    assert found[0] == found[1]


@each_mapping
@pytest.mark.parametrize(("pa", "sweeps"), [(1, 4), (129, 5), (2049, 6)])
def test_sweeps_that_leave_nothing_over_are_exact(mapping, pa, sweeps):
    """They begin and end within a burst, and nothing is left to go through."""
    found = []
    for made in both(mapping):
        grant = serve(made, Access(pa, sweeps * 65_536), False, 0)
        found.append((grant, seen(made)))
    assert found[0] == found[1]
