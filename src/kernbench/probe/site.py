"""The machine as probe cases see it: flows between its parts, and which memory is near and which is far."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.common.ids import HOST, cube_part, hbm_id, pe_dma_id
from kernbench.common.values import value
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeCoord, PeDmaMsg
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.topology.graph import Graph


@value(kw_only=True)
class ProbeFlow:
    """Traffic between ``initiator`` and ``memory`` (node ids), at physical address ``pa`` (encoded).

    ``pe`` is the PE whose DMA it is, None when it is the host; ``room_bytes`` is what the flow has of the memory.
    """

    initiator: str
    memory: str
    pa: int
    room_bytes: int
    reading: bool
    pe: PeCoord | None

    @property
    def data_ends(self) -> tuple[str, str]:
        """Where the data comes from and where it goes."""
        return (self.memory, self.initiator) if self.reading else (self.initiator, self.memory)


@value(kw_only=True)
class StreamPlan:
    """``transactions`` of ``nbytes`` for every flow, at most ``outstanding`` of them under way at once."""

    nbytes: int
    transactions: int
    outstanding: int


def transaction(flow: ProbeFlow, nbytes: int, number: int = 0) -> HostMsg:
    """Transaction ``number`` of a flow: successive ones lie side by side as far as the flow has room."""
    pa = flow.pa + number % (flow.room_bytes // nbytes) * nbytes
    if flow.pe is not None:
        return PeDmaMsg(pe=flow.pe, pa=pa, nbytes=nbytes, op="read" if flow.reading else "write")
    return MemoryReadMsg(pa=pa, nbytes=nbytes) if flow.reading else MemoryWriteMsg(pa=pa, nbytes=nbytes)


def dma_stream(flow: ProbeFlow, pe: PeCoord, plan: StreamPlan) -> PeDmaMsg:
    """A whole stream of a PE's DMA as one request."""
    fits = plan.transactions * plan.nbytes <= flow.room_bytes
    return PeDmaMsg(
        pe=pe,
        pa=flow.pa,
        nbytes=plan.nbytes,
        op="read" if flow.reading else "write",
        repeat=plan.transactions,
        outstanding=plan.outstanding,
        stride_bytes=plan.nbytes if fits else 0,
    )


@value(order=True)
class HbmSlice:
    """An HBM slice by its coordinates."""

    sip: int
    cube: int
    index: int

    @property
    def node(self) -> str:
        """Its node id."""
        return hbm_id(self.sip, self.cube, self.index)


@value
class MemoryShare:
    """One of ``count`` equal parts of a memory, so that flows on it have addresses of their own."""

    number: int = 0
    count: int = 1


WHOLE = MemoryShare()


class Site:
    """Makes the flows of one machine."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.spec = graph.spec
        self._planner = RoutePlanner(graph)
        self._format = AddressFormat(graph.spec.address.format)

    def host_flow(self, at: HbmSlice, *, reading: bool) -> ProbeFlow:
        """The host reads or writes a slice."""
        return self._hbm_flow(None, at, reading, WHOLE)

    def pe_read(self, pe: PeCoord, at: HbmSlice, share: MemoryShare = WHOLE) -> ProbeFlow:
        """A PE reads a slice."""
        return self._hbm_flow(pe, at, True, share)

    def pe_read_sram(self, pe: PeCoord) -> ProbeFlow:
        """A PE reads the SRAM of its cube."""
        sip, cube, _ = pe
        pa = PhysAddr.cube_sram_addr(0, sip, cube, 0, self._format)
        room = self.spec.cube.sram.bytes
        return self._flow(pe, cube_part(sip, cube, "sram"), pa, room, True)

    def local_slice(self, pe: PeCoord) -> HbmSlice:
        """The slice next to a PE."""
        return HbmSlice(pe[0], pe[1], self.graph.local_slice(pe[2]))

    def slices(self, sip: int, cubes: Iterable[int]) -> list[HbmSlice]:
        """All slices of some cubes of a SIP."""
        return [HbmSlice(sip, cube, index) for cube in cubes for index in range(self.spec.cube.hbm.slices)]

    def nearest(self, pe: PeCoord | None, among: Iterable[HbmSlice]) -> HbmSlice:
        """The slice with the shortest way there and back on an empty machine; of equals, the first."""
        return min(among, key=lambda at: (self._round_trip_ns(pe, at), at))

    def farthest(self, pe: PeCoord | None, among: Iterable[HbmSlice]) -> HbmSlice:
        """The slice with the longest way there and back on an empty machine; of equals, the first."""
        return min(among, key=lambda at: (-self._round_trip_ns(pe, at), at))

    def _round_trip_ns(self, pe: PeCoord | None, at: HbmSlice) -> float:
        graph, there, back = self.graph, (_initiator(pe), at.node), (at.node, _initiator(pe))
        return round(sum(graph.head_ns(self._planner.route(*ends)) for ends in (there, back)), 6)

    def _hbm_flow(self, pe: PeCoord | None, at: HbmSlice, reading: bool, share: MemoryShare) -> ProbeFlow:
        hbm = self.spec.cube.hbm
        # Whole bursts on all channels, so that no share begins in the middle of one.
        group = hbm.round_bytes
        room = hbm.bytes_per_slice // share.count
        room -= room % group if room > group else 0
        offset = at.index * hbm.bytes_per_slice + share.number * room
        pa = PhysAddr.hbm_addr(0, at.sip, at.cube, offset, self._format)
        return self._flow(pe, at.node, pa, room, reading)

    def _flow(self, pe: PeCoord | None, memory: str, pa: PhysAddr, room: int, reading: bool) -> ProbeFlow:
        return ProbeFlow(
            initiator=_initiator(pe), memory=memory, pa=pa.encode(), room_bytes=room, reading=reading, pe=pe
        )


def _initiator(pe: PeCoord | None) -> str:
    return HOST if pe is None else pe_dma_id(*pe)
