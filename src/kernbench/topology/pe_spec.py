"""The ``pe`` section: the units and parts of a processing element."""

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
    """Tightly coupled memory, of which the scheduler keeps a part; read and write ports are separate."""

    bytes: Size
    scheduler_reserved_bytes: Size
    read_bw_gbs: Bandwidth
    write_bw_gbs: Bandwidth

    @property
    def scratch_bytes(self) -> int:
        """The bytes left for kernels and queues."""
        return self.bytes - self.scheduler_reserved_bytes

    def read_ps(self, nbytes: int) -> int:
        """Return the time of the read port."""
        return transfer_ps(nbytes, self.read_bw_gbs)

    def write_ps(self, nbytes: int) -> int:
        """Return the time of the write port."""
        return transfer_ps(nbytes, self.write_bw_gbs)


class GemmSpec(ConfigModel):
    """The matrix unit: its tile, the type of its sums, the bytes of results that it keeps, its rate by type."""

    tile_m: PositiveCount
    tile_k: PositiveCount
    tile_n: PositiveCount
    dtype_acc: DTypeName
    acc_bytes: Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=1 << 50)] = 256 * 1024
    macs_per_ns: dict[DTypeName, Rate] = Field(min_length=1)

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
        """The types it multiplies."""
        return tuple(dtype(name) for name in self.macs_per_ns)

    def rate(self, element: DType) -> float:
        """Return multiply-accumulates a ns for operands of this type. Raises UnsupportedError."""
        found = self.macs_per_ns.get(element.name)
        if found is None:
            known = ", ".join(self.macs_per_ns)
            raise UnsupportedError(f"this GEMM unit does not multiply {element}; pe.gemm.macs_per_ns has: {known}")
        return found

    def tile_ns(self, element: DType) -> float:
        """Return the time of one tile, full or not."""
        return self.tile_m * self.tile_k * self.tile_n / self.rate(element)

    def tile_ps(self, element: DType) -> int:
        """Return ``tile_ns`` in ps."""
        return ns_to_ps(self.tile_ns(element))


class MathSpec(ConfigModel):
    """The vector unit: time to start, then bytes of the widest operand or result a ns."""

    startup_ns: Duration
    bytes_per_ns: Rate

    def operation_ns(self, nbytes: int) -> float:
        """Return time of an operation whose widest operand or result has ``nbytes``."""
        return self.startup_ns + nbytes / self.bytes_per_ns

    def operation_ps(self, nbytes: int) -> int:
        """Return ``operation_ns`` in ps."""
        return ns_to_ps(self.operation_ns(nbytes))


class DmaSpec(ConfigModel):
    """The DMA engine: time per descriptor, and whether accesses to the same bytes keep the order of the program."""

    setup_ns: Duration
    ordering: Literal["program", "relaxed"] = "program"

    @property
    def setup_ps(self) -> int:
        """``setup_ns`` in ps."""
        return ns_to_ps(self.setup_ns)


class MmuSpec(ConfigModel):
    """The MMU: the unit of its TLB, the translations that the TLB keeps (0: there is none), the cost of a miss."""

    page_bytes: Size
    tlb_entries: int = Field(default=0, ge=0, le=1_000_000)
    tlb_miss_ns: Duration = 0.0

    @property
    def tlb_miss_ps(self) -> int:
        """``tlb_miss_ns`` in ps."""
        return ns_to_ps(self.tlb_miss_ns)


class PeCpuAttrs(PartAttrs):
    """The CPU of a PE: the time to start a kernel, to issue a command, and to read the value of a handle."""

    launch_ns: Duration = 0.0
    issue_ns: Duration = 0.0
    value_ns: Duration = 0.0

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
        """From the common start of a kernel to the end of the issue of its first command."""
        return self.launch_ps + self.issue_ps


class PeSchedulerAttrs(InnerAttrs):
    """The tile scheduler of a PE: time per tile injected, tiles in the pipeline, slots before a stage."""

    issue_ns: Duration = 0.0
    tiles_in_flight: PositiveCount = 4
    stage_slots: PositiveCount = 2

    @property
    def issue_ps(self) -> int:
        """``issue_ns`` in ps."""
        return ns_to_ps(self.issue_ns)


class PeComponents(Components):
    """The parts of every PE."""

    pe_cpu: ComponentSpec[PeCpuAttrs]
    pe_scheduler: ComponentSpec[PeSchedulerAttrs]
    pe_dma: ComponentSpec[PartAttrs]
    pe_fetch_store: ComponentSpec[InnerAttrs]
    pe_gemm: ComponentSpec[InnerAttrs]
    pe_math: ComponentSpec[InnerAttrs]
    pe_tcm: ComponentSpec[InnerAttrs]
    pe_mmu: ComponentSpec[InnerAttrs]
    pe_ipcq: ComponentSpec[PartAttrs]


class PeSpec(WithExtras):
    """A processing element."""

    tcm: TcmSpec
    gemm: GemmSpec
    math: MathSpec
    dma: DmaSpec
    mmu: MmuSpec
    components: PeComponents

    @property
    def extra_memories(self) -> tuple[AddressWindow, ...]:
        """The memories beside the TCM: their addresses are those of a scratchpad."""
        return tuple(windows(self.extra, 0))
