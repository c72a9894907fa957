"""The GEMM engine of a PE: a stage of the tile pipeline."""

from __future__ import annotations

from kernbench.common.dtypes import DType
from kernbench.components.stage import StageUnit
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.topology.graph import Node


@register("builtin.pe_gemm", kind="pe_gemm")
class PeGemm(Component):
    """The matrix unit. A tile always takes its full time, even if only part of the unit is used."""

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._gemm = machine.spec.pe.gemm
        slots = machine.spec.pe.components.pe_scheduler.attrs.stage_slots
        self.unit = StageUnit(self.clock, machine.log, "gemm", slots)

    def tile_ps(self, element: DType) -> int:
        """Return the time of one tile in ps. Raises UnsupportedError for a type that the unit cannot multiply."""
        return self._gemm.tile_ps(element)
