"""All-reduce over a grid of rings and lines: reduce-scatter along every axis, then all-gather back.

Along the first axis each place is left with one part reduced, along the next with a part of that part, and so on; then
the parts are gathered in reverse. So n places exchange 2(n-1)/n of the data, however many axes they have, in as many
steps as the axes are long, less one each. A value is reduced on one place and copied: all end with the same bits.

All links work at once. Where there are two axes and many messages, half of them begin along one and half along the
other. On a line, what is for places further on goes there directly, adding what is on the way, in both directions. On a
torus, half goes round one way and half the other.

Each message has a time in a timetable, which both its ends know; a place does what it has to do in the order of these
times. Receives are posted and not waited for, so only a full queue stops a kernel, or a full window, which keeps places
in step however many slots there are; then the receiver is still before the message that was so many earlier. So the
place that is furthest behind never waits for another: no deadlock, however few the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from kernbench.ccl.steps.messages import Messages, Parts, on_the_way, split_evenly
from kernbench.ccl.steps.rings import RingPlace, Turns, kept
from kernbench.kernels.shares import blocks
from kernbench.messages.commands import NO_WINDOW

_HOP = 4  # about so many messages leave before the first comes in
MANY_MESSAGES = 16
"""So many gain more by using all axes at once than they lose by all being needed at once."""


class Axis(NamedTuple):
    """A place on an axis. ``kind``: a ``line``; a ``ring``, which is used one way round; a ``torus``: both ways."""

    ring: RingPlace
    kind: Literal["line", "ring", "torus"]


class GridStep(NamedTuple):
    """At ``when`` of the timetable this place sends ``value`` by ``queue``, or adds to it or takes what comes there."""

    when: int
    value: int
    does: Literal["send", "add", "take"]
    queue: str


def timetable(axes: Iterable[Axis], n: int) -> list[GridStep]:
    """What this place does for the all-reduce of ``n`` values, in order; axes of one place are left out."""
    long = [axis for axis in axes if axis.ring.size > 1]
    ways = [long, long[::-1]] if len(long) > 1 and n >= MANY_MESSAGES else [long]
    steps: list[GridStep] = []
    for first, way in enumerate(ways):
        mine = range(n)[first :: len(ways)]
        steps += _planned(way, mine, len(mine), 0)[0]
    return sorted(steps, key=lambda step: step.when)


def all_reduce_by(
    steps: Sequence[GridStep],
    values: list[Any],
    messages: Messages,
    contributions: int,
    tl: Any,
    window: int = NO_WINDOW,
) -> None:
    """Reduce ``values`` over all places of a grid, in place, by the timetable of this one.

    ``window``: how many slots of a queue are used at most.
    """
    last = {step.value: at for at, step in enumerate(steps) if step.does != "send"}
    for i in set(range(len(values))) - set(last):  # there is no other place
        values[i] = messages.finish(values[i], contributions, tl)
    for at, (_, i, does, queue) in enumerate(steps):
        x = values[i]
        if does == "send":
            tl.send(queue, x, window=window)
        else:
            message = tl.recv_async(queue, x.shape, x.dtype)
            x = messages.combine(x, message, tl) if does == "add" else kept(message, tl)
            del message  # it is a slot
            # What it adds to last is whole here, and goes to all others.
            values[i] = messages.finish(x, contributions, tl) if does == "add" and at == last[i] else x
        del x


def order_of_use(steps: Iterable[GridStep], n: int) -> list[int]:
    """The order in which a timetable needs ``n`` values: whoever brings them in does so in that order.

    What is added to a message is needed when that has come.
    """
    first: dict[int, int] = {}
    for when, i, does, _ in steps:
        needed = when if does == "send" else when + _HOP
        first[i] = min(needed, first.get(i, needed))
    return sorted(range(n), key=lambda i: first.get(i, 0))


def order_of_results(steps: Iterable[GridStep], n: int) -> list[int]:
    """The order in which a timetable is done with ``n`` values."""
    last = {i: at for at, (_, i, does, _) in enumerate(steps) if does != "send"}
    return sorted(range(n), key=lambda i: last.get(i, 0))


def _planned(axes: Sequence[Axis], mine: Sequence[int], most: int, begin: int) -> tuple[list[GridStep], int]:
    """The all-reduce of ``mine`` from ``begin`` on, along one axis after the other, and when it ends.

    ``most``: how many values those places have that have most. Times depend on that alone.
    """
    if not axes or not most:
        return [], begin
    ring, kind = axes[0]
    ways = [(ring, mine)]
    if kind == "torus":
        back = RingPlace(ring.prev, ring.next, ring.size - 1 - ring.place, ring.size)
        ways, most = [(ring, mine[::2]), (back, mine[1::2])], -(-most // 2)
    longest = -(-most // ring.size)
    passage = _OnLine if kind == "line" else _OnRing
    passages = [passage(way, _split(share, ring.size), longest) for way, share in ways]
    own = sorted(i for each in passages for i in each.own)
    between = begin + (ring.size - 1) * longest
    inner, end = _planned(axes[1:], own, len(ways) * longest, between)
    scatters = [step for each in passages for step in each.scatter(begin)]
    gathers = [step for each in passages for step in each.gather(end)]
    return [*scatters, *inner, *gathers], end + between - begin


class _OnRing(NamedTuple):
    """Each part goes round from its place on, and is whole one place before that. ``longest``: values of a part."""

    ring: RingPlace
    parts: Turns
    longest: int

    @property
    def own(self) -> Sequence[int]:
        """What this place has reduced between the two."""
        return self.parts[self.ring.backwards(self.ring.place)[-1]]

    def scatter(self, begin: int) -> list[GridStep]:
        """Parts go round and are added to."""
        return self._round([self.parts[i] for i in self.ring.backwards(self.ring.place)], "add", begin)

    def gather(self, begin: int) -> list[GridStep]:
        """Parts go round, the own one first."""
        *others, own = [self.parts[i] for i in self.ring.backwards(self.ring.place)]
        return self._round([own, *others], "take", begin)

    def _round(self, turns: Turns, does: Literal["add", "take"], begin: int) -> list[GridStep]:
        steps: list[GridStep] = []
        for turn, (going, coming) in enumerate(pairwise(turns)):
            at = begin + turn * self.longest
            steps += [GridStep(at + k, i, "send", self.ring.next) for k, i in enumerate(going)]
            steps += [GridStep(at + k, i, does, self.ring.prev) for k, i in enumerate(coming)]
        return steps


class _OnLine(NamedTuple):
    """Parts go to their places from both ends, and back from there. ``longest``: values of a part."""

    line: RingPlace
    parts: Turns
    longest: int

    @property
    def own(self) -> Sequence[int]:
        """What this place has reduced between the two."""
        return self.parts[self.line.place]

    @property
    def _both_ways(self) -> list[tuple[str, str, Turns, Turns]]:
        """Either way: the queues out and in; the parts of the places ahead and behind, the nearest first."""
        here, line = self.line.place, self.line
        before, beyond = self.parts[:here][::-1], self.parts[here + 1 :]
        return [(line.next, line.prev, beyond, before), (line.prev, line.next, before, beyond)]

    def scatter(self, begin: int) -> list[GridStep]:
        """What is for places ahead goes there, the farthest first; what came from behind has been added."""
        steps: list[GridStep] = []
        for out, come, ahead, behind in self._both_ways:
            for turn, part in enumerate([*ahead[::-1], self.own]):
                for when, i in enumerate(part, begin + turn * self.longest):
                    if behind:
                        steps.append(GridStep(when, i, "add", come))
                    if turn < len(ahead):
                        steps.append(GridStep(when, i, "send", out))
        return steps

    def gather(self, begin: int) -> list[GridStep]:
        """The own part goes both ways, and those of the places behind follow it as they come in."""
        steps: list[GridStep] = []
        for out, come, ahead, behind in self._both_ways:
            for turn, part in enumerate([self.own, *behind]):
                at = begin + turn * self.longest
                steps += [GridStep(at + k, i, "send", out) for k, i in enumerate(part) if ahead]
                steps += [GridStep(at - self.longest + k, i, "take", come) for k, i in enumerate(part) if turn]
        return steps


def _split(mine: Sequence[int], parts: int) -> list[Sequence[int]]:
    return [mine[first : first + count] for first, count in split_evenly(len(mine), parts)]


WINDOW_BYTES = 24 << 10
"""What passes a link between SIPs in the time of a message and its credit: measured. With more on their way PEs that
share a link hold each other up."""


class SipGrid(NamedTuple):
    """``n`` SIPs, linked as ``system.sips.topology`` says: ``kind``; in a grid of ``w`` columns and ``h`` rows."""

    n: int
    kind: str
    w: int
    h: int

    @property
    def is_grid(self) -> bool:
        """Whether these are all SIPs of a torus or mesh with several rows and columns."""
        return self.kind in ("torus_2d", "mesh_2d_no_wrap") and min(self.w, self.h) > 1 and self.n == self.w * self.h

    def axes(self, here: int) -> list[Axis]:
        """The rings, or lines, of links that SIP ``here`` is on."""
        if self.kind not in ("torus_2d", "mesh_2d_no_wrap"):
            return [Axis(RingPlace("global_E", "global_W", here, self.n), "ring")]
        y, x = divmod(here, self.w)
        row, column = RingPlace("global_E", "global_W", x, self.w), RingPlace("global_S", "global_N", y, self.h)
        return [Axis(axis, "torus" if self.kind == "torus_2d" else "line") for axis in (row, column)]

    def pieces(self, n_elem: int, chunk: int) -> int:
        """In how many messages of up to ``chunk`` elements ``n_elem`` go: as many for each place, and each way there.

        Of few elements one for each place: more messages would take longer than they save.
        """
        both_ways = self.kind == "torus_2d" and n_elem > 2 * chunk
        even = self.n * (2 if both_ways else 1)
        return min(n_elem, -(-n_elem // (chunk * even)) * even)


def all_reduce_in_place(ptr: int, n: int, sips: SipGrid, sharers: int, messages: Messages, tl: Any) -> None:
    """Reduce ``n`` elements at ``ptr`` over the grid, as much at a time as scratch is meant to hold.

    ``sharers``: how many PEs of a SIP do so over the same links.
    """
    item = tl.itemsize(messages.dtype)
    for first, count in blocks(n, messages.segment()):
        pieces = sips.pieces(count, messages.chunk)
        data = Parts(ptr + first * item, count, pieces, messages, tl)
        steps = timetable(sips.axes(tl.program_id(2)), pieces)
        data.load(messages, order_of_use(steps, pieces), tl)
        window = on_the_way(WINDOW_BYTES, -(-count // pieces) * item * sharers)
        all_reduce_by(steps, data.values, messages, sips.n, tl, window)
        data.store(tl)
