"""Physical addresses: a component of a cube and a byte offset in it."""

from __future__ import annotations

from functools import total_ordering
from operator import index

from kernbench.common.errors import PhysAddrError
from kernbench.common.values import value
from kernbench.policy.address.layout import (
    HBM_REGION,
    LOCAL,
    M_CPU_REGION,
    PE_ID,
    PE_REGIONS,
    SRAM_REGION,
    AddressFormat,
    AddressKind,
    AddressOwner,
    Region,
    UnitType,
    region_at,
)

__all__ = ["AddressFormat", "AddressKind", "AddressOwner", "PhysAddr", "PhysAddrError", "UnitType"]

_NARROW = AddressFormat.NARROW
_LOCAL_MASK = LOCAL.limit - 1


@total_ordering
@value(eq=False, repr=False)
class PhysAddr:
    """The address of a byte of the machine, in the narrow or the wide format, created by a factory or by ``decode``.

    Addresses are equal if their encoded values and formats are equal; they are ordered by encoded value. The arguments
    of a factory are ids, an offset in bytes and the format. A factory raises PhysAddrError, with name and range, for a
    field that does not fit.
    """

    value: int
    fmt: AddressFormat
    rack_id: int
    sip_id: int
    cube_id: int
    region: Region
    component_offset: int

    @staticmethod
    def decode(value: int, fmt: AddressFormat = _NARROW) -> PhysAddr:
        """Return the address that ``value`` encodes. Raises PhysAddrError if it is too wide or in a reserved range."""
        value = index(value)
        if not 0 <= value < fmt.limit:
            raise PhysAddrError(f"address {value:#x} is outside 0..{fmt.limit - 1:#x} ({fmt.value}, {fmt.bits} bits)")
        region = region_at(value)
        return PhysAddr(
            value,
            fmt,
            value >> fmt.rack_low,
            value >> fmt.sip_low & fmt.sip_limit - 1,
            value >> fmt.cube_low & fmt.cube_limit - 1,
            region,
            (value & _LOCAL_MASK) - region.base,
        )

    def encode(self) -> int:
        """Return the address as an integer of ``fmt.bits`` bits."""
        return self.value

    @property
    def kind(self) -> AddressKind:
        """The window: ``hbm`` or ``resource``."""
        return self.region.kind

    @property
    def unit_type(self) -> UnitType | None:
        """PE, MCPU or SRAM; None in the HBM window."""
        return self.region.unit_type

    @property
    def component(self) -> AddressOwner:
        """``hbm``, ``sram``, ``m_cpu``, or a PE's ``tcm``, ``ipcq``, ``scratchpad``, ``regfile``, ``csr``."""
        return self.region.component

    @property
    def pe_id(self) -> int | None:
        """The number of the PE in its cube; None for HBM, SRAM and M_CPU, which belong to the cube."""
        return self.region.pe_id

    @property
    def ext(self) -> int:
        """The extension bit: decoding preserves it, the factories set it to 0."""
        return self.region.ext

    def offset_by(self, nbytes: int) -> PhysAddr:
        """Return the address ``nbytes`` further on. Raises PhysAddrError if that is outside the component."""
        offset = self.component_offset + nbytes
        if not 0 <= offset < self.region.size:
            self.region.check(offset)
        return PhysAddr(self.value + nbytes, self.fmt, self.rack_id, self.sip_id, self.cube_id, self.region, offset)

    @staticmethod
    def hbm_addr(rack_id: int, sip_id: int, cube_id: int, hbm_offset: int, fmt: AddressFormat = _NARROW) -> PhysAddr:
        """Return the address of byte ``hbm_offset`` of a cube's HBM."""
        return _make(HBM_REGION, rack_id, sip_id, cube_id, hbm_offset, fmt)

    @staticmethod
    def pe_hbm_addr(
        rack_id: int,
        sip_id: int,
        cube_id: int,
        pe_id: int,
        pe_local_hbm_offset: int,
        slice_size_bytes: int,
        fmt: AddressFormat = _NARROW,
    ) -> PhysAddr:
        """Return the address of a byte of a PE's HBM slice; slices of ``slice_size_bytes`` adjoin, in PE order."""
        PE_ID.check(pe_id, f"{fmt.value} address")
        if not 0 <= pe_local_hbm_offset < slice_size_bytes:
            text = f"pe_local_hbm_offset={pe_local_hbm_offset:#x} is outside 0..{slice_size_bytes - 1:#x} (the slice)"
            raise PhysAddrError(text)
        offset = pe_id * slice_size_bytes + pe_local_hbm_offset
        return _make(HBM_REGION, rack_id, sip_id, cube_id, offset, fmt)

    @staticmethod
    def pe_tcm_addr(
        rack_id: int, sip_id: int, cube_id: int, pe_id: int, tcm_offset: int, fmt: AddressFormat = _NARROW
    ) -> PhysAddr:
        """Return the address of byte ``tcm_offset`` of a PE's TCM."""
        return _make(_pe_part(AddressOwner.TCM, pe_id, fmt), rack_id, sip_id, cube_id, tcm_offset, fmt)

    @staticmethod
    def pe_ipcq_addr(
        rack_id: int, sip_id: int, cube_id: int, pe_id: int, ipcq_offset: int, fmt: AddressFormat = _NARROW
    ) -> PhysAddr:
        """Return the address of byte ``ipcq_offset`` of a PE's queue-pair registers."""
        return _make(_pe_part(AddressOwner.IPCQ, pe_id, fmt), rack_id, sip_id, cube_id, ipcq_offset, fmt)

    @staticmethod
    def pe_scratchpad_addr(
        rack_id: int, sip_id: int, cube_id: int, pe_id: int, scratchpad_offset: int, fmt: AddressFormat = _NARROW
    ) -> PhysAddr:
        """Return the address of byte ``scratchpad_offset`` of a PE's scratchpad, on machines with extra memories."""
        return _make(_pe_part(AddressOwner.SCRATCHPAD, pe_id, fmt), rack_id, sip_id, cube_id, scratchpad_offset, fmt)

    @staticmethod
    def pe_regfile_addr(
        rack_id: int, sip_id: int, cube_id: int, pe_id: int, regfile_offset: int, fmt: AddressFormat = _NARROW
    ) -> PhysAddr:
        """Return the address of byte ``regfile_offset`` of a PE's registers."""
        return _make(_pe_part(AddressOwner.REGFILE, pe_id, fmt), rack_id, sip_id, cube_id, regfile_offset, fmt)

    @staticmethod
    def pe_csr_addr(
        rack_id: int, sip_id: int, cube_id: int, pe_id: int, csr_offset: int, fmt: AddressFormat = _NARROW
    ) -> PhysAddr:
        """Return the address of byte ``csr_offset`` of a PE's status and performance counters."""
        return _make(_pe_part(AddressOwner.CSR, pe_id, fmt), rack_id, sip_id, cube_id, csr_offset, fmt)

    @staticmethod
    def cube_sram_addr(
        rack_id: int, sip_id: int, cube_id: int, sram_offset: int, fmt: AddressFormat = _NARROW
    ) -> PhysAddr:
        """Return the address of byte ``sram_offset`` of a cube's SRAM."""
        return _make(SRAM_REGION, rack_id, sip_id, cube_id, sram_offset, fmt)

    @staticmethod
    def m_cpu_addr(
        rack_id: int, sip_id: int, cube_id: int, m_cpu_offset: int = 0, fmt: AddressFormat = _NARROW
    ) -> PhysAddr:
        """Return the address of byte ``m_cpu_offset`` of a cube's M_CPU."""
        return _make(M_CPU_REGION, rack_id, sip_id, cube_id, m_cpu_offset, fmt)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PhysAddr):
            return NotImplemented
        return self.value == other.value and self.fmt is other.fmt

    def __lt__(self, other: PhysAddr) -> bool:
        return self.value < other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        rack = f" rack={self.rack_id}" if self.rack_id else ""
        pe = "" if self.pe_id is None else f" pe={self.pe_id}"
        ext = " ext=1" if self.ext else ""
        return (
            f"{self.component.upper()}{rack} sip={self.sip_id} cube={self.cube_id}{pe}{ext} +{self.component_offset:#x}"
        )


def _pe_part(part: AddressOwner, pe_id: int, fmt: AddressFormat) -> Region:
    if not 0 <= pe_id < PE_ID.limit:
        PE_ID.check(pe_id, f"{fmt.value} address")
    return PE_REGIONS[part][pe_id]


def _make(region: Region, rack_id: int, sip_id: int, cube_id: int, offset: int, fmt: AddressFormat) -> PhysAddr:
    offset = index(offset)
    prefix = fmt.prefix(rack_id, sip_id, cube_id)
    if not 0 <= offset < region.size:
        region.check(offset)
    return PhysAddr(prefix | region.base + offset, fmt, rack_id, sip_id, cube_id, region, offset)
