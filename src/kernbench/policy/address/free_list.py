"""The free list of every memory and of virtual space, and the scratch allocator of kernels, which uses a free list.

A free list allocates the first hole that fits, and merges freed bytes with adjacent holes. Scratch is the part of a
PE's TCM that holds the handles of a running kernel.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, TypeAlias

from kernbench.common.errors import AllocationError
from kernbench.common.values import value

OwnerLabel: TypeAlias = tuple[object, ...]
"""Words that name the owner of memory; they are joined to a text only when an error needs it"""


def label_text(label: OwnerLabel) -> str:
    """Return ``label`` as text, for errors."""
    return " ".join(map(str, label))


@value(order=True)
class AddressExtent:
    """A range of ``nbytes`` bytes from ``start``."""

    start: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte after the range."""
        return self.start + self.nbytes


class FreeList:
    """An allocator of the bytes ``base .. base + nbytes`` of the space called ``label``.

    An allocation starts at a multiple of ``alignment``; its size is rounded up to a multiple of ``granule`` bytes. The
    bytes before an aligned start stay free. The arguments of ``free`` are the start and the requested size.
    """

    def __init__(self, label: str, base: int, nbytes: int, *, alignment: int = 1, granule: int = 1) -> None:
        self.label = label
        self.extent = AddressExtent(base, nbytes)
        self._alignment = alignment
        self._granule = granule
        # The holes in address order, as two lists of integers for speed: every command of a kernel allocates and frees.
        self._starts = [base] if nbytes else []
        self._ends = [base + nbytes] if nbytes else []
        self._requested: dict[int, int] = {}
        self._lowest: dict[int, int] = {}  # by size: no hole before this address fits; cleared at every free

    @property
    def holes(self) -> tuple[AddressExtent, ...]:
        """The free ranges, in address order; no two are adjacent."""
        return tuple(AddressExtent(start, end - start) for start, end in zip(self._starts, self._ends, strict=True))

    @property
    def live(self) -> tuple[AddressExtent, ...]:
        """The allocations with their requested sizes, in address order."""
        return tuple(AddressExtent(start, nbytes) for start, nbytes in sorted(self._requested.items()))

    @property
    def free_bytes(self) -> int:
        """The sum of the bytes of all holes."""
        return sum(self._ends) - sum(self._starts)

    @property
    def largest_hole(self) -> AddressExtent:
        """The largest free range, the lowest of several; empty if no byte is free."""
        return max(self.holes, key=lambda hole: hole.nbytes, default=AddressExtent(self.extent.start, 0))

    def alloc(self, nbytes: int, *, from_end: bool = False) -> int:
        """Allocate ``nbytes`` in the first hole that fits, or at the end of the last such hole; return the start.

        Raises AllocationError for a size below one byte, and if no hole fits; the latter names the free space.
        """
        start = self.try_alloc(nbytes, from_end=from_end)
        if start is None:
            raise AllocationError(f"{self.label}: asked for {nbytes} bytes; {self.summary()}")
        return start

    def try_alloc(self, nbytes: int, *, from_end: bool = False) -> int | None:
        """Allocate as ``alloc`` does, but return None if no hole fits."""
        if nbytes <= 0:
            raise AllocationError(f"{self.label}: cannot allocate {nbytes} bytes; the least is 1")
        granule = self._granule
        size = -(-nbytes // granule) * granule
        at, start = self._last_fit(size) if from_end else self._first_fit(size)
        if at < 0:
            return None
        self._take(at, start, start + size)
        self._requested[start] = nbytes
        return start

    def free(self, start: int, nbytes: int) -> None:
        """Free an allocation. Raises AllocationError unless an allocation of this start and size is live."""
        allocated = self._requested.get(start)
        if allocated is None:
            raise AllocationError(f"{self.label}: nothing is allocated at {start:#x} (freed twice, or not from here)")
        if allocated != nbytes:
            raise AllocationError(f"{self.label}: {start:#x} was allocated with {allocated} bytes, not {nbytes}")
        del self._requested[start]
        granule = self._granule
        self._give_back(start, start + -(-nbytes // granule) * granule)

    def summary(self) -> str:
        """Return a description of the free space, for error messages."""
        size, hole = self.extent.nbytes, self.largest_hole.nbytes
        return f"{self.free_bytes} of {size} bytes are free, the largest hole has {hole}"

    def _first_fit(self, nbytes: int) -> tuple[int, int]:
        """Return the index of the hole and the start in it, or (-1, 0) if no hole fits."""
        alignment, starts, ends = self._alignment, self._starts, self._ends
        for at in range(bisect_left(starts, self._lowest.get(nbytes, 0)), len(starts)):
            start = -(-starts[at] // alignment) * alignment
            if start + nbytes <= ends[at]:
                self._lowest[nbytes] = starts[at]
                return at, start
        self._lowest[nbytes] = self.extent.end
        return -1, 0

    def _last_fit(self, nbytes: int) -> tuple[int, int]:
        alignment, starts = self._alignment, self._starts
        for at in range(len(starts) - 1, -1, -1):
            start = (self._ends[at] - nbytes) // alignment * alignment
            if start >= starts[at]:
                return at, start
        return -1, 0

    def _take(self, at: int, start: int, end: int) -> None:
        """Remove ``start`` to ``end`` from hole ``at``, which leaves no hole, one hole or two."""
        starts, ends = self._starts, self._ends
        before, after = start > starts[at], end < ends[at]
        if before and after:
            ends.insert(at, start)
            starts.insert(at + 1, end)
        elif after:
            starts[at] = end
        elif before:
            ends[at] = start
        else:
            del starts[at], ends[at]

    def _give_back(self, start: int, end: int) -> None:
        """Add the hole ``start`` to ``end``, merged with adjacent holes."""
        starts, ends = self._starts, self._ends
        self._lowest.clear()
        at = bisect_right(starts, start)
        touches_before = at > 0 and ends[at - 1] == start
        touches_after = at < len(starts) and starts[at] == end
        if touches_before and touches_after:
            del ends[at - 1], starts[at]
        elif touches_before:
            ends[at - 1] = end
        elif touches_after:
            starts[at] = start
        else:
            starts.insert(at, start)
            ends.insert(at, end)


SCRATCH_ALIGNMENT_BYTES = 64


class ScratchBlock:
    """A block of ``nbytes`` of scratch at ``address``, owned by ``label``; None: free for the next handle of this size.

    The owner may use ``array``, the last view of the bytes, and ``turn``, a count of the block's owners.
    """

    __slots__ = ("_spare", "address", "array", "label", "nbytes", "turn")

    def __init__(self, address: int, nbytes: int, spare: list[ScratchBlock]) -> None:
        self.address = address
        self.nbytes = nbytes
        self.label: OwnerLabel | None = None
        self.array: Any = None
        self.turn = 0
        self._spare = spare

    def free(self) -> None:
        """Free the block. Raises AllocationError if it was freed before."""
        if self.label is None:
            raise AllocationError(f"scratch: nothing is allocated at {self.address:#x} (freed twice)")
        self.label = None
        self._spare.append(self)


class ScratchAllocator:
    """The allocator of ``nbytes`` of TCM from address ``base`` for handles; each allocation has an owner.

    A freed block is cached for the next handle of the same size. Cached blocks are returned to the free list, and
    merged with adjacent holes, only if no hole fits.
    """

    def __init__(self, base: int, nbytes: int, *, alignment: int = SCRATCH_ALIGNMENT_BYTES) -> None:
        # Sizes are multiples of the alignment: smaller gaps would be holes that no allocation can use.
        self._space = FreeList("scratch", base, nbytes, alignment=alignment, granule=alignment)
        self._blocks: dict[int, ScratchBlock] = {}
        self._spare: dict[int, list[ScratchBlock]] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that no handle owns."""
        return self._space.free_bytes + sum(
            SCRATCH_ALIGNMENT_BYTES * -(-size // SCRATCH_ALIGNMENT_BYTES) * len(spare)
            for size, spare in self._spare.items()
        )

    def alloc(self, nbytes: int, label: OwnerLabel) -> ScratchBlock | None:
        """Allocate ``nbytes`` for the handle ``label``; return None if no hole fits."""
        spare = self._spare.get(nbytes)
        block = spare.pop() if spare else self._carve(nbytes)
        if block is not None:
            block.label = label
        return block

    def _carve(self, nbytes: int) -> ScratchBlock | None:
        address = self._space.try_alloc(nbytes)
        if address is None:
            self._merge()
            address = self._space.try_alloc(nbytes)
            if address is None:
                return None
        block = self._blocks[address] = ScratchBlock(address, nbytes, self._spare.setdefault(nbytes, []))
        return block

    def _merge(self) -> None:
        for size, spare in self._spare.items():
            for block in spare:
                self._space.free(block.address, size)
                del self._blocks[block.address]
            spare.clear()

    def live(self) -> tuple[tuple[str, int], ...]:
        """Return the owner and the bytes of every live allocation, the largest first."""
        owners = [(label_text(block.label), block.nbytes) for block in self._blocks.values() if block.label is not None]
        return tuple(sorted(owners, key=lambda owner: (-owner[1], owner[0])))
