"""All-reduce over a grid of rings and lines: reduce-scatter along every axis, then all-gather back.

After the exchange along the first axis, each place has one reduced part. After the next axis it has a reduced part of
that part, and so on. Then the parts are gathered in reverse order of the axes. Each of n places thus sends 2(n-1)/n of
the data, for any number of axes, in 2 (length - 1) steps for each axis. Each value is reduced on one place and then
copied, so all places end with the same bits.

All links work at once. With two axes and many messages, half of the messages begin along one axis and half along the
other. A part travels straight to its place, from both directions, and the places on its way add their values. On a
closed line, as in a torus, values use the shorter direction.

A precomputed schedule assigns a time to each message, and both places of the message use this time. Each place acts in
the order of these times. Receives do not block, so a place stops only at a full queue, whose receiver has not yet
received the message n_slots earlier. The place that is furthest behind in the schedule therefore never waits, and no
deadlock is possible with any number of slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from kernbench.ccl.pieces import Messages, split_evenly
from kernbench.ccl.rings import PartPieces, RingPlace, half_a_hop
from kernbench.messages.steps import Chunk, Step, copy, load, receive, send
from kernbench.topology.spec import TWO_DIMENSIONAL, current_topology_name


class Axis(NamedTuple):
    """A place on an axis. ``kind``: a ``line``, a ``closed`` line whose ends are joined, or a one-way ``ring``."""

    ring: RingPlace
    kind: Literal["line", "closed", "ring"]


class GridStep(NamedTuple):
    """A step of a place at time ``when``: send ``value`` by ``queue``, or add or copy the message of ``queue``."""

    when: int
    value: int
    does: Literal["send", "add", "take"]
    queue: str


def grid_schedule(axes: Iterable[Axis], n: int) -> list[GridStep]:
    """Return the steps of this place for the all-reduce of ``n`` values, in order; axes of length 1 have no steps."""
    long = [axis for axis in axes if axis.ring.size > 1]
    ways = [long, long[::-1]] if len(long) > 1 and n >= 2 * long[0].ring.size * long[1].ring.size else [long]
    steps: list[GridStep] = []
    for first, way in enumerate(ways):
        values = range(n)[first :: len(ways)]
        steps += _plan_steps(way, values, len(values), 0)[0]
    return sorted(steps, key=lambda step: step.when)


def all_reduce_by(
    table: Sequence[GridStep], pieces: Sequence[Chunk], messages: Messages, contributions: int
) -> list[Step]:
    """Reduce ``pieces`` over all places of a grid by the schedule of this place; buffer i has piece i."""
    last = {step.value: at for at, step in enumerate(table) if step.does != "send"}
    steps: list[Step] = []
    for i in range(len(pieces)):
        if i not in last:  # the grid has no other place
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
        if at == last[i]:  # the value is complete here and goes to all other places
            steps += messages.finish(i, contributions)
    return steps


def order_of_use(steps: Iterable[GridStep], n: int, in_flight: int) -> list[int]:
    """Return the order in which a schedule needs ``n`` values: the order in which to load them.

    A value that the place sends is needed at the time of the send. A value that the place adds to a message is needed
    when the message arrives, ``in_flight`` sends after the scheduled time.
    """
    first: dict[int, int] = {}
    for when, i, does, _ in steps:
        needed = when if does == "send" else when + in_flight
        first[i] = min(needed, first.get(i, needed))
    return sorted(range(n), key=lambda i: first.get(i, 0))


def order_of_results(steps: Iterable[GridStep], n: int) -> list[int]:
    """Return the order in which ``n`` values are complete: the order in which to store them."""
    last = {i: at for at, (_, i, does, _) in enumerate(steps) if does != "send"}
    return sorted(range(n), key=lambda i: last.get(i, 0))


def _plan_steps(axes: Sequence[Axis], values: Sequence[int], most: int, begin: int) -> tuple[list[GridStep], int]:
    """Return the steps of the all-reduce of ``values`` from time ``begin`` on, axis by axis, and their end.

    ``most`` is the largest number of values of a place. Times depend only on ``most``, so they are equal on all places.
    """
    if not axes or not most:
        return [], begin
    axis = axes[0]
    parts, longest = _split(values, axis.ring.size), -(-most // axis.ring.size)
    if axis.kind == "ring":  # a part begins at the next place and travels all the way round
        parts = [*parts[1:], parts[0]]
    phase = _AxisSchedule(axis, parts, longest)
    between = begin + phase.hops * longest
    inner, end = _plan_steps(axes[1:], parts[axis.ring.place], longest, between)
    return [*phase.scatter(begin), *inner, *phase.gather(end)], end + between - begin


class _AxisSchedule(NamedTuple):
    """The exchange along one axis: parts travel to their places, and back. ``longest``: most pieces of a part."""

    axis: Axis
    parts: PartPieces
    longest: int

    @property
    def hops(self) -> int:
        """The largest number of hops of a part."""
        size = self.axis.ring.size
        return size // 2 if self.axis.kind == "closed" else size - 1

    def _reach(self, place: int, k: int) -> tuple[int, int]:
        """Return the distances behind and ahead of ``place`` from which values of its piece ``k`` arrive.

        On a closed line of even length the pieces alternate between the two splits.
        """
        size = self.axis.ring.size
        if self.axis.kind == "line":
            return place, size - 1 - place
        if self.axis.kind == "ring":
            return size - 1, size - 1
        return ((size - 1) // 2, size // 2) if k % 2 else (size // 2, (size - 1) // 2)

    def _ways(self) -> list[tuple[str, str, int, int]]:
        """Return each way: queue out, queue in, direction of places, and the index in ``_reach`` of the side behind."""
        ring = self.axis.ring
        forth, back = (ring.next, ring.prev, 1, 0), (ring.prev, ring.next, -1, 1)
        return [forth] if self.axis.kind == "ring" else [forth, back]

    def _far(self, towards: int, distance: int, side: int) -> list[tuple[int, int, int]]:
        """Return (number, piece, reach to ``side``) for the pieces of a distant part that pass this place.

        The part belongs to the place ``distance`` places ``towards`` one direction.
        """
        ring = self.axis.ring
        place = ring.place + towards * distance
        if self.axis.kind == "line" and not 0 <= place < ring.size:
            return []
        place %= ring.size
        pieces = [(k, i, self._reach(place, k)[side]) for k, i in enumerate(self.parts[place])]
        return [piece for piece in pieces if distance <= piece[2]]

    def scatter(self, begin: int) -> list[GridStep]:
        """Return the steps of the reduce-scatter: the farthest pieces go first, once the values behind are added."""
        steps: list[GridStep] = []
        for out, come, way, behind in self._ways():
            for distance in range(self.hops, -1, -1):
                at = begin + (self.hops - distance) * self.longest
                for k, i, reach in self._far(way, distance, behind):
                    if distance < reach:
                        steps.append(GridStep(at - self.longest + k, i, "add", come))
                    if distance:
                        steps.append(GridStep(at + k, i, "send", out))
        return steps

    def gather(self, begin: int) -> list[GridStep]:
        """Return the steps of the all-gather: this place's part goes both ways, and incoming parts are passed on."""
        steps: list[GridStep] = []
        for out, come, way, behind in self._ways():
            for distance in range(self.hops + 1):
                at = begin + distance * self.longest
                for k, i, reach in self._far(-way, distance, 1 - behind):
                    if distance:
                        steps.append(GridStep(at - self.longest + k, i, "take", come))
                    if distance < reach:
                        steps.append(GridStep(at + k, i, "send", out))
        return steps


def _split(values: Sequence[int], parts: int) -> list[Sequence[int]]:
    return [values[part.offset : part.offset + part.size] for part in split_evenly(Chunk(0, len(values)), parts)]


class SipGrid(NamedTuple):
    """``n`` SIPs with links of topology ``kind`` (``system.sips.topology``), in ``w`` columns and ``h`` rows."""

    n: int
    kind: str
    w: int
    h: int

    @property
    def is_grid(self) -> bool:
        """True if these are all SIPs of a torus or mesh with several rows and columns."""
        return self.kind in TWO_DIMENSIONAL and min(self.w, self.h) > 1 and self.n == self.w * self.h

    def axes(self, here: int) -> list[Axis]:
        """Return the rings or lines of links that contain SIP ``here``."""
        if self.kind not in TWO_DIMENSIONAL:
            return [Axis(RingPlace("global_E", "global_W", here, self.n), "ring")]
        y, x = divmod(here, self.w)
        row, column = RingPlace("global_E", "global_W", x, self.w), RingPlace("global_S", "global_N", y, self.h)
        return [Axis(axis, "closed" if self.kind == "torus_2d" else "line") for axis in (row, column)]

    def pieces(self, n_elem: int, chunk: int) -> int:
        """Return the number of messages of up to ``chunk`` elements for ``n_elem``, equal for each place and way.

        If there are few elements, the result is one message for each place: more messages would cost more time.
        """
        both_ways = self.kind == "torus_2d" and n_elem > 2 * chunk
        even = self.n * (2 if both_ways else 1)
        return min(n_elem, -(-n_elem // (chunk * even)) * even)


def sip_grid(n: int, /, *, sip_topology: str = "ring_1d", sip_w: int = 0, sip_h: int = 0, **_others: object) -> SipGrid:
    """Return the grid of a configuration; ``sip_topology`` may be an old name."""
    return SipGrid(n, current_topology_name(sip_topology), sip_w, sip_h)


def all_reduce_segment(segment: Chunk, sips: SipGrid, here: int, messages: Messages) -> list[Step]:
    """Return the steps that load ``segment`` as needed, reduce it over the grid, and store it."""
    pieces = split_evenly(segment, sips.pieces(segment.size, messages.chunk))
    table = grid_schedule(sips.axes(here), len(pieces))
    loads = [load(i, pieces[i]) for i in order_of_use(table, len(pieces), half_a_hop(messages))]
    return messages.store_all([*loads, *all_reduce_by(table, pieces, messages, sips.n)], enumerate(pieces))
