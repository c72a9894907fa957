"""Uncontended times of a message between PEs, a load and a store, from the parameters of the machine.

For a message of c bytes on a route of latency L and least bandwidth B,

    a(c) = L + c/B + ends + MATH(c)     ends = 2 pe_ipcq.overhead_ns + dma.setup_ns
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import ceil, inf
from statistics import fmean, harmonic_mean

from kernbench.common.ids import hbm_id, pe_dma_id
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.engine.machine import Machine
from kernbench.messages.requests import PeCoord
from kernbench.topology.grid import Side
from kernbench.topology.hbm_spec import HbmTiming
from kernbench.transport import Link, Route


@value
class QueueFigures:
    """The number of slots of a queue, and the bytes of a slot and of a credit. Ring buffers are in TCM."""

    n_slots: int = 4
    slot_size: int = 4096
    credit_bytes: int = 16


@value
class PeHop:
    """A hop from one PE to another. ``side``: the scale-up link by which the hop leaves the SIP."""

    src: PeCoord
    dst: PeCoord
    side: Side | None = None


@value
class QueueWay:
    """A route from PE to PE: latency in ns, least bandwidth, and return time of a credit.

    ``stream_gbs``: bandwidth of consecutive messages. A bounded FIFO on the route may limit it to ``window_bytes`` in
    flight.
    """

    latency_ns: float
    bw_gbs: float
    credit_ns: float
    stream_gbs: float
    window_bytes: float

    def bytes_ns(self, nbytes: float) -> float:
        """Return the time from first to last byte. A FIFO accepts a window while the previous window leaves."""
        before = max(0, ceil(nbytes / self.window_bytes) - 1) * self.window_bytes
        held_up = before / self.stream_gbs - before / self.bw_gbs
        return nbytes / self.bw_gbs + max(0.0, held_up)


NOWHERE = QueueWay(0.0, inf, 0.0, inf, inf)


class Ways:
    """The uncontended times of a machine's hops, and of the accesses of a PE to its HBM slice."""

    def __init__(self, machine: Machine, queues: QueueFigures) -> None:
        self.spec, self.queues = machine.spec, queues
        self._machine = machine
        pe = self.spec.pe
        self._setup_ns = pe.dma.setup_ns
        self.ends_ns = 2 * pe.components.pe_ipcq.attrs.overhead_ns + self._setup_ns
        self.start_ns = ps_to_ns(pe.components.pe_cpu.attrs.first_issue_ps)

    def of(self, hops: Sequence[PeHop]) -> list[QueueWay]:
        """Return the routes of simultaneous hops, each with an equal share of every link."""
        users = Counter(link for hop in hops for link in self._route(hop).links)
        return [self._way(hop, users) for hop in hops]

    def alone(self, hop: PeHop) -> QueueWay:
        """Return the uncontended route of a hop."""
        return self._way(hop, Counter())

    def slice_ns(self, nbytes: float) -> float:
        """Return the time in which an HBM slice reads or writes ``nbytes`` on all channels."""
        return nbytes / self.spec.cube.slice_bw_gbs

    def math_ns(self, nbytes: float) -> float:
        """Return the time of an elementwise command with a result of ``nbytes``."""
        return self.spec.pe.math.operation_ns(ceil(nbytes))

    def passing_ns(self, way: QueueWay, nbytes: float) -> float:
        """Return the time of a message from its send command until it is available."""
        return way.latency_ns + way.bytes_ns(nbytes) + self.ends_ns

    def message_ns(self, way: QueueWay, nbytes: float) -> float:
        """Return the time of a message from its send command to the end of the command that uses it."""
        return self.passing_ns(way, nbytes) + self.math_ns(nbytes)

    def load_ns(self, nbytes: int, pieces: int = 1) -> float:
        """Return the time of ``pieces`` consecutive reads of ``nbytes`` each from the PE's own HBM slice."""
        back = self._to_slice(back=True)
        return self.first_byte_ns + self._pieces_ns(nbytes, pieces, back.bottleneck_gbs)

    def load_beside_ns(self, nbytes: int, messages: int) -> float:
        """Return the time of a read of ``nbytes`` while ``messages`` bytes arrive over the same link of the PE."""
        return self.first_byte_ns + (nbytes + messages) / self._to_slice(back=True).bottleneck_gbs

    def store_ns(self, nbytes: int, pieces: int = 1) -> float:
        """Return the time of writes to the slice, up to the last acknowledgement.

        Banks accept queued writes at the rate of the route.
        """
        way_gbs = self._to_slice(back=False).bottleneck_gbs
        data = self._pieces_ns(nbytes, pieces, way_gbs)
        if self._banks is not None:
            hbm = self.spec.cube.hbm
            queued = hbm.num_pcs * hbm.queue * self._banks.burst_bytes
            on_way = (pieces - 1) * max(self._setup_ns, nbytes / way_gbs) + nbytes / way_gbs
            data = max(on_way, self.slice_ns(pieces * nbytes - queued))
        return self.last_ack_ns + data

    @property
    def first_byte_ns(self) -> float:
        """The time from a load to its first byte: set-up, request, access and return.

        With banks, the time includes opening a row.
        """
        outward, back = self._to_slice(back=False), self._to_slice(back=True)
        request = self._setup_ns + self._machine.header_bytes / outward.bottleneck_gbs
        route_ns = ps_to_ns(outward.total_overhead_ps + back.total_overhead_ps)
        return request + self._opening_ns + self.access_ns + route_ns

    @property
    def last_ack_ns(self) -> float:
        """The time of a store without its bytes: set-up, route, access and acknowledgement."""
        outward, back = self._to_slice(back=False), self._to_slice(back=True)
        ack = self._setup_ns + self._machine.header_bytes / back.bottleneck_gbs
        return ack + self.access_ns + ps_to_ns(outward.total_overhead_ps + back.total_overhead_ps)

    @property
    def idle_load_ns(self) -> float:
        """The least time of a load from an open row, without its bytes."""
        return self.first_byte_ns - self._opening_ns

    @property
    def access_ns(self) -> float:
        """The access time of a slice, without opening a row."""
        return self.spec.cube.hbm_access_ns

    @property
    def _opening_ns(self) -> float:
        return 0.0 if self._banks is None else self._banks.rcd_ns

    @property
    def _banks(self) -> HbmTiming | None:
        return self.spec.cube.hbm.banks

    def _pieces_ns(self, nbytes: int, pieces: int, way_gbs: float) -> float:
        """Return the time of consecutive pieces. Each piece uses the channels that the previous piece leaves idle."""
        data = self.piece_ns(nbytes, way_gbs)
        between = nbytes / min(way_gbs, self.spec.cube.slice_bw_gbs)
        return (pieces - 1) * max(self._setup_ns, between) + data

    def piece_ns(self, nbytes: int, way_gbs: float = inf) -> float:
        """Return the time of a piece on its route or at the slice, if that is longer."""
        hbm = self.spec.cube.hbm
        rounds = ceil(nbytes / hbm.round_bytes)
        return max(nbytes / way_gbs, rounds * min(nbytes, hbm.interleave_bytes) / self.spec.cube.pc_bw_gbs)

    def _way(self, hop: PeHop, users: Counter[Link]) -> QueueWay:
        route = self._route(hop)
        credit = self._machine.sideband_ps(pe_dma_id(*hop.dst), pe_dma_id(*hop.src), self.queues.credit_bytes)
        share = min(link.bw_gbs / max(1, users[link]) for link in route.links)
        held = min(route.links, key=lambda link: self._stream_gbs(link) / max(1, users[link]))
        stream, window = (x / max(1, users[held]) for x in (self._stream_gbs(held), held.capacity))
        return QueueWay(ps_to_ns(route.total_overhead_ps), share, ps_to_ns(credit), stream, window)

    def _stream_gbs(self, link: Link) -> float:
        """Return the stream bandwidth of a link. A FIFO holds a packet from its grant until it has left."""
        packet_ns = self.spec.transport.packet_bytes / link.bw_gbs
        return min(link.bw_gbs, link.capacity / (ps_to_ns(link.overhead_ps) + packet_ns))

    def _route(self, hop: PeHop) -> Route:
        return self._machine.route(pe_dma_id(*hop.src), pe_dma_id(*hop.dst), hop.side)

    def _to_slice(self, pe: PeCoord = (0, 0, 0), *, back: bool) -> Route:
        dma, memory = pe_dma_id(*pe), hbm_id(*pe[:2], self.spec.cube.local_slice(pe[2]))
        return self._machine.route(memory, dma) if back else self._machine.route(dma, memory)


@value
class Round:
    """The routes of a ring. ``step``: their average. ``slowest``: the route whose credits limit all others."""

    step: QueueWay
    slowest: QueueWay


def round_of(ways: Sequence[QueueWay]) -> Round:
    """Return the average and the slowest of the routes of a ring."""
    if not ways:
        return Round(NOWHERE, NOWHERE)
    step = QueueWay(
        fmean(way.latency_ns for way in ways),
        harmonic_mean([way.bw_gbs for way in ways]),
        fmean(way.credit_ns for way in ways),
        harmonic_mean([way.stream_gbs for way in ways]),
        fmean(way.window_bytes for way in ways),
    )
    slowest = QueueWay(
        max(way.latency_ns for way in ways),
        min(way.bw_gbs for way in ways),
        max(way.credit_ns for way in ways),
        min(way.stream_gbs for way in ways),
        min(way.window_bytes for way in ways),
    )
    return Round(step, slowest)
