"""The SRAM of a cube."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.common.units import transfer_ps
from kernbench.components.memory import Memory
from kernbench.components.memory_server import Responder, make_server
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.messages.fabric import Access
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.fields import BankedSpec
from kernbench.topology.graph import Node

SRAM_BYTES = "bytes of SRAM"
"""Name of a count"""


@register("builtin.sram", kind="sram")
class Sram(Memory):
    """The SRAM of a cube. Reads and writes share its banks, each of which has the full bandwidth.

    An access has a fixed latency besides. At ``cube.extra`` and ``pe.extra`` the class is an additional SRAM with
    one bank.
    """

    Attrs = SramAttrs
    stands_alone = True

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        if not self.serves_as_built:
            return
        self.server = make_server(machine, BankedSpec() if node.is_extra else machine.spec.cube.sram)
        self._bw_gbs = machine.graph.sram_bw_gbs(node.id)
        self._responder = Responder(
            self,
            reads=self.server,
            writes=self.server,
            access_ps=self.attrs_as(SramAttrs).access_ps,
            read_ps=self._server_ps,
            write_ps=self._server_ps,
        )

    def counts(self) -> Mapping[str, int]:
        """Return the bytes of all accesses."""
        responder = self._responder
        nbytes = responder.bytes_read + responder.bytes_written if isinstance(responder, Responder) else 0
        return {**super().counts(), SRAM_BYTES: nbytes}

    def _server_ps(self, access: Access) -> int:
        """Return the service time of an uncontended access in ps."""
        return transfer_ps(access.nbytes, self._bw_gbs)
