"""The ``energy`` section: the energies of single actions, and the powers and areas of parts.

``defaults/energy.yaml`` has all keys. The section of a machine states only keys that differ. Energies are in pJ, powers
in W, areas in mm², lengths in mm. The section changes no simulated time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import Field, model_validator

from kernbench.common.config import Complaint, ConfigModel
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.special import EnergyClass
from kernbench.common.yaml_document import LOADER
from kernbench.topology.pe_spec import DTypeName, GemmSpec

EnergyValue = Annotated[float, Field(ge=0, le=1e9)]
"""An energy in pJ, a power in W, an area in mm² or a time in ms"""
NumberFormat = Literal["f32", "f16", "int"]
"""The formats of ``math_pj``: floats of four bytes, floats of one or two bytes, integers"""
MathEnergies = dict[EnergyClass, dict[NumberFormat, EnergyValue]]
PassedKind = Literal["noc_router", "io_noc", "xbar"]
"""The kinds whose energy is that of the bytes that enter them"""
AreaKey = Literal[
    "sram_per_mib",
    "mac_per_ns",
    "math_byte_per_ns",
    "hbm_gbs",
    "dram_gbs",
    "ucie",
    "sip_port",
    "pcie_ep",
    "xbar",
    "noc_router",
    "io_noc",
    "m_cpu",
    "io_cpu",
    "pe_cpu",
    "pe_dma",
    "pe_fetch_store",
    "pe_scheduler",
    "pe_mmu",
    "pe_ipcq",
]
"""The keys of areas: by capacity or rate, then by kind of part"""
ESTIMATES = frozenset(
    (
        *("pass_pj_per_byte.noc_router", "pass_pj_per_byte.io_noc", "pass_pj_per_byte.xbar", "pcie_pj_per_byte"),
        *("mac_pj.f8e4m3", "mac_pj.f8e5m2", "math_pj.special", "math_pj.move"),
        *("issue_pj", "tile_issue_pj", "descriptor_pj", "control_pj"),
    )
)
"""Keys of energies whose packaged figures are estimates"""
ROW_BYTES = 1024
"""The size of the row that ``hbm_activate_pj`` opens"""


@cache
def read_packaged() -> Mapping[str, Any]:
    """Return the content of ``defaults/energy.yaml``."""
    text = (resources.files("kernbench") / "defaults" / "energy.yaml").read_text(encoding="utf-8")
    content: Mapping[str, Any] = yaml.load(text, LOADER)
    return content


def _merge(packaged: Any, stated: Any) -> Any:
    """Return the packaged figures with those that a machine states, key by key."""
    if not isinstance(packaged, Mapping) or not isinstance(stated, Mapping):
        return stated
    return {**packaged, **{name: _merge(packaged.get(name), entry) for name, entry in stated.items()}}


def format_of(dtype: str) -> NumberFormat:
    """Return the format of ``math_pj`` for a type of elements."""
    element = dtype_of(dtype)
    if not element.is_float:
        return "int"
    return "f32" if element.itemsize > 2 else "f16"


class EnergySpec(ConfigModel):
    """The energies of single actions in pJ, and the powers and areas of parts."""

    wire_pj_per_byte_mm: EnergyValue
    """A byte over a mm of a wire on a die."""
    pass_pj_per_byte: dict[PassedKind, EnergyValue]
    """A byte that enters a router or crossbar, by kind."""
    ucie_pj_per_byte: EnergyValue
    """A byte over a link between dies, both ports included."""
    sip_link_pj_per_byte: EnergyValue
    """A byte over a scale-up link."""
    pcie_pj_per_byte: EnergyValue
    """A byte over one of the two links between the host and a SIP."""
    hbm_read_pj_per_byte: EnergyValue
    """A byte that HBM reads."""
    hbm_write_pj_per_byte: EnergyValue
    """A byte that HBM writes."""
    hbm_io_pj_per_byte: EnergyValue
    """A byte between HBM and its die, both ends."""
    hbm_activate_pj: EnergyValue
    """An opened row of 1 KiB of HBM; other rows in proportion."""
    hbm_retention_ms: EnergyValue
    """The time within which every row of HBM is refreshed once; 0: no refresh."""
    hbm_standby_w: EnergyValue
    """The standby power of an HBM slice, without refresh."""
    tcm_pj_per_byte: EnergyValue
    """A byte that is read from a TCM or written to it."""
    sram_pj_per_byte: EnergyValue
    """A byte that is read from an SRAM or written to it."""
    mac_pj: dict[DTypeName, EnergyValue]
    """A multiply-accumulate, by type of its operands."""
    math_pj: MathEnergies
    """An element of a MATH operation, by the class of its operator and the format of its numbers."""
    issue_pj: EnergyValue
    """A command that the CPU of a PE issues."""
    tile_issue_pj: EnergyValue
    """A tile that a scheduler issues."""
    descriptor_pj: EnergyValue
    """A descriptor of a DMA, also that of a message."""
    control_pj: EnergyValue
    """A message of the control path, at its receiver."""
    static_w_per_mm2: EnergyValue
    """The static power of a mm² of a die."""
    area_mm2: dict[AreaKey, EnergyValue]
    """Area of a MiB (SRAM, TCM), a MAC of f16 per ns, a byte per ns of MATH, a GB/s of HBM or DRAM, or a part."""

    @classmethod
    def packaged(cls) -> Self:
        """Return the figures of ``defaults/energy.yaml``."""
        return cls.model_validate({})

    @model_validator(mode="before")
    @classmethod
    def _add_packaged(cls, stated: Any) -> Any:
        return _merge(read_packaged(), stated)

    def row_pj(self, row_bytes: float) -> float:
        """Return the energy of opening a row of ``row_bytes`` in pJ."""
        return self.hbm_activate_pj * row_bytes / ROW_BYTES

    def element_pj(self, energy_class: EnergyClass, dtype: str) -> float:
        """Return the energy in pJ of an element of type ``dtype`` of a MATH operation."""
        return self.math_pj[energy_class][format_of(dtype)]

    def slice_static_w(self, nbytes: int, row_bytes: float) -> float:
        """Return the standby and refresh power in W of an HBM slice of ``nbytes``."""
        period_s = self.hbm_retention_ms * 1e-3
        refresh_w = nbytes / row_bytes * self.row_pj(row_bytes) * 1e-12 / period_s if period_s else 0.0
        return self.hbm_standby_w + refresh_w


def macs_have_energies(gemm: GemmSpec, energy: EnergySpec) -> Iterator[Complaint]:
    """Complain about a type that the matrix unit multiplies and ``mac_pj`` lacks."""
    for name in gemm.macs_per_ns:
        if name not in energy.mac_pj:
            message = (
                f"energy.mac_pj has no energy of a multiply-accumulate of {name}; state energy.mac_pj.{name} in pJ"
            )
            yield Complaint(("pe", "gemm", "macs_per_ns", name), message)
