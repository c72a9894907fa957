"""Rounds of a ring: every rank sends to the next and receives from the one before, all at once, in pieces.

A rank passes on what it has received behind what it had to send itself, so that each queue carries one stream of
messages whose order both ends know. Receives are posted and not waited for: commands wait for the messages they use,
and only a full queue stops the kernel. A kernel at its k-th send has posted k receives, and the send needs that message
k - n_slots of the next rank is received there and combined or copied, which needs no later send: no deadlock, however
few the slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from kernbench.ccl.steps.messages import Messages, Parts
from kernbench.kernels.shares import blocks

Turns: TypeAlias = Sequence[Sequence[int]]
"""Which values belong to each part, part after part."""


class RingPlace(NamedTuple):
    """A place of ``size`` in a ring, and the queues to the next place and from the one before."""

    next: str
    prev: str
    place: int
    size: int

    def backwards(self, first: int) -> list[int]:
        """All places, from ``first`` against the direction of sending: the order in which their data come by."""
        return [(first - step) % self.size for step in range(self.size)]


class Relay:
    """What this rank has still to send on, and its receives."""

    __slots__ = ("_outgoing", "_ring", "_tl")

    def __init__(self, ring: RingPlace, tl: Any) -> None:
        self._ring = ring
        self._tl = tl
        self._outgoing: deque[Any] = deque()

    def put(self, messages: Iterable[Any]) -> None:
        """``messages`` are to be sent behind all others."""
        self._outgoing.extend(messages)

    def take(self, like: Any) -> Any:
        """The next message to come, of the shape and type of ``like``; the first that waits is sent before."""
        return self.take_of(like.shape, like.dtype)

    def take_of(self, shape: Any, dtype: object) -> Any:
        """The next message to come, of this shape and type; the first that waits is sent before."""
        self._send_one()
        return self._tl.recv_async(self._ring.prev, shape, dtype)

    def flush(self) -> None:
        """Send what is left."""
        while self._outgoing:
            self._send_one()

    def _send_one(self) -> None:
        if self._outgoing:
            self._tl.send(self._ring.next, self._outgoing.popleft())


def kept(message: Any, tl: Any) -> Any:
    """A copy of a message in scratch, made by MATH, so that its slot is free for the next."""
    return tl.trans(message, (0,))


def reduce_round(
    relay: Relay, turns: Turns, values: list[Any], messages: Messages, contributions: int, tl: Any
) -> None:
    """Reduce parts of ``values``, given as ``turns`` in the order in which they are sent: the last ends up reduced."""
    relay.put(values[i] for i in turns[0])
    for turn in turns[1:-1]:
        for i in turn:
            values[i] = messages.combine(values[i], relay.take(values[i]), tl)
            relay.put((values[i],))
    for i in turns[-1]:
        values[i] = messages.finish(messages.combine(values[i], relay.take(values[i]), tl), contributions, tl)


def gather_round(relay: Relay, turns: Turns, values: list[Any], tl: Any) -> None:
    """Pass parts round, given as ``turns`` in the order in which they are sent: the first is this rank's own."""
    relay.put(values[i] for i in turns[0])
    for turn in turns[1:]:
        for i in turn:
            values[i] = kept(relay.take(values[i]), tl)
            if turn is not turns[-1]:
                relay.put((values[i],))


def all_reduce_parts(
    ring: RingPlace, parts: Turns, values: list[Any], messages: Messages, contributions: int, tl: Any
) -> None:
    """Reduce ``values`` over a ring of two or more, in place: reduce-scatter, then all-gather.

    ``parts`` says which values are whose to reduce. A value is reduced once, on one rank, so that all ranks end with
    the same bits.
    """
    relay = Relay(ring, tl)
    turns = [parts[i] for i in ring.backwards(ring.place)]
    reduce_round(relay, turns, values, messages, contributions, tl)
    gather_round(relay, [turns[-1], *turns[:-1]], values, tl)
    relay.flush()


def all_reduce_in_place(ptr: int, n: int, ring: RingPlace, messages: Messages, tl: Any) -> None:
    """Reduce ``n`` elements at ``ptr`` over the ring, as much at a time as scratch is meant to hold."""
    if ring.size == 1:
        return
    item = tl.itemsize(messages.dtype)
    for first, count in blocks(n, messages.segment()):
        data = Parts(ptr + first * item, count, ring.size, messages, tl)
        data.load(messages, ring.backwards(ring.place), tl)
        all_reduce_parts(ring, data.parts, data.values, messages, ring.size, tl)
        data.store(tl)
