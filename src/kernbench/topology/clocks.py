"""The clocks of a machine: factors of the rates, and divisors of the latencies, of the components that they drive.

Clocks are applied once, between the file and the graph. Every other pass and every closed form uses the scaled figures.
``scaling`` defines which numbers are rates and latencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from kernbench.common.config import LEAST_RATE, Complaint, ConfigModel, Factor, Path
from kernbench.common.values import value
from kernbench.common.yaml_document import path_text
from kernbench.topology.scaling import RATES, list_paced_entries, replace_entries, scale_machine

M = TypeVar("M", bound=BaseModel)

DRIVEN: dict[str, tuple[str, ...]] = {
    "pe": ("pe",),
    "noc": (
        "cube.noc",
        "cube.links.xbar_to_router",
        "cube.links.pe_to_xbar",
        "cube.links.router_to_ucie",
        "cube.links.router_to_sram",
        "cube.links.router_to_m_cpu",
        "cube.components.noc_router",
        "cube.components.xbar",
        "cube.components.m_cpu",
        "cube.components.sram",
        "cube.extra",
    ),
    "io": (
        "sip.links.io_internal",
        "sip.components.pcie_ep",
        "sip.components.io_cpu",
        "sip.components.io_noc",
        "sip.components.sip_port",
    ),
}
"""Entries of the file that each clock drives. HBM, UCIe, wires, and the components outside the SIPs have no clock."""

MOST_RATE = MOST_NS = 1e12
"""Limits of every rate and duration in the file: they keep simulated time far below the clock's limit"""


class ClocksSpec(ConfigModel):
    """The clocks of PEs, of the NoCs of cubes, and of IO chiplets, relative to the figures of the file.

    Plain data omit a clock of 1.
    """

    pe: Factor = 1.0
    """Clock of PEs: factor of all their rates and divisor of all their latencies."""
    noc: Factor = 1.0
    """Clock of the network of a cube, its xbars, management CPU and SRAM: factor of rates, divisor of latencies."""
    io: Factor = 1.0
    """Clock of the IO chiplet: factor of rates, divisor of latencies."""

    @model_serializer(mode="wrap")
    def _without_ones(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: factor for name, factor in plain(self).items() if factor != 1.0}

    def __str__(self) -> str:
        return ", ".join(f"{name} {factor:g}" for name, factor in self)

    @property
    def changed(self) -> dict[str, float]:
        """The clocks that are not 1."""
        return {name: factor for name, factor in self if factor != 1.0}


@value
class ClockedEntry:
    """The number at ``path`` in the file: its unit, its configured value, and its value at ``clock``."""

    path: Path
    clock: str
    unit: str
    configured: float
    clocked: float


def apply_clocks(spec: M, clocks: ClocksSpec) -> M:
    """Return a machine whose entries are scaled by the clocks that drive them, and whose clocks are 1."""
    if not clocks.changed:
        return spec
    for name, factor in clocks.changed.items():
        spec = scale_machine(spec, DRIVEN[name], factor)
    return replace_entries(spec, {("clocks",): ClocksSpec()})


def list_clocked_entries(spec: BaseModel, clocks: ClocksSpec) -> list[ClockedEntry]:
    """Return every rate and latency of a machine that a clock other than 1 drives, in the order of the file."""
    return [
        ClockedEntry(entry.path, name, entry.unit, entry.configured, entry.scaled)
        for name, factor in clocks.changed.items()
        for entry in list_paced_entries(spec, DRIVEN[name], factor)
    ]


def check_clocks(spec: BaseModel, clocks: ClocksSpec) -> Iterator[Complaint]:
    """Complain about a clock that scales a rate or a latency beyond the range that the file allows."""
    for entry in list_clocked_entries(spec, clocks):
        least, most = (LEAST_RATE, MOST_RATE) if entry.unit in RATES else (0.0, MOST_NS)
        if not least <= entry.clocked <= most:
            problem = f"{path_text(entry.path)} would be {entry.clocked:g}, which must be {least:g} to {most:g}"
            yield Complaint(("clocks", entry.clock), f"found {clocks.changed[entry.clock]:g}: {problem}")
            return
