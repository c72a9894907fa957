"""The fetch and store stages of the tile pipeline, between the ports of the TCM and the engines."""

from __future__ import annotations

from kernbench.components.stage import StageUnit
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.topology.graph import Node


@register("builtin.pe_fetch_store", kind="pe_fetch_store")
class PeFetchStore(Component):
    """The fetch and store unit: it reads operand tiles and writes result tiles, at the TCM's bandwidths for each."""

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._tcm = machine.spec.pe.tcm
        scheduler = machine.spec.pe.components.pe_scheduler.attrs
        # Tiles that wait for the fetch stage are in the tile buffers of the TCM: one buffer for each tile in flight.
        self.fetch = StageUnit(self.clock, machine.log, "fetch", scheduler.tiles_in_flight)
        self.store = StageUnit(self.clock, machine.log, "store", scheduler.stage_slots)

    def fetch_ps(self, nbytes: int) -> int:
        """Return the time to read operand tiles of ``nbytes`` in total, in ps."""
        return self._tcm.read_ps(nbytes)

    def store_ps(self, nbytes: int) -> int:
        """Return the time to write a result tile of ``nbytes``, in ps."""
        return self._tcm.write_ps(nbytes)
