"""The SRAM of a cube."""

from __future__ import annotations

from kernbench.components.memory_banks import servers
from kernbench.components.responder import Responder
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.messages.fabric import Access, ReadRequest, WriteData
from kernbench.topology.attrs import SramAttrs
from kernbench.topology.graph import Node
from kernbench.transport import Transfer


@register("builtin.sram", kind="sram")
class Sram(Component):
    """Reads and writes share its banks, each with the bandwidth; it has its own access time."""

    Attrs = SramAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.server = servers(machine, machine.spec.cube.sram)
        self._responder = Responder(
            self,
            reads=self.server,
            writes=self.server,
            access_ps=self.attrs_as(SramAttrs).access_ps,
            read_ps=self.time_ps,
            write_ps=self.time_ps,
        )

    def time_ps(self, access: Access) -> int:
        """Server time of an access alone."""
        return self.machine.spec.cube.sram_ps(access.nbytes)

    def receive(self, message: object, transfer: Transfer) -> None:
        """Serve a read or a write."""
        if isinstance(message, ReadRequest | WriteData):
            self._responder.take(message, transfer)
        else:
            super().receive(message, transfer)
