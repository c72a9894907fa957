"""Probe cases: the traffic of each case, on any machine with the components that the case needs.

A site wraps a machine for the cases: it makes flows between components, and finds near and far memories.
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
    """Traffic between ``initiator`` and ``memory`` (node ids), at the encoded physical address ``pa``.

    ``pe`` is the PE of the DMA, None for the host. ``room_bytes`` is the size of the memory that the flow may use.
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
    """The stream of each flow: ``transactions`` of ``nbytes`` each, at most ``outstanding`` of them in flight."""

    nbytes: int
    transactions: int
    outstanding: int


def transaction(flow: ProbeFlow, nbytes: int, number: int = 0) -> HostMsg:
    """Return transaction ``number`` of a flow; successive transactions are adjacent until the flow's memory ends."""
    pa = flow.pa + number % (flow.room_bytes // nbytes) * nbytes
    if flow.pe is not None:
        return PeDmaMsg(pe=flow.pe, pa=pa, nbytes=nbytes, op="read" if flow.reading else "write")
    return MemoryReadMsg(pa=pa, nbytes=nbytes) if flow.reading else MemoryWriteMsg(pa=pa, nbytes=nbytes)


def dma_stream(flow: ProbeFlow, pe: PeCoord, plan: StreamPlan) -> PeDmaMsg:
    """Return one request that makes a PE's DMA run its complete stream."""
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
        """The node id of the slice."""
        return hbm_id(self.sip, self.cube, self.index)


@value
class MemoryShare:
    """One of ``count`` equal shares of a memory, so that flows use separate addresses."""

    number: int = 0
    count: int = 1


WHOLE = MemoryShare()


class Site:
    """A machine, wrapped for probe cases: it makes flows, and finds near and far slices."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.spec = graph.spec
        self._planner = RoutePlanner(graph)
        self._format = AddressFormat(graph.spec.address.format)

    def host_flow(self, at: HbmSlice, *, reading: bool) -> ProbeFlow:
        """Return the flow of the host, which reads or writes a slice."""
        return self._hbm_flow(None, at, reading, WHOLE)

    def pe_read(self, pe: PeCoord, at: HbmSlice, share: MemoryShare = WHOLE) -> ProbeFlow:
        """Return the flow of a PE that reads a slice."""
        return self._hbm_flow(pe, at, True, share)

    def pe_read_sram(self, pe: PeCoord) -> ProbeFlow:
        """Return the flow of a PE that reads the SRAM of its cube."""
        sip, cube, _ = pe
        pa = PhysAddr.cube_sram_addr(0, sip, cube, 0, self._format)
        room = self.spec.cube.sram.bytes
        return self._flow(pe, cube_part(sip, cube, "sram"), pa, room, True)

    def pe_read_extra(self, pe: PeCoord, memory: str) -> ProbeFlow:
        """Return the flow of a PE that reads an extra memory, given by its node id."""
        pa, room = AddressMap(self.spec).range_of(self.graph.node(memory))
        return ProbeFlow(initiator=_initiator(pe), memory=memory, pa=pa, room_bytes=room, reading=True, pe=pe)

    def local_slice(self, pe: PeCoord) -> HbmSlice:
        """Return the slice next to a PE."""
        return HbmSlice(pe[0], pe[1], self.graph.local_slice(pe[2]))

    def slices(self, sip: int, cubes: Iterable[int]) -> list[HbmSlice]:
        """Return all slices of some cubes of a SIP."""
        return [HbmSlice(sip, cube, index) for cube in cubes for index in range(self.spec.cube.hbm.slices)]

    def nearest(self, pe: PeCoord | None, among: Iterable[HbmSlice]) -> HbmSlice:
        """Return the slice with the shortest round trip on an empty machine, the first of equals."""
        return min(among, key=lambda at: (self._round_trip_ns(pe, at), at))

    def farthest(self, pe: PeCoord | None, among: Iterable[HbmSlice]) -> HbmSlice:
        """Return the slice with the longest round trip on an empty machine, the first of equals."""
        return min(among, key=lambda at: (-self._round_trip_ns(pe, at), at))

    def _round_trip_ns(self, pe: PeCoord | None, at: HbmSlice) -> float:
        graph, forth, back = self.graph, (_initiator(pe), at.node), (at.node, _initiator(pe))
        return round(sum(graph.head_ns(self._planner.route(*ends)) for ends in (forth, back)), 6)

    def _hbm_flow(self, pe: PeCoord | None, at: HbmSlice, reading: bool, share: MemoryShare) -> ProbeFlow:
        hbm = self.spec.cube.hbm
        # Round to complete bursts on all channels, so that no share begins inside a burst.
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
    """The reason why a case cannot run on a machine."""

    why: str


PlacedFlows: TypeAlias = tuple[ProbeFlow, ...] | Absent


@value
class ProbeCase:
    """A named case. ``place`` returns its flows on a machine, one per initiator, or the reason for its absence."""

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
        return Absent("a cube has one PE only, so no PE competes")
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
    """Return the cases of a machine: the common cases, and a case for each extra SRAM of the first PE."""
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
    """Return the case called ``name``.

    Raises UnknownNameError with the names of all cases, and ``memory``, which needs no machine.
    """
    by_name = {case.name: case for case in cases}
    if name not in by_name:
        raise UnknownNameError("probe case", name, (*by_name, MEMORY))
    return by_name[name]
