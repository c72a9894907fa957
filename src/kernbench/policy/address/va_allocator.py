"""The allocator of virtual addresses: every tensor has one contiguous range."""

from __future__ import annotations

from kernbench.common.errors import InputError
from kernbench.policy.address.allocator import AddressConfig
from kernbench.policy.address.free_list import FreeList

DEFAULT_VA_BASE = 0x1_0000_0000
DEFAULT_VA_SIZE = 64 << 30
DEFAULT_PAGE_BYTES = 4096


class VirtualAllocator:
    """An allocator of ``va_size`` bytes from ``va_base``, in complete pages of ``page_size`` bytes.

    Two allocations never share a page. Raises InputError unless ``page_size`` is positive and divides ``va_base`` and
    ``va_size``.
    """

    def __init__(
        self,
        va_base: int = DEFAULT_VA_BASE,
        va_size: int = DEFAULT_VA_SIZE,
        page_size: int = DEFAULT_PAGE_BYTES,
    ) -> None:
        if page_size <= 0 or va_base % page_size or va_size % page_size:
            text = f"va_base={va_base:#x} and va_size={va_size:#x} must be multiples of page_size={page_size}"
            raise InputError(text)
        self.va_base, self.va_size, self.page_size = va_base, va_size, page_size
        self._space = FreeList("virtual memory", va_base, va_size, alignment=page_size, granule=page_size)

    @classmethod
    def for_machine(cls, cfg: AddressConfig, page_size: int = DEFAULT_PAGE_BYTES) -> VirtualAllocator:
        """Return an allocator with room for all bytes that fit into the machine."""
        return cls(va_size=va_size(cfg, page_size), page_size=page_size)

    @property
    def space(self) -> FreeList:
        """The free list, with all free ranges and live allocations."""
        return self._space

    def alloc(self, nbytes: int) -> int:
        """Return the first VA of a range of ``nbytes``.

        Raises AllocationError for a size below one byte, and if no range is left.
        """
        return self._space.alloc(nbytes)

    def free(self, va: int, nbytes: int) -> None:
        """Free a range. Raises AllocationError for a double free, or for a range that was not allocated here."""
        self._space.free(va, nbytes)


def va_size(cfg: AddressConfig, page_size: int = DEFAULT_PAGE_BYTES) -> int:
    """Return the bytes of virtual space for all HBM and TCM of the machine, in complete pages, at least the default."""
    per_cube = cfg.hbm_bytes_per_cube + cfg.pes_per_cube * cfg.tcm_bytes_per_pe
    nbytes = max(DEFAULT_VA_SIZE, cfg.sip_count * cfg.cubes_per_sip * per_cube)
    return -(-nbytes // page_size) * page_size
