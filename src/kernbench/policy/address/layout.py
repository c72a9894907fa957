"""The layout of a physical address, as one table for encoding and decoding.

A format places rack, SIP and cube above a local offset of 38 bits that all formats share. Bit 37 of the local offset
selects the HBM window. Otherwise the address is in the resource window, which consists of the regions listed here.
"""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum

from kernbench.common.errors import PhysAddrError, UnknownNameError
from kernbench.common.values import value


@value
class BitField:
    """A field of an address: ``width`` bits from bit ``low`` up."""

    name: str
    low: int
    width: int

    @property
    def limit(self) -> int:
        """The number of values of the field."""
        return 1 << self.width

    def check(self, value: int, where: str) -> None:
        """Raise PhysAddrError, with the field's name and range, unless ``value`` fits."""
        if not 0 <= value < self.limit:
            raise PhysAddrError(f"{self.name}={value} is outside 0..{self.limit - 1} ({where})")


_UPPER_FIELDS = {
    "narrow": (BitField("rack_id", 47, 4), BitField("sip_id", 43, 4), BitField("cube_id", 38, 5)),
    "wide": (BitField("rack_id", 56, 8), BitField("sip_id", 46, 10), BitField("cube_id", 38, 8)),
}
LOCAL = BitField("local_offset", 0, 38)
HBM_OFFSET = BitField("hbm_offset", 0, 37)
UNIT_TYPE = BitField("unit_type", 34, 3)
PE_ID = BitField("pe_id", 30, 4)
EXT = BitField("ext", 29, 1)
SUB_OFFSET = BitField("sub_offset", 0, 29)


class AddressFormat(Enum):
    """An address format, which limits racks, SIPs and cubes: ``narrow`` (51 bits) or ``wide`` (64 bits).

    ``AddressFormat("wide")`` accepts the name in a topology. Raises UnknownNameError, which lists the names.
    """

    NARROW = "narrow"
    WIDE = "wide"

    def __init__(self, label: str) -> None:
        self.rack, self.sip, self.cube = _UPPER_FIELDS[label]
        self.bits = self.rack.low + self.rack.width
        # Copies of nested attributes: decoding is on hot paths, and each nested attribute costs another look-up.
        self.limit = 1 << self.bits
        self.rack_low, self.rack_limit = self.rack.low, self.rack.limit
        self.sip_low, self.sip_limit = self.sip.low, self.sip.limit
        self.cube_low, self.cube_limit = self.cube.low, self.cube.limit

    @classmethod
    def _missing_(cls, value: object) -> AddressFormat:
        raise UnknownNameError("address format", str(value), tuple(f.value for f in cls))

    def prefix(self, rack_id: int, sip_id: int, cube_id: int) -> int:
        """Return the upper bits that select a cube. Raises PhysAddrError for the first field that is out of range."""
        in_range = 0 <= rack_id < self.rack_limit and 0 <= sip_id < self.sip_limit and 0 <= cube_id < self.cube_limit
        if not in_range:
            for field, value in zip((self.rack, self.sip, self.cube), (rack_id, sip_id, cube_id), strict=True):
                field.check(value, f"{self.value} address")
        return rack_id << self.rack_low | sip_id << self.sip_low | cube_id << self.cube_low


class AddressKind(StrEnum):
    """The cube window that contains an address."""

    HBM = "hbm"
    RESOURCE = "resource"


class UnitType(IntEnum):
    """The owner of an address in the resource window; the other five values are reserved."""

    PE = 0
    MCPU = 1
    SRAM = 2


class AddressOwner(StrEnum):
    """The component that serves an address."""

    HBM = "hbm"
    TCM = "tcm"
    IPCQ = "ipcq"
    SCRATCHPAD = "scratchpad"
    REGFILE = "regfile"
    CSR = "csr"
    SRAM = "sram"
    M_CPU = "m_cpu"


@value
class Region:
    """The local offsets of a component: ``size`` bytes from ``base``. HBM and components of the cube have no PE."""

    kind: AddressKind
    component: AddressOwner
    base: int
    size: int
    unit_type: UnitType | None = None
    pe_id: int | None = None
    ext: int = 0

    def check(self, offset: int) -> None:
        """Raise PhysAddrError, with the component's name and range, unless ``offset`` is in the region."""
        if not 0 <= offset < self.size:
            name = f"{self.component}_offset"
            raise PhysAddrError(f"{name}={offset:#x} is outside 0..{self.size - 1:#x}")


_MIB = 1 << 20
# Start and size of each component in the sub_offset of a PE; the offsets after the last one are reserved.
PE_PARTS = {
    AddressOwner.TCM: (0x0000_0000, 256 * _MIB),
    AddressOwner.IPCQ: (0x1000_0000, 64 * _MIB),
    AddressOwner.SCRATCHPAD: (0x1400_0000, 64 * _MIB),
    AddressOwner.REGFILE: (0x1800_0000, 16 * _MIB),
    AddressOwner.CSR: (0x1900_0000, 16 * _MIB),
}
# Start and size of every component are multiples of a chunk of 2**24 bytes, so a table by chunk finds the component.
_CHUNK_LOW = 24

HBM_REGION = Region(AddressKind.HBM, AddressOwner.HBM, HBM_OFFSET.limit, HBM_OFFSET.limit)


def _pe_region(part: AddressOwner, pe_id: int, ext: int = 0) -> Region:
    start, size = PE_PARTS[part]
    base = UnitType.PE << UNIT_TYPE.low | pe_id << PE_ID.low | ext << EXT.low | start
    return Region(AddressKind.RESOURCE, part, base, size, UnitType.PE, pe_id, ext)


def _cube_region(part: AddressOwner, unit: UnitType, ext: int = 0) -> Region:
    return Region(AddressKind.RESOURCE, part, unit << UNIT_TYPE.low | ext << EXT.low, SUB_OFFSET.limit, unit, None, ext)


def _regions_of(ext: int) -> list[Region]:
    pes = [_pe_region(part, pe_id, ext) for pe_id in range(PE_ID.limit) for part in PE_PARTS]
    return [
        *pes,
        _cube_region(AddressOwner.M_CPU, UnitType.MCPU, ext),
        _cube_region(AddressOwner.SRAM, UnitType.SRAM, ext),
    ]


def _chunk_table() -> tuple[Region | None, ...]:
    table: list[Region | None] = [None] * (1 << (LOCAL.width - _CHUNK_LOW))
    for region in (r for ext in range(EXT.limit) for r in _regions_of(ext)):
        first, count = region.base >> _CHUNK_LOW, region.size >> _CHUNK_LOW
        table[first : first + count] = [region] * count
    first = HBM_REGION.base >> _CHUNK_LOW
    table[first:] = [HBM_REGION] * (len(table) - first)
    return tuple(table)


PE_REGIONS = {part: tuple(_pe_region(part, pe_id) for pe_id in range(PE_ID.limit)) for part in PE_PARTS}
SRAM_REGION = _cube_region(AddressOwner.SRAM, UnitType.SRAM)
M_CPU_REGION = _cube_region(AddressOwner.M_CPU, UnitType.MCPU)
_CHUNKS = _chunk_table()
_CHUNK_MASK = len(_CHUNKS) - 1


def region_at(value: int) -> Region:
    """Return the region of an encoded address. Raises PhysAddrError, which names the reserved field."""
    region = _CHUNKS[value >> _CHUNK_LOW & _CHUNK_MASK]
    if region is None:
        raise PhysAddrError(_why_reserved(value & (LOCAL.limit - 1)))
    return region


def _why_reserved(local: int) -> str:
    unit = local >> UNIT_TYPE.low & (UNIT_TYPE.limit - 1)
    pe_id = local >> PE_ID.low & (PE_ID.limit - 1)
    if unit not in tuple(UnitType):
        return f"unit_type={unit} is reserved (allowed 0..{max(UnitType)})"
    if unit != UnitType.PE:
        return f"pe_id={pe_id} is outside 0..0 (unit_type {UnitType(unit).name} belongs to the cube)"
    sub_offset = local & (SUB_OFFSET.limit - 1)
    used = max(start + size for start, size in PE_PARTS.values())
    return f"sub_offset={sub_offset:#x} is reserved (a PE's parts are in 0..{used - 1:#x})"
