"""The SRAM of a cube."""

from __future__ import annotations

from kernbench.components.memory import Memory
from kernbench.components.memory_server import Responder, make_server
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.messages.fabric import Access
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.graph import Node


@register("builtin.sram", kind="sram")
class Sram(Memory):
    """Reads and writes share its banks, each with the bandwidth; it has its own access time."""

    Attrs = SramAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        if not self.serves_as_built:
            return
        self.server = make_server(machine, machine.spec.cube.sram)
        self._responder = Responder(
            self,
            reads=self.server,
            writes=self.server,
            access_ps=self.attrs_as(SramAttrs).access_ps,
            read_ps=self._server_ps,
            write_ps=self._server_ps,
        )

    def _server_ps(self, access: Access) -> int:
        """Return the time of an access alone."""
        return self.machine.spec.cube.sram_ps(access.nbytes)
