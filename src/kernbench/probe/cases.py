"""The probe cases: the traffic of each one, on any machine that can have it.

A site is the machine as the cases see it: flows between its parts, and which memory is near and which is far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from kernbench.common.errors import UnknownNameError
from kernbench.common.ids import HOST, cube_part, hbm_id, pe_dma_id
from kernbench.common.values import value
from kernbench.engine.address_map import AddressMap
from kernbench.messages.requests import HostMsg, MemoryReadMsg, MemoryWriteMsg, PeCoord, PeDmaMsg
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.probe.memory_case import NAME as MEMORY
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.fields import AddressWindow
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
        """The source and the destination of the data."""
        return (self.memory, self.initiator) if self.reading else (self.initiator, self.memory)


@value(kw_only=True)
class StreamPlan:
    """``transactions`` of ``nbytes`` for every flow, at most ``outstanding`` of them under way at once."""

    nbytes: int
    transactions: int
    outstanding: int


def transaction(flow: ProbeFlow, nbytes: int, number: int = 0) -> HostMsg:
    """Make transaction ``number`` of a flow: successive ones lie side by side as far as the flow has room."""
    pa = flow.pa + number % (flow.room_bytes // nbytes) * nbytes
    if flow.pe is not None:
        return PeDmaMsg(pe=flow.pe, pa=pa, nbytes=nbytes, op="read" if flow.reading else "write")
    return MemoryReadMsg(pa=pa, nbytes=nbytes) if flow.reading else MemoryWriteMsg(pa=pa, nbytes=nbytes)


def dma_stream(flow: ProbeFlow, pe: PeCoord, plan: StreamPlan) -> PeDmaMsg:
    """Make a whole stream of a PE's DMA as one request."""
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
        """Make the flow of the host, which reads or writes a slice."""
        return self._hbm_flow(None, at, reading, WHOLE)

    def pe_read(self, pe: PeCoord, at: HbmSlice, share: MemoryShare = WHOLE) -> ProbeFlow:
        """Make the flow of a PE that reads a slice."""
        return self._hbm_flow(pe, at, True, share)

    def pe_read_sram(self, pe: PeCoord) -> ProbeFlow:
        """Make the flow of a PE that reads the SRAM of its cube."""
        sip, cube, _ = pe
        pa = PhysAddr.cube_sram_addr(0, sip, cube, 0, self._format)
        room = self.spec.cube.sram.bytes
        return self._flow(pe, cube_part(sip, cube, "sram"), pa, room, True)

    def pe_read_extra(self, pe: PeCoord, memory: str) -> ProbeFlow:
        """Make the flow of a PE that reads an extra memory, by its node id."""
        pa, room = AddressMap(self.spec).range_of(self.graph.node(memory))
        return ProbeFlow(initiator=_initiator(pe), memory=memory, pa=pa, room_bytes=room, reading=True, pe=pe)

    def local_slice(self, pe: PeCoord) -> HbmSlice:
        """Return the slice next to a PE."""
        return HbmSlice(pe[0], pe[1], self.graph.local_slice(pe[2]))

    def slices(self, sip: int, cubes: Iterable[int]) -> list[HbmSlice]:
        """Return all slices of some cubes of a SIP."""
        return [HbmSlice(sip, cube, index) for cube in cubes for index in range(self.spec.cube.hbm.slices)]

    def nearest(self, pe: PeCoord | None, among: Iterable[HbmSlice]) -> HbmSlice:
        """Return the slice with the shortest way there and back on an empty machine; of equals, the first."""
        return min(among, key=lambda at: (self._round_trip_ns(pe, at), at))

    def farthest(self, pe: PeCoord | None, among: Iterable[HbmSlice]) -> HbmSlice:
        """Return the slice with the longest way there and back on an empty machine; of equals, the first."""
        return min(among, key=lambda at: (-self._round_trip_ns(pe, at), at))

    def _round_trip_ns(self, pe: PeCoord | None, at: HbmSlice) -> float:
        graph, forth, back = self.graph, (_initiator(pe), at.node), (at.node, _initiator(pe))
        return round(sum(graph.head_ns(self._planner.route(*ends)) for ends in (forth, back)), 6)

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


FIRST_PE = (0, 0, 0)


@value
class Absent:
    """The reason why a machine cannot have a case."""

    why: str


PlacedFlows: TypeAlias = tuple[ProbeFlow, ...] | Absent


@value
class ProbeCase:
    """Traffic with a name. ``place`` gives its flows, one for each initiator, on a machine that can have them."""

    name: str
    description: str
    place: Callable[[Site], PlacedFlows]


def _host_near(site: Site) -> HbmSlice:
    return site.nearest(None, site.slices(0, site.spec.sip.edge_cubes))


def _host_local(reading: bool) -> Callable[[Site], PlacedFlows]:
    return lambda site: (site.host_flow(_host_near(site), reading=reading),)


def _host_far(reading: bool) -> Callable[[Site], PlacedFlows]:
    def place(site: Site) -> PlacedFlows:
        near = _host_near(site).cube
        other_cubes = [cube for cube in range(site.spec.cubes_per_sip) if cube != near]
        if not other_cubes:
            return Absent("a SIP has one cube only, so none is far")
        return (site.host_flow(site.farthest(None, site.slices(0, other_cubes)), reading=reading),)

    return place


def _pe_local(site: Site) -> PlacedFlows:
    return (site.pe_read(FIRST_PE, site.local_slice(FIRST_PE)),)


def _pe_same_cube(site: Site) -> PlacedFlows:
    local = site.local_slice(FIRST_PE)
    other_slices = [at for at in site.slices(0, [0]) if at != local]
    if not other_slices:
        return Absent("a cube has one HBM slice only")
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, other_slices)),)


def _pe_adjacent_cube(site: Site) -> PlacedFlows:
    grid = site.spec.sip.cube_mesh.grid
    beside = grid.neighbour(0, "E")
    beside = grid.neighbour(0, "S") if beside is None else beside
    if beside is None:
        return Absent("a SIP has one cube only, so none is adjacent")
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, site.slices(0, [beside]))),)


def _pe_far_cube(site: Site) -> PlacedFlows:
    other_cubes = range(1, site.spec.cubes_per_sip)
    if not other_cubes:
        return Absent("a SIP has one cube only, so none is far")
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, site.slices(0, other_cubes))),)


def _pe_cross_sip(site: Site) -> PlacedFlows:
    if site.spec.num_sips == 1:
        return Absent("the machine has one SIP only")
    beyond = site.slices(1, range(site.spec.cubes_per_sip))
    return (site.pe_read(FIRST_PE, site.farthest(FIRST_PE, beyond)),)


def _pe_sram(site: Site) -> PlacedFlows:
    return (site.pe_read_sram(FIRST_PE),)


def _pe_hotspot(site: Site) -> PlacedFlows:
    pes = site.spec.pes_per_cube
    if pes == 1:
        return Absent("a cube has one PE only, so nobody competes")
    at = site.local_slice(FIRST_PE)
    return tuple(site.pe_read((0, 0, pe), at, MemoryShare(pe, pes)) for pe in range(pes))


def _pe_all_local(site: Site) -> PlacedFlows:
    pes = site.spec.pes_per_cube
    if pes == 1:
        return Absent("a cube has one PE only: this is pe-local-hbm")
    local = [site.local_slice((0, 0, pe)) for pe in range(pes)]
    shares = [MemoryShare(local[:pe].count(local[pe]), local.count(local[pe])) for pe in range(pes)]
    return tuple(site.pe_read((0, 0, pe), local[pe], shares[pe]) for pe in range(pes))


CASES: tuple[ProbeCase, ...] = (
    ProbeCase("h2d-local", "host writes to a cube next to the IO chiplet", _host_local(reading=False)),
    ProbeCase("h2d-far", "host writes to the farthest cube", _host_far(reading=False)),
    ProbeCase("d2h-local", "host reads from a cube next to the IO chiplet", _host_local(reading=True)),
    ProbeCase("d2h-far", "host reads from the farthest cube", _host_far(reading=True)),
    ProbeCase("pe-local-hbm", "a PE reads its own HBM slice", _pe_local),
    ProbeCase("pe-same-cube-hbm", "a PE reads the farthest slice of its cube", _pe_same_cube),
    ProbeCase("pe-adjacent-cube-hbm", "a PE reads the farthest slice of the next cube", _pe_adjacent_cube),
    ProbeCase("pe-far-cube-hbm", "a PE reads the farthest slice of its SIP", _pe_far_cube),
    ProbeCase("pe-cross-sip-hbm", "a PE reads the farthest slice of the next SIP", _pe_cross_sip),
    ProbeCase("pe-sram", "a PE reads the SRAM of its cube", _pe_sram),
    ProbeCase("pe-hotspot", "all PEs of a cube read one slice", _pe_hotspot),
    ProbeCase("pe-all-local", "all PEs of a cube read their own slices", _pe_all_local),
)


def cases_of(graph: Graph) -> tuple[ProbeCase, ...]:
    """Return the cases of a machine: those of every machine, and one for each further SRAM that the first PE has."""
    sip, cube, pe = FIRST_PE
    further = (
        node
        for node in graph.nodes.values()
        if node.window is not None
        and isinstance(node.attrs, SramAttrs)
        and (node.sip, node.cube) == (sip, cube)
        and node.pe in (None, pe)
    )
    return (*CASES, *(_of_sram(node.id, node.window) for node in further if node.window is not None))


def _of_sram(memory: str, window: AddressWindow) -> ProbeCase:
    def place(site: Site) -> PlacedFlows:
        return (site.pe_read_extra(FIRST_PE, memory),)

    return ProbeCase(f"pe-{window.name}", f"a PE reads the extra memory {window.name}", place)


def find_case(name: str, cases: Iterable[ProbeCase] = CASES) -> ProbeCase:
    """Return the case called ``name``. UnknownNameError lists all, and ``memory``, which is no traffic of a machine."""
    by_name = {case.name: case for case in cases}
    if name not in by_name:
        raise UnknownNameError("probe case", name, (*by_name, MEMORY))
    return by_name[name]
