"""The TCM of a PE: a server for its read port and one for its write port."""

from __future__ import annotations

from kernbench.components.memory_server import make_server
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.part import Component
from kernbench.messages.fabric import Access
from kernbench.topology.graph import Node


@register("builtin.pe_tcm", kind="pe_tcm")
class PeTcm(Component):
    """Serves other parts of the machine by a read port and a write port, accesses in turn"""

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.read_port = make_server(machine, machine.spec.pe.tcm)
        self.write_port = make_server(machine, machine.spec.pe.tcm)
        self._write_ps = (-1, 0)  # the bytes of the last one, and its time: messages come in few sizes

    def read_ps(self, access: Access) -> int:
        """Return the time of the read port for an access."""
        return self.machine.spec.pe.tcm.read_ps(access.nbytes)

    def write_ps(self, access: Access) -> int:
        """Return the time of the write port for an access."""
        nbytes = access.rows * access.row_bytes
        last, time_ps = self._write_ps
        if nbytes != last:
            time_ps = self.machine.spec.pe.tcm.write_ps(nbytes)
            self._write_ps = nbytes, time_ps
        return time_ps
