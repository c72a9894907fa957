"""The machine as probe cases see it: flows between its parts, and which memory is near and which is far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernbench.common.ids import HOST, cube_part
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.probe.flow import Flow
from kernbench.topology.graph import Graph
from kernbench.topology.naming import hbm_id, pe_dma_id


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """An HBM slice by its coordinates."""

    sip: int
    cube: int
    index: int

    @property
    def node(self) -> str:
        """Its node id."""
        return hbm_id(self.sip, self.cube, self.index)


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``count`` equal parts of a memory, so that flows on it have addresses of their own."""

    number: int = 0
    count: int = 1


WHOLE = Share()


class Site:
    """Makes the flows of one machine."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.spec = graph.spec
        self._planner = RoutePlanner(graph)
        self._format = AddressFormat(graph.spec.address.format)

    def host_flow(self, at: Slice, *, reading: bool) -> Flow:
        """The host reads or writes a slice."""
        return self._hbm_flow(None, at, reading, WHOLE)

    def pe_read(self, pe: PeCoord, at: Slice, share: Share = WHOLE) -> Flow:
        """A PE reads a slice."""
        return self._hbm_flow(pe, at, True, share)

    def pe_read_sram(self, pe: PeCoord) -> Flow:
        """A PE reads the SRAM of its cube."""
        sip, cube, _ = pe
        pa = PhysAddr.cube_sram_addr(0, sip, cube, 0, self._format)
        room = self.spec.cube.sram.bytes
        return self._flow(pe, cube_part(sip, cube, "sram"), pa, room, True)

    def local_slice(self, pe: PeCoord) -> Slice:
        """The slice next to a PE."""
        return Slice(pe[0], pe[1], self.graph.local_slice(pe[2]))

    def slices(self, sip: int, cubes: Iterable[int]) -> list[Slice]:
        """All slices of some cubes of a SIP."""
        return [Slice(sip, cube, index) for cube in cubes for index in range(self.spec.cube.hbm.slices)]

    def nearest(self, pe: PeCoord | None, among: Iterable[Slice]) -> Slice:
        """The slice with the shortest way there and back on an empty machine; of equals, the first."""
        return min(among, key=lambda at: (self._round_trip_ns(pe, at), at))

    def farthest(self, pe: PeCoord | None, among: Iterable[Slice]) -> Slice:
        """The slice with the longest way there and back on an empty machine; of equals, the first."""
        return min(among, key=lambda at: (-self._round_trip_ns(pe, at), at))

    def _round_trip_ns(self, pe: PeCoord | None, at: Slice) -> float:
        graph, there, back = self.graph, (_initiator(pe), at.node), (at.node, _initiator(pe))
        return round(sum(graph.head_ns(self._planner.route(*ends)) for ends in (there, back)), 6)

    def _hbm_flow(self, pe: PeCoord | None, at: Slice, reading: bool, share: Share) -> Flow:
        hbm = self.spec.cube.hbm
        # Whole bursts on all channels, so that no share begins in the middle of one.
        group = hbm.num_pcs * hbm.burst_bytes
        room = hbm.bytes_per_slice // share.count
        room -= room % group if room > group else 0
        offset = at.index * hbm.bytes_per_slice + share.number * room
        pa = PhysAddr.hbm_addr(0, at.sip, at.cube, offset, self._format)
        return self._flow(pe, at.node, pa, room, reading)

    def _flow(self, pe: PeCoord | None, memory: str, pa: PhysAddr, room: int, reading: bool) -> Flow:
        return Flow(initiator=_initiator(pe), memory=memory, pa=pa.encode(), room_bytes=room, reading=reading, pe=pe)


def _initiator(pe: PeCoord | None) -> str:
    return HOST if pe is None else pe_dma_id(*pe)
