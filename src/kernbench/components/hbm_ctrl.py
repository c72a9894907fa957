"""The HBM controller."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.common.units import ns_to_ps
from kernbench.components.hbm.banks import SliceWork
from kernbench.components.hbm.controller import SliceController
from kernbench.components.memory import Memory
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.topology.graph import Node
from kernbench.topology.hbm_spec import HbmCtrlAttrs

HBM_READ, HBM_WRITTEN, HBM_ROWS = "bytes read of HBM", "bytes written to HBM", "rows opened in HBM"
"""Names of counts"""


@register("builtin.hbm_ctrl", kind="hbm_ctrl")
class HbmCtrl(Memory):
    """The controller of one HBM slice, with banks or, with ``timing: ideal``, pseudo-channels without banks."""

    Attrs = HbmCtrlAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        if self.serves_as_built:
            access_ns = machine.spec.cube.hbm.access_ns(self.attrs_as(HbmCtrlAttrs))
            self._responder = SliceController(self, ns_to_ps(access_ns))

    @property
    def work(self) -> SliceWork:
        """The bytes and rows of the slice so far; none if a user's class serves the accesses."""
        responder = self._responder
        return responder.work if isinstance(responder, SliceController) else SliceWork()

    def counts(self) -> Mapping[str, int]:
        """Return the bytes and rows of the slice."""
        work = self.work
        return {**super().counts(), HBM_READ: work.read, HBM_WRITTEN: work.written, HBM_ROWS: work.rows}
