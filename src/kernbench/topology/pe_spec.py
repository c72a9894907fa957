"""The ``pe`` section: the units and components of a processing element."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from kernbench.common.config import Bandwidth, ConfigModel, Duration, Rate, Size
from kernbench.common.dtypes import DType, dtype
from kernbench.common.errors import UnsupportedError
from kernbench.common.units import ns_to_ps, parse_size, transfer_ps
from kernbench.di.part import InnerAttrs, PartAttrs
from kernbench.topology.fields import (
    AddressWindow,
    BankedSpec,
    Components,
    ComponentSpec,
    PositiveCount,
    WithExtras,
    windows,
)


def _dtype_name(text: str) -> str:
    try:
        return dtype(text).name
    except LookupError as error:
        raise ValueError(str(error)) from error


DTypeName = Annotated[str, AfterValidator(_dtype_name)]


class TcmSpec(BankedSpec):
    """Tightly coupled memory, with separate ports for reads and writes."""

    bytes: Size
    """Capacity."""
    scheduler_reserved_bytes: Size
    """Bytes reserved for the tiles of the scheduler; kernels and queues use the remaining bytes."""
    read_bw_gbs: Bandwidth
    """Bandwidth of the read port."""
    write_bw_gbs: Bandwidth
    """Bandwidth of the write port."""

    @property
    def scratch_bytes(self) -> int:
        """The bytes for kernels and queues."""
        return self.bytes - self.scheduler_reserved_bytes

    def read_ps(self, nbytes: int) -> int:
        """Return the occupancy of the read port in ps."""
        return transfer_ps(nbytes, self.read_bw_gbs)

    def write_ps(self, nbytes: int) -> int:
        """Return the occupancy of the write port in ps."""
        return transfer_ps(nbytes, self.write_bw_gbs)


class GemmSpec(ConfigModel):
    """The matrix unit."""

    tile_m: PositiveCount
    """Rows of a tile of the result."""
    tile_k: PositiveCount
    """Columns of the left operand in a tile: the part of K that a tile multiplies."""
    tile_n: PositiveCount
    """Columns of a tile of the result."""
    dtype_acc: DTypeName
    """Element type of the accumulators."""
    acc_bytes: Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 50)] = 256 * 1024
    """Bytes of accumulators that stay in the unit between products; 0: none."""
    macs_per_ns: dict[DTypeName, Rate] = Field(min_length=1)
    """Multiply-accumulates per ns, by operand type; the unit does not support types that are not listed."""

    @property
    def tile_sizes(self) -> tuple[int, int, int]:
        """The tile along (m, k, n)."""
        return self.tile_m, self.tile_k, self.tile_n

    @property
    def acc(self) -> DType:
        """The accumulator's type."""
        return dtype(self.dtype_acc)

    @property
    def operand_dtypes(self) -> tuple[DType, ...]:
        """The operand types that the unit supports."""
        return tuple(dtype(name) for name in self.macs_per_ns)

    def rate(self, element: DType) -> float:
        """Return the multiply-accumulates per ns. Raises UnsupportedError if the unit does not support the type."""
        macs_per_ns = self.macs_per_ns.get(element.name)
        if macs_per_ns is None:
            allowed = ", ".join(self.macs_per_ns)
            raise UnsupportedError(f"this GEMM unit does not multiply {element}; pe.gemm.macs_per_ns has: {allowed}")
        return macs_per_ns

    def tile_ns(self, element: DType) -> float:
        """Return the time of a tile in ns; a partial tile takes as long as a full one."""
        return self.tile_m * self.tile_k * self.tile_n / self.rate(element)

    def tile_ps(self, element: DType) -> int:
        """Return ``tile_ns`` in ps."""
        return ns_to_ps(self.tile_ns(element))


class MathSpec(ConfigModel):
    """The vector unit."""

    startup_ns: Duration
    """Latency to start an operation."""
    bytes_per_ns: Rate
    """Throughput in bytes of the widest operand or result."""

    def operation_ns(self, nbytes: int) -> float:
        """Return the time in ns of an operation whose widest operand or result has ``nbytes``."""
        return self.startup_ns + nbytes / self.bytes_per_ns

    def operation_ps(self, nbytes: int) -> int:
        """Return ``operation_ns`` in ps."""
        return ns_to_ps(self.operation_ns(nbytes))


class DmaSpec(ConfigModel):
    """The DMA engine."""

    setup_ns: Duration
    """Time to set up a descriptor; set-ups are serialized."""
    ordering: Literal["program", "relaxed"] = "program"
    """Order of accesses to the same bytes: program (the order of the program) or relaxed (no order)."""

    @property
    def setup_ps(self) -> int:
        """``setup_ns`` in ps."""
        return ns_to_ps(self.setup_ns)


class MmuSpec(ConfigModel):
    """The MMU."""

    page_bytes: Size
    """Size of a page, the unit of the TLB."""
    tlb_entries: int = Field(default=0, ge=0, le=1_000_000)
    """Translations that the TLB caches; 0: no TLB, and translation costs nothing."""
    tlb_miss_ns: Duration = 0.0
    """Latency of a TLB miss."""

    @property
    def tlb_miss_ps(self) -> int:
        """``tlb_miss_ns`` in ps."""
        return ns_to_ps(self.tlb_miss_ns)


class PeCpuAttrs(PartAttrs):
    """The ``attrs`` of the CPU of a PE."""

    launch_ns: Duration = 0.0
    """Time to start a kernel."""
    issue_ns: Duration = 0.0
    """Time to issue a command."""
    value_ns: Duration = 0.0
    """Time for the CPU to read the value of a handle."""

    @property
    def launch_ps(self) -> int:
        """``launch_ns`` in ps."""
        return ns_to_ps(self.launch_ns)

    @property
    def issue_ps(self) -> int:
        """``issue_ns`` in ps."""
        return ns_to_ps(self.issue_ns)

    @property
    def value_ps(self) -> int:
        """``value_ns`` in ps."""
        return ns_to_ps(self.value_ns)

    @property
    def first_issue_ps(self) -> int:
        """The time from the common start of a kernel to the end of the issue of its first command, in ps."""
        return self.launch_ps + self.issue_ps


class PeSchedulerAttrs(InnerAttrs):
    """The ``attrs`` of the tile scheduler of a PE."""

    issue_ns: Duration = 0.0
    """Time between two tiles that enter the pipeline."""
    tiles_in_flight: PositiveCount = 4
    """Most tiles in the pipeline at a time, each with a buffer: the prefetch depth."""
    stage_slots: PositiveCount = 2
    """Slots of the input queue of each stage that follows fetch."""

    @property
    def issue_ps(self) -> int:
        """``issue_ns`` in ps."""
        return ns_to_ps(self.issue_ns)


class PeComponents(Components):
    """The components of every PE."""

    pe_cpu: ComponentSpec[PeCpuAttrs]
    """The CPU, which runs kernels."""
    pe_scheduler: ComponentSpec[PeSchedulerAttrs]
    """The tile scheduler."""
    pe_dma: ComponentSpec[PartAttrs]
    """The DMA engine."""
    pe_fetch_store: ComponentSpec[InnerAttrs]
    """The fetch and store stages between the TCM and the units."""
    pe_gemm: ComponentSpec[InnerAttrs]
    """The matrix unit."""
    pe_math: ComponentSpec[InnerAttrs]
    """The vector unit."""
    pe_tcm: ComponentSpec[InnerAttrs]
    """The tightly coupled memory."""
    pe_mmu: ComponentSpec[InnerAttrs]
    """The MMU."""
    pe_ipcq: ComponentSpec[PartAttrs]
    """The queues between PEs."""


class PeSpec(WithExtras):
    """A processing element."""

    tcm: TcmSpec
    """The tightly coupled memory."""
    gemm: GemmSpec
    """The matrix unit."""
    math: MathSpec
    """The vector unit."""
    dma: DmaSpec
    """The DMA engine."""
    mmu: MmuSpec
    """The MMU."""
    components: PeComponents
    """Components of a PE."""

    @property
    def extra_memories(self) -> tuple[AddressWindow, ...]:
        """The extra memories of a PE; their addresses are those of a scratchpad."""
        return tuple(windows(self.extra, 0))
