"""An M_CPU with interrupts: what PEs report goes before orders that wait, and stops the one under way.

    kernbench run --bench ccl_allreduce \\
        --set cube.components.m_cpu.impl=examples.parts.interrupt_cpu.InterruptCpu \\
        --set cube.components.m_cpu.attrs.overhead_ns=100
"""

from collections.abc import Iterator
from itertools import count

import simpy
from pydantic import Field

from kernbench.components.m_cpu import MCpu
from kernbench.messages.control import BarrierArrival, Report


class InterruptCpuAttrs(MCpu.Attrs):
    """``attrs`` in YAML: ``overhead_ns`` is the time of an order, and this that of an interrupt."""

    interrupt_ns: float = Field(default=2.0, ge=0)


class InterruptCpu(MCpu):
    """Works on one message at a time, interrupts first; an order that was stopped goes on where it was."""

    Attrs = InterruptCpuAttrs

    def run(self) -> Iterator[simpy.Event]:
        """Each message is a process that asks for the core; numbers keep those of a priority in their order."""
        self.core = simpy.PreemptiveResource(self.env)
        for number in count():
            message = yield self.inbox.get()
            self.process(self.work_on(message, number))

    def work_on(self, message: object, number: int) -> Iterator[simpy.Event]:
        """Work until the time of ``message`` is over, then act on it."""
        interrupt = isinstance(message, Report | BarrierArrival)
        left_ns = self.attrs_as(InterruptCpuAttrs).interrupt_ns if interrupt else self.handling_ns(message)
        stopped = True
        while stopped:
            with self.core.request(priority=(not interrupt, number)) as turn:
                yield turn
                begun_ns, stopped = self.now_ns, False
                try:
                    yield self.wait_ns(left_ns)
                except simpy.Interrupt:
                    stopped = True
                    left_ns -= self.now_ns - begun_ns
        self.handle(message)
