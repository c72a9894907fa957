"""The HBM controller."""

from __future__ import annotations

from kernbench.common.units import ns_to_ps
from kernbench.components.hbm.controller import SliceController
from kernbench.components.memory import Memory
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.topology.graph import Node
from kernbench.topology.hbm_spec import HbmCtrlAttrs


@register("builtin.hbm_ctrl", kind="hbm_ctrl")
class HbmCtrl(Memory):
    """The controller of one HBM slice, with banks or, with ``timing: ideal``, pseudo-channels without banks."""

    Attrs = HbmCtrlAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        if self.serves_as_built:
            access_ns = machine.spec.cube.hbm.access_ns(self.attrs_as(HbmCtrlAttrs))
            self._responder = SliceController(self, ns_to_ps(access_ns))
