"""Rounds of a ring: every rank sends to the next and receives from the one before, all at once, in pieces.

A rank passes on what it has received behind what it had to send itself, so that each queue carries one stream of
messages whose order both ends know. Receives are not waited for: steps wait for the messages they use, and only a full
queue stops the rank. At its k-th send it has asked for k messages, and the send needs that message k - n_slots of the
next rank is received there and reduced or copied, which needs no later send: no deadlock, however few the slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kernbench.ccl.pieces import Messages, numbered, split_evenly
from kernbench.messages.steps import Chunk, Step, copy, load, receive, send, store

Turns: TypeAlias = Sequence[Sequence[int]]
"""Which pieces belong to each part, part after part."""


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
    """The ``steps`` of a place of a ring; what it has still to send on waits for its turn."""

    __slots__ = ("_outgoing", "_ring", "steps")

    def __init__(self, ring: RingPlace) -> None:
        self.steps: list[Step] = []
        self._ring = ring
        self._outgoing: deque[int] = deque()

    def put(self, buffers: Iterable[int]) -> None:
        """``buffers`` are to be sent behind all others."""
        self._outgoing.extend(buffers)

    def take(self, count: int) -> str:
        """The slot of the next message to come, of ``count`` elements; the first that waits is sent before."""
        self._send_one()
        self.steps.append(receive(self._ring.prev, count))
        return self._ring.prev

    def keep(self, buffer: int, count: int) -> None:
        """The next message to come, copied to ``buffer``, so that its slot is free for the next."""
        slot = self.take(count)
        self.steps.append(copy(buffer, slot))

    def flush(self) -> None:
        """Send what is left."""
        while self._outgoing:
            self._send_one()

    def _send_one(self) -> None:
        if self._outgoing:
            self.steps.append(send(self._ring.next, self._outgoing.popleft()))


def reduce_round(relay: Relay, turns: Turns, pieces: Sequence[Chunk], messages: Messages, contributions: int) -> None:
    """Reduce ``pieces``, given as ``turns`` in the order in which they are sent: the last ends up reduced."""
    relay.put(turns[0])
    for turn in turns[1:]:
        for i in turn:
            slot = relay.take(pieces[i].size)
            relay.steps.append(messages.add(i, slot))
            if turn is turns[-1]:
                relay.steps += messages.finish(i, contributions)
            else:
                relay.put((i,))


def gather_round(relay: Relay, turns: Turns, pieces: Sequence[Chunk]) -> None:
    """Pass pieces round, given as ``turns`` in the order in which they are sent: the first is this place's own."""
    relay.put(turns[0])
    for turn in turns[1:]:
        for i in turn:
            relay.keep(i, pieces[i].size)
            if turn is not turns[-1]:
                relay.put((i,))


def all_reduce_round(
    ring: RingPlace, turns: Turns, pieces: Sequence[Chunk], messages: Messages, contributions: int
) -> list[Step]:
    """Reduce ``pieces`` over a ring of two or more: reduce-scatter, then all-gather.

    ``turns`` are the parts of the places backwards from this one. A piece is reduced once, on one rank, so that all
    ranks end with the same bits.
    """
    relay = Relay(ring)
    reduce_round(relay, turns, pieces, messages, contributions)
    gather_round(relay, [turns[-1], *turns[:-1]], pieces)
    relay.flush()
    return relay.steps


def all_reduce_segment(segment: Chunk, ring: RingPlace, messages: Messages) -> list[Step]:
    """Load ``segment``, the parts in the order in which they are needed, reduce it round the ring, and store it.

    Buffers are numbered in that order: of parts of one size, all ranks take the same steps on other chunks.
    """
    if ring.size == 1:
        return []
    parts = split_evenly(segment, ring.size)
    by_turn = [messages.pieces(parts[place]) for place in ring.backwards(ring.place)]
    turns, pieces = numbered(by_turn), list(chain(*by_turn))
    rounds = all_reduce_round(ring, turns, pieces, messages, ring.size)
    done = chain(turns[-1], *turns[:-1])
    return [*(load(i, piece) for i, piece in enumerate(pieces)), *rounds, *(store(i, pieces[i]) for i in done)]
