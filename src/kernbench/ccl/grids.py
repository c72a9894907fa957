"""All-reduce over a grid of rings and lines: reduce-scatter along every axis, then all-gather back.

Along the first axis each place is left with one part reduced, along the next with a part of that part, and so on; then
the parts are gathered in reverse. So n places exchange 2(n-1)/n of the data, however many axes they have, in as many
steps as the axes are long, less one each. A value is reduced on one place and copied: all end with the same bits.

All links work at once. Where there are two axes and many messages, half of them begin along one and half along the
other. What is for another place goes there directly, adding what is on the way, in both directions; where the line is
closed, as in a torus, by the shorter way.

Each message has a time in a timetable, which both its ends know; a place does what it has to do in the order of these
times. Receives are not waited for, so only a full queue stops a place; then the receiver is still before the message
that was so many earlier. So the place that is furthest behind never waits for another: no deadlock, however few the
slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from kernbench.ccl.pieces import Messages, split_evenly
from kernbench.ccl.rings import RingPlace, Turns
from kernbench.messages.steps import Chunk, Step, copy, load, receive, send, store
from kernbench.topology.spec import TWO_DIMENSIONAL, current_topology_name


class Axis(NamedTuple):
    """A place on an axis. ``kind``: a ``line``; ``closed``, the same with ends that meet; a ``ring``: one way round."""

    ring: RingPlace
    kind: Literal["line", "closed", "ring"]


class GridStep(NamedTuple):
    """At ``when`` of the timetable this place sends ``value`` by ``queue``, or adds to it or takes what comes there."""

    when: int
    value: int
    does: Literal["send", "add", "take"]
    queue: str


def timetable(axes: Iterable[Axis], n: int) -> list[GridStep]:
    """Return the steps of this place for the all-reduce of ``n`` values, in order; axes of one place are left out."""
    long = [axis for axis in axes if axis.ring.size > 1]
    ways = [long, long[::-1]] if len(long) > 1 and n >= 2 * long[0].ring.size * long[1].ring.size else [long]
    steps: list[GridStep] = []
    for first, way in enumerate(ways):
        mine = range(n)[first :: len(ways)]
        steps += _plan_steps(way, mine, len(mine), 0)[0]
    return sorted(steps, key=lambda step: step.when)


def all_reduce_by(
    table: Sequence[GridStep], pieces: Sequence[Chunk], messages: Messages, contributions: int
) -> list[Step]:
    """Reduce ``pieces``, which are in buffers of their numbers, over all places of a grid by the timetable of this."""
    last = {step.value: at for at, step in enumerate(table) if step.does != "send"}
    steps: list[Step] = []
    for i in range(len(pieces)):
        if i not in last:  # there is no other place
            steps += messages.finish(i, contributions)
    for at, (_, i, does, queue) in enumerate(table):
        if does == "send":
            steps.append(send(queue, i))
            continue
        steps.append(receive(queue, pieces[i].size))
        if does == "take":
            steps.append(copy(i, queue))
            continue
        steps.append(messages.add(i, queue))
        if at == last[i]:  # it is whole here, and goes to all others
            steps += messages.finish(i, contributions)
    return steps


def order_of_use(steps: Iterable[GridStep], n: int, under_way: int) -> list[int]:
    """Return the order in which a timetable needs ``n`` values, which is the order to bring them in.

    What is added to a message is needed when that has come: ``under_way`` others have left by then.
    """
    first: dict[int, int] = {}
    for when, i, does, _ in steps:
        needed = when if does == "send" else when + under_way
        first[i] = min(needed, first.get(i, needed))
    return sorted(range(n), key=lambda i: first.get(i, 0))


def order_of_results(steps: Iterable[GridStep], n: int) -> list[int]:
    """Return the order in which a timetable is done with ``n`` values."""
    last = {i: at for at, (_, i, does, _) in enumerate(steps) if does != "send"}
    return sorted(range(n), key=lambda i: last.get(i, 0))


def _plan_steps(axes: Sequence[Axis], mine: Sequence[int], most: int, begin: int) -> tuple[list[GridStep], int]:
    """Return the steps of the all-reduce of ``mine`` from ``begin`` on, along one axis after the other, and their end.

    ``most``: how many values those places have that have most. Times depend on that alone.
    """
    if not axes or not most:
        return [], begin
    axis = axes[0]
    parts, longest = _split(mine, axis.ring.size), -(-most // axis.ring.size)
    if axis.kind == "ring":  # a part begins at the place behind its own, and goes all the way round
        parts = [*parts[1:], parts[0]]
    passage = _AxisPassage(axis, parts, longest)
    between = begin + passage.turns * longest
    inner, end = _plan_steps(axes[1:], parts[axis.ring.place], longest, between)
    return [*passage.scatter(begin), *inner, *passage.gather(end)], end + between - begin


class _AxisPassage(NamedTuple):
    """Parts go to their places from both sides, or round a ring, and back from there. ``longest``: pieces of a part."""

    axis: Axis
    parts: Turns
    longest: int

    @property
    def turns(self) -> int:
        """The number of places that a message passes at most."""
        size = self.axis.ring.size
        return size // 2 if self.axis.kind == "closed" else size - 1

    def _reach(self, place: int, k: int) -> tuple[int, int]:
        """Return from how far behind and ahead of ``place`` its piece ``k`` comes: where they meet, in turn."""
        size = self.axis.ring.size
        if self.axis.kind == "line":
            return place, size - 1 - place
        if self.axis.kind == "ring":
            return size - 1, size - 1
        return ((size - 1) // 2, size // 2) if k % 2 else (size // 2, (size - 1) // 2)

    def _ways(self) -> list[tuple[str, str, int, int]]:
        """Return each way: the queues out and in, the direction of places, and which of ``_reach`` is behind."""
        ring = self.axis.ring
        forth, back = (ring.next, ring.prev, 1, 0), (ring.prev, ring.next, -1, 1)
        return [forth] if self.axis.kind == "ring" else [forth, back]

    def _far(self, towards: int, distance: int, side: int) -> list[tuple[int, int, int]]:
        """Number, piece and reach to ``side`` of the part of the place so far from here that are passed here."""
        ring = self.axis.ring
        place = ring.place + towards * distance
        if self.axis.kind == "line" and not 0 <= place < ring.size:
            return []
        place %= ring.size
        found = [(k, i, self._reach(place, k)[side]) for k, i in enumerate(self.parts[place])]
        return [each for each in found if distance <= each[2]]

    def scatter(self, begin: int) -> list[GridStep]:
        """Return the steps of the reduce-scatter: pieces go ahead, the farthest first, once those behind are added."""
        steps: list[GridStep] = []
        for out, come, way, behind in self._ways():
            for distance in range(self.turns, -1, -1):
                at = begin + (self.turns - distance) * self.longest
                for k, i, reach in self._far(way, distance, behind):
                    if distance < reach:
                        steps.append(GridStep(at - self.longest + k, i, "add", come))
                    if distance:
                        steps.append(GridStep(at + k, i, "send", out))
        return steps

    def gather(self, begin: int) -> list[GridStep]:
        """Return the steps of the all-gather: the own part goes both ways, and parts that come in are passed on."""
        steps: list[GridStep] = []
        for out, come, way, behind in self._ways():
            for distance in range(self.turns + 1):
                at = begin + distance * self.longest
                for k, i, reach in self._far(-way, distance, 1 - behind):
                    if distance:
                        steps.append(GridStep(at - self.longest + k, i, "take", come))
                    if distance < reach:
                        steps.append(GridStep(at + k, i, "send", out))
        return steps


def _split(mine: Sequence[int], parts: int) -> list[Sequence[int]]:
    return [mine[part.offset : part.offset + part.size] for part in split_evenly(Chunk(0, len(mine)), parts)]


class SipGrid(NamedTuple):
    """``n`` SIPs, linked as ``system.sips.topology`` says: ``kind``; in a grid of ``w`` columns and ``h`` rows."""

    n: int
    kind: str
    w: int
    h: int

    @property
    def is_grid(self) -> bool:
        """True for all SIPs of a torus or mesh with several rows and columns."""
        return self.kind in TWO_DIMENSIONAL and min(self.w, self.h) > 1 and self.n == self.w * self.h

    def axes(self, here: int) -> list[Axis]:
        """Return the rings, or lines, of links that SIP ``here`` is on."""
        if self.kind not in TWO_DIMENSIONAL:
            return [Axis(RingPlace("global_E", "global_W", here, self.n), "ring")]
        y, x = divmod(here, self.w)
        row, column = RingPlace("global_E", "global_W", x, self.w), RingPlace("global_S", "global_N", y, self.h)
        return [Axis(axis, "closed" if self.kind == "torus_2d" else "line") for axis in (row, column)]

    def pieces(self, n_elem: int, chunk: int) -> int:
        """Return the number of messages of up to ``chunk`` elements for ``n_elem``: as many for each place and way.

        Of few elements one for each place: more messages would take longer than they save.
        """
        both_ways = self.kind == "torus_2d" and n_elem > 2 * chunk
        even = self.n * (2 if both_ways else 1)
        return min(n_elem, -(-n_elem // (chunk * even)) * even)


def sip_grid(n: int, /, *, sip_topology: str = "ring_1d", sip_w: int = 0, sip_h: int = 0, **_others: object) -> SipGrid:
    """Return the grid of a configuration, which may have old names."""
    return SipGrid(n, current_topology_name(sip_topology), sip_w, sip_h)


def all_reduce_segment(segment: Chunk, sips: SipGrid, here: int, messages: Messages) -> list[Step]:
    """Load ``segment`` as it is needed, reduce it over the grid, and store it."""
    pieces = split_evenly(segment, sips.pieces(segment.size, messages.chunk))
    table = timetable(sips.axes(here), len(pieces))
    loads = [load(i, pieces[i]) for i in order_of_use(table, len(pieces), half_a_hop(messages))]
    return [*loads, *all_reduce_by(table, pieces, messages, sips.n), *(store(i, x) for i, x in enumerate(pieces))]


def half_a_hop(messages: Messages) -> int:
    """Return how many messages are on their way between two SIPs, one way."""
    return messages.under_way(messages.hop_bytes[-1] // 2)
