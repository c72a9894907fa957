"""The clock: order within an instant, where a run stops, what it counts, and SimPy's own events beside ours."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice
from math import inf
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simpy import Interrupt
from simpy.core import EmptySchedule

from kernbench.common.errors import KernbenchError
from kernbench.core.clock import NEVER, RANK_ARBITRATE, RANK_ARRIVE, RANK_DELIVER, RANK_PROGRAM, Clock

RANKS = (RANK_ARRIVE, RANK_ARBITRATE, RANK_DELIVER)


def record(clock: Clock, log: list[object], when: int, rank: int, name: object) -> None:
    clock.call_at(when, log.append, name, rank)


@given(st.permutations([(when, rank + index) for when in (0, 7) for rank in RANKS for index in (0, 1, 9)]))
def test_events_of_an_instant_come_by_rank_whatever_order_they_were_pushed_in(keys) -> None:
    clock, log = Clock(), []
    for key in keys:
        record(clock, log, *key, key)
    clock.advance()
    assert log == sorted(keys)


def test_programs_come_last_and_in_the_order_they_asked() -> None:
    clock, log = Clock(), []
    for name in "ba":
        clock.call_at(5, log.append, name)
    record(clock, log, 5, RANK_DELIVER + 3, "deliver")
    clock.advance()
    assert log == ["deliver", "b", "a"]


def test_a_run_includes_its_last_instant_and_ends_there() -> None:
    clock, log = Clock(), []
    for when in (9, 10, 11):
        clock.call_at(when, log.append, when)
    clock.advance(10)
    assert (log, clock.time, clock.now) == ([9, 10], 10, 10)
    clock.advance(10)
    clock.advance(4)
    assert (log, clock.time) == ([9, 10], 10)
    assert clock.next_time() == 11
    clock.advance()
    assert (clock.time, clock.next_time(), clock.n_events) == (11, NEVER, 3)


def test_a_run_stops_after_the_event_that_asks_for_it() -> None:
    clock, log = Clock(), []

    def note(when: int) -> None:
        log.append(when)
        if when == 2:
            clock.halt()

    for when in (1, 2, 3):
        clock.call_at(when, note, when)
    clock.advance()
    assert (log, clock.time) == ([1, 2], 2)
    clock.advance()
    assert log == [1, 2, 3]


def test_a_run_can_be_taken_in_portions() -> None:
    clock, log = Clock(), []
    for when in (1, 2, 3):
        clock.call_at(when, log.append, when)
    clock.call_at(2, log.append, 2)
    clock.advance(enough=2)
    assert (log, clock.time, clock.next_time()) == ([1, 2], 2, 2)
    clock.step()
    assert (log, clock.time) == ([1, 2, 2], 2)
    clock.advance(enough=2)
    assert (log, clock.time, clock.next_time()) == ([1, 2, 2, 3], 3, NEVER)


def test_a_run_whose_last_event_is_enough_ends_at_its_time() -> None:
    clock = Clock()
    clock.call_at(2, lambda _: None)
    clock.call_at(90, lambda _: None)
    clock.advance(50, enough=1)
    assert clock.time == 50
    clock.advance(enough=1)
    assert (clock.time, clock.next_time()) == (90, NEVER)


@pytest.mark.parametrize("ahead", [0, 1, 100, 3000])
def test_enough_is_enough_however_much_is_asked_for_meanwhile(ahead) -> None:
    clock = Clock()

    def again(_: object) -> None:
        clock.call_at(clock.time + ahead, again)

    for _ in range(3):
        clock.call_at(1, again)
    for n_events in (10, 20):
        clock.advance(enough=10)
        assert clock.n_events == n_events


def test_what_has_fired_is_forgotten() -> None:
    class Argument:
        pass

    clock, argument = Clock(), Argument()
    gone = ref(argument)
    clock.call_at(1, lambda _: None, argument)
    del argument
    clock.advance()
    assert gone() is None
    assert clock.n_events == 1


def test_a_reserved_place_is_kept_in_the_order_of_its_instant() -> None:
    clock, log = Clock(), []
    clock.call_at(5, log.append, "before")
    place = clock.reserve(5)
    clock.call_at(5, log.append, "behind")
    clock.call_at(3, lambda _: clock.at_place(5, place, log.append, "in between"))
    clock.advance()
    assert log == ["before", "in between", "behind"]


def test_what_is_no_event_has_come_once_its_place_is_passed() -> None:
    clock, seen = Clock(), []

    def look(name: str) -> None:
        seen.append((name, clock.has_come(5, place)))

    clock.call_at(5, look, "before")
    place = clock.reserve(5)
    for when, name in ((4, "earlier"), (5, "behind"), (6, "later")):
        clock.call_at(when, look, name)
    clock.at_place(5, place, look, "at it")
    clock.advance()
    assert seen == [("earlier", False), ("before", False), ("at it", True), ("behind", True), ("later", True)]


def test_when_a_run_is_over_all_of_its_last_instant_has_come() -> None:
    clock = Clock()
    clock.call_at(5, lambda _: None)
    place = clock.reserve(5)
    clock.step()
    assert not clock.has_come(5, place)
    clock.advance()
    assert clock.has_come(5, place)


def test_time_goes_on_until_what_is_no_event() -> None:
    clock = Clock()
    clock.reserve(7)
    assert clock.next_time() == 7
    clock.advance(3)
    assert (clock.time, clock.next_time()) == (3, 7)
    clock.advance()
    assert (clock.time, clock.now, clock.next_time(), clock.n_events) == (7, 7, NEVER, 0)


def test_programs_and_plain_events_share_the_time() -> None:
    clock, log = Clock(), []

    def program():
        yield clock.timeout(3)
        log.append(("program", clock.time))
        clock.call_at(clock.time, log.append, "called")
        yield clock.timeout(2)
        log.append(("program", clock.time))

    clock.process(program())
    clock.call_at(4, log.append, "four")
    clock.advance()
    assert log == [("program", 3), "called", "four", ("program", 5)]


def test_step_keeps_time_and_count() -> None:
    clock, log = Clock(), []
    clock.call_at(4, log.append, 1)
    clock.step()
    assert (log, clock.time, clock.n_events) == ([1], 4, 1)


def test_an_error_in_a_program_is_raised_where_the_run_was_asked_for() -> None:
    clock = Clock()

    def program():
        yield clock.timeout(1)
        raise ValueError("broken")

    clock.process(program())
    with pytest.raises(ValueError, match="broken"):
        clock.advance()


def test_an_error_leaves_the_rest_of_its_instant_to_the_next_run() -> None:
    clock, log = Clock(), []

    def broken(_: object) -> None:
        raise ValueError("broken")

    clock.call_at(3, broken)
    with pytest.raises(ValueError, match="broken"):
        clock.advance()
    assert (clock.time, clock.next_time()) == (3, NEVER)
    clock.call_at(4, broken)
    clock.call_at(4, log.append, "behind")
    with pytest.raises(ValueError, match="broken"):
        clock.advance()
    assert (clock.time, clock.next_time(), clock.n_events) == (4, 4, 2)
    clock.advance()
    assert log == ["behind"]


def test_what_an_event_asks_for_at_its_own_instant_takes_its_rank() -> None:
    clock, log = Clock(), []

    def more(_: object) -> None:
        clock.call_at(5, log.append, "program")
        record(clock, log, 5, RANK_DELIVER, "deliver")

    record(clock, log, 5, RANK_DELIVER + 1, "first")
    clock.call_at(5, more, rank=RANK_ARRIVE)
    clock.call_at(5, more)
    clock.advance()
    assert log == ["deliver", "first", "deliver", "program", "program"]


ASKED = st.lists(
    st.tuples(st.integers(0, 4000), st.sampled_from([RANK_ARRIVE + 3, RANK_DELIVER, RANK_PROGRAM]), st.integers(0, 3)),
    min_size=1,
    max_size=40,
)


@given(ASKED)
def test_whatever_is_asked_for_the_least_of_what_is_pending_is_next(asked) -> None:
    """Each event asks for some more, so far ahead, as a heap of (time, rank, serial) would have them."""
    later, clock, log = iter(asked), Clock(), []

    def fire(key: tuple[int, int, int]) -> None:
        log.append((clock.time, key))
        wanted.append((key[0], heappop(pending)))
        ask(more_of[key[2]])

    more_of: list[int] = []

    def ask(count: int) -> None:
        for delay, rank, more in islice(later, count):
            key = (clock.time + delay, rank, len(more_of))
            more_of.append(more)
            clock.call_at(key[0], fire, key, rank)
            heappush(pending, key)

    pending: list[tuple[int, int, int]] = []
    wanted: list[object] = []
    ask(len(asked) // 2 + 1)
    clock.advance()
    assert log == wanted
    assert (len(log), clock.n_events, pending) == (len(more_of), len(more_of), [])


@given(ASKED, st.lists(st.integers(0, 1500), max_size=8))
def test_a_run_in_parts_fires_what_a_whole_run_does(asked, parts) -> None:
    def run(clock: Clock) -> list[tuple[int, int]]:
        log: list[tuple[int, int]] = []
        for n, (delay, rank, more) in enumerate(asked):

            def fire(_: object, n: int = n, more: int = more) -> None:
                log.append((clock.time, n))
                if more:
                    clock.call_at(clock.time + 700 * more, fire)

            clock.call_at(delay, fire, None, rank)
        return log

    whole, cut = Clock(), Clock()
    wanted, got = run(whole), run(cut)
    whole.advance(30_000)
    for part in parts:
        until = cut.time + part
        cut.advance(until)
        assert cut.time == until
        assert got == [entry for entry in wanted if entry[0] <= until]
    while cut.next_time() <= 30_000:
        before = cut.n_events
        cut.advance(30_000, enough=3)
        assert cut.n_events <= before + 3
    assert (got, cut.n_events) == (wanted, whole.n_events)


def test_an_event_may_run_the_clock() -> None:
    clock, log = Clock(), []

    def run(_: object) -> None:
        clock.step()
        log.append("run")

    clock.call_at(5, run)
    for when in (5, 6, 3000):
        clock.call_at(when, log.append, when)
    clock.advance()
    assert (log, clock.n_events) == ([5, "run", 6, 3000], 4)


def test_a_run_inside_a_run_ends_only_itself() -> None:
    clock, log = Clock(), []
    clock.call_at(5, lambda _: clock.advance(clock.time + 50, enough=1))
    for when in (6, 7, 3000):
        clock.call_at(when, log.append, when)
    clock.advance(5000)
    assert (log, clock.time, clock.n_events) == ([6, 7, 3000], 5000, 4)


def test_simpy_finds_an_environment_of_its_own_kind() -> None:
    clock, log = Clock(), []

    def sleeper():
        try:
            yield clock.timeout(100)
        except Interrupt as interrupt:
            log.append((clock.now, interrupt.cause))

    def program():
        asleep = clock.process(sleeper())
        yield clock.timeout(5) | clock.timeout(9)
        asleep.interrupt("wake up")
        yield clock.timeout(2) & clock.timeout(3)
        log.append(clock.now)
        return "done"

    assert clock.peek() == inf
    assert clock.run(clock.process(program())) == "done"
    assert log == [(5, "wake up"), 8]
    clock.run(50)
    assert clock.now == 50
    clock.run()
    assert (clock.now, clock.peek()) == (100, inf)
    with pytest.raises(EmptySchedule):
        clock.step()


def test_a_run_until_an_event_leaves_it_to_whoever_waits_too() -> None:
    clock, log = Clock(), []

    def work():
        yield clock.timeout(2)
        return 9

    working = clock.process(work())

    def waiter():
        log.append((yield working))

    clock.process(waiter())
    assert clock.run(working) == 9
    clock.advance()
    assert log == [9]


def test_time_is_whole_picoseconds_and_never_is_never() -> None:
    clock = Clock()
    clock.timeout(2.6)
    clock.timeout(inf)
    clock.advance()
    assert (clock.time, type(clock.time), clock.next_time()) == (3, int, NEVER)
    clock.run()


def test_what_is_over_cannot_be_asked_for() -> None:
    clock, log = Clock(), []
    clock.call_at(5, lambda _: clock.call_at(4, log.append, 4))
    with pytest.raises(
        KernbenchError,
        match="an event at 4 ps is in the past, it is 5 ps: times that parts give are whole ps and not negative",
    ):
        clock.advance()
    clock.call_at(7, log.append, 7)
    clock.advance()
    assert log == [7]
    clock.call_at(9, log.append, 9)
    with pytest.raises(KernbenchError, match="it is 7 ps"):
        clock.call_at(6, log.append, 6)
    clock.advance(8)
    with pytest.raises(KernbenchError, match="it is 8 ps"):
        clock.call_at(7, log.append, 7)
    clock.advance(9000)
    with pytest.raises(KernbenchError, match="it is 9000 ps"):
        clock.call_at(8999, log.append, 8999)
    assert log == [7, 9]


def test_what_is_left_of_an_instant_is_next_for_who_looks_from_inside_it() -> None:
    clock, log = Clock(), []

    def look(_: object) -> None:
        log.append((clock.peek(), clock.next_time()))

    for _ in range(2):
        clock.call_at(5, look)
    clock.call_at(9, look)
    clock.advance()
    assert log == [(5, 5), (9, 9), (inf, NEVER)]
