"""Kernel scratch: the part of a PE's TCM that holds a running kernel's handles."""

from __future__ import annotations

from contextlib import suppress

from kernbench.common.errors import AllocationError
from kernbench.policy.address.free_list import FreeList

SCRATCH_ALIGNMENT_BYTES = 64


class ScratchAllocator:
    """Hands out ``nbytes`` of TCM from address ``base`` to handles, by their lifetime; each allocation has an owner.

    What comes back is kept for the next handle of that size, and merged with its neighbours when nothing else is left.
    """

    def __init__(self, base: int, nbytes: int, *, alignment: int = SCRATCH_ALIGNMENT_BYTES) -> None:
        # Whole units of the alignment: what lay between two of them would be a hole that no search could use.
        self._space = FreeList("scratch", base, nbytes, alignment=alignment, granule=alignment)
        self._owners: dict[int, tuple[str, int]] = {}
        self._spare: dict[int, list[int]] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that no handle holds."""
        return self._space.free_bytes + sum(
            SCRATCH_ALIGNMENT_BYTES * -(-size // SCRATCH_ALIGNMENT_BYTES) * len(spare)
            for size, spare in self._spare.items()
        )

    def alloc(self, nbytes: int, owner_label: str) -> int:
        """Address of ``nbytes`` for the handle ``owner_label``.

        Raises AllocationError that says how much each live handle holds.
        """
        spare = self._spare.get(nbytes)
        addr = spare.pop() if spare else self._carve(nbytes, owner_label)
        self._owners[addr] = (owner_label, nbytes)
        return addr

    def _carve(self, nbytes: int, owner_label: str) -> int:
        with suppress(AllocationError):
            return self._space.alloc(nbytes)
        self._merge()
        try:
            return self._space.alloc(nbytes)
        except AllocationError as full:
            raise AllocationError(f"{full} (for {owner_label}); {self._holders()}") from None

    def _merge(self) -> None:
        for size, spare in self._spare.items():
            for addr in spare:
                self._space.free(addr, size)
        self._spare.clear()

    def free(self, addr: int) -> None:
        """Take back what ``alloc`` gave; AllocationError when nothing is allocated there."""
        owner = self._owners.pop(addr, None)
        if owner is None:
            raise AllocationError(f"scratch: nothing is allocated at {addr:#x} (freed twice, or not from here)")
        spare = self._spare.get(owner[1])
        if spare is None:
            spare = self._spare[owner[1]] = []
        spare.append(addr)

    def live(self) -> tuple[tuple[str, int], ...]:
        """Owner and bytes of every live allocation, the largest first."""
        return tuple(sorted(self._owners.values(), key=lambda held: (-held[1], held[0])))

    def _holders(self) -> str:
        held = ", ".join(f"{label} {nbytes} bytes" for label, nbytes in self.live())
        return f"live handles: {held}" if held else "no handle is live"
