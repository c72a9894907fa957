"""The typed form of ``topology.yaml``: all keys, and all quantities derived from them.

Field names are the YAML keys. Lengths are in mm, bandwidths in GB/s, times in ns, sizes in bytes. ``rules`` checks
relations between values; the properties of a compiled spec satisfy them.

``fabric_links``, at the end of the file, is the only source of the scale-up links between SIPs.
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
from kernbench.topology.energy_spec import EnergySpec
from kernbench.topology.fields import Components, ComponentSpec, LinkSpec, PositiveCount, SizeMm
from kernbench.topology.grid import OPPOSITE, Grid, Side
from kernbench.topology.pe_spec import PeSpec

TWO_DIMENSIONAL = ("torus_2d", "mesh_2d_no_wrap")
# FIFO size that covers the round trip of a credit inside a cube, so that credits never throttle a link.
PACKETS_PER_FIFO = 4


def current_topology_name(name: Any) -> Any:
    """Return ``torus_2d`` for its old name ``mesh_2d``; return every other value unchanged."""
    return "torus_2d" if name == "mesh_2d" else name


SipTopology = Annotated[
    Literal["ring_1d", "ring_1d_unidir", "torus_2d", "mesh_2d_no_wrap", "fully_connected", "switch"],
    BeforeValidator(current_topology_name),
]


class AddressSpec(ConfigModel):
    """The physical address format of the machine."""

    format: Literal["narrow", "wide"]
    """Width of physical addresses: narrow (51 bits, 16 SIPs of 32 cubes) or wide (64 bits, 1024 SIPs of 256 cubes)."""


class TransportSpec(ConfigModel):
    """The sizes of packets, and of the FIFOs at the receiving ends of links."""

    packet_bytes: Size
    """Size of a packet, the unit of arbitration and fairness on every link."""
    header_bytes: Annotated[Size, Field(le=1 << 16)]
    """Size of a request, a control message or an acknowledgement on a link."""
    fifo_bytes: Size | None = None
    """FIFO of a link inside a cube, at least 4 packets; null: 4 packets."""
    long_link_fifo_bytes: Size | None = None
    """FIFO of every other link; null: 4 packets plus twice the bytes in flight."""
    express: bool = True
    """true: an uncontended transfer is simulated as one event; the simulation is faster, with the same times."""

    @property
    def least_fifo(self) -> int:
        """The smallest FIFO in bytes; with a smaller FIFO a link would wait for credits even without contention."""
        return PACKETS_PER_FIFO * self.packet_bytes

    def fifo_of(self, link: LinkSpec) -> int:
        """Return the bytes of the FIFO of a link inside a cube."""
        return link.fifo_bytes or self.fifo_bytes or self.least_fifo

    def long_fifo_of(self, link: LinkSpec, overhead_ns: float) -> int:
        """Return the bytes of the FIFO of a link outside the cubes.

        The default is twice the bandwidth-delay product over ``overhead_ns``, plus four packets; with less, credits
        throttle the link. ``overhead_ns`` is the latency of a hop: entered node, wire and link.
        """
        in_flight = math.ceil(2 * overhead_ns * link.bw_gbs) + self.least_fifo
        return link.fifo_bytes or self.long_link_fifo_bytes or in_flight


class SipsSpec(ConfigModel):
    """The number of SIPs and the topology of their links; 2-D topologies also have ``w`` and ``h``."""

    count: PositiveCount
    """SIPs in the machine."""
    topology: SipTopology
    """Topology of the scale-up links between SIPs."""
    w: PositiveCount | None = None
    """Columns of SIPs of a 2-D topology; null: the square root of ``count``."""
    h: PositiveCount | None = None
    """Rows of SIPs of a 2-D topology; null: the square root of ``count``."""

    @property
    def two_dimensional(self) -> bool:
        """True if the SIPs form rows and columns."""
        return self.topology in TWO_DIMENSIONAL

    @property
    def grid(self) -> Grid:
        """Columns and rows of SIPs: ``w`` and ``h``, by default a square; one row unless the topology is 2-D."""
        if not self.two_dimensional:
            return Grid(self.count, 1)
        side = math.isqrt(self.count)
        return Grid(self.w or side, self.h or side)


class SystemLinks(ConfigModel):
    """Classes of links between SIPs, the switch and the host."""

    host_to_switch: LinkSpec
    """Links between the host and the PCIe switch."""
    switch_to_sip: LinkSpec
    """Links between the switch and each SIP."""
    sip_to_sip: LinkSpec
    """Scale-up links between SIPs."""


class SystemComponents(Components):
    """The components outside the SIPs."""

    host: ComponentSpec[PartAttrs]
    """The host."""
    switch: ComponentSpec[PartAttrs]
    """The PCIe switch."""


class SystemSpec(ConfigModel):
    """Everything outside the SIPs."""

    sips: SipsSpec
    """SIPs and the topology of their links."""
    links: SystemLinks
    """Classes of links outside the SIPs."""
    components: SystemComponents
    """Components outside the SIPs."""


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
    """Side of the cube mesh on which the chiplet is placed."""
    size_mm: SizeMm
    """Size of the chiplet: w along that side, h perpendicular to it."""


class SipLinks(ConfigModel):
    """Classes of links of a SIP outside its cubes."""

    io_internal: LinkSpec
    """Links inside the IO chiplet."""
    io_to_cube: LinkSpec
    """Links between the IO chiplet and the cubes along it."""
    cube_to_cube: LinkSpec
    """Links between neighbouring cubes."""


class IoCpuAttrs(PartAttrs):
    """The ``attrs`` of the CPU of an IO chiplet."""

    queue: int = Field(default=64, ge=1, le=65536)
    """Launches that the host orders ahead of the one under way."""


class SipComponents(Components):
    """The components of the IO chiplet; ``ucie`` is the chiplet's port of a link to a cube."""

    pcie_ep: ComponentSpec[PartAttrs]
    """The PCIe endpoint of the link to the switch."""
    io_cpu: ComponentSpec[IoCpuAttrs]
    """The CPU that distributes launches to the cubes."""
    io_noc: ComponentSpec[PartAttrs]
    """The router of the chiplet."""
    sip_port: ComponentSpec[PartAttrs]
    """A port of a scale-up link."""
    ucie: ComponentSpec[PartAttrs]
    """The chiplet's port of a link to a cube."""


class SipSpec(ConfigModel):
    """A device: an IO chiplet and a mesh of cubes."""

    cube_mesh: CubeMeshSpec
    """The mesh of cubes."""
    io_chiplet: IoChipletSpec
    """The chiplet that connects the cubes to the host and to other SIPs."""
    links: SipLinks
    """Classes of links of a SIP outside its cubes."""
    components: SipComponents
    """Components of the IO chiplet."""

    @property
    def edge_cubes(self) -> tuple[int, ...]:
        """The cubes along the IO chiplet, west to east or north to south; ``io_ucie_I`` links the I-th of them."""
        grid, edge = self.cube_mesh.grid, self.io_chiplet.edge
        if edge in {"N", "S"}:
            return tuple(grid.index(x, 0 if edge == "N" else grid.h - 1) for x in range(grid.w))
        return tuple(grid.index(0 if edge == "W" else grid.w - 1, y) for y in range(grid.h))

    def io_ucie_of(self, cube: int) -> int:
        """Return the index of the IO chiplet's UCIe port in a cube's column (edge N, S) or row (edge E, W)."""
        x, y = self.cube_mesh.grid.xy(cube)
        return x if self.io_chiplet.edge in {"N", "S"} else y


class TopologySpec(ConfigModel):
    """A machine. In the spec of a compiled machine the clocks are applied to all figures, and ``clocks`` are 1."""

    clocks: ClocksSpec = Field(default_factory=ClocksSpec)
    """Clock factors of PEs, NoCs and IO chiplets, relative to the figures of the file."""
    ns_per_mm: Annotated[float, Field(ge=0, le=1e3)]
    """Delay of a wire per mm of its length."""
    address: AddressSpec
    """The format of physical addresses."""
    transport: TransportSpec
    """Packets, headers and FIFOs."""
    system: SystemSpec
    """The host, the switch, and the links between SIPs."""
    sip: SipSpec
    """A device: an IO chiplet and a mesh of cubes."""
    cube: CubeSpec
    """A compute die."""
    pe: PeSpec
    """A processing element."""
    energy: EnergySpec | None = Field(default_factory=EnergySpec.packaged)
    """Energies, powers and areas; keys that are not stated have the packaged figures; null: no energy is reported."""

    @model_serializer(mode="wrap")
    def _without_clocks(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = plain(self)
        return content if self.clocks.changed else {name: value for name, value in content.items() if name != "clocks"}

    @property
    def with_sip_grid(self) -> Self:
        """The same machine with explicit columns and rows of SIPs, also if its file omits them."""
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
        """The quantum of memories in packets: ``cube.hbm.quantum_bytes``, rounded up."""
        return -(-self.cube.hbm.quantum_bytes // self.transport.packet_bytes)

    def wire_ns(self, length_mm: float) -> float:
        """Return the delay of a wire of this length in ns."""
        return length_mm * self.ns_per_mm

    @property
    def hbm_bytes_per_sip(self) -> int:
        """Bytes of HBM in a SIP."""
        return self.cubes_per_sip * self.cube.hbm.bytes


@value
class SipPort:
    """A scale-up port: its SIP, its number in that SIP, its side (None if fully connected), and the SIP it leads to."""

    sip: int
    index: int
    side: Side | None
    peer: int


@value
class FabricLink:
    """A directed scale-up link between two ports.

    The link leads from a port on one side to the port on the opposite side of the peer. A ring of two SIPs therefore
    has two links in each direction: 0.E to 1.W and 1.E to 0.W are different wires.
    """

    src: SipPort
    dst: SipPort


def sip_neighbours(sips: SipsSpec, sip: int) -> dict[Side, int]:
    """Return the neighbour on each side with a port, in the order E, W, N, S; empty for topologies without sides."""
    grid = sips.grid
    if sips.topology in {"ring_1d", "ring_1d_unidir"}:
        return grid.neighbours(sip, ("E", "W"), wrap=True)
    if sips.two_dimensional:
        return grid.neighbours(sip, wrap=sips.topology == "torus_2d")
    return {}


def sip_ports(sips: SipsSpec, sip: int) -> tuple[SipPort, ...]:
    """Return the scale-up ports of a SIP; among routes of equal length, routing uses that of the first port."""
    if sips.topology == "fully_connected":
        peers = (peer for peer in range(sips.count) if peer != sip)
        return tuple(SipPort(sip, index, None, peer) for index, peer in enumerate(peers))
    neighbours = sip_neighbours(sips, sip).items()
    return tuple(SipPort(sip, index, side, peer) for index, (side, peer) in enumerate(neighbours))


def fabric_links(sips: SipsSpec) -> Iterator[FabricLink]:
    """Yield every directed scale-up link, ordered by sending SIP and port; in ``ring_1d_unidir`` only E ports send."""
    ports = [port for sip in range(sips.count) for port in sip_ports(sips, sip)]
    by_ends = {(port.sip, port.side, port.peer): port for port in ports}
    for port in ports:
        if sips.topology != "ring_1d_unidir" or port.side == "E":
            far_side = OPPOSITE[port.side] if port.side else None
            yield FabricLink(port, by_ends[port.peer, far_side, port.sip])
