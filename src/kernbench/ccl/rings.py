"""Rings of ranks and their rounds: every rank sends to the next rank and receives from the previous one, all at once.

A rank first sends its own data, then passes received data on. Each queue therefore carries one stream of messages, in
an order that both ranks know. Receives do not block: a step waits for the messages that it uses, and only a full queue
stops a rank. At its k-th send a rank has requested k messages. This send needs a free slot: the next rank must have
received message k - n_slots and reduced or copied it, which requires no later send. A ring therefore cannot deadlock
with any number of slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from kernbench.ccl.pieces import Messages, number_pieces, split_evenly
from kernbench.ccl.topologies import direct_direction, global_direction
from kernbench.common.errors import InputError
from kernbench.messages.steps import Chunk, Step, copy, load, receive, send
from kernbench.topology.grid import OPPOSITE, Grid
from kernbench.topology.spec import SipsSpec, TopologySpec, sip_neighbours

PartPieces: TypeAlias = Sequence[Sequence[int]]
"""The numbers of the pieces of each part, in the order in which parts are sent."""


class RingPlace(NamedTuple):
    """A place in a ring of ``size`` places, with the queues to the next place and from the previous one."""

    next: str
    prev: str
    place: int
    size: int

    def backwards(self, first: int) -> list[int]:
        """Return all places from ``first`` against the direction of sending: the order in which their data arrive."""
        return [(first - step) % self.size for step in range(self.size)]


class Relay:
    """The ``steps`` of a place of a ring, with a FIFO of the buffers that it has yet to send on."""

    __slots__ = ("_outgoing", "_ring", "steps")

    def __init__(self, ring: RingPlace) -> None:
        self.steps: list[Step] = []
        self._ring = ring
        self._outgoing: deque[int] = deque()

    def push(self, buffers: Iterable[int]) -> None:
        """Queue ``buffers`` for sending."""
        self._outgoing.extend(buffers)

    def take(self, count: int) -> str:
        """Receive the next message, of ``count`` elements, and return its slot; one queued buffer is sent first."""
        self._send_one()
        self.steps.append(receive(self._ring.prev, count))
        return self._ring.prev

    def keep(self, buffer: int, count: int) -> None:
        """Receive the next message and copy it to ``buffer``, so that its slot is free."""
        slot = self.take(count)
        self.steps.append(copy(buffer, slot))

    def flush(self) -> None:
        """Send all queued buffers."""
        while self._outgoing:
            self._send_one()

    def _send_one(self) -> None:
        if self._outgoing:
            self.steps.append(send(self._ring.next, self._outgoing.popleft()))


def reduce_round(
    relay: Relay, parts: PartPieces, pieces: Sequence[Chunk], messages: Messages, contributions: int
) -> None:
    """Reduce ``pieces``, whose ``parts`` are in the order of sending; this place ends with the last part reduced."""
    relay.push(parts[0])
    for part in parts[1:]:
        for i in part:
            slot = relay.take(pieces[i].size)
            relay.steps.append(messages.add(i, slot))
            if part is parts[-1]:
                relay.steps += messages.finish(i, contributions)
            else:
                relay.push((i,))


def gather_round(relay: Relay, parts: PartPieces, pieces: Sequence[Chunk]) -> None:
    """Pass pieces round the ring; ``parts`` are in the order of sending, and the first is the part of this place."""
    relay.push(parts[0])
    for part in parts[1:]:
        for i in part:
            relay.keep(i, pieces[i].size)
            if part is not parts[-1]:
                relay.push((i,))


def all_reduce_round(
    ring: RingPlace, parts: PartPieces, pieces: Sequence[Chunk], messages: Messages, contributions: int
) -> list[Step]:
    """Return the steps that reduce ``pieces`` over a ring of two or more: reduce-scatter, then all-gather.

    ``parts`` has the part of each place, backwards from this place. A piece is reduced once, on one rank, so that all
    ranks end with the same bits.
    """
    relay = Relay(ring)
    reduce_round(relay, parts, pieces, messages, contributions)
    gather_round(relay, [parts[-1], *parts[:-1]], pieces)
    relay.flush()
    return relay.steps


def all_reduce_segment(segment: Chunk, ring: RingPlace, messages: Messages) -> list[Step]:
    """Return the steps that load the pieces of ``segment`` in the ring's order, reduce them round the ring, and store
    them.

    Buffers are numbered in that order. With parts of equal size, all ranks have the same steps on different chunks.
    """
    if ring.size == 1:
        return []
    chunks = split_evenly(segment, ring.size)
    by_part = [messages.pieces(chunks[place]) for place in ring.backwards(ring.place)]
    parts, pieces = number_pieces(by_part), list(chain(*by_part))
    rounds = all_reduce_round(ring, parts, pieces, messages, ring.size)
    loads = [load(i, pieces[i]) for i in (order_of_use(parts, messages) if messages.far else range(len(pieces)))]
    return messages.store_all([*loads, *rounds], ((i, pieces[i]) for i in chain(parts[-1], *parts[:-1])))


def order_of_use(parts: PartPieces, messages: Messages) -> list[int]:
    """Return the order in which a reduction round a ring needs pieces; ``parts`` are in the order of sending.

    Pieces of the first part are sent, one at a time. Those of the next part are added to messages, which arrive behind
    the first sends, and so on.
    """
    lead, length = half_a_hop(messages), max(map(len, parts))
    needed = {i: at for at, i in enumerate(parts[0])}
    for part_number, part in enumerate(parts[1:]):
        needed |= {i: part_number * length + at + lead for at, i in enumerate(part)}
    return sorted(needed, key=lambda i: needed[i])


def half_a_hop(messages: Messages) -> int:
    """Return how many messages are in flight between two SIPs, one way."""
    return messages.in_flight(messages.hop_bytes[-1] // 2)


class SipRing(NamedTuple):
    """``ring`` over places, by the queues of ``fabric_edges``; ``order`` has the rank or SIP of each place."""

    ring: RingPlace
    order: tuple[int, ...]

    def after(self, rank: int) -> int:
        """Return how many places this rank is after ``rank`` in the direction of sending."""
        return (self.ring.place - self.order.index(rank)) % self.ring.size

    def slots(self) -> list[int]:
        """Return the block number of each place's rank, in a tensor with a block for every rank."""
        ranks = sorted(self.order)
        return [ranks.index(rank) for rank in self.order]


def over_sips(
    rank: int, world_size: int, /, *, sips: SipRing | None = None, ranks_are_sips: bool = True, **_others: object
) -> SipRing:
    """Return ``sips``, the ring passed to a schedule, or by default the ring of all ranks in the order of numbers.

    Raises InputError if ranks are PEs.
    """
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    by_number = RingPlace("global_E", "global_W", rank, world_size)
    return sips or SipRing(by_number, tuple(range(world_size)))


def check_ranks(world_size: int, *, ranks_are_sips: bool) -> None:
    """Raise InputError if ranks are PEs: an algorithm over SIPs needs one rank for each SIP."""
    if not ranks_are_sips:
        raise InputError(f"this algorithm is over SIPs: its ranks are all of them, not {world_size} PEs")


def check_rank(name: str, rank: int, world_size: int) -> int:
    """Return ``rank`` if it exists in the world; else raise InputError."""
    if not 0 <= rank < world_size:
        raise InputError(f"{name}={rank}: there are ranks 0..{world_size - 1}")
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
    """Return the ring over ``sips``, which include ``sip``, by the direct queues between them."""
    return _place_in_ring(sips, sip, lambda a, b: (direct_direction(b), direct_direction(a)))


def _place_in_ring(order: Sequence[int], sip: int, directions: Callable[[int, int], tuple[str, str]]) -> SipRing:
    """Return the place of ``sip``; ``directions`` of two SIPs are the queue out of the first and into the second."""
    at, size = order.index(sip), len(order)
    out, come = directions(sip, order[(at + 1) % size])[0], directions(order[at - 1], sip)[1]
    return SipRing(RingPlace(out, come, at, size), tuple(order))


def sip_order(sips: SipsSpec) -> list[int]:
    """Return all SIPs in the order of their ring.

    Rings, tori, and meshes with an even side have a ring of links. In other meshes, the ring is a line of links, closed
    by a direct queue pair. In ``fully_connected`` and ``switch`` every hop is a direct queue pair.
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
    transposed = Grid(grid.h, grid.w)
    return [grid.index(x, y) for y, x in map(transposed.xy, walk(transposed))]


def _walk_closed_snake(grid: Grid) -> list[int]:
    """Walk east along row 0, then to and fro through the other rows without column 0, and back up column 0.

    ``h`` has to be even.
    """
    snake = [(x, y) for y in range(grid.h) for x in _to_and_fro(range(1, grid.w), y)]
    back = [(0, y) for y in reversed(range(1, grid.h))]
    return [grid.index(x, y) for x, y in [(0, 0), *snake, *back]]


def _to_and_fro(columns: range, y: int) -> range:
    return columns if y % 2 == 0 else columns[::-1]


def _around_odd_torus(grid: Grid) -> list[int]:
    """Walk once around every row, each beginning below the end of the previous row; ``w <= h``, both odd.

    A row walked to the west ends one column further east than it began, and vice versa. So with w more rows to the west
    than to the east, the walk ends in column 0, above its beginning.
    """
    order, x = [], 0
    for y in range(grid.h):
        step = -1 if y < (grid.w + grid.h) // 2 else 1
        row = [(x + step * i) % grid.w for i in range(grid.w)]
        order += [grid.index(column, y) for column in row]
        x = row[-1]
    return order
