"""All-reduce over a grid of rings and lines: reduce-scatter along every axis, then all-gather back.

Along the first axis each place is left with one part reduced, along the next with a part of that part, and so on; then
the parts are gathered in reverse. So n places exchange 2(n-1)/n of the data, however many axes they have, in as many
steps as the axes are long, less one each. A value is reduced on one place and copied: all end with the same bits.

On a line, what is for places further on goes there directly, adding what is on the way; both directions at once. On a
torus, half of the data goes round one way and half the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias

from kernbench.ccl.steps.chunks import split
from kernbench.ccl.steps.messages import Messages
from kernbench.ccl.steps.rings import Relay, Ring, Turns, kept

Action: TypeAlias = Callable[[], None]
_HOP = 4  # about so many messages leave before the first comes in


class Axis(NamedTuple):
    """A place on an axis. ``kind``: a ``line``; a ``ring``, which is used one way round; a ``torus``: both ways."""

    ring: Ring
    kind: Literal["line", "ring", "torus"]


def all_reduce_over(axes: Iterable[Axis], values: list[Any], messages: Messages, tl: Any) -> None:
    """Reduce ``values`` over all places of a grid, in place; axes of one place are left out."""
    _reduce(_long(axes), range(len(values)), values, messages, tl)


def order_of_use(axes: Iterable[Axis], n: int) -> list[int]:
    """The order in which ``all_reduce_over`` needs ``n`` values here: whoever brings them in does so in that order."""
    return _used(_long(axes), range(n))


def order_of_results(axes: Iterable[Axis], n: int) -> list[int]:
    """The order in which ``all_reduce_over`` is done with ``n`` values here."""
    return _done(_long(axes), range(n))


def _long(axes: Iterable[Axis]) -> list[Axis]:
    return [axis for axis in axes if axis.ring.size > 1]


def _reduce(axes: Sequence[Axis], mine: Sequence[int], values: list[Any], messages: Messages, tl: Any) -> None:
    if not axes:
        return
    ring, kind = axes[0]
    if kind == "line":
        line = _Line(ring, _split(mine, ring.size), values, messages, tl)
        line.scatter()
        _reduce(axes[1:], line.own, values, messages, tl)
        line.gather()
        return
    ways = [_Way(ring, turns, values, messages, tl) for ring, turns in _rings(axes[0], mine)]
    _in_turn(*(way.scatter() for way in ways))
    _reduce(axes[1:], sorted(i for way in ways for i in way.own), values, messages, tl)
    _in_turn(*(way.gather() for way in ways))


def _rings(axis: Axis, mine: Sequence[int]) -> list[tuple[Ring, Turns]]:
    """The rings that share an axis, with the parts of each in the order in which this place sends them; its own last.

    One, or of a torus two, one each way round.
    """
    ring = axis.ring
    back = Ring(ring.prev, ring.next, ring.size - 1 - ring.place, ring.size)
    shares = [(ring, mine[::2]), (back, mine[1::2])] if axis.kind == "torus" else [(ring, mine)]
    found: list[tuple[Ring, Turns]] = []
    for each, share in shares:
        parts = _split(share, each.size)
        found.append((each, [parts[i] for i in each.backwards(each.place)]))
    return found


def _used(axes: Sequence[Axis], mine: Sequence[int]) -> list[int]:
    if not axes:
        return list(mine)
    ring, kind = axes[0]
    if kind == "line":
        parts, here = _split(mine, ring.size), ring.place
        ends = chain(*parts[:here:-1], parts[here]), chain(*parts[: here + 1])  # its own part is added to both ways
        return [*dict.fromkeys(_by_turns(*ends))]
    return _by_turns(*(_used_in_ring(turns) for _, turns in _rings(axes[0], mine)))


def _used_in_ring(turns: Turns) -> list[int]:
    """The second part is added to what comes in while the first goes out: a hop later."""
    first, second, *rest = turns
    return [*first[:_HOP], *_by_turns(first[_HOP:], second), *chain(*rest)]


def _done(axes: Sequence[Axis], mine: Sequence[int]) -> list[int]:
    if not axes:
        return list(mine)
    ring, kind = axes[0]
    if kind == "line":
        parts, here = _split(mine, ring.size), ring.place
        return _done(axes[1:], parts[here]) + _by_turns(chain(*parts[:here][::-1]), chain(*parts[here + 1 :]))
    rings = [turns for _, turns in _rings(axes[0], mine)]
    own = _done(axes[1:], sorted(i for turns in rings for i in turns[-1]))
    return own + _by_turns(*(chain(*turns[:-1]) for turns in rings))


def _by_turns(*ways: Iterable[int]) -> list[int]:
    """What goes several ways at once, a value each at a time."""
    return [i for at_once in zip_longest(*ways) for i in at_once if i is not None]


def _split(mine: Sequence[int], parts: int) -> list[list[int]]:
    return [list(mine[first : first + count]) for first, count in split(len(mine), parts)]


class _Way:
    """One place of a ring, one way round; see ``rings``."""

    __slots__ = ("_messages", "_relay", "_tl", "_turns", "_values", "own")

    def __init__(self, ring: Ring, turns: Turns, values: list[Any], messages: Messages, tl: Any) -> None:
        self._relay = Relay(ring, tl)
        self._turns = turns
        self.own = turns[-1]
        self._values, self._messages, self._tl = values, messages, tl

    def scatter(self) -> Iterator[Action]:
        """Reduce this place's own part, and pass the others on."""
        self._relay.put(self._values[i] for i in self._turns[0])
        for turn in self._turns[1:]:
            for i in turn:
                yield partial(self._add, i, turn is not self.own)
        yield self._relay.flush

    def _add(self, i: int, goes_on: bool) -> None:
        value = self._values[i]
        self._values[i] = self._messages.combine(value, self._relay.take(value), self._tl)
        if goes_on:
            self._relay.put((self._values[i],))

    def gather(self) -> Iterator[Action]:
        """Get all other parts, and pass them on."""
        self._relay.put(self._values[i] for i in self.own)
        for turn in self._turns[:-1]:
            for i in turn:
                yield partial(self._keep, i, turn is not self._turns[-2])
        yield self._relay.flush

    def _keep(self, i: int, goes_on: bool) -> None:
        self._values[i] = kept(self._relay.take(self._values[i]), self._tl)
        if goes_on:
            self._relay.put((self._values[i],))


class _Line:
    """One place of a line, and what it does with ``parts``, one for each place.

    The two directions take turns, message by message, and the k-th message that a place sends is the k-th that the next
    receives. So a kernel that waits at its k-th send waits for one that is further behind: no deadlock, however few the
    slots.
    """

    __slots__ = ("_line", "_messages", "_parts", "_tl", "_values", "own")

    def __init__(self, line: Ring, parts: Turns, values: list[Any], messages: Messages, tl: Any) -> None:
        self._line, self._parts, self.own = line, parts, parts[line.place]
        self._values, self._messages, self._tl = values, messages, tl

    def scatter(self) -> None:
        """Every place gets its part of all others', reduced."""
        last = self._line.size - 1
        forth = self._towards(range(last, -1, -1), self._line.next, self._line.prev, last)
        back = self._towards(range(last + 1), self._line.prev, self._line.next, 0)
        _in_turn(forth, back)

    def _towards(self, places: Iterable[int], to: str, of: str, end: int) -> Iterator[Action]:
        """What goes ``to`` the ``end`` of the line, the farthest part first: own values added to what comes in."""
        here = self._line.place
        first = here == self._line.size - 1 - end
        ahead = [place for place in places if abs(end - place) <= abs(end - here)]
        for place in ahead:
            for i in self._parts[place]:
                if place != here or not first:
                    yield partial(self._step, i, to if place != here else None, None if first else of)

    def _step(self, i: int, to: str | None, of: str | None) -> None:
        value = self._values[i]
        if of is not None:
            value = self._messages.combine(value, self._tl.recv_async(of, value.shape, value.dtype), self._tl)
        if to is None:
            self._values[i] = value
        else:
            self._tl.send(to, value)

    def gather(self) -> None:
        """Every place gets the parts of all others: own part first, then what comes in, all passed on."""
        here, last = self._line.place, self._line.size - 1
        forth = self._along(range(here, -1, -1), self._line.next if here < last else None, self._line.prev)
        back = self._along(range(here, last + 1), self._line.prev if here else None, self._line.next)
        _in_turn(forth, back)

    def _along(self, places: Sequence[int], to: str | None, of: str) -> Iterator[Action]:
        """Each action sends what waits longest and receives the next: the neighbour does as much at the same time."""
        leaving = deque(self._parts[places[0]] if to is not None else ())
        for place in places[1:]:
            for i in self._parts[place]:
                yield partial(self._pass, to, leaving, of, i)
        while to is not None and leaving:
            yield partial(self._send, to, leaving)

    def _pass(self, to: str | None, leaving: deque[int], of: str, i: int) -> None:
        if to is not None and leaving:
            self._send(to, leaving)
        old = self._values[i]
        self._values[i] = kept(self._tl.recv_async(of, old.shape, old.dtype), self._tl)
        if to is not None:
            leaving.append(i)

    def _send(self, to: str, leaving: deque[int]) -> None:
        self._tl.send(to, self._values[leaving.popleft()])


def _in_turn(*ways: Iterator[Action]) -> None:
    for actions in zip_longest(*ways):
        for act in actions:
            if act is not None:
                act()
