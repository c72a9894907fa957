"""The MMU of a PE: virtual byte ranges to the physical address of the nearest copy, and its TLB."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from kernbench.common.errors import AddressFaultError, InputError
from kernbench.common.ids import pe_part
from kernbench.common.values import state
from kernbench.messages.requests import MappedShard, TensorMapping
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr


@state
class MappedRange:
    """Virtual bytes ``start .. end`` that lie at ``pa`` and on; an access that begins here ends by ``tensor_end``.

    ``base`` is ``pa`` decoded, at the first touch: a PE touches few of the shards that it is told about.
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


class KnownRanges:
    """The ranges of tensors that have one copy of each part: they are the same for all PEs, so they are made once."""

    __slots__ = ("_by_va",)

    def __init__(self) -> None:
        self._by_va: dict[int, tuple[TensorMapping, list[MappedRange]]] = {}

    def of(self, mapping: TensorMapping) -> list[MappedRange] | None:
        """Return the ranges of ``mapping``, if they have been made."""
        known = self._by_va.get(mapping.va_base)
        return known[1] if known is not None and known[0] is mapping else None

    def keep(self, mapping: TensorMapping, ranges: list[MappedRange]) -> None:
        """Keep the ranges of ``mapping``."""
        self._by_va[mapping.va_base] = mapping, ranges


class PeMMU:
    """Translates for PE ``pe`` of cube ``cube`` of SIP ``sip``; the PEs of a machine have ``known`` in common.

    What it maps are byte ranges of any size and alignment.
    """

    def __init__(
        self,
        sip: int,
        cube: int,
        pe: int,
        *,
        fmt: AddressFormat = AddressFormat.NARROW,
        known: KnownRanges | None = None,
    ) -> None:
        self.sip, self.cube, self.pe = sip, cube, pe
        self._fmt = fmt
        self._known = known or KnownRanges()
        self._tensors: list[TensorMapping] = []
        # Sorted by address; the starts are apart so that bisection compares integers.
        self._starts: list[int] = []
        self._ranges: list[MappedRange] = []

    @property
    def mappings(self) -> tuple[TensorMapping, ...]:
        """The tensors that are mapped, by address."""
        return tuple(self._tensors)

    def map(self, mapping: TensorMapping) -> None:
        """Make a tensor visible: each of its parts at the nearest copy.

        The nearest is the PE's own copy, else the one of the lowest PE in its cube, else of the lowest PE of the
        lowest cube that holds it. InputError for a VA range that is mapped already, and for shards that overlap
        without being copies or lie outside the tensor.
        """
        at = bisect_left(self._tensors, mapping.va_base, key=_va_base)
        for other in self._tensors[max(at - 1, 0) : at + 1]:
            if mapping.va_base < other.va_end and other.va_base < mapping.va_end:
                raise InputError(f"{self._where()}: {_place(mapping)} overlaps {_place(other)}, which is mapped")
        ranges = self._nearest_ranges(mapping)
        first = bisect_left(self._starts, mapping.va_base)
        self._tensors.insert(at, mapping)
        self._starts[first:first] = [r.start for r in ranges]
        self._ranges[first:first] = ranges

    def unmap(self, va_base: int) -> None:
        """Forget the tensor at ``va_base``; AddressFaultError when none begins there."""
        at = bisect_left(self._tensors, va_base, key=_va_base)
        if at == len(self._tensors) or self._tensors[at].va_base != va_base:
            raise AddressFaultError(f"{self._where()}: no tensor is mapped at VA {va_base:#x}")
        tensor = self._tensors.pop(at)
        gone = slice(bisect_left(self._starts, va_base), bisect_left(self._starts, tensor.va_end))
        del self._starts[gone], self._ranges[gone]

    def translate(self, va: int) -> PhysAddr:
        """Return the physical address of the byte at ``va``. Raises as ``segments`` does."""
        found = self._range_at(va, 1)
        return found.at(va, self._fmt)

    def segments(self, va: int, nbytes: int) -> tuple[tuple[PhysAddr, int], ...]:
        """Return address and bytes of each stretch of the ``nbytes`` at ``va``, in the order of the access.

        Raises AddressFaultError with the PE, the VA, the nearest tensor and by how many bytes the access is out of it.
        """
        found = self._range_at(va, nbytes)
        first = found.at(va, self._fmt)
        if va + nbytes <= found.end:
            return ((first, nbytes),)
        return ((first, found.end - va), *self._rest(found.end, va + nbytes))

    def physical(self, va: int, nbytes: int) -> tuple[tuple[int, int], ...]:
        """Return ``segments`` with encoded addresses."""
        at = bisect_right(self._starts, va) - 1
        if at >= 0 < nbytes:
            found = self._ranges[at]
            if va + nbytes <= found.end:
                return ((found.pa + va - found.start, nbytes),)
        return tuple([(pa.encode(), length) for pa, length in self.segments(va, nbytes)])

    def _rest(self, va: int, end: int) -> list[tuple[PhysAddr, int]]:
        parts = []
        while va < end:
            found = self._range_at(va, end - va)
            parts.append((found.at(va, self._fmt), min(found.end, end) - va))
            va = found.end
        return parts

    def _range_at(self, va: int, nbytes: int) -> MappedRange:
        at = bisect_right(self._starts, va) - 1
        if at < 0 or nbytes <= 0:
            raise self._fault(va, nbytes)
        found = self._ranges[at]
        if va >= found.end or va + nbytes > found.tensor_end:
            raise self._fault(va, nbytes)
        return found

    def _nearest_ranges(self, mapping: TensorMapping) -> list[MappedRange]:
        known = self._known.of(mapping)
        if known is not None:
            return known
        copies: dict[int, list[MappedShard]] = {}
        for shard in mapping.shards:
            copies.setdefault(shard.offset_bytes, []).append(shard)
        base, end, covered = mapping.va_base, mapping.va_end, 0
        ranges = []
        for offset, held in sorted(copies.items()):
            shard = held[0] if len(held) == 1 else self._nearest(mapping, held)
            self._check_extent(mapping, shard, covered)
            covered = offset + shard.nbytes
            ranges.append(MappedRange(base + offset, base + covered, shard.pa, end))
        if len(copies) == len(mapping.shards):
            self._known.keep(mapping, ranges)
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
            return AddressFaultError(f"{access} is not mapped; no tensor is")
        near = min(self._tensors, key=lambda tensor: max(tensor.va_base - va, va + 1 - tensor.va_end))
        return AddressFaultError(f"{access} is not mapped: it {_miss(va, nbytes, near)} {_place(near)}")

    def _where(self) -> str:
        return pe_part(self.sip, self.cube, self.pe, "pe_mmu")


def _va_base(tensor: TensorMapping) -> int:
    return tensor.va_base


def _place(tensor: TensorMapping) -> str:
    return f"tensor {tensor.name!r} ({tensor.va_base:#x}..{tensor.va_end:#x}, {tensor.nbytes} bytes)"


def _miss(va: int, nbytes: int, near: TensorMapping) -> str:
    """Describe how an access misses a tensor, and by how many bytes."""
    if va < near.va_base:
        return f"starts {near.va_base - va} bytes before"
    if va >= near.va_end:
        return f"starts {va - near.va_end} and ends {va + nbytes - near.va_end} bytes past the end of"
    if va + nbytes > near.va_end:
        return f"runs {va + nbytes - near.va_end} bytes past the end of"
    return "touches a part without a shard of"


class Tlb:
    """A TLB of at most ``entries`` pages, by number; a new page replaces the one that was used longest ago.

    ``hits`` and ``misses`` count look-ups.
    """

    __slots__ = ("_entries", "_pages", "hits", "misses")

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._pages: dict[int, None] = {}  # the one that was used longest ago first
        self.hits = self.misses = 0

    def look_up(self, page: int) -> bool:
        """Return True when ``page`` is there; put it there otherwise."""
        pages = self._pages
        found = page in pages
        if found:
            self.hits += 1
            del pages[page]
        else:
            self.misses += 1
            if len(pages) == self._entries:
                del pages[next(iter(pages))]
        pages[page] = None
        return found

    def clear(self) -> None:
        """Forget all pages."""
        self._pages.clear()
