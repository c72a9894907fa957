"""Kernel scratch: the part of a PE's TCM that holds a running kernel's handles."""

from __future__ import annotations

from kernbench.common.errors import AllocationError
from kernbench.policy.address.free_list import FreeList

SCRATCH_ALIGNMENT_BYTES = 64


class ScratchAllocator:
    """Hands out ``nbytes`` of TCM from address ``base`` to handles, by their lifetime; each allocation has an owner."""

    def __init__(self, base: int, nbytes: int, *, alignment: int = SCRATCH_ALIGNMENT_BYTES) -> None:
        # Whole units of the alignment: what lay between two of them would be a hole that no search could use.
        self._space = FreeList("scratch", base, nbytes, alignment=alignment, granule=alignment)
        self._owners: dict[int, tuple[str, int]] = {}

    @property
    def free_bytes(self) -> int:
        """Bytes that no handle holds."""
        return self._space.free_bytes

    def alloc(self, nbytes: int, owner_label: str) -> int:
        """Address of ``nbytes`` for the handle ``owner_label``.

        Raises AllocationError that says how much each live handle holds.
        """
        try:
            addr = self._space.alloc(nbytes)
        except AllocationError as full:
            raise AllocationError(f"{full} (for {owner_label}); {self._holders()}") from None
        self._owners[addr] = (owner_label, nbytes)
        return addr

    def free(self, addr: int) -> None:
        """Take back what ``alloc`` gave; AllocationError when nothing is allocated there."""
        _, nbytes = self._owners.pop(addr, ("", 0))
        self._space.free(addr, nbytes)

    def live(self) -> tuple[tuple[str, int], ...]:
        """Owner and bytes of every live allocation, the largest first."""
        return tuple(sorted(self._owners.values(), key=lambda held: (-held[1], held[0])))

    def _holders(self) -> str:
        held = ", ".join(f"{label} {nbytes} bytes" for label, nbytes in self.live())
        return f"live handles: {held}" if held else "no handle is live"
