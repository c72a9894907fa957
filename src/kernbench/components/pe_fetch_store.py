"""Fetch and store: between the TCM's ports and the engines, two stages of the tile pipeline."""

from __future__ import annotations

from kernbench.components.stage import StageUnit
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.part import Component
from kernbench.topology.graph import Node


@register("builtin.pe_fetch_store", kind="pe_fetch_store")
class PeFetchStore(Component):
    """Operand tiles at the TCM's read bandwidth, result tiles at its write bandwidth."""

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._tcm = machine.spec.pe.tcm
        scheduler = machine.spec.pe.components.pe_scheduler.attrs
        # What waits to be fetched lies in the tile buffers of the TCM: one for each tile in flight.
        self.fetch = StageUnit(self.clock, machine.log, "fetch", scheduler.tiles_in_flight)
        self.store = StageUnit(self.clock, machine.log, "store", scheduler.stage_slots)

    def fetch_ps(self, nbytes: int) -> int:
        """Return the time to read operand tiles of ``nbytes`` in all."""
        return self._tcm.read_ps(nbytes)

    def store_ps(self, nbytes: int) -> int:
        """Return the time to write a result tile of ``nbytes``."""
        return self._tcm.write_ps(nbytes)
