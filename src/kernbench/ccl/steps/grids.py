"""All-reduce over a grid of rings and lines: reduce-scatter along every axis, then all-gather back.

Along the first axis each place is left with one part reduced, along the next with a part of that part, and so on; then
the parts are gathered in reverse. So n places exchange 2(n-1)/n of the data, however many axes they have, in as many
steps as the axes are long, less one each. A value is reduced on one place and copied: all end with the same bits.

All links work at once. Where there are two axes and many messages, half of them begin along one and half along the
other. On a line, what is for places further on goes there directly, adding what is on the way, in both directions. On a
torus, half goes round one way and half the other.

Each message has a time in a timetable, which both its ends know; a place does what it has to do in the order of these
times. Receives are posted and not waited for, so only a full queue stops a kernel; then the receiver is still before
the message that was ``n_slots`` earlier. So the place that is furthest behind never waits for another: no deadlock,
however few the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

from kernbench.ccl.steps.chunks import split
from kernbench.ccl.steps.messages import Messages
from kernbench.ccl.steps.rings import Ring, kept

_HOP = 4  # about so many messages leave before the first comes in
MANY_MESSAGES = 16
"""So many gain more by using all axes at once than they lose by all being needed at once."""


Parts: TypeAlias = Sequence[Sequence[int]]
"""The values of each place of an axis"""


class Axis(NamedTuple):
    """A place on an axis. ``kind``: a ``line``; a ``ring``, which is used one way round; a ``torus``: both ways."""

    ring: Ring
    kind: Literal["line", "ring", "torus"]


class Step(NamedTuple):
    """At ``when`` of the timetable this place sends ``value`` by ``queue``, or adds to it or takes what comes there."""

    when: int
    value: int
    does: Literal["send", "add", "take"]
    queue: str


Passes: TypeAlias = tuple[list[Step], list[Step], Sequence[int]]
"""What a place does to scatter, and to gather, each from time 0 on; and the values that it has reduced in between"""


def all_reduce_over(axes: Iterable[Axis], values: list[Any], messages: Messages, tl: Any) -> None:
    """Reduce ``values`` over all places of a grid, in place; axes of one place are left out."""
    for _, i, does, queue in timetable(axes, len(values)):
        x = values[i]
        if does == "send":
            tl.send(queue, x)
        else:
            message = tl.recv_async(queue, x.shape, x.dtype)
            values[i] = messages.combine(x, message, tl) if does == "add" else kept(message, tl)
            del message  # it is a slot
        del x


def order_of_use(axes: Iterable[Axis], n: int) -> list[int]:
    """The order in which ``all_reduce_over`` needs ``n`` values here: whoever brings them in does so in that order.

    What is added to a message is needed when that has come.
    """
    first: dict[int, int] = {}
    for when, i, does, _ in timetable(axes, n):
        needed = when + _HOP * (does != "send")
        first[i] = min(needed, first.get(i, needed))
    return sorted(range(n), key=lambda i: first.get(i, 0))


def order_of_results(axes: Iterable[Axis], n: int) -> list[int]:
    """The order in which ``all_reduce_over`` is done with ``n`` values here."""
    last = {i: at for at, (_, i, does, _) in enumerate(timetable(axes, n)) if does != "send"}
    return sorted(range(n), key=lambda i: last.get(i, 0))


def timetable(axes: Iterable[Axis], n: int) -> list[Step]:
    """What this place does for the all-reduce of ``n`` values, in order."""
    long = [axis for axis in axes if axis.ring.size > 1]
    ways = [long, long[::-1]] if len(long) > 1 and n >= MANY_MESSAGES else [long]
    steps: list[Step] = []
    for first, way in enumerate(ways):
        mine = range(n)[first :: len(ways)]
        found, _ = _planned(way, mine, len(mine), 0)
        steps += found
    return sorted(steps, key=lambda step: step.when)


def _planned(axes: Sequence[Axis], mine: Sequence[int], most: int, begin: int) -> tuple[list[Step], int]:
    """The all-reduce of ``mine`` from ``begin`` on, along one axis after the other, and when it ends.

    ``most``: how many values those places have that have most. Times depend on that alone.
    """
    if not axes or not most:
        return [], begin
    ring, kind = axes[0]
    if kind == "torus":
        back = Ring(ring.prev, ring.next, ring.size - 1 - ring.place, ring.size)
        shares, most = [(ring, mine[::2]), (back, mine[1::2])], -(-most // 2)
    else:
        shares = [(ring, mine)]
    passes, longest = _pass_line if kind == "line" else _pass_ring, -(-most // ring.size)
    lasts = (ring.size - 1) * longest
    each = [passes(way, _split(share, ring.size), longest) for way, share in shares]
    own = sorted(i for _, _, part in each for i in part)
    inner, end = _planned(axes[1:], own, len(shares) * longest, begin + lasts)
    scatters = [step._replace(when=begin + step.when) for scatter, _, _ in each for step in scatter]
    gathers = [step._replace(when=end + step.when) for _, gather, _ in each for step in gather]
    return [*scatters, *inner, *gathers], end + lasts


def _pass_ring(ring: Ring, parts: Parts, longest: int) -> Passes:
    """Each part goes round from its place on, and is whole one place before that."""
    *others, own = [parts[i] for i in ring.backwards(ring.place)]
    scatter = _round(ring, [*others, own], "add", longest)
    return scatter, _round(ring, [own, *others], "take", longest), own


def _round(ring: Ring, turns: Parts, does: Literal["add", "take"], longest: int) -> list[Step]:
    steps: list[Step] = []
    for turn, (going, coming) in enumerate(pairwise(turns)):
        steps += [Step(turn * longest + k, i, "send", ring.next) for k, i in enumerate(going)]
        steps += [Step(turn * longest + k, i, does, ring.prev) for k, i in enumerate(coming)]
    return steps


def _pass_line(line: Ring, parts: Parts, longest: int) -> Passes:
    """Parts go to their places from both ends, the farthest first, and back from there, the nearest first."""
    here = line.place
    scatter: list[Step] = []
    gather: list[Step] = []
    for to, of, before, behind in (
        (line.next, line.prev, parts[:here][::-1], parts[here + 1 :][::-1]),
        (line.prev, line.next, parts[here + 1 :], parts[:here]),
    ):
        # ``before``: the parts of those that messages come from; ``behind``: of those they go to, the farthest first.
        for turn, part in enumerate([*behind, parts[here]]):
            for k, i in enumerate(part):
                if before:
                    scatter.append(Step(turn * longest + k, i, "add", of))
                if turn < len(behind):
                    scatter.append(Step(turn * longest + k, i, "send", to))
        for turn, part in enumerate([parts[here], *before]):
            for k, i in enumerate(part):
                if behind:
                    gather.append(Step(turn * longest + k, i, "send", to))
                if turn:
                    gather.append(Step((turn - 1) * longest + k, i, "take", of))
    return scatter, gather, parts[here]


def _split(mine: Sequence[int], parts: int) -> list[Sequence[int]]:
    return [mine[first : first + count] for first, count in split(len(mine), parts)]
