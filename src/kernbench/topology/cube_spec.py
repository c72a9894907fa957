"""The ``cube`` section: a compute die."""

from __future__ import annotations

from pydantic import Field

from kernbench.common.config import Bandwidth, ConfigModel, Duration, Size
from kernbench.common.units import PS_PER_NS, ns_to_ps
from kernbench.di.part import PartAttrs
from kernbench.topology.fields import (
    AddressWindow,
    BankedSpec,
    Components,
    ComponentSpec,
    LinkSpec,
    PositiveCount,
    SizeMm,
    WithExtras,
    windows,
)
from kernbench.topology.grid import Corner, Grid
from kernbench.topology.hbm_spec import HbmCtrlAttrs, HbmSpec


class NocSpec(ConfigModel):
    """The router grid of a cube; its links form the class ``noc``."""

    w: PositiveCount
    """Columns of routers."""
    h: PositiveCount
    """Rows of routers."""
    link_bw_gbs: Bandwidth
    """Bandwidth of each direction of a link between routers."""

    @property
    def grid(self) -> Grid:
        """The routers, row 0 in the north."""
        return Grid(self.w, self.h)

    @property
    def link(self) -> LinkSpec:
        """The links between routers."""
        return LinkSpec(bw_gbs=self.link_bw_gbs)


class PeLayoutSpec(ConfigModel):
    """The places of PEs: at the corners, numbered corner by corner in the order of ``corners``."""

    pe_per_corner: PositiveCount
    """PEs at each corner."""
    corners: tuple[Corner, ...] = Field(min_length=1)
    """Corners with PEs, in the order in which PEs and HBM slices are numbered."""

    @property
    def pes(self) -> int:
        """PEs in a cube."""
        return self.pe_per_corner * len(self.corners)

    def corner_of(self, pe: int) -> Corner:
        """Return the corner of a PE."""
        return self.corners[pe // self.pe_per_corner]


class SramSpec(BankedSpec):
    """The SRAM of a cube."""

    bytes: Size
    """Capacity."""


class SramAttrs(PartAttrs):
    """The ``attrs`` of an SRAM."""

    access_ns: Duration = 0.0
    """Latency to the first byte of an access."""
    bw_gbs: Bandwidth | None = None
    """Bandwidth of a bank; null: the bandwidth of the fastest link to the SRAM."""

    @property
    def access_ps(self) -> int:
        """``access_ns`` in ps."""
        return ns_to_ps(self.access_ns)


class MCpuAttrs(PartAttrs):
    """The ``attrs`` of the management CPU of a cube."""

    dma_channels: int = Field(default=2, ge=1, le=1024)
    """Fills that the DMA of the management CPU performs concurrently."""


class CubeLinks(ConfigModel):
    """Classes of links inside a cube."""

    xbar_to_hbm: LinkSpec
    """Links between an xbar and an HBM slice of its corner."""
    xbar_to_router: LinkSpec
    """Links between an xbar and the router at its corner."""
    pe_to_xbar: LinkSpec
    """Links between a PE and the xbar of its corner: one for its DMA, one for its CPU."""
    router_to_ucie: LinkSpec
    """Links between a router and a UCIe port."""
    router_to_sram: LinkSpec
    """Links between a router and the SRAM."""
    router_to_m_cpu: LinkSpec
    """Links between a router and the management CPU."""


class CubeComponents(Components):
    """The components of a cube outside its PEs."""

    noc_router: ComponentSpec[PartAttrs]
    """A router of the network."""
    xbar: ComponentSpec[PartAttrs]
    """The crossbar of a corner, which connects its PEs, its HBM slices and the network."""
    hbm_ctrl: ComponentSpec[HbmCtrlAttrs]
    """An HBM slice with its controller."""
    ucie: ComponentSpec[PartAttrs]
    """A port to a neighbouring die."""
    m_cpu: ComponentSpec[MCpuAttrs]
    """The management CPU, which starts kernels and fills memory."""
    sram: ComponentSpec[SramAttrs]
    """The SRAM."""


class CubeSpec(WithExtras):
    """A compute die."""

    size_mm: SizeMm
    """Size of the die."""
    noc: NocSpec
    """The grid of routers."""
    pe_layout: PeLayoutSpec
    """The places of PEs."""
    hbm: HbmSpec
    """The HBM of a cube: slices, their banks, and the mapping of addresses to banks."""
    sram: SramSpec
    """The SRAM of a cube."""
    links: CubeLinks
    """Classes of links inside a cube."""
    components: CubeComponents
    """Components of a cube outside its PEs."""

    @property
    def extra_memories(self) -> tuple[AddressWindow, ...]:
        """The extra memories of a cube; their addresses follow those of the SRAM."""
        return tuple(windows(self.extra, self.sram.bytes))

    @property
    def slices_per_corner(self) -> int:
        """HBM slices behind one xbar."""
        return self.hbm.slices // len(self.pe_layout.corners)

    def corner_of_slice(self, index: int) -> Corner:
        """Return the corner whose xbar serves a slice."""
        return self.pe_layout.corners[index // self.slices_per_corner]

    def local_slice(self, pe: int) -> int:
        """Return the HBM slice next to a PE, in the same corner."""
        return pe * self.hbm.slices // self.pe_layout.pes

    @property
    def pc_bw_gbs(self) -> float:
        """The sustained bandwidth of a pseudo-channel: the usable part of its share of the link.

        With banks, it is the bandwidth of the bus less the share of time for refresh.
        """
        banks = self.hbm.banks
        if banks is not None:
            return banks.pc_gbs * (1 - banks.refresh_share)
        return self.links.xbar_to_hbm.bw_gbs / self.hbm.num_pcs * self.components.hbm_ctrl.attrs.usable

    @property
    def pc_ps_per_byte(self) -> float:
        """The time in ps to transfer a byte on a pseudo-channel."""
        return PS_PER_NS / self.pc_bw_gbs

    @property
    def slice_bw_gbs(self) -> float:
        """The sustained bandwidth of a slice: the sum over its pseudo-channels."""
        if self.hbm.banks is not None:
            return self.hbm.num_pcs * self.pc_bw_gbs
        return self.links.xbar_to_hbm.bw_gbs * self.components.hbm_ctrl.attrs.usable

    @property
    def slice_peak_gbs(self) -> float:
        """The bandwidth of a slice while all its pseudo-channels transfer data."""
        banks = self.hbm.banks
        return self.links.xbar_to_hbm.bw_gbs if banks is None else self.hbm.num_pcs * banks.pc_gbs

    @property
    def slice_text(self) -> str:
        """The sustained and the peak bandwidth of a slice, as text."""
        return f"a slice: peak {self.slice_peak_gbs:.5g}, sustained {self.slice_bw_gbs:.4g} GB/s"

    @property
    def hbm_access_ns(self) -> float:
        """The latency of an access to a slice in ns, without the times to transfer its bytes and to open a row."""
        return self.hbm.access_ns(self.components.hbm_ctrl.attrs)

    @property
    def write_queue_bytes(self) -> int:
        """Bytes of deferred writes that fit into the queues of a slice; 0 without banks."""
        banks = self.hbm.banks
        if banks is None:
            return 0
        return -(-self.hbm.num_pcs // banks.pcs_per_channel) * self.hbm.queue * banks.burst_bytes
