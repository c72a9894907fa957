"""The MATH engine of a PE: single commands, and the elementwise work of tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernbench.common.operators import COUNTED_BY_INPUT, SORTS, passes
from kernbench.common.values import state
from kernbench.components.pe_tcm import TCM_BYTES
from kernbench.components.stage import StageUnit, Token
from kernbench.core.log import Cause, Row
from kernbench.di.part import InnerAttrs
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.engine.recorder import MathSize, size_of
from kernbench.messages.commands import Command, Operand
from kernbench.topology.graph import Node


def name_elements(operator: str, dtype: str) -> str:
    """Return the name of the count of elements that an operator computed on arrays of ``dtype``."""
    return f"elements of {operator} on {dtype}"


@state(eq=False)
class MathOperation(Token):
    """A single command in the MATH engine. ``nbytes`` is the size of its widest operand, in all passes."""

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
        self._sizes: dict[tuple[str, int, str, int, int], int] = {}  # as MathSize, without its cost
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
        name, first, widest = command.name, dst, dst.nbytes
        in_tcm = widest
        for x in command.srcs:  # ``size_of``, inlined
            if x.__class__ is Operand:
                nbytes = x.nbytes
                if first is dst:
                    first = x
                widest = max(widest, nbytes)
                if x.space == "tcm":
                    in_tcm += nbytes
        counted = first if name in COUNTED_BY_INPUT else dst
        elements = counted.nbytes // counted.dtype.itemsize
        if name in SORTS:
            n = passes(name, dst.shape[-1])
            widest, elements = widest * n, elements * n
        size, sizes = (name, widest, first.dtype.name, elements, in_tcm), self._sizes
        sizes[size] = sizes.get(size, 0) + 1
        if widest != self._widest:
            self._widest, self._times = widest, (self.operation_ps(widest),)
        self.unit.enter(MathOperation(command, self._route, 1, self._times, 1, done, begun, cause, widest))

    def count(self, command: Command) -> None:
        """Count a command that the engine does not run."""
        size = size_of(command)
        self._sizes[size] = self._sizes.get(size, 0) + 1

    @property
    def sizes(self) -> Mapping[MathSize, int]:
        """The numbers of single commands so far, by size."""
        return {MathSize(*size): commands for size, commands in self._sizes.items()}

    def counts(self) -> Mapping[str, int]:
        """Return the elements by operator and type, and the bytes that the commands moved in TCM."""
        counts = {**super().counts(), TCM_BYTES: 0}
        for size, commands in self.sizes.items():
            name = name_elements(size.name, size.dtype)
            counts[name] = counts.get(name, 0) + commands * size.elements
            counts[TCM_BYTES] += commands * size.tcm_bytes
        return counts
