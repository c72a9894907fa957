"""The ``cube`` section: one compute die."""

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
    """The router grid of a cube; its links are the class ``noc``."""

    w: PositiveCount
    h: PositiveCount
    link_bw_gbs: Bandwidth

    @property
    def grid(self) -> Grid:
        """The routers, row 0 in the north."""
        return Grid(self.w, self.h)

    @property
    def link(self) -> LinkSpec:
        """The links between routers."""
        return LinkSpec(bw_gbs=self.link_bw_gbs)


class PeLayoutSpec(ConfigModel):
    """PEs stand at the corners, numbered corner by corner in the order given."""

    pe_per_corner: PositiveCount
    corners: tuple[Corner, ...] = Field(min_length=1)

    @property
    def pes(self) -> int:
        """PEs in a cube."""
        return self.pe_per_corner * len(self.corners)

    def corner_of(self, pe: int) -> Corner:
        """Return the corner where a PE stands."""
        return self.corners[pe // self.pe_per_corner]


class SramSpec(BankedSpec):
    """The SRAM of a cube."""

    bytes: Size


class SramAttrs(PartAttrs):
    """An SRAM: the time before the first byte. Without ``bw_gbs`` it is as fast as the fastest link to it."""

    access_ns: Duration = 0.0
    bw_gbs: Bandwidth | None = None

    @property
    def access_ps(self) -> int:
        """``access_ns`` in ps."""
        return ns_to_ps(self.access_ns)


class MCpuAttrs(PartAttrs):
    """The management CPU of a cube: how many fills its DMA does at once."""

    dma_channels: int = Field(default=2, ge=1, le=1024)


class CubeLinks(ConfigModel):
    """Link classes inside a cube; ``pe_to_xbar`` is for a PE's DMA and for its CPU."""

    xbar_to_hbm: LinkSpec
    xbar_to_router: LinkSpec
    pe_to_xbar: LinkSpec
    router_to_ucie: LinkSpec
    router_to_sram: LinkSpec
    router_to_m_cpu: LinkSpec


class CubeComponents(Components):
    """The parts of a cube outside its PEs."""

    noc_router: ComponentSpec[PartAttrs]
    xbar: ComponentSpec[PartAttrs]
    hbm_ctrl: ComponentSpec[HbmCtrlAttrs]
    ucie: ComponentSpec[PartAttrs]
    m_cpu: ComponentSpec[MCpuAttrs]
    sram: ComponentSpec[SramAttrs]


class CubeSpec(WithExtras):
    """One compute die."""

    size_mm: SizeMm
    noc: NocSpec
    pe_layout: PeLayoutSpec
    hbm: HbmSpec
    sram: SramSpec
    links: CubeLinks
    components: CubeComponents

    @property
    def extra_memories(self) -> tuple[AddressWindow, ...]:
        """The memories beside the SRAM: their addresses follow its own."""
        return tuple(windows(self.extra, self.sram.bytes))

    @property
    def slices_per_corner(self) -> int:
        """HBM slices behind one xbar."""
        return self.hbm.slices // len(self.pe_layout.corners)

    def corner_of_slice(self, index: int) -> Corner:
        """Return the corner whose xbar serves a slice."""
        return self.pe_layout.corners[index // self.slices_per_corner]

    def local_slice(self, pe: int) -> int:
        """Return the slice next to a PE, always of the PE's own corner."""
        return pe * self.hbm.slices // self.pe_layout.pes

    @property
    def pc_bw_gbs(self) -> float:
        """The bandwidth that a pseudo-channel sustains: the usable part of its share of the link.

        With banks, what its bus does beside refresh.
        """
        banks = self.hbm.banks
        if banks is not None:
            return banks.pc_gbs * (1 - banks.refresh_share)
        return self.links.xbar_to_hbm.bw_gbs / self.hbm.num_pcs * self.components.hbm_ctrl.attrs.usable

    @property
    def pc_ps_per_byte(self) -> float:
        """Time of a byte on a pseudo-channel."""
        return PS_PER_NS / self.pc_bw_gbs

    @property
    def slice_bw_gbs(self) -> float:
        """The bandwidth that a slice sustains: that of all its channels."""
        if self.hbm.banks is not None:
            return self.hbm.num_pcs * self.pc_bw_gbs
        return self.links.xbar_to_hbm.bw_gbs * self.components.hbm_ctrl.attrs.usable

    @property
    def slice_peak_gbs(self) -> float:
        """The bandwidth of a slice while nothing keeps its channels from moving data."""
        banks = self.hbm.banks
        return self.links.xbar_to_hbm.bw_gbs if banks is None else self.hbm.num_pcs * banks.pc_gbs

    @property
    def slice_text(self) -> str:
        """The bandwidths of a slice in words."""
        return f"a slice: peak {self.slice_peak_gbs:.5g}, sustained {self.slice_bw_gbs:.4g} GB/s"

    @property
    def hbm_access_ns(self) -> float:
        """The time of an access to a slice beside its bytes and opening a row."""
        return self.hbm.access_ns(self.components.hbm_ctrl.attrs)

    @property
    def write_queue_bytes(self) -> int:
        """Bytes of writes that a slice may keep back in its queues; 0 without banks."""
        banks = self.hbm.banks
        if banks is None:
            return 0
        return -(-self.hbm.num_pcs // banks.pcs_per_channel) * self.hbm.queue * banks.burst_bytes
