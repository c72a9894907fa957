"""An HBM slice."""

from __future__ import annotations

from kernbench.components.hbm.controller import BankedController
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
    """The controller of one slice: its banks or, under ``timing: ideal``, its pseudo-channels; accesses in turn."""

    Attrs = HbmCtrlAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        if not self.serves_as_built:
            return
        access_ps, banks = self.attrs_as(HbmCtrlAttrs).access_ps, machine.spec.cube.hbm.banks
        self._responder = self._ideal(access_ps) if banks is None else BankedController(self, banks, access_ps)

    def _ideal(self, access_ps: int) -> Responder:
        channels = HbmChannels(self.machine.spec)
        server = MemoryServer(self.clock, self.machine.spec.quantum_packets)
        return Responder(
            self,
            reads=server,
            writes=server,
            access_ps=access_ps,
            read_ps=channels.time_ps,
            write_ps=channels.time_ps,
        )
