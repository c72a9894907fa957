"""The TCM of a PE: a server for its read port and one for its write port."""

from __future__ import annotations

from kernbench.components.memory_server import make_server
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.messages.fabric import Access
from kernbench.topology.graph import Node

TCM_BYTES = "bytes of TCM"
"""Name of a count: the bytes that parts read from a TCM and wrote to it"""


@register("builtin.pe_tcm", kind="pe_tcm")
class PeTcm(Component):
    """The TCM of a PE. It serves other components by a read port and a write port, accesses round-robin."""

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.read_port = make_server(machine, machine.spec.pe.tcm)
        self.write_port = make_server(machine, machine.spec.pe.tcm)
        self._write_ps = (-1, 0)  # bytes and time of the last write: messages have few sizes

    def read_ps(self, access: Access) -> int:
        """Return the time of the read port for an access, in ps."""
        return self.machine.spec.pe.tcm.read_ps(access.nbytes)

    def write_ps(self, access: Access) -> int:
        """Return the time of the write port for an access, in ps."""
        nbytes = access.rows * access.row_bytes
        last, time_ps = self._write_ps
        if nbytes != last:
            time_ps = self.machine.spec.pe.tcm.write_ps(nbytes)
            self._write_ps = nbytes, time_ps
        return time_ps
