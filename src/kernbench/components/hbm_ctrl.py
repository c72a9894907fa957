"""An HBM slice."""

from __future__ import annotations

from kernbench.components.hbm_channels import HbmChannels
from kernbench.components.memory import Memory
from kernbench.components.memory_service import MemoryServer
from kernbench.components.responder import Responder
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.topology.attrs import HbmCtrlAttrs
from kernbench.topology.graph import Node


@register("builtin.hbm_ctrl", kind="hbm_ctrl")
class HbmCtrl(Memory):
    """The controller of one slice: pseudo-channels, access time, accesses in turn."""

    Attrs = HbmCtrlAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        if not self.serves_as_built:
            return
        self.channels = HbmChannels(machine.spec)
        self.server = MemoryServer(self.clock, machine.spec.quantum_packets)
        self._responder = Responder(
            self,
            reads=self.server,
            writes=self.server,
            access_ps=self.attrs_as(HbmCtrlAttrs).access_ps,
            read_ps=self.channels.time_ps,
            write_ps=self.channels.time_ps,
        )
