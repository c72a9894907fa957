"""Kernel scratch: the part of a PE's TCM that holds a running kernel's handles."""

from __future__ import annotations

from typing import Any, TypeAlias

from kernbench.common.errors import AllocationError
from kernbench.policy.address.free_list import FreeList

SCRATCH_ALIGNMENT_BYTES = 64
Label: TypeAlias = tuple[object, ...]
"""What memory is held for: words, which only an error puts together"""


def label_text(label: Label) -> str:
    """Return ``label`` as errors have it."""
    return " ".join(map(str, label))


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
        """It goes back; AllocationError when it has gone back before."""
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

    def alloc(self, nbytes: int, label: Label) -> Block:
        """``nbytes`` for the handle ``label``.

        Raises AllocationError that says how much each live handle holds.
        """
        spare = self._spare.get(nbytes)
        block = spare.pop() if spare else self._carve(nbytes, label)
        block.label = label
        return block

    def _carve(self, nbytes: int, label: Label) -> Block:
        spare = self._spare.setdefault(nbytes, [])
        address = self._take(nbytes, label)
        block = self._blocks[address] = Block(address, nbytes, spare)
        return block

    def _take(self, nbytes: int, label: Label) -> int:
        try:
            return self._space.alloc(nbytes)
        except AllocationError:
            self._merge()
        try:
            return self._space.alloc(nbytes)
        except AllocationError as full:
            raise AllocationError(f"{full} (for {label_text(label)}); {self._holders()}") from None

    def _merge(self) -> None:
        for size, spare in self._spare.items():
            for block in spare:
                self._space.free(block.address, size)
                del self._blocks[block.address]
            spare.clear()

    def live(self) -> tuple[tuple[str, int], ...]:
        """Owner and bytes of every live allocation, the largest first."""
        held = [(label_text(block.label), block.nbytes) for block in self._blocks.values() if block.label is not None]
        return tuple(sorted(held, key=lambda each: (-each[1], each[0])))

    def _holders(self) -> str:
        held = ", ".join(f"{label} {nbytes} bytes" for label, nbytes in self.live())
        return f"live handles: {held}" if held else "no handle is live"
