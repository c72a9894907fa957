"""The MATH engine of a PE."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kernbench.common.units import ns_to_ps
from kernbench.di.registry import register
from kernbench.messages.commands import MathCommand, TcmArray
from kernbench.sim_engine.component import Component
from kernbench.sim_engine.machine import Machine
from kernbench.topology.graph import Node


@register("builtin.pe_math", kind="pe_math")
class PeMath(Component):
    """One command at a time, in the order they become ready."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self._queue: deque[tuple[MathCommand, Callable[[int], None], Callable[[], None]]] = deque()
        self._busy = False
        self.busy_ps = 0

    def duration_ps(self, command: MathCommand) -> int:
        """``startup_ns`` and the bytes of the widest operand (result included) at ``bytes_per_ns``."""
        math = self.machine.spec.pe.math
        arrays = [x for x in command.inputs if isinstance(x, TcmArray)]
        widest = max(a.nbytes for a in (*arrays, command.dst))
        return ns_to_ps(math.startup_ns + widest / math.bytes_per_ns)

    def submit(self, command: MathCommand, begun: Callable[[int], None], done: Callable[[], None]) -> None:
        """Run ``command``: ``begun(now)`` when it reads its operands, ``done()`` when its result is there."""
        self._queue.append((command, begun, done))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        command, begun, done = self._queue.popleft()
        self._busy = True
        begun(self.clock.time)
        duration = self.duration_ps(command)
        self.busy_ps += duration
        self.clock.call_at(self.clock.time + duration, self._over, done)

    def _over(self, done: Callable[[], None]) -> None:
        self._busy = False
        done()
        if self._queue and not self._busy:
            self._next()
