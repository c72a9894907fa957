"""The ``energy`` section: the energies of single actions, and the powers and areas of parts.

``defaults/energy.yaml`` has all keys. The section of a machine states only keys that differ. Energies are in pJ, powers
in W, areas in mm², lengths in mm. The section changes no simulated time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from kernbench.common.config import Complaint, ConfigModel, load_document
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.special import EnergyClass
from kernbench.topology.pe_spec import DTypeName, GemmSpec

Figure = Annotated[float, Field(ge=0, le=1e9)]
"""An energy in pJ, a power in W, an area in mm² or a time in ms"""
NumberFormat = Literal["f32", "f16", "int"]
"""The formats of ``math_pj``: floats of four bytes, floats of one or two bytes, integers"""
MathEnergies = dict[EnergyClass, dict[NumberFormat, Figure]]
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
    return load_document(str(resources.files("kernbench") / "defaults" / "energy.yaml")).data


def _find_packaged(*path: str) -> Any:
    entry: Any = read_packaged()
    for name in path:
        entry = entry[name]
    return entry


def _packaged(*path: str) -> Any:
    """Return a field whose default is the packaged figure at ``path``."""
    return Field(default_factory=partial(_find_packaged, *path))


def _merge(packaged: Any, stated: Any) -> Any:
    """Return the packaged figures with those that a machine states, key by key."""
    if not isinstance(packaged, dict) or not isinstance(stated, dict):
        return stated
    return packaged | {name: _merge(packaged.get(name), entry) for name, entry in stated.items()}


def _merges(name: str) -> BeforeValidator:
    return BeforeValidator(lambda stated: _merge(_find_packaged(name), stated))


class PassEnergy(ConfigModel):
    """The energies of a byte that enters a router or crossbar."""

    noc_router: Figure = _packaged("pass_pj_per_byte", "noc_router")
    """A router of a cube."""
    io_noc: Figure = _packaged("pass_pj_per_byte", "io_noc")
    """The router of an IO chiplet."""
    xbar: Figure = _packaged("pass_pj_per_byte", "xbar")
    """The crossbar of a corner of a cube."""


def format_of(dtype: str) -> NumberFormat:
    """Return the format of ``math_pj`` for a type of elements."""
    element = dtype_of(dtype)
    if not element.is_float:
        return "int"
    return "f32" if element.itemsize > 2 else "f16"


class AreaSpec(ConfigModel):
    """The areas of parts in mm²: by capacity or rate, or of one part of a kind."""

    sram_per_mib: Figure = _packaged("area_mm2", "sram_per_mib")
    """A MiB of SRAM or TCM."""
    mac_per_ns: Figure = _packaged("area_mm2", "mac_per_ns")
    """A multiply-accumulate of f16 per ns."""
    math_byte_per_ns: Figure = _packaged("area_mm2", "math_byte_per_ns")
    """A byte per ns of the vector unit."""
    hbm_gbs: Figure = _packaged("area_mm2", "hbm_gbs")
    """A GB/s of the peak bandwidth of an HBM slice: the controller and its side of the interface."""
    dram_gbs: Figure = _packaged("area_mm2", "dram_gbs")
    """A GB/s of the peak bandwidth of an HBM slice: the DRAM, which is beside the die."""
    ucie: Figure = _packaged("area_mm2", "ucie")
    """A port to a neighbouring die."""
    sip_port: Figure = _packaged("area_mm2", "sip_port")
    """A scale-up port."""
    pcie_ep: Figure = _packaged("area_mm2", "pcie_ep")
    """A PCIe endpoint."""
    xbar: Figure = _packaged("area_mm2", "xbar")
    """A crossbar."""
    noc_router: Figure = _packaged("area_mm2", "noc_router")
    """A router of a cube."""
    io_noc: Figure = _packaged("area_mm2", "io_noc")
    """The router of an IO chiplet."""
    m_cpu: Figure = _packaged("area_mm2", "m_cpu")
    """A management CPU."""
    io_cpu: Figure = _packaged("area_mm2", "io_cpu")
    """The CPU of an IO chiplet."""
    pe_cpu: Figure = _packaged("area_mm2", "pe_cpu")
    """The CPU of a PE."""
    pe_dma: Figure = _packaged("area_mm2", "pe_dma")
    """The DMA of a PE."""
    pe_fetch_store: Figure = _packaged("area_mm2", "pe_fetch_store")
    """The fetch and store unit of a PE."""
    pe_scheduler: Figure = _packaged("area_mm2", "pe_scheduler")
    """The tile scheduler of a PE."""
    pe_mmu: Figure = _packaged("area_mm2", "pe_mmu")
    """The MMU of a PE."""
    pe_ipcq: Figure = _packaged("area_mm2", "pe_ipcq")
    """The queues of a PE."""


class EnergySpec(ConfigModel):
    """The energies of single actions in pJ, and the powers and areas of parts."""

    wire_pj_per_byte_mm: Figure = _packaged("wire_pj_per_byte_mm")
    """A byte over a mm of a wire on a die."""
    pass_pj_per_byte: PassEnergy = Field(default_factory=PassEnergy)
    """A byte that enters a router or crossbar."""
    ucie_pj_per_byte: Figure = _packaged("ucie_pj_per_byte")
    """A byte over a link between dies, both ports included."""
    sip_link_pj_per_byte: Figure = _packaged("sip_link_pj_per_byte")
    """A byte over a scale-up link."""
    pcie_pj_per_byte: Figure = _packaged("pcie_pj_per_byte")
    """A byte over one of the two links between the host and a SIP."""
    hbm_read_pj_per_byte: Figure = _packaged("hbm_read_pj_per_byte")
    """A byte that HBM reads."""
    hbm_write_pj_per_byte: Figure = _packaged("hbm_write_pj_per_byte")
    """A byte that HBM writes."""
    hbm_io_pj_per_byte: Figure = _packaged("hbm_io_pj_per_byte")
    """A byte between HBM and its die, both ends."""
    hbm_activate_pj: Figure = _packaged("hbm_activate_pj")
    """An opened row of 1 KiB of HBM; other rows in proportion."""
    hbm_retention_ms: Figure = _packaged("hbm_retention_ms")
    """The time within which every row of HBM is refreshed once; 0: no refresh."""
    hbm_standby_w: Figure = _packaged("hbm_standby_w")
    """The standby power of an HBM slice, without refresh."""
    tcm_pj_per_byte: Figure = _packaged("tcm_pj_per_byte")
    """A byte that is read from a TCM or written to it."""
    sram_pj_per_byte: Figure = _packaged("sram_pj_per_byte")
    """A byte that is read from an SRAM or written to it."""
    mac_pj: Annotated[dict[DTypeName, Figure], _merges("mac_pj")] = _packaged("mac_pj")
    """A multiply-accumulate, by type of its operands."""
    math_pj: Annotated[MathEnergies, _merges("math_pj")] = _packaged("math_pj")
    """An element of a MATH operation, by the class of its operator and the format of its numbers."""
    issue_pj: Figure = _packaged("issue_pj")
    """A command that the CPU of a PE issues."""
    tile_issue_pj: Figure = _packaged("tile_issue_pj")
    """A tile that a scheduler issues."""
    descriptor_pj: Figure = _packaged("descriptor_pj")
    """A descriptor of a DMA, also that of a message."""
    control_pj: Figure = _packaged("control_pj")
    """A message of the control path, at its receiver."""
    static_w_per_mm2: Figure = _packaged("static_w_per_mm2")
    """The static power of a mm² of a die."""
    area_mm2: AreaSpec = Field(default_factory=AreaSpec)
    """Areas of parts."""

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
