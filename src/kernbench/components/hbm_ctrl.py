"""An HBM slice."""

from __future__ import annotations

from kernbench.components.hbm.controller import SliceController
from kernbench.components.memory import Memory
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.topology.graph import Node
from kernbench.topology.hbm_spec import HbmCtrlAttrs


@register("builtin.hbm_ctrl", kind="hbm_ctrl")
class HbmCtrl(Memory):
    """The controller of one slice: its banks or, under ``timing: ideal``, its pseudo-channels; accesses in turn."""

    Attrs = HbmCtrlAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        if self.serves_as_built:
            self._responder = SliceController(self, self.attrs_as(HbmCtrlAttrs).access_ps)
