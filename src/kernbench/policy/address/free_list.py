"""The free list of every memory and of virtual space, and the scratch of kernels, which is one.

A free list hands out the first hole that fits, and merges what comes back with its neighbours. Scratch is the part of a
PE's TCM that holds a running kernel's handles.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any, TypeAlias

from kernbench.common.errors import AllocationError
from kernbench.common.values import value

Label: TypeAlias = tuple[object, ...]
"""What memory is held for: words, which only an error puts together"""


def label_text(label: Label) -> str:
    """Return ``label`` as errors have it."""
    return " ".join(map(str, label))


@value(order=True)
class AddressExtent:
    """``nbytes`` bytes from ``start``."""

    start: int
    nbytes: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.start + self.nbytes


class FreeList:
    """Hands out the bytes ``base .. base + nbytes`` of the space called ``label``.

    An allocation starts at a multiple of ``alignment`` and takes what was asked rounded up to ``granule`` bytes; what
    lies before an aligned start stays free. A free names the start and the size that were asked.
    """

    def __init__(self, label: str, base: int, nbytes: int, *, alignment: int = 1, granule: int = 1) -> None:
        self.label = label
        self.extent = AddressExtent(base, nbytes)
        self._alignment = alignment
        self._granule = granule
        # The holes in address order, as two columns of plain numbers: a kernel allocates and frees for every command.
        self._starts = [base] if nbytes else []
        self._ends = [base + nbytes] if nbytes else []
        self._asked: dict[int, int] = {}
        self._lowest: dict[int, int] = {}  # by size: no hole before that address fits, since bytes last came back

    @property
    def holes(self) -> tuple[AddressExtent, ...]:
        """The free stretches, in address order; no two touch."""
        return tuple(AddressExtent(start, end - start) for start, end in zip(self._starts, self._ends, strict=True))

    @property
    def live(self) -> tuple[AddressExtent, ...]:
        """The allocations as they were asked for, in address order."""
        return tuple(AddressExtent(start, asked) for start, asked in sorted(self._asked.items()))

    @property
    def free_bytes(self) -> int:
        """Bytes in all holes together."""
        return sum(self._ends) - sum(self._starts)

    @property
    def largest_hole(self) -> AddressExtent:
        """The largest free stretch, the lowest of several; empty when everything is taken."""
        return max(self.holes, key=lambda hole: hole.nbytes, default=AddressExtent(self.extent.start, 0))

    def alloc(self, nbytes: int, *, from_end: bool = False) -> int:
        """Take ``nbytes`` in the first hole that fits, or at the end of the last one; return their start.

        Raises AllocationError for a size below one byte, and with what is free when no hole fits.
        """
        start = self.try_alloc(nbytes, from_end=from_end)
        if start is None:
            raise AllocationError(f"{self.label}: asked for {nbytes} bytes; {self.summary()}")
        return start

    def try_alloc(self, nbytes: int, *, from_end: bool = False) -> int | None:
        """Allocate as ``alloc`` does; return None when no hole fits."""
        if nbytes <= 0:
            raise AllocationError(f"{self.label}: cannot allocate {nbytes} bytes; the least is 1")
        granule = self._granule
        taken = -(-nbytes // granule) * granule
        at, start = self._last_fit(taken) if from_end else self._first_fit(taken)
        if at < 0:
            return None
        self._take(at, start, start + taken)
        self._asked[start] = nbytes
        return start

    def free(self, start: int, nbytes: int) -> None:
        """Take back an allocation; AllocationError unless exactly it is live (a double or a foreign free)."""
        asked = self._asked.get(start)
        if asked is None:
            raise AllocationError(f"{self.label}: nothing is allocated at {start:#x} (freed twice, or not from here)")
        if asked != nbytes:
            raise AllocationError(f"{self.label}: {start:#x} was allocated with {asked} bytes, not {nbytes}")
        del self._asked[start]
        granule = self._granule
        self._give_back(start, start + -(-nbytes // granule) * granule)

    def summary(self) -> str:
        """Describe the free space, for error messages."""
        size, hole = self.extent.nbytes, self.largest_hole.nbytes
        return f"{self.free_bytes} of {size} bytes are free, the largest hole has {hole}"

    def _first_fit(self, nbytes: int) -> tuple[int, int]:
        """Return the number of the hole, and the start in it; (-1, 0) for none."""
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
        """Take ``start`` to ``end`` out of hole ``at``: nothing of it, one part or two are left."""
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
        """Free ``start`` to ``end``: one hole with the holes that they touch."""
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


class Block:
    """``nbytes`` of scratch at ``address``, held for ``label``; None: free for the next handle of that size.

    For whoever has it: ``array``, how its bytes were seen last, and ``turn``, a count of those who have had it.
    """

    __slots__ = ("_spare", "address", "array", "label", "nbytes", "turn")

    def __init__(self, address: int, nbytes: int, spare: list[Block]) -> None:
        self.address = address
        self.nbytes = nbytes
        self.label: Label | None = None
        self.array: Any = None
        self.turn = 0
        self._spare = spare

    def free(self) -> None:
        """Give the block back; AllocationError when it was given back before."""
        if self.label is None:
            raise AllocationError(f"scratch: nothing is allocated at {self.address:#x} (freed twice)")
        self.label = None
        self._spare.append(self)


class ScratchAllocator:
    """Hands out ``nbytes`` of TCM from address ``base`` to handles, by their lifetime; each allocation has an owner.

    What comes back is kept for the next handle of that size, and merged with its neighbours when nothing else is left.
    """

    def __init__(self, base: int, nbytes: int, *, alignment: int = SCRATCH_ALIGNMENT_BYTES) -> None:
        # Whole units of the alignment: what lay between two of them would be a hole that no search could use.
        self._space = FreeList("scratch", base, nbytes, alignment=alignment, granule=alignment)
        self._blocks: dict[int, Block] = {}
        self._spare: dict[int, list[Block]] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that no handle holds."""
        return self._space.free_bytes + sum(
            SCRATCH_ALIGNMENT_BYTES * -(-size // SCRATCH_ALIGNMENT_BYTES) * len(spare)
            for size, spare in self._spare.items()
        )

    def alloc(self, nbytes: int, label: Label) -> Block | None:
        """Allocate ``nbytes`` for the handle ``label``; return None when no hole fits."""
        spare = self._spare.get(nbytes)
        block = spare.pop() if spare else self._carve(nbytes)
        if block is not None:
            block.label = label
        return block

    def _carve(self, nbytes: int) -> Block | None:
        address = self._space.try_alloc(nbytes)
        if address is None:
            self._merge()
            address = self._space.try_alloc(nbytes)
            if address is None:
                return None
        block = self._blocks[address] = Block(address, nbytes, self._spare.setdefault(nbytes, []))
        return block

    def _merge(self) -> None:
        for size, spare in self._spare.items():
            for block in spare:
                self._space.free(block.address, size)
                del self._blocks[block.address]
            spare.clear()

    def live(self) -> tuple[tuple[str, int], ...]:
        """Return owner and bytes of every live allocation, the largest first."""
        held = [(label_text(block.label), block.nbytes) for block in self._blocks.values() if block.label is not None]
        return tuple(sorted(held, key=lambda each: (-each[1], each[0])))
