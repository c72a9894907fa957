"""A tensor in pieces of one message each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kernbench.ccl.steps.messages import Messages
from kernbench.kernels.shares import blocks

_LOADS_AHEAD = 16


def split(n: int, parts: int) -> list[tuple[int, int]]:
    """First and number of elements of each of ``parts`` parts of ``n``: the first ``n % parts`` have one more."""
    size, more = divmod(n, parts)
    return [(i * size + min(i, more), size + (i < more)) for i in range(parts)]


def places(ptr: int, n: int, messages: Messages, tl: Any) -> list[tuple[int, int]]:
    """Address and number of elements of each piece of ``n`` elements at ``ptr``."""
    item = int(tl.itemsize(messages.dtype))
    return [(ptr + first * item, count) for first, count in blocks(n, messages.chunk)]


def loaded(where: Sequence[tuple[int, int]], messages: Messages, tl: Any) -> Iterator[Any]:
    """Handles of the pieces at ``where``, in order; some loads are under way ahead of what is taken."""
    under_way: deque[Any] = deque()
    for ptr, count in where:
        under_way.append(tl.load(ptr, count, messages.dtype))
        if len(under_way) > _LOADS_AHEAD:
            yield under_way.popleft()
    while under_way:
        yield under_way.popleft()


def store_all(where: Iterable[tuple[int, int]], values: Iterable[Any], tl: Any) -> None:
    """Write each value to its place."""
    for (ptr, _), value in zip(where, values, strict=True):
        tl.store(ptr, value)


class Parts:
    """``n`` elements at ``ptr``, held in scratch: ``values`` has their handles, ``parts`` which make up a part.

    A message never spans two parts.
    """

    __slots__ = ("parts", "places", "values")

    def __init__(self, ptr: int, n: int, parts: int, messages: Messages, tl: Any) -> None:
        item = int(tl.itemsize(messages.dtype))
        self.places: list[tuple[int, int]] = []
        self.parts: list[list[int]] = []
        self.values: list[Any] = []
        for first, count in split(n, parts):
            found = places(ptr + first * item, count, messages, tl)
            self.parts.append(list(range(len(self.places), len(self.places) + len(found))))
            self.places += found

    def load(self, messages: Messages, order: Iterable[int], tl: Any) -> None:
        """Read everything, the parts in the ``order`` in which they are needed, and wait until it is there.

        Messages come over the link that loads come over: with both at once the ring would go at the pace of the loads.
        """
        self.values = [None] * len(self.places)
        for part in order:
            for i in self.parts[part]:
                ptr, count = self.places[i]
                self.values[i] = tl.load(ptr, count, messages.dtype)
        self.settle(tl)

    def settle(self, tl: Any) -> None:
        """Wait until every value is there."""
        for x in self.values:
            tl.wait(x)

    def store(self, tl: Any) -> None:
        """Write everything back, once all of it is there: stores would share the link with messages."""
        self.settle(tl)
        store_all(self.places, self.values, tl)
