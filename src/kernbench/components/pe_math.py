"""The MATH engine of a PE: single commands, and the elementwise work of tiles."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.common.units import ns_to_ps
from kernbench.components.stage import StageUnit, Token
from kernbench.di.registry import register
from kernbench.messages.commands import MathCommand, TcmArray
from kernbench.sim_engine.component import Component
from kernbench.sim_engine.machine import Machine
from kernbench.topology.graph import Node


@register("builtin.pe_math", kind="pe_math")
class PeMath(Component):
    """One operation at a time, in the order they become ready."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.unit = StageUnit(self.clock, "math", machine.spec.pe.components.pe_scheduler.attrs.stage_slots)
        self._operation_ps: dict[int, int] = {}
        # What the tokens of single commands share.
        self._route = (self.unit,)
        self._times: dict[int, tuple[int]] = {}

    def operation_ps(self, nbytes: int) -> int:
        """``startup_ns`` and ``nbytes``, those of the widest operand, at ``bytes_per_ns``."""
        found = self._operation_ps.get(nbytes)
        if found is None:
            math = self.machine.spec.pe.math
            found = self._operation_ps[nbytes] = ns_to_ps(math.startup_ns + nbytes / math.bytes_per_ns)
        return found

    def submit(self, command: MathCommand, begun: Callable[[int], None] | None, done: Callable[[Token], None]) -> None:
        """Run ``command``: ``begun(now)`` when it reads its operands, ``done`` when its result is there."""
        dst = command.dst
        widest = dst.nbytes
        for x in command.inputs:
            if isinstance(x, TcmArray) and (x.shape != dst.shape or x.dtype is not dst.dtype) and x.nbytes > widest:
                widest = x.nbytes
        times = self._times.get(widest) or self._times.setdefault(widest, (self.operation_ps(widest),))
        self.unit.enter(Token(command, self._route, times, done, begun))
