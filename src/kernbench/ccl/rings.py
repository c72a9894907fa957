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
from typing import Any, NamedTuple, TypeAlias

from kernbench.ccl.pieces import Messages, numbered, split_evenly
from kernbench.ccl.sip_ring import ring_order
from kernbench.ccl.sip_ring import sip_ring as sip_ring_of
from kernbench.ccl.topologies import direct_direction
from kernbench.common.errors import InputError
from kernbench.messages.steps import Chunk, Step, copy, load, receive, send, store
from kernbench.topology.spec import TopologySpec

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
    ring: RingPlace, parts: Turns, pieces: Sequence[Chunk], messages: Messages, contributions: int
) -> list[Step]:
    """Reduce ``pieces`` over a ring of two or more: reduce-scatter, then all-gather.

    ``parts`` says which pieces are whose to reduce. One is reduced once, on one rank, so that all ranks end with the
    same bits.
    """
    relay = Relay(ring)
    turns = [parts[i] for i in ring.backwards(ring.place)]
    reduce_round(relay, turns, pieces, messages, contributions)
    gather_round(relay, [turns[-1], *turns[:-1]], pieces)
    relay.flush()
    return relay.steps


def all_reduce_segment(segment: Chunk, ring: RingPlace, messages: Messages) -> list[Step]:
    """Load ``segment``, the parts in the order in which they are needed, reduce it round the ring, and store it."""
    if ring.size == 1:
        return []
    by_part = [messages.pieces(part) for part in split_evenly(segment, ring.size)]
    parts, pieces = numbered(by_part), list(chain(*by_part))
    loads = [load(i, pieces[i]) for place in ring.backwards(ring.place) for i in parts[place]]
    rounds = all_reduce_round(ring, parts, pieces, messages, ring.size)
    return [*loads, *rounds, *(store(i, piece) for i, piece in enumerate(pieces))]


class SipRing(NamedTuple):
    """``ring`` over places; ``order`` has the rank of each place."""

    ring: RingPlace
    order: tuple[int, ...]

    def after(self, rank: int) -> int:
        """How many places this rank is behind ``rank`` in the direction of sending."""
        return (self.ring.place - self.order.index(rank)) % self.ring.size

    def slots(self) -> list[int]:
        """For each place, which block of a tensor with one for every rank is its rank's: they are in order of rank."""
        ranks = sorted(self.order)
        return [ranks.index(rank) for rank in self.order]


def sip_ring(
    rank: int,
    world_size: int,
    ring_order: Sequence[int] | None,
    next_direction: str,
    prev_direction: str,
    ranks_are_sips: bool,
) -> SipRing:
    """The place of ``rank`` in a ring over some ranks, which are SIPs; without an order all, by number.

    InputError for an order that is none, and where ranks are no SIPs.
    """
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    order = tuple(range(world_size)) if ring_order is None else tuple(ring_order)
    if not order or len(set(order)) < len(order) or not set(order) <= set(range(world_size)):
        raise InputError(f"ring_order={order}: has to name ranks of 0..{world_size - 1}, each once")
    place = order.index(rank) if rank in order else 0
    return SipRing(RingPlace(next_direction, prev_direction, place, len(order)), order)


def check_ranks(world_size: int, *, ranks_are_sips: bool) -> None:
    """InputError for ranks that are PEs, where an algorithm is over SIPs."""
    if not ranks_are_sips:
        raise InputError(f"this algorithm is over SIPs: its ranks are all of them, not {world_size} PEs")


def checked_rank(what: str, rank: int, world_size: int) -> int:
    """``rank`` if it is one; else InputError."""
    if not 0 <= rank < world_size:
        raise InputError(f"{what}={rank}: there are ranks 0..{world_size - 1}")
    return rank


def ring_values(spec: TopologySpec, sip: int) -> dict[str, Any]:
    """What ``sip_ring`` takes, for the PEs of SIP ``sip`` of a machine: the ring of ``kernbench.ccl.sip_ring``."""
    places = sip_ring_of(spec)
    if places is None:
        return {"ring_order": (0,)}
    here = places[sip]
    return {
        "ring_order": ring_order(places),
        "next_direction": here.next_direction,
        "prev_direction": here.prev_direction,
    }


def ring_values_among(sips: Sequence[int], sip: int) -> dict[str, Any]:
    """The same for a ring over some SIPs, of which ``sip`` is one, by the direct queues between them."""
    at = sips.index(sip)
    after, before = sips[(at + 1) % len(sips)], sips[at - 1]
    return {
        "ring_order": tuple(sips),
        "next_direction": direct_direction(after),
        "prev_direction": direct_direction(before),
    }
