"""Rings of ranks, and their rounds: every rank sends to the next and receives from the one before, all at once.

A rank passes on what it has received behind what it had to send itself, so that each queue carries one stream of
messages whose order both ends know. Receives are not waited for: steps wait for the messages they use, and only a full
queue stops the rank. At its k-th send it has asked for k messages, and the send needs that message k - n_slots of the
next rank is received there and reduced or copied, which needs no later send: no deadlock, however few the slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kernbench.ccl.pieces import Messages, number_pieces, split_evenly
from kernbench.ccl.topologies import direct_direction, global_direction
from kernbench.common.errors import InputError
from kernbench.messages.steps import Chunk, Step, copy, load, receive, send, store
from kernbench.topology.grid import OPPOSITE, Grid
from kernbench.topology.spec import SipsSpec, TopologySpec, sip_neighbours

Turns: TypeAlias = Sequence[Sequence[int]]
"""Which pieces belong to each part, part after part."""


class RingPlace(NamedTuple):
    """A place of ``size`` in a ring, and the queues to the next place and from the one before."""

    next: str
    prev: str
    place: int
    size: int

    def backwards(self, first: int) -> list[int]:
        """Return all places, from ``first`` against the direction of sending: the order in which their data come by."""
        return [(first - step) % self.size for step in range(self.size)]


class Relay:
    """The ``steps`` of a place of a ring; what it has still to send on waits for its turn."""

    __slots__ = ("_outgoing", "_ring", "steps")

    def __init__(self, ring: RingPlace) -> None:
        self.steps: list[Step] = []
        self._ring = ring
        self._outgoing: deque[int] = deque()

    def push(self, buffers: Iterable[int]) -> None:
        """Send ``buffers`` behind all others."""
        self._outgoing.extend(buffers)

    def take(self, count: int) -> str:
        """Receive the next message, of ``count`` elements, and return its slot; the first that waits is sent before."""
        self._send_one()
        self.steps.append(receive(self._ring.prev, count))
        return self._ring.prev

    def keep(self, buffer: int, count: int) -> None:
        """Copy the next message to ``buffer``, so that its slot is free for the next."""
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
    relay.push(turns[0])
    for turn in turns[1:]:
        for i in turn:
            slot = relay.take(pieces[i].size)
            relay.steps.append(messages.add(i, slot))
            if turn is turns[-1]:
                relay.steps += messages.finish(i, contributions)
            else:
                relay.push((i,))


def gather_round(relay: Relay, turns: Turns, pieces: Sequence[Chunk]) -> None:
    """Pass pieces round, given as ``turns`` in the order in which they are sent: the first is this place's own."""
    relay.push(turns[0])
    for turn in turns[1:]:
        for i in turn:
            relay.keep(i, pieces[i].size)
            if turn is not turns[-1]:
                relay.push((i,))


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
    turns, pieces = number_pieces(by_turn), list(chain(*by_turn))
    rounds = all_reduce_round(ring, turns, pieces, messages, ring.size)
    done = chain(turns[-1], *turns[:-1])
    return [*(load(i, piece) for i, piece in enumerate(pieces)), *rounds, *(store(i, pieces[i]) for i in done)]


class SipRing(NamedTuple):
    """``ring`` over places, by the queues of ``fabric_edges``; ``order`` has the rank, or SIP, of each place."""

    ring: RingPlace
    order: tuple[int, ...]

    def after(self, rank: int) -> int:
        """Return how many places this rank is behind ``rank`` in the direction of sending."""
        return (self.ring.place - self.order.index(rank)) % self.ring.size

    def slots(self) -> list[int]:
        """Return, for each place, the number of its rank's block in a tensor with a block for every rank."""
        ranks = sorted(self.order)
        return [ranks.index(rank) for rank in self.order]


def over_sips(
    rank: int, world_size: int, /, *, sips: SipRing | None = None, ranks_are_sips: bool = True, **_others: object
) -> SipRing:
    """Return the ring given to a schedule; else all ranks by number. InputError where ranks are no SIPs."""
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    by_number = RingPlace("global_E", "global_W", rank, world_size)
    return sips or SipRing(by_number, tuple(range(world_size)))


def check_ranks(world_size: int, *, ranks_are_sips: bool) -> None:
    """InputError for ranks that are PEs, where an algorithm is over SIPs."""
    if not ranks_are_sips:
        raise InputError(f"this algorithm is over SIPs: its ranks are all of them, not {world_size} PEs")


def check_rank(what: str, rank: int, world_size: int) -> int:
    """``rank`` if it is one; else InputError."""
    if not 0 <= rank < world_size:
        raise InputError(f"{what}={rank}: there are ranks 0..{world_size - 1}")
    return rank


def ring_of_all(spec: TopologySpec, sip: int) -> SipRing:
    """Return the ring over all SIPs of a machine, for the PEs of SIP ``sip``."""
    order = sip_order(spec.system.sips)

    def directions(a: int, b: int) -> tuple[str, str]:
        side = next((side for side, peer in sip_neighbours(spec.system.sips, a).items() if peer == b), None)
        if side is None:
            return direct_direction(b), direct_direction(a)
        return global_direction(side), global_direction(OPPOSITE[side])

    return _place_in_ring(order, sip, directions)


def ring_among(sips: Sequence[int], sip: int) -> SipRing:
    """Return the ring over some SIPs, of which ``sip`` is one, by the direct queues between them."""
    return _place_in_ring(sips, sip, lambda a, b: (direct_direction(b), direct_direction(a)))


def _place_in_ring(order: Sequence[int], sip: int, directions: Callable[[int, int], tuple[str, str]]) -> SipRing:
    """``directions`` from one SIP to another: by which queue it goes, by which it arrives."""
    at, size = order.index(sip), len(order)
    out, come = directions(sip, order[(at + 1) % size])[0], directions(order[at - 1], sip)[1]
    return SipRing(RingPlace(out, come, at, size), tuple(order))


def sip_order(sips: SipsSpec) -> list[int]:
    """Return all SIPs in the order of their ring.

    Rings, tori and meshes with an even side have a ring of links. Else a line of links is closed by a direct pair
    (other meshes), or every step is one (``fully_connected``, ``switch``).
    """
    grid = sips.grid
    if not sips.two_dimensional or 1 in (grid.w, grid.h):
        return list(range(sips.count))
    if grid.w % 2 == 0 or grid.h % 2 == 0:
        return _walk_closed_snake(grid) if grid.h % 2 == 0 else _transpose(_walk_closed_snake, grid)
    if sips.topology == "torus_2d":
        return _around_odd_torus(grid) if grid.w <= grid.h else _transpose(_around_odd_torus, grid)
    return [grid.index(x, y) for y in range(grid.h) for x in _to_and_fro(range(grid.w), y)]


def _transpose(walk: Callable[[Grid], list[int]], grid: Grid) -> list[int]:
    """Return the walk with rows and columns exchanged."""
    turned = Grid(grid.h, grid.w)
    return [grid.index(x, y) for y, x in map(turned.xy, walk(turned))]


def _walk_closed_snake(grid: Grid) -> list[int]:
    """East along the first row, to and fro through the rest of the others, back up the first column: ``h`` is even."""
    there = [(x, y) for y in range(grid.h) for x in _to_and_fro(range(1, grid.w), y)]
    back = [(0, y) for y in reversed(range(1, grid.h))]
    return [grid.index(x, y) for x, y in [(0, 0), *there, *back]]


def _to_and_fro(columns: range, y: int) -> range:
    return columns if y % 2 == 0 else columns[::-1]


def _around_odd_torus(grid: Grid) -> list[int]:
    """Once around every row, each beginning below the end of the one before; ``w <= h``, both odd.

    A row passed to the west ends one column further east than it began, and the other way round. So w more rows to
    the west than to the east end in the first column, above the beginning.
    """
    order, x = [], 0
    for y in range(grid.h):
        step = -1 if y < (grid.w + grid.h) // 2 else 1
        row = [(x + step * i) % grid.w for i in range(grid.w)]
        order += [grid.index(column, y) for column in row]
        x = row[-1]
    return order
