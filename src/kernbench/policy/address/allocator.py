"""Allocators of physical memory, one for each PE and one for each cube, and the configuration of their sizes.

Queue rings and tensors share pools. Rings are reserved at the end of a pool, so a ring neither overlaps a tensor nor
fragments the space of tensors.
"""

from __future__ import annotations

from kernbench.common.errors import AllocationError, InputError, PhysAddrError
from kernbench.common.ids import cube_part, pe_part
from kernbench.common.values import value
from kernbench.policy.address.free_list import FreeList
from kernbench.policy.address.layout import HBM_OFFSET, PE_ID, PE_PARTS, SUB_OFFSET, AddressFormat
from kernbench.policy.address.phyaddr import AddressOwner, PhysAddr
from kernbench.topology.hbm_places import bank_step_bytes
from kernbench.topology.spec import TopologySpec


@value
class AddressConfig:
    """Counts and installed bytes of a machine. ``bank_step_bytes``: from a place of a slice to one in another bank.

    Raises PhysAddrError, which names every count or size that the address format cannot address.
    """

    sip_count: int
    cubes_per_sip: int
    pes_per_cube: int
    hbm_bytes_per_cube: int
    hbm_slices_per_cube: int
    tcm_bytes_per_pe: int
    tcm_scheduler_reserved_bytes: int
    sram_bytes_per_cube: int
    address_format: AddressFormat = AddressFormat.NARROW
    bank_step_bytes: int = 0

    def __post_init__(self) -> None:
        problems = [text for text in self._problems() if text]
        if problems:
            raise PhysAddrError("; ".join(problems))
        if not 0 <= self.tcm_scheduler_reserved_bytes <= self.tcm_bytes_per_pe:
            raise InputError(
                f"tcm_scheduler_reserved_bytes={self.tcm_scheduler_reserved_bytes} is outside "
                f"0..{self.tcm_bytes_per_pe} (tcm_bytes_per_pe)"
            )

    @property
    def hbm_bytes_per_pe(self) -> int:
        """Bytes of a PE's share of the cube's HBM: complete slices, or an equal part of a slice with several PEs."""
        return self.hbm_bytes_per_cube // self.pes_per_cube

    @property
    def hbm_bytes_per_slice(self) -> int:
        """Bytes of an HBM slice."""
        return self.hbm_bytes_per_cube // self.hbm_slices_per_cube

    @property
    def tcm_bytes_for_kernels(self) -> int:
        """Bytes of a PE's TCM without the part at its end that is reserved for the scheduler."""
        return self.tcm_bytes_per_pe - self.tcm_scheduler_reserved_bytes

    def check_ids(self, sip_id: int, cube_id: int, pe_id: int = 0) -> None:
        """Raise PhysAddrError, with the field and its range, unless the machine has this PE."""
        has = (("sip_id", sip_id, self.sip_count), ("cube_id", cube_id, self.cubes_per_sip))
        for name, index, count in (*has, ("pe_id", pe_id, self.pes_per_cube)):
            if not 0 <= index < count:
                raise PhysAddrError(f"{name}={index} is outside 0..{count - 1} (this machine)")

    def _problems(self) -> tuple[str, ...]:
        fmt = self.address_format
        return (
            _count("sip_count", "sip_id", self.sip_count, fmt.sip_limit, fmt),
            _count("cubes_per_sip", "cube_id", self.cubes_per_sip, fmt.cube_limit, fmt),
            _count("pes_per_cube", "pe_id", self.pes_per_cube, PE_ID.limit, fmt),
            _count("hbm_slices_per_cube", "hbm_offset", self.hbm_slices_per_cube, HBM_OFFSET.limit, fmt),
            _size("hbm_bytes_per_cube", "hbm_offset", self.hbm_bytes_per_cube, HBM_OFFSET.limit),
            _size("tcm_bytes_per_pe", "tcm_offset", self.tcm_bytes_per_pe, PE_PARTS[AddressOwner.TCM][1]),
            _size("sram_bytes_per_cube", "sram_offset", self.sram_bytes_per_cube, SUB_OFFSET.limit),
        )


def _count(name: str, field: str, count: int, limit: int, fmt: AddressFormat) -> str:
    if 1 <= count <= limit:
        return ""
    wider = "; address.format: wide has room for it" if _wide_has_room(field, count, fmt) else ""
    return f"{name}={count}: {field} of the {fmt.value} address allows 1..{limit}{wider}"


def _wide_has_room(field: str, count: int, fmt: AddressFormat) -> bool:
    wide = {"sip_id": AddressFormat.WIDE.sip_limit, "cube_id": AddressFormat.WIDE.cube_limit}
    return fmt is AddressFormat.NARROW and 1 <= count <= wide.get(field, 0)


def _size(name: str, field: str, nbytes: int, limit: int) -> str:
    return "" if 0 <= nbytes <= limit else f"{name}={nbytes}: {field} of an address allows 0..{limit} bytes"


def address_config(spec: TopologySpec) -> AddressConfig:
    """Return the address configuration of a machine. Raises PhysAddrError if its address format is too small."""
    hbm, tcm = spec.cube.hbm, spec.pe.tcm
    return AddressConfig(
        sip_count=spec.system.sips.count,
        cubes_per_sip=spec.cubes_per_sip,
        pes_per_cube=spec.pes_per_cube,
        hbm_bytes_per_cube=hbm.slices * hbm.bytes_per_slice,
        hbm_slices_per_cube=hbm.slices,
        tcm_bytes_per_pe=tcm.bytes,
        tcm_scheduler_reserved_bytes=tcm.scheduler_reserved_bytes,
        sram_bytes_per_cube=spec.cube.sram.bytes,
        address_format=AddressFormat(spec.address.format),
        bank_step_bytes=bank_step_bytes(hbm),
    )


__all__ = [
    "ALIGNMENT_BYTES",
    "AddressConfig",
    "AllocationError",
    "CubeMemAllocator",
    "PEMemAllocator",
    "address_config",
]

# The smallest access of the HBM: no two allocations share one.
ALIGNMENT_BYTES = 64


class AddressPool:
    """The free list of a memory, in physical addresses: ``origin`` is byte 0 of the memory."""

    def __init__(self, node_id: str, origin: PhysAddr, start: int, nbytes: int, alignment: int) -> None:
        self.space = FreeList(node_id, start, nbytes, alignment=alignment)
        self._origin = origin

    def alloc(self, nbytes: int, *, from_end: bool = False) -> PhysAddr:
        return self._origin.offset_by(self.space.alloc(nbytes, from_end=from_end))

    def free(self, addr: PhysAddr, nbytes: int) -> None:
        # The difference is an offset only for an address in the same memory of the same cube; others are foreign.
        offset = addr.encode() - self._origin.encode()
        if addr.fmt is not self._origin.fmt or offset != addr.component_offset:
            raise AllocationError(f"{self.space.label}: {addr!r} was not allocated here")
        self.space.free(offset, nbytes)

    def largest_hole(self) -> tuple[PhysAddr, int]:
        hole = self.space.largest_hole
        return self._origin.offset_by(hole.start), hole.nbytes


class PEMemAllocator:
    """The allocator of a PE's HBM and TCM.

    HBM: the slices of the PE, or its part of a shared slice. TCM: all bytes except those reserved for the scheduler.
    Allocations start at multiples of ``alignment`` bytes. Raises PhysAddrError for a PE that the machine does not have.
    """

    def __init__(
        self,
        rack_id: int,
        sip_id: int,
        cube_id: int,
        pe_id: int,
        cfg: AddressConfig,
        *,
        alignment: int = ALIGNMENT_BYTES,
    ) -> None:
        cfg.check_ids(sip_id, cube_id, pe_id)
        fmt, share = cfg.address_format, cfg.hbm_bytes_per_pe
        hbm = PhysAddr.hbm_addr(rack_id, sip_id, cube_id, 0, fmt)
        tcm = PhysAddr.pe_tcm_addr(rack_id, sip_id, cube_id, pe_id, 0, fmt)
        self.cfg = cfg
        self._hbm = AddressPool(pe_part(sip_id, cube_id, pe_id, AddressOwner.HBM), hbm, pe_id * share, share, alignment)
        tcm_id = pe_part(sip_id, cube_id, pe_id, AddressOwner.TCM)
        self._tcm = AddressPool(tcm_id, tcm, 0, cfg.tcm_bytes_for_kernels, alignment)

    @property
    def hbm(self) -> FreeList:
        """The free list of the HBM; its addresses are byte offsets in the cube's HBM."""
        return self._hbm.space

    @property
    def tcm(self) -> FreeList:
        """The free list of the TCM; its addresses are byte offsets in the TCM."""
        return self._tcm.space

    def alloc_hbm(self, nbytes: int) -> PhysAddr:
        """Allocate ``nbytes`` of HBM. Raises AllocationError, which names the free bytes and the largest hole."""
        return self._hbm.alloc(nbytes)

    def free_hbm(self, addr: PhysAddr, nbytes: int) -> None:
        """Free HBM. Raises AllocationError for a double free, or for an address that was not allocated here."""
        self._hbm.free(addr, nbytes)

    def alloc_tcm(self, nbytes: int) -> PhysAddr:
        """Allocate ``nbytes`` of TCM. Raises AllocationError, which names the free bytes and the largest hole."""
        return self._tcm.alloc(nbytes)

    def free_tcm(self, addr: PhysAddr, nbytes: int) -> None:
        """Free TCM. Raises AllocationError for a double free, or for an address that was not allocated here."""
        self._tcm.free(addr, nbytes)

    def reserve_ipcq_hbm(self, total_bytes: int) -> PhysAddr:
        """Reserve HBM for queue rings; ``free_hbm`` frees it. Raises AllocationError if the HBM is full."""
        return self._hbm.alloc(total_bytes, from_end=True)

    def reserve_ipcq_tcm(self, total_bytes: int) -> PhysAddr:
        """Reserve TCM for queue rings; ``free_tcm`` frees it. Raises AllocationError if the TCM is full."""
        return self._tcm.alloc(total_bytes, from_end=True)

    def largest_tcm_hole(self) -> tuple[PhysAddr, int]:
        """Return the address and the bytes of the largest free range of TCM, which a kernel can use as scratch."""
        return self._tcm.largest_hole()


class CubeMemAllocator:
    """The allocator of a cube's SRAM. Raises PhysAddrError for a cube that the machine does not have."""

    def __init__(
        self, rack_id: int, sip_id: int, cube_id: int, cfg: AddressConfig, *, alignment: int = ALIGNMENT_BYTES
    ) -> None:
        cfg.check_ids(sip_id, cube_id)
        origin = PhysAddr.cube_sram_addr(rack_id, sip_id, cube_id, 0, cfg.address_format)
        self.cfg = cfg
        label = cube_part(sip_id, cube_id, AddressOwner.SRAM)
        self._sram = AddressPool(label, origin, 0, cfg.sram_bytes_per_cube, alignment)

    @property
    def sram(self) -> FreeList:
        """The free list of the SRAM; its addresses are byte offsets in the SRAM."""
        return self._sram.space

    def alloc_sram(self, nbytes: int) -> PhysAddr:
        """Allocate ``nbytes`` of SRAM. Raises AllocationError, which names the free bytes and the largest hole."""
        return self._sram.alloc(nbytes)

    def free_sram(self, addr: PhysAddr, nbytes: int) -> None:
        """Free SRAM. Raises AllocationError for a double free, or for an address that was not allocated here."""
        self._sram.free(addr, nbytes)

    def reserve_ipcq_sram(self, total_bytes: int) -> PhysAddr:
        """Reserve SRAM for queue rings; ``free_sram`` frees it. Raises AllocationError if the SRAM is full."""
        return self._sram.alloc(total_bytes, from_end=True)
