"""The MMU of a PE, which maps virtual byte ranges to the nearest physical replica, and its TLB."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import field

from kernbench.common.errors import AddressFaultError, InputError
from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.messages.requests import MappedShard, TensorMapping
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr


@state
class MappedRange:
    """Virtual bytes ``start .. end``, stored from ``pa`` on; an access that begins here must end by ``tensor_end``.

    ``base`` is ``pa``, decoded at the first access: a PE accesses few of the shards that it maps.
    """

    start: int
    end: int
    pa: int
    tensor_end: int
    base: PhysAddr | None = None

    def at(self, va: int, fmt: AddressFormat) -> PhysAddr:
        if self.base is None:
            self.base = PhysAddr.decode(self.pa, fmt)
        return self.base.offset_by(va - self.start)


@state
class MappedRanges:
    """The ranges of one mapping in the order of addresses, with their starts, which bisection compares as integers."""

    mapping: TensorMapping
    ranges: list[MappedRange]
    starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.starts = [mapped.start for mapped in self.ranges]


class SharedRanges:
    """The cached ranges of tensors without replicas; their ranges are the same for all PEs."""

    __slots__ = ("_by_va",)

    def __init__(self) -> None:
        self._by_va: dict[int, MappedRanges] = {}

    def of(self, mapping: TensorMapping) -> MappedRanges | None:
        """Return the cached ranges of ``mapping``, or None."""
        cached = self._by_va.get(mapping.va_base)
        return cached if cached is not None and cached.mapping is mapping else None

    def store(self, ranges: MappedRanges) -> None:
        """Cache the ranges of a mapping."""
        self._by_va[ranges.mapping.va_base] = ranges


class PeMMU:
    """The MMU of PE ``pe`` of cube ``cube`` of SIP ``sip``; it maps byte ranges of any size and alignment.

    All PEs of a machine share ``shared_ranges``.
    """

    def __init__(
        self,
        sip: int,
        cube: int,
        pe: int,
        *,
        fmt: AddressFormat = AddressFormat.NARROW,
        shared_ranges: SharedRanges | None = None,
    ) -> None:
        self.sip, self.cube, self.pe = sip, cube, pe
        self._fmt = fmt
        self._shared_ranges = shared_ranges or SharedRanges()
        # Sorted by address. The first addresses are a separate list, so bisection compares integers.
        self._bases: list[int] = []
        self._tensors: list[MappedRanges] = []

    @property
    def mappings(self) -> tuple[TensorMapping, ...]:
        """The mapped tensors, in the order of addresses."""
        return tuple([tensor.mapping for tensor in self._tensors])

    def map(self, mapping: TensorMapping) -> None:
        """Map each part of a tensor to its nearest replica.

        The nearest replica is the one on this PE, else the one on the lowest PE in the same cube. If that cube has no
        replica, the MMU uses the one on the lowest PE in the lowest cube that has one. Raises InputError for a VA range
        that is mapped already, for shards that overlap without being replicas, and for shards outside the tensor.
        """
        at = bisect_left(self._bases, mapping.va_base)
        for neighbour in self._tensors[max(at - 1, 0) : at + 1]:
            other = neighbour.mapping
            if mapping.va_base < other.va_end and other.va_base < mapping.va_end:
                raise InputError(f"{self._where()}: {_place(mapping)} overlaps {_place(other)}, which is mapped")
        self._tensors.insert(at, self._nearest_ranges(mapping))
        self._bases.insert(at, mapping.va_base)

    def unmap(self, va_base: int) -> None:
        """Unmap the tensor at ``va_base``. Raises AddressFaultError if no tensor begins there."""
        at = bisect_left(self._bases, va_base)
        if at == len(self._bases) or self._bases[at] != va_base:
            raise AddressFaultError(f"{self._where()}: no tensor is mapped at VA {va_base:#x}")
        del self._bases[at], self._tensors[at]

    def translate(self, va: int) -> PhysAddr:
        """Return the physical address of the byte at ``va``. Raises as ``segments`` does."""
        mapped = self._range_at(va, 1)
        return mapped.at(va, self._fmt)

    def segments(self, va: int, nbytes: int) -> tuple[tuple[PhysAddr, int], ...]:
        """Return the address and the bytes of each contiguous part of the ``nbytes`` at ``va``, in order.

        Raises AddressFaultError with the PE, the VA, the nearest tensor, and the distance of the access to that tensor.
        """
        mapped = self._range_at(va, nbytes)
        first = mapped.at(va, self._fmt)
        if va + nbytes <= mapped.end:
            return ((first, nbytes),)
        return ((first, mapped.end - va), *self._segments_between(mapped.end, va + nbytes))

    def physical(self, va: int, nbytes: int) -> tuple[tuple[int, int], ...]:
        """Return ``segments`` with encoded addresses."""
        at = bisect_right(self._bases, va) - 1
        if at >= 0 < nbytes:
            tensor = self._tensors[at]
            mapped = tensor.ranges[bisect_right(tensor.starts, va) - 1]
            if mapped.start <= va and va + nbytes <= mapped.end:
                return ((mapped.pa + va - mapped.start, nbytes),)
        return tuple([(pa.encode(), length) for pa, length in self.segments(va, nbytes)])

    def _segments_between(self, va: int, end: int) -> list[tuple[PhysAddr, int]]:
        parts = []
        while va < end:
            mapped = self._range_at(va, end - va)
            parts.append((mapped.at(va, self._fmt), min(mapped.end, end) - va))
            va = mapped.end
        return parts

    def _range_at(self, va: int, nbytes: int) -> MappedRange:
        at = bisect_right(self._bases, va) - 1
        if at < 0 or nbytes <= 0:
            raise self._fault(va, nbytes)
        tensor = self._tensors[at]
        within = bisect_right(tensor.starts, va) - 1
        if within < 0:
            raise self._fault(va, nbytes)
        mapped = tensor.ranges[within]
        if va >= mapped.end or va + nbytes > mapped.tensor_end:
            raise self._fault(va, nbytes)
        return mapped

    def _nearest_ranges(self, mapping: TensorMapping) -> MappedRanges:
        cached = self._shared_ranges.of(mapping)
        if cached is not None:
            return cached
        copies: dict[int, list[MappedShard]] = {}
        for shard in mapping.shards:
            copies.setdefault(shard.offset_bytes, []).append(shard)
        base, covered = mapping.va_base, 0
        parts = []
        for offset, same_part in sorted(copies.items()):
            shard = same_part[0] if len(same_part) == 1 else self._nearest(mapping, same_part)
            self._check_extent(mapping, shard, covered)
            covered = offset + shard.nbytes
            parts.append((offset, covered, shard.pa))
        if mapping.unit_bytes is None:
            ranges = MappedRanges(mapping, [MappedRange(base + a, base + b, pa, mapping.va_end) for a, b, pa in parts])
        else:  # parts are in order, so the last part of a unit sets the end of its tensor
            ends = {offset // mapping.unit_bytes: base + end for offset, end, _ in parts}
            ranges = MappedRanges(
                mapping, [MappedRange(base + a, base + b, pa, ends[a // mapping.unit_bytes]) for a, b, pa in parts]
            )
        if len(copies) == len(mapping.shards):
            self._shared_ranges.store(ranges)
        return ranges

    def _nearest(self, mapping: TensorMapping, copies: list[MappedShard]) -> MappedShard:
        if any(shard.nbytes != copies[0].nbytes for shard in copies):
            raise InputError(f"{self._where()}: {_place(mapping)}: copies at +{copies[0].offset_bytes} differ in size")
        return min(copies, key=self._distance)

    def _distance(self, shard: MappedShard) -> tuple[bool, bool, bool, int, int, int]:
        elsewhere = shard.sip != self.sip
        other_cube = elsewhere or shard.cube != self.cube
        return (other_cube or shard.pe != self.pe, other_cube, elsewhere, shard.sip, shard.cube, shard.pe)

    def _check_extent(self, mapping: TensorMapping, shard: MappedShard, covered: int) -> None:
        offset, nbytes = shard.offset_bytes, shard.nbytes
        if offset < covered or nbytes <= 0 or offset + nbytes > mapping.nbytes:
            text = f"the shard of {nbytes} bytes at +{offset} overlaps another or leaves the tensor"
            raise InputError(f"{self._where()}: {_place(mapping)}: {text}")

    def _fault(self, va: int, nbytes: int) -> AddressFaultError:
        access = f"{self._where()}: access of {nbytes} byte{'' if nbytes == 1 else 's'} at VA {va:#x}"
        if nbytes <= 0:
            return AddressFaultError(f"{access}: an access has at least 1")
        if not self._tensors:
            return AddressFaultError(f"{access} is not mapped; no tensor is mapped")
        nearest = min(self.mappings, key=lambda tensor: max(tensor.va_base - va, va + 1 - tensor.va_end))
        return AddressFaultError(f"{access} is not mapped: it {_miss(va, nbytes, nearest)} {_place(nearest)}")

    def _where(self) -> str:
        return pe_part(self.sip, self.cube, self.pe, "pe_mmu")


def _place(tensor: TensorMapping) -> str:
    return f"tensor {tensor.name!r} ({tensor.va_base:#x}..{tensor.va_end:#x}, {tensor.nbytes} bytes)"


def _miss(va: int, nbytes: int, tensor: TensorMapping) -> str:
    """Return a phrase for the place of a failed access relative to a tensor, and the distance in bytes."""
    if va < tensor.va_base:
        return f"starts {tensor.va_base - va} bytes before"
    if va >= tensor.va_end:
        return f"starts {va - tensor.va_end} and ends {va + nbytes - tensor.va_end} bytes past the end of"
    if va + nbytes > tensor.va_end:
        return f"runs {va + nbytes - tensor.va_end} bytes past the end of"
    return "touches a part without a shard of"


class Tlb:
    """A TLB of at most ``entries`` page numbers, with LRU replacement; ``hits`` and ``misses`` count look-ups."""

    __slots__ = ("_entries", "_pages", "hits", "misses")

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._pages: dict[int, None] = {}  # least recently used first
        self.hits = self.misses = 0

    def look_up(self, page: int) -> bool:
        """Return True on a hit; on a miss, add ``page`` and return False."""
        pages = self._pages
        hit = page in pages
        if hit:
            self.hits += 1
            del pages[page]
        else:
            self.misses += 1
            if len(pages) == self._entries:
                del pages[next(iter(pages))]
        pages[page] = None
        return hit

    def clear(self) -> None:
        """Remove all pages."""
        self._pages.clear()
