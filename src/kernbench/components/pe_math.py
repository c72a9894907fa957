"""The MATH engine of a PE: single commands, and the elementwise work of tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench.common.operators import SORTS, passes
from kernbench.common.values import state
from kernbench.components.stage import StageUnit, Token
from kernbench.core.log import Cause, Row
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.messages.commands import Command, Operand
from kernbench.topology.graph import Node


@state(eq=False)
class MathOperation(Token):
    """A single command in the MATH engine. ``nbytes`` is the size of its widest operand."""

    nbytes: int


@register("builtin.pe_math", kind="pe_math")
class PeMath(Component):
    """The MATH engine. It runs one operation at a time, in the order in which operations become ready."""

    Attrs = InnerAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.unit = StageUnit(
            self.clock, machine.log, "math", machine.spec.pe.components.pe_scheduler.attrs.stage_slots
        )
        self._operation_ps: dict[int, int] = {}
        # Shared by the tokens of single commands.
        self._route = (self.unit,)
        self._widest = -1
        self._times = (0,)

    def operation_ps(self, nbytes: int) -> int:
        """Return the time of an operation in ps: ``startup_ns`` plus ``nbytes`` (widest operand) / ``bytes_per_ns``."""
        duration = self._operation_ps.get(nbytes)
        if duration is None:
            duration = self._operation_ps[nbytes] = self.machine.spec.pe.math.operation_ps(nbytes)
        return duration

    def submit(
        self,
        command: Command,
        begun: Callable[[Any, int], Row],
        done: Callable[[Any], None],
        cause: Cause,
    ) -> None:
        """Run ``command`` after ``cause``.

        ``begun(operation, now)`` is called when the command reads its operands, and returns the command's row.
        ``done(operation)`` is called with the same MathOperation when the result is complete.
        """
        dst: Any = command.dst
        widest = dst.nbytes
        for x in command.srcs:  # ``widest_bytes``, inlined
            if x.__class__ is Operand and x.nbytes > widest:
                widest = x.nbytes
        if command.name in SORTS:
            widest *= passes(command.name, dst.shape[-1])  # the number of passes over the operand's bytes
        if widest != self._widest:
            self._widest, self._times = widest, (self.operation_ps(widest),)
        self.unit.enter(MathOperation(command, self._route, 1, self._times, 1, done, begun, cause, widest))
