"""Translation of the addresses in a kernel's commands: to physical ranges, memory accesses and the bytes touched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

from kernbench.common.dtypes import row_major
from kernbench.common.errors import KernelError
from kernbench.common.ids import pe_part
from kernbench.common.values import value
from kernbench.components.access_plan import extent, gather, plan
from kernbench.components.initiator import Target
from kernbench.components.memory_order import NOTHING, AccessFootprint, Footprint, Footprints, footprint_of, footprints
from kernbench.components.pe_dma import PeDma
from kernbench.components.pe_ipcq import PeIpcq
from kernbench.components.pe_math import PeMath
from kernbench.components.pe_mmu import PeMmuPart
from kernbench.components.pe_scheduler import PeScheduler
from kernbench.engine.address_map import AddressMap, Segment
from kernbench.engine.machine import Machine
from kernbench.messages.commands import LOAD, NOWHERE, Command, MemoryRef
from kernbench.messages.fabric import Access
from kernbench.messages.requests import PeCoord
from kernbench.triton_emu.block_sizes import BlockedProduct


class PeParts:
    """The components of PE ``coord``."""

    def __init__(self, machine: Machine, coord: PeCoord) -> None:
        self._machine = machine
        self._coord = coord

    @cached_property
    def dma(self) -> PeDma:
        """Return the DMA of the PE."""
        return self._machine.part(pe_part(*self._coord, "pe_dma"), PeDma)

    @cached_property
    def ipcq(self) -> PeIpcq:
        """Return the queues of the PE."""
        return self._machine.part(pe_part(*self._coord, "pe_ipcq"), PeIpcq)

    @cached_property
    def math(self) -> PeMath:
        """Return the MATH engine of the PE."""
        return self._machine.part(pe_part(*self._coord, "pe_math"), PeMath)

    @cached_property
    def mmu(self) -> PeMmuPart:
        """Return the MMU of the PE."""
        return self._machine.part(pe_part(*self._coord, "pe_mmu"), PeMmuPart)

    @cached_property
    def gemm_id(self) -> str:
        """Return the node of the GEMM engine, which the scheduler drives."""
        return pe_part(*self._coord, "pe_gemm")

    @cached_property
    def scheduler(self) -> PeScheduler:
        """Return the tile scheduler of the PE."""
        return self._machine.part(pe_part(*self._coord, "pe_scheduler"), PeScheduler)


@value(eq=False, guarded=False)
class Descriptor:
    """A load or a store: its physical ranges, its memory accesses and the bytes that it touches.

    ``pages`` are the pages that the TLB has to translate.
    """

    segments: tuple[Segment, ...]
    targets: tuple[Target, ...]
    touched: AccessFootprint
    pages: Sequence[int] = ()


@value
class Streams:
    """The physical ranges of all operands that a composite streams, and the bytes that it touches.

    ``product`` is set for a product that runs by blocks.
    """

    segments: tuple[tuple[Segment, ...], ...]
    touched: AccessFootprint
    product: BlockedProduct | None = None


class Addressing:
    """The address translation of a kernel's commands, on the PE of ``parts``.

    ``most_rows`` is the limit passed to ``footprints``. With 0, the bytes that commands touch are not computed.
    """

    __slots__ = ("_addresses", "_most_rows", "_parts")

    def __init__(self, addresses: AddressMap, parts: PeParts, *, most_rows: float) -> None:
        self._addresses = addresses
        self._parts = parts
        self._most_rows = most_rows

    def of_descriptor(self, command: Command) -> Descriptor:
        """Translate a load or a store. Raises AddressFaultError for an unmapped address."""
        loading = command.op is LOAD
        ref = command.srcs[0] if loading else command.dst
        assert isinstance(ref, MemoryRef)
        if ref.runs:
            return self._of_runs(ref, loading)
        shape = ref.valid if ref.valid is not None else ref.shape
        if 0 in shape:
            return Descriptor((), (), NOTHING)
        itemsize = ref.dtype.itemsize
        strides = ref.strides
        if strides is None:
            if ref.valid is None:
                return self._of_one_piece(ref, loading)
            strides = row_major(ref.shape, itemsize)
        low, span = extent(shape, itemsize, strides)
        pages: Sequence[int] = ()
        if ref.physical:
            segments: tuple[Segment, ...] = ((ref.va + low, span),)
        else:
            segments = self._physical(ref.va + low, span)
            pages = self._parts.mmu.pages(ref.va, shape, itemsize, strides)
        targets = plan(self._addresses, segments, shape, itemsize, strides)
        self._parts.dma.check_reach([node for node, _ in targets])
        if not self._most_rows:
            return Descriptor(segments, targets, NOTHING, pages)
        touched = footprints(segments, shape, itemsize, strides, self._most_rows)
        return Descriptor(
            segments, targets, AccessFootprint(reads=touched) if loading else AccessFootprint(writes=touched), pages
        )

    def _of_one_piece(self, ref: MemoryRef, loading: bool) -> Descriptor:
        """Translate a contiguous array, the most frequent case."""
        va, nbytes, mmu = ref.va, prod(ref.shape) * ref.dtype.itemsize, self._parts.mmu
        segments: tuple[Segment, ...] = ((va, nbytes),) if ref.physical else mmu.table.physical(va, nbytes)
        pages: Sequence[int] = ()
        if mmu.tlb is not None and not ref.physical:
            pages = mmu.pages(va, ref.shape, ref.dtype.itemsize, None)
        targets: tuple[Target, ...] = ()
        for node, (pa, length) in self._addresses.by_node(segments):
            targets += ((node, Access(pa, length)),)
        self._parts.dma.check_reach(dict(targets))
        if not self._most_rows:
            return Descriptor(segments, targets, NOTHING, pages)
        touched: Footprints = ()
        for pa, length in segments:
            touched += (Footprint(pa, pa + length, length),)
        return Descriptor(
            segments, targets, AccessFootprint(touched) if loading else AccessFootprint((), touched), pages
        )

    def _of_runs(self, ref: MemoryRef, loading: bool) -> Descriptor:
        """Translate a scatter-gather list; runs at one node with equal lengths and distances become one access."""
        segments: list[Segment] = []
        for va, nbytes in ref.runs:
            segments += ((NOWHERE, nbytes),) if va == NOWHERE else self._physical(va, nbytes)
        mapped = tuple([segment for segment in segments if segment[0] != NOWHERE])
        spaces = {self._addresses.place_of(pa).space for pa, _ in mapped}
        if len(spaces) > 1:
            raise KernelError(f"the runs of a list must be in one type of memory, not {' and '.join(sorted(spaces))}")
        targets = gather(self._addresses.by_node(mapped))
        self._parts.dma.check_reach(node for node, _ in targets)
        touched = tuple(footprint_of(access) for _, access in targets) if self._most_rows else ()
        reads_or_writes = AccessFootprint(reads=touched) if loading else AccessFootprint(writes=touched)
        return Descriptor(tuple(segments), targets, reads_or_writes if touched else NOTHING)

    def of_composite(self, command: Command) -> Streams:
        """Translate the operands that a composite streams. Raises AddressFaultError for an unmapped address."""
        sources = [self._locate_stream(ref) for ref in command.reads_of_memory]
        target, written = self._locate_stream(command.out)
        segments = (*(ranges for ranges, _ in sources), target)
        product = None
        if command.params.block is not None:
            refs = (*command.reads_of_memory, command.out)
            nodes = {
                ref: tuple(dict.fromkeys(node for node, _ in self._addresses.by_node(ranges)))
                for ref, ranges in zip(refs, segments, strict=True)
            }
            product = self._parts.scheduler.product_of(command, nodes)
        touched = AccessFootprint(tuple(footprint for _, touched in sources for footprint in touched), written)
        return Streams(segments, touched, product)

    def _locate_stream(self, ref: MemoryRef) -> tuple[tuple[Segment, ...], Footprints]:
        """Translate an operand that stays in memory. Return its physical segments and the bytes it touches."""
        itemsize = ref.dtype.itemsize
        low, span = extent(ref.shape, itemsize, ref.strides)
        segments = self._physical(ref.va + low, span)
        self._parts.dma.check_reach(node for node, _ in self._addresses.by_node(segments))
        most_rows = self._most_rows
        return segments, footprints(segments, ref.shape, itemsize, ref.strides, most_rows) if most_rows else ()

    def _physical(self, va: int, nbytes: int) -> tuple[Segment, ...]:
        return self._parts.mmu.table.physical(va, nbytes)
