"""Closed forms of collectives: latency and bandwidth of each hop, and what its ends add. All read from the topology.

Of a message of c bytes over a hop

    a(c) = L + c/B + ends + MATH(c)     L, B: latency of the way and its least bandwidth

and the last of n messages behind each other is sent, with s slots, of which each is free when its credit is back,

    behind(n) = (n-1) // s · max(a + credit, s t) + (n-1) mod s · t     t = max(c/B, MATH(c))

after the first. A ring of N over S bytes has parts of m = S/N, in k messages of c = min(m, slot). Each of 2(N-1) steps
passes a part on, message by message, so that the steps overlap:

    ring = max(2(N-1) a + behind(k), behind(2(N-1) k) + a)

With k = 1 that is 2(N-1) (L + m/B) and what the ends add: the textbook's reduce-scatter and all-gather.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from statistics import fmean

from kernbench.ccl.config import QueueSettings
from kernbench.ccl.grids import SipGrid
from kernbench.ccl.sip_ring import sip_ring
from kernbench.common.ids import hbm_id, pe_dma_id
from kernbench.common.units import ps_to_ns, whole_ps
from kernbench.engine.machine import Machine
from kernbench.evaluation.ccl_fabrics import INTERCUBE, AlgorithmName
from kernbench.messages.requests import PeCoord
from kernbench.topology.grid import Side

# What passes a PE's link in the last column of cubes: a row's sum, a column's sum, and the PE's own data.
STREAMS_OF_A_CORNER = 3
_GLOBAL = "global_"
_SEGMENT_BYTES = 3 << 20  # a quarter of scratch


@dataclass(frozen=True, slots=True)
class QueueWay:
    """A way from PE to PE: its latency in ns, its least bandwidth, and how long a credit takes back."""

    latency_ns: float
    bw_gbs: float
    credit_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RingTime:
    """The time of a ring all-reduce and its parts, in ns.

    ``oracle_ns``: 2(N-1) (L + m/B). ``ends_ns``: queues, DMA set-up and MATH of 2(N-1) messages. ``overlap_ns``, below
    0: steps of several messages overlap. ``stalls_ns``: waiting for credits. ``start_ns``: launch and first command.
    ``load_ns``, ``store_ns``: from and to the PE's HBM slice.
    """

    oracle_ns: float
    ends_ns: float
    overlap_ns: float
    stalls_ns: float
    start_ns: float
    load_ns: float
    store_ns: float

    @property
    def ring_ns(self) -> float:
        """The ring, without loads and stores."""
        return self.oracle_ns + self.ends_ns + self.overlap_ns + self.stalls_ns

    @property
    def ns(self) -> float:
        """All of it."""
        return self.start_ns + self.load_ns + self.ring_ns + self.store_ns


class ClosedForms:
    """The closed forms of a machine with queues in TCM."""

    def __init__(self, machine: Machine, queues: QueueSettings) -> None:
        self._machine, self._spec, self._queues = machine, machine.spec, queues
        pe = self._spec.pe
        self._setup_ns = pe.dma.setup_ns
        self.ends_ns = 2 * pe.components.pe_ipcq.attrs.overhead_ns + self._setup_ns
        self.start_ns = ps_to_ns(pe.components.pe_cpu.attrs.first_issue_ps)

    def hop(self, src: PeCoord, dst: PeCoord, side: Side | None = None) -> QueueWay:
        """The way of messages from PE to PE; ``side``: the scale-up link it leaves the SIP by."""
        there = self._machine.route(pe_dma_id(*src), pe_dma_id(*dst), side)
        credit = self._machine.sideband_ps(pe_dma_id(*dst), pe_dma_id(*src), self._queues.credit_bytes)
        return QueueWay(ps_to_ns(there.total_overhead_ps), there.bottleneck_gbs, ps_to_ns(credit))

    def sip_hop(self) -> QueueWay:
        """A hop of the ring over all SIPs, of PE 0 of cube 0 of each; the mean of them."""
        places = sip_ring(self._spec) or ()
        hops = [
            self.hop((at, 0, 0), (place.next_sip, 0, 0), _side_of(place.next_direction))
            for at, place in enumerate(places)
        ]
        return _mean(hops)

    def closed_ns(self, algorithm: AlgorithmName, nbytes: int, root: int) -> float:
        """A collective of contributions of ``nbytes``; ``root``: the cube where SIPs meet."""
        if algorithm == INTERCUBE:
            found = sum(self._intercube(part, root) for part in _segments(nbytes)) + self.start_ns
        elif self._grid.is_grid:
            found = sum(self._over_grid(part) for part in _segments(nbytes)) + self.start_ns
        else:
            found = self.ring(self._spec.num_sips, nbytes, self.sip_hop()).ns
        return whole_ps(found)

    @property
    def _grid(self) -> SipGrid:
        sips = self._spec.system.sips
        return SipGrid(sips.count, sips.topology, sips.grid.w, sips.grid.h)

    def _over_grid(self, nbytes: int) -> float:
        """Everything is loaded, then exchanged along rows and columns, then stored."""
        pieces = self._grid.pieces(nbytes, self._queues.slot_size)
        chunk = ceil(nbytes / pieces)
        return self.load_ns(chunk, pieces) + self._exchange(0, chunk, pieces) + self.store_ns(chunk, pieces)

    def math_ns(self, nbytes: int) -> float:
        """An elementwise command with a result of ``nbytes``."""
        return self._spec.pe.math.operation_ns(nbytes)

    def message_ns(self, hop: QueueWay, nbytes: int) -> float:
        """A message, from the command that sends it to the end of the command that uses it."""
        return hop.latency_ns + nbytes / hop.bw_gbs + self.ends_ns + self.math_ns(nbytes)

    def load_ns(self, nbytes: int, pieces: int = 1) -> float:
        """Reads of the PE's own HBM slice, ``pieces`` in a row of ``nbytes`` each."""
        there, back = self._to_slice(back=False), self._to_slice(back=True)
        request = self._setup_ns + there.latency_ns + self._machine.header_bytes / there.bw_gbs
        return request + self._access_ns + back.latency_ns + self._pieces_ns(nbytes, pieces, back.bw_gbs)

    def store_ns(self, nbytes: int, pieces: int = 1) -> float:
        """Writes there, with the last acknowledgement."""
        there, back = self._to_slice(back=False), self._to_slice(back=True)
        data = self._setup_ns + there.latency_ns + self._pieces_ns(nbytes, pieces, there.bw_gbs)
        return data + self._access_ns + back.latency_ns + self._machine.header_bytes / back.bw_gbs

    def _pieces_ns(self, nbytes: int, pieces: int, way_gbs: float) -> float:
        """Pieces one behind the other: each takes as long as its data, or as the set-up of the next."""
        data = self._piece_ns(nbytes, way_gbs)
        return (pieces - 1) * max(self._setup_ns, data) + data

    def _piece_ns(self, nbytes: int, way_gbs: float) -> float:
        """A piece on its way, or at the slice: a round over its channels for every burst of each of them."""
        hbm = self._spec.cube.hbm
        rounds = ceil(nbytes / hbm.round_bytes)
        return max(nbytes / way_gbs, rounds * min(nbytes, hbm.interleave_bytes) / self._spec.cube.pc_bw_gbs)

    def ring(self, n: int, nbytes: int, hop: QueueWay) -> RingTime:
        """Reduce-scatter and all-gather round a ring of ``n`` with these hops, a segment after the other."""
        found = [self._ring(n, part, hop) for part in _segments(nbytes)]
        return RingTime(
            oracle_ns=_sum(each.oracle_ns for each in found),
            ends_ns=_sum(each.ends_ns for each in found),
            overlap_ns=_sum(each.overlap_ns for each in found),
            stalls_ns=_sum(each.stalls_ns for each in found),
            start_ns=whole_ps(self.start_ns),
            load_ns=_sum(each.load_ns for each in found),
            store_ns=_sum(each.store_ns for each in found),
        )

    def _ring(self, n: int, nbytes: int, hop: QueueWay) -> RingTime:
        part = ceil(nbytes / n)
        chunk, steps = min(part, self._queues.slot_size), 2 * (n - 1)
        messages = ceil(part / chunk)
        one, pieces = self.message_ns(hop, chunk), n * messages
        oracle = steps * (hop.latency_ns + part / hop.bw_gbs)
        ends = steps * (self.ends_ns + self.math_ns(chunk))
        each = self._between_ns(hop, chunk)
        free = max(steps * one + (messages - 1) * each, (steps * messages - 1) * each + one)
        taken = max(
            steps * one + self._behind_ns(hop, chunk, messages), self._behind_ns(hop, chunk, steps * messages) + one
        )
        return RingTime(
            oracle_ns=oracle,
            ends_ns=ends,
            overlap_ns=free - oracle - ends,
            stalls_ns=taken - free,
            start_ns=0.0,
            load_ns=self.load_ns(chunk, pieces),
            store_ns=self.store_ns(chunk, pieces),
        )

    def _between_ns(self, hop: QueueWay, chunk: int, streams: int = 1) -> float:
        """From one message to the next, where credits do not hold them up: the way, or the MATH unit behind it."""
        return max(streams * chunk / hop.bw_gbs, self.math_ns(chunk))

    def _behind_ns(self, hop: QueueWay, chunk: int, messages: int, streams: int = 1) -> float:
        """How long after the first of so many messages the last is sent; ``streams`` share the way."""
        rounds, rest = divmod(messages - 1, self._queues.n_slots)
        each = self._between_ns(hop, chunk, streams)
        return rounds * max(self.message_ns(hop, chunk) + hop.credit_ns, self._queues.n_slots * each) + rest * each

    def _intercube(self, nbytes: int, root: int) -> float:
        """Rows to the east, the last column to the south, over SIPs, and back."""
        chunk = min(nbytes, self._queues.slot_size)
        count = ceil(nbytes / chunk)
        up, down = (self._along(cubes) for cubes in (self._way_up(), self._way_up()[::-1]))
        way = self._along(self._way_to(root))
        one = sum(self.message_ns(hop, chunk) for hop in up)
        # What is passed on, and not added to, takes no MATH.
        one += sum(self.message_ns(hop, chunk) - self.math_ns(chunk) for hop in (*down, *way, *way))
        # A cube of the last column sends to its row first, then on down the column.
        one += sum(chunk / hop.bw_gbs for hop in down[: self._spec.sip.cube_mesh.h - 1])
        # Rows come out of the slice meanwhile, and sums go into it.
        slices = (self._piece_ns(chunk, self._to_slice(back=back).bw_gbs) for back in (True, False))
        coming, going = (
            max(self._behind_ns(_slowest(hops), chunk, count, STREAMS_OF_A_CORNER), (count - 1) * piece)
            for hops, piece in zip((up, down), slices, strict=True)
        )
        scattered = gathered = self._exchange(root, chunk, count) / 2
        # Messages come in the order in which they are scattered, unless all are needed at once.
        met = coming + scattered if self._all_axes_at_once(count) else max(coming, scattered)
        return self.load_ns(chunk) + one + met + gathered + going + self.store_ns(chunk)

    def _exchange(self, root: int, chunk: int, count: int) -> float:
        """The cubes ``root`` of all SIPs: reduce-scatter and all-gather along rows, within that along columns.

        Of many messages half begin with the columns, at the same time. On a line as on a ring: n-1 hops each way, and
        no link carries more than n-1 of n parts.
        """
        axes = self._axes
        ways = [axes, axes[::-1]] if self._all_axes_at_once(count) else [axes]
        return max(self._along_axes(way, root, chunk, ceil(count / len(ways))) for way in ways)

    @property
    def _axes(self) -> list[tuple[int, Side, int]]:
        """Rings and lines of SIPs: how many each has, its side, and the next SIP there; those of one are left out."""
        sips = self._spec.system.sips
        axes: list[tuple[int, Side, int]] = [(sips.count, "E", 1)]
        if sips.two_dimensional:
            axes = [(sips.grid.w, "E", 1), (sips.grid.h, "S", sips.grid.w)]
        return [axis for axis in axes if axis[0] > 1]

    def _all_axes_at_once(self, count: int) -> bool:
        return len(self._axes) > 1 and count >= 2 * self._spec.num_sips

    def _along_axes(self, axes: Sequence[tuple[int, Side, int]], root: int, chunk: int, count: int) -> float:
        """Along each axis what is left by those before."""
        sips = self._spec.system.sips
        has_sides = sips.topology not in ("fully_connected", "switch")
        total, left = 0.0, count
        for n, side, peer in axes:
            hop = self.hop((0, root, 0), (peer, root, 0), side if has_sides else None)
            # A torus is used both ways round, by half of the messages each.
            total += self._shared_ns(hop, chunk, n, ceil(left / 2) if sips.topology == "torus_2d" else left)
            left = ceil(left / n)
        return total

    def _shared_ns(self, hop: QueueWay, chunk: int, n: int, count: int) -> float:
        """Reduce-scatter and all-gather of ``count`` messages over ``n`` places, in parts of whole messages."""
        steps, carried, one = 2 * (n - 1), 2 * (count - count // n), self.message_ns(hop, chunk)
        last = steps * one + self._behind_ns(hop, chunk, ceil(count / n))
        return max(last, self._behind_ns(hop, chunk, carried) + one)

    def _way_up(self) -> list[int]:
        """The cubes from the first, along its row and down the last column: the longest way of a sum."""
        grid = self._spec.sip.cube_mesh.grid
        return [*range(grid.w), *(grid.index(grid.w - 1, y) for y in range(1, grid.h))]

    def _way_to(self, root: int) -> list[int]:
        """The cubes from the last, along its row and up a column, to the root."""
        grid = self._spec.sip.cube_mesh.grid
        x, y = grid.xy(root)
        along = [grid.index(i, grid.h - 1) for i in range(grid.w - 1, x - 1, -1)]
        return [*along, *(grid.index(x, j) for j in range(grid.h - 2, y - 1, -1))]

    def _along(self, cubes: Sequence[int]) -> list[QueueWay]:
        return [self.hop((0, a, 0), (0, b, 0)) for a, b in pairwise(cubes)]

    @property
    def _access_ns(self) -> float:
        return self._spec.cube.components.hbm_ctrl.attrs.access_ns

    def _to_slice(self, *, back: bool) -> QueueWay:
        dma, memory = pe_dma_id(0, 0, 0), hbm_id(0, 0, self._spec.cube.local_slice(0))
        route = self._machine.route(memory, dma) if back else self._machine.route(dma, memory)
        return QueueWay(ps_to_ns(route.total_overhead_ps), route.bottleneck_gbs, 0.0)


def _side_of(direction: str) -> Side | None:
    """The side that ``global_E`` leaves by; none for a direct queue."""
    sides: dict[str, Side] = {f"{_GLOBAL}{side}": side for side in ("E", "W", "N", "S")}
    return sides.get(direction)


def _sum(times_ns: Iterable[float]) -> float:
    """What is left of a difference of equal sums would read like a time."""
    return whole_ps(sum(times_ns))


def _mean(hops: Sequence[QueueWay]) -> QueueWay:
    if not hops:
        return QueueWay(0.0, float("inf"), 0.0)
    return QueueWay(
        fmean(hop.latency_ns for hop in hops),
        min(hop.bw_gbs for hop in hops),
        fmean(hop.credit_ns for hop in hops),
    )


def _slowest(hops: Sequence[QueueWay]) -> QueueWay:
    return max(hops, key=lambda hop: hop.latency_ns, default=QueueWay(0.0, float("inf"), 0.0))


def _segments(nbytes: int) -> Iterator[int]:
    """What is held at a time, until all is done."""
    for at in range(0, nbytes, _SEGMENT_BYTES):
        yield min(_SEGMENT_BYTES, nbytes - at)
