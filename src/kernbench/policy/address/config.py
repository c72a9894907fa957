"""The sizes that addresses and allocators follow from, read off the machine in this one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.common.errors import InputError, PhysAddrError
from kernbench.policy.address.layout import HBM_OFFSET, PE_ID, PE_PARTS, SUB_OFFSET, AddressFormat, Component

if TYPE_CHECKING:
    from kernbench.topology.spec import TopologySpec


@dataclass(frozen=True, slots=True)
class AddressConfig:
    """Counts and installed bytes of a machine. PhysAddrError names every count or size its format cannot address."""

    sip_count: int
    cubes_per_sip: int
    pes_per_cube: int
    hbm_bytes_per_cube: int
    hbm_slices_per_cube: int
    tcm_bytes_per_pe: int
    tcm_scheduler_reserved_bytes: int
    sram_bytes_per_cube: int
    address_format: AddressFormat = AddressFormat.NARROW

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
        """A PE's share of the cube's HBM: its own slices, or an equal part of a slice that several PEs share."""
        return self.hbm_bytes_per_cube // self.pes_per_cube

    @property
    def hbm_bytes_per_slice(self) -> int:
        """Bytes of one HBM slice."""
        return self.hbm_bytes_per_cube // self.hbm_slices_per_cube

    @property
    def tcm_bytes_for_kernels(self) -> int:
        """A PE's TCM without what the scheduler keeps, which lies at its end."""
        return self.tcm_bytes_per_pe - self.tcm_scheduler_reserved_bytes

    def check_ids(self, sip_id: int, cube_id: int, pe_id: int = 0) -> None:
        """Raise PhysAddrError with the field and its range unless the machine has this PE."""
        has = (("sip_id", sip_id, self.sip_count), ("cube_id", cube_id, self.cubes_per_sip))
        for name, value, count in (*has, ("pe_id", pe_id, self.pes_per_cube)):
            if not 0 <= value < count:
                raise PhysAddrError(f"{name}={value} is outside 0..{count - 1} (this machine)")

    def _problems(self) -> tuple[str, ...]:
        fmt = self.address_format
        return (
            _count("sip_count", "sip_id", self.sip_count, fmt.sip_limit, fmt),
            _count("cubes_per_sip", "cube_id", self.cubes_per_sip, fmt.cube_limit, fmt),
            _count("pes_per_cube", "pe_id", self.pes_per_cube, PE_ID.limit, fmt),
            _count("hbm_slices_per_cube", "hbm_offset", self.hbm_slices_per_cube, HBM_OFFSET.limit, fmt),
            _size("hbm_bytes_per_cube", "hbm_offset", self.hbm_bytes_per_cube, HBM_OFFSET.limit),
            _size("tcm_bytes_per_pe", "tcm_offset", self.tcm_bytes_per_pe, PE_PARTS[Component.TCM][1]),
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
    """The sizes of the machine that ``spec`` describes; PhysAddrError when its address format cannot hold them."""
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
    )
