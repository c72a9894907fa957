"""The typed form of ``topology.yaml``: every key the loader knows, and every quantity that follows from them.

Field names are the YAML keys. Lengths in mm, bandwidth in GB/s, time in ns, sizes in bytes. What holds between
values is in ``rules``; once a spec has been compiled, its properties can be relied on.

At the end of the file ``fabric_links`` derives the scale-up links between SIPs; every other room asks there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from kernbench.common.config import ConfigModel, Size
from kernbench.common.values import value
from kernbench.di.part import PartAttrs
from kernbench.topology.clocks import ClocksSpec
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.fields import Components, ComponentSpec, LinkSpec, PositiveCount, SizeMm
from kernbench.topology.grid import OPPOSITE, Grid, Side
from kernbench.topology.pe_spec import PeSpec

TWO_DIMENSIONAL = ("torus_2d", "mesh_2d_no_wrap")
# What a credit's round trip inside a cube needs so that a link is never throttled by it.
PACKETS_PER_FIFO = 4


def current_topology_name(name: Any) -> Any:
    """Return ``torus_2d`` for its old name ``mesh_2d``; return everything else as it is."""
    return "torus_2d" if name == "mesh_2d" else name


SipTopology = Annotated[
    Literal["ring_1d", "ring_1d_unidir", "torus_2d", "mesh_2d_no_wrap", "fully_connected", "switch"],
    BeforeValidator(current_topology_name),
]


class AddressSpec(ConfigModel):
    """The physical address format of the machine."""

    format: Literal["narrow", "wide"]
    """Width of physical addresses: narrow (51 bits, 16 SIPs of 32 cubes) or wide (64 bits, 1024 SIPs of 256)."""


class TransportSpec(ConfigModel):
    """The sizes of packets, and of the FIFOs at the far ends of links."""

    packet_bytes: Size
    """Size of a packet, the unit of arbitration and fairness on every link."""
    header_bytes: Annotated[Size, Field(le=1 << 16)]
    """What a request, a control message or an acknowledgement costs on a link."""
    fifo_bytes: Size | None = None
    """FIFO of a link inside a cube, at least 4 packets; null: 4 packets."""
    long_link_fifo_bytes: Size | None = None
    """FIFO of every other link; null: twice what is under way, and 4 packets."""
    express: bool = True
    """Whether transfers that meet nobody are one event: faster, with the same times."""

    @property
    def least_fifo(self) -> int:
        """The smallest FIFO in bytes: with fewer packets a link waits for credits of its own making."""
        return PACKETS_PER_FIFO * self.packet_bytes

    def fifo_of(self, link: LinkSpec) -> int:
        """Return bytes of FIFO of a link inside a cube."""
        return link.fifo_bytes or self.fifo_bytes or self.least_fifo

    def long_fifo_of(self, link: LinkSpec, overhead_ns: float) -> int:
        """Return bytes of FIFO of a link outside the cubes: twice those under way in ``overhead_ns``, and four packets.

        Below the bandwidth-delay product a link is throttled by its credits. ``overhead_ns`` is all of a hop: the
        node entered, the wire and the link's own.
        """
        in_flight = math.ceil(2 * overhead_ns * link.bw_gbs) + self.least_fifo
        return link.fifo_bytes or self.long_link_fifo_bytes or in_flight


class SipsSpec(ConfigModel):
    """The number of SIPs and the way they are joined; 2-D kinds take ``w`` and ``h``."""

    count: PositiveCount
    """SIPs in the machine."""
    topology: SipTopology
    """How scale-up links join the SIPs."""
    w: PositiveCount | None = None
    """Columns of SIPs of a 2-D topology; null: the square root of a square count."""
    h: PositiveCount | None = None
    """Rows of SIPs of a 2-D topology; null: the same."""

    @property
    def two_dimensional(self) -> bool:
        """True when the SIPs form rows and columns."""
        return self.topology in TWO_DIMENSIONAL

    @property
    def grid(self) -> Grid:
        """Columns and rows of SIPs: as given, the square root of a square count, or one row when not 2-D."""
        if not self.two_dimensional:
            return Grid(self.count, 1)
        side = math.isqrt(self.count)
        return Grid(self.w or side, self.h or side)


class SystemLinks(ConfigModel):
    """Link classes between dies of different SIPs, the switch and the host."""

    host_to_switch: LinkSpec
    """From the host to the PCIe switch."""
    switch_to_sip: LinkSpec
    """From the switch to each SIP."""
    sip_to_sip: LinkSpec
    """Scale-up links from SIP to SIP."""


class SystemComponents(Components):
    """The parts outside the SIPs."""

    host: ComponentSpec[PartAttrs]
    """The host."""
    switch: ComponentSpec[PartAttrs]
    """The PCIe switch."""


class SystemSpec(ConfigModel):
    """Everything outside the SIPs."""

    sips: SipsSpec
    """SIPs and how they are joined."""
    links: SystemLinks
    """Classes of links outside the SIPs."""
    components: SystemComponents
    """Parts outside the SIPs."""


class CubeMeshSpec(ConfigModel):
    """Columns and rows of cubes in a SIP."""

    w: PositiveCount
    """Columns of cubes."""
    h: PositiveCount
    """Rows of cubes."""

    @property
    def grid(self) -> Grid:
        """The cubes, row 0 in the north."""
        return Grid(self.w, self.h)


class IoChipletSpec(ConfigModel):
    """The place and the size of the IO chiplet."""

    edge: Side
    """Side of the mesh of cubes that the chiplet lies along."""
    size_mm: SizeMm
    """Size of the chiplet: w along that side, h away from it."""


class SipLinks(ConfigModel):
    """Link classes of a SIP outside its cubes."""

    io_internal: LinkSpec
    """Inside the IO chiplet."""
    io_to_cube: LinkSpec
    """From the IO chiplet to the cubes along it."""
    cube_to_cube: LinkSpec
    """Between neighbouring cubes."""


class SipComponents(Components):
    """The parts of the IO chiplet; ``ucie`` is its side of the links to the cubes."""

    pcie_ep: ComponentSpec[PartAttrs]
    """The endpoint of the host's link."""
    io_cpu: ComponentSpec[PartAttrs]
    """The CPU that hands launches to the cubes."""
    io_noc: ComponentSpec[PartAttrs]
    """The router of the chiplet."""
    sip_port: ComponentSpec[PartAttrs]
    """A port of a scale-up link."""
    ucie: ComponentSpec[PartAttrs]
    """The chiplet's side of a link to a cube."""


class SipSpec(ConfigModel):
    """One device: an IO chiplet and a mesh of cubes."""

    cube_mesh: CubeMeshSpec
    """The mesh of cubes."""
    io_chiplet: IoChipletSpec
    """The chiplet that joins the cubes to the host and to other SIPs."""
    links: SipLinks
    """Classes of links of a SIP outside its cubes."""
    components: SipComponents
    """Parts of the IO chiplet."""

    @property
    def edge_cubes(self) -> tuple[int, ...]:
        """The cubes along the IO chiplet, west to east or north to south; ``io_ucie_I`` serves the I-th."""
        grid, edge = self.cube_mesh.grid, self.io_chiplet.edge
        if edge in {"N", "S"}:
            return tuple(grid.index(x, 0 if edge == "N" else grid.h - 1) for x in range(grid.w))
        return tuple(grid.index(0 if edge == "W" else grid.w - 1, y) for y in range(grid.h))

    def io_ucie_of(self, cube: int) -> int:
        """Return the index of the IO chiplet's UCIe port in a cube's column (edge N, S) or row (edge E, W)."""
        x, y = self.cube_mesh.grid.xy(cube)
        return x if self.io_chiplet.edge in {"N", "S"} else y


class TopologySpec(ConfigModel):
    """A whole machine. The spec of a compiled one is at its clocks: its own are 1."""

    clocks: ClocksSpec = Field(default_factory=ClocksSpec)
    """Clocks of PEs, networks and IO chiplets, relative to the figures of the file."""
    ns_per_mm: Annotated[float, Field(ge=0, le=1e3)]
    """Delay of a wire."""
    address: AddressSpec
    """The format of physical addresses."""
    transport: TransportSpec
    """Packets, headers and FIFOs."""
    system: SystemSpec
    """The host, the switch, and how SIPs are joined."""
    sip: SipSpec
    """A device: an IO chiplet and a mesh of cubes."""
    cube: CubeSpec
    """A compute die."""
    pe: PeSpec
    """A processing element."""

    @model_serializer(mode="wrap")
    def _without_clocks(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        found: dict[str, Any] = plain(self)
        return found if self.clocks.changed else {name: value for name, value in found.items() if name != "clocks"}

    @property
    def with_sip_grid(self) -> Self:
        """The same machine, with the columns and rows of SIPs also where its file leaves them to follow."""
        sips = self.system.sips
        if not sips.two_dimensional:
            return self
        sips = sips.model_copy(update={"w": sips.grid.w, "h": sips.grid.h})
        return self.model_copy(update={"system": self.system.model_copy(update={"sips": sips})})

    @property
    def num_sips(self) -> int:
        """SIPs in the machine."""
        return self.system.sips.count

    @property
    def cubes_per_sip(self) -> int:
        """Cubes in a SIP."""
        return len(self.sip.cube_mesh.grid)

    @property
    def num_cubes(self) -> int:
        """Cubes in the machine."""
        return self.num_sips * self.cubes_per_sip

    @property
    def pes_per_cube(self) -> int:
        """PEs in a cube."""
        return self.cube.pe_layout.pes

    @property
    def pes_per_sip(self) -> int:
        """PEs in a SIP."""
        return self.cubes_per_sip * self.pes_per_cube

    @property
    def num_pes(self) -> int:
        """PEs in the machine."""
        return self.num_sips * self.pes_per_sip

    @property
    def quantum_packets(self) -> int:
        """The quantum of memories: ``cube.hbm.quantum_bytes``, at least one whole packet."""
        return -(-self.cube.hbm.quantum_bytes // self.transport.packet_bytes)

    def wire_ns(self, length_mm: float) -> float:
        """Return the time on a wire of this length."""
        return length_mm * self.ns_per_mm

    @property
    def hbm_bytes_per_sip(self) -> int:
        """All HBM of a SIP."""
        return self.cubes_per_sip * self.cube.hbm.bytes


@value
class SipPort:
    """One end of scale-up wiring at a SIP: its number there, its side (None when fully connected), the SIP beyond."""

    sip: int
    index: int
    side: Side | None
    peer: int


@value
class FabricLink:
    """A directed scale-up link between two ports.

    It leaves by a port on one side and arrives by the port on the opposite side of the peer. So a ring of two SIPs has
    two links in each direction: 0.E to 1.W and 1.E to 0.W are different wires.
    """

    src: SipPort
    dst: SipPort


def sip_neighbours(sips: SipsSpec, sip: int) -> dict[Side, int]:
    """Return the SIP beyond each side that has a port, in the order E, W, N, S; empty for kinds without sides."""
    grid = sips.grid
    if sips.topology in {"ring_1d", "ring_1d_unidir"}:
        return grid.neighbours(sip, ("E", "W"), wrap=True)
    if sips.two_dimensional:
        return grid.neighbours(sip, wrap=sips.topology == "torus_2d")
    return {}


def sip_ports(sips: SipsSpec, sip: int) -> tuple[SipPort, ...]:
    """Return the scale-up ports of a SIP, in the order that breaks ties between ways."""
    if sips.topology == "fully_connected":
        peers = (peer for peer in range(sips.count) if peer != sip)
        return tuple(SipPort(sip, index, None, peer) for index, peer in enumerate(peers))
    beyond = sip_neighbours(sips, sip).items()
    return tuple(SipPort(sip, index, side, peer) for index, (side, peer) in enumerate(beyond))


def fabric_links(sips: SipsSpec) -> Iterator[FabricLink]:
    """Yield every directed scale-up link, by sending SIP and port. In ``ring_1d_unidir`` only the E ports send."""
    ports = [port for sip in range(sips.count) for port in sip_ports(sips, sip)]
    by_ends = {(port.sip, port.side, port.peer): port for port in ports}
    for port in ports:
        if sips.topology != "ring_1d_unidir" or port.side == "E":
            far_side = OPPOSITE[port.side] if port.side else None
            yield FabricLink(port, by_ends[port.peer, far_side, port.sip])
