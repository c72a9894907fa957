"""The CPU of a PE: it runs kernels, one at a time, and hands their commands to the engines."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

import simpy

from kernbench.common.errors import IpcqError, RunError, UnsupportedError
from kernbench.common.ids import cube_part
from kernbench.common.units import ns_to_ps
from kernbench.components.execution import KernelExecution
from kernbench.components.pe_parts import PeParts
from kernbench.components.serial_cpu import SerialCpu
from kernbench.di.registry import register
from kernbench.messages.commands import (
    AwaitCommand,
    AwaitSpace,
    Issue,
    KernelRequest,
    Meet,
    PostReceive,
    Receive,
    Send,
)
from kernbench.messages.control import (
    BarrierArrival,
    BarrierRelease,
    LaunchOrder,
    MapOrder,
    PeOrder,
    PeReport,
    QueueOrder,
    QueueRemoval,
    Report,
    UnmapOrder,
)
from kernbench.sim_engine.machine import Machine
from kernbench.topology.attrs import PeCpuAttrs
from kernbench.topology.graph import Node

Wait = Generator[simpy.Event, object, None]


@register("builtin.pe_cpu", kind="pe_cpu")
class PeCpu(SerialCpu):
    """Starts kernels at their common start, in arrival order; answers when all commands of one are done."""

    Attrs = PeCpuAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        attrs = self.attrs_as(PeCpuAttrs)
        self._launch_ps = ns_to_ps(attrs.launch_ns)
        self._issue_ps = ns_to_ps(attrs.issue_ns)
        assert node.sip is not None
        assert node.cube is not None
        assert node.pe is not None
        self.coord = (node.sip, node.cube, node.pe)
        self._m_cpu = cube_part(node.sip, node.cube, "m_cpu")
        self._parts = PeParts(machine, self.coord)
        self._orders: deque[PeOrder] = deque()
        self._run: KernelExecution | None = None
        self._program: simpy.Process | None = None
        self._release: simpy.Event | None = None

    def handle(self, message: object) -> None:
        """An order of the M_CPU, or the end of a barrier."""
        match message:
            case PeOrder(order=MapOrder(mapping)):
                self._parts.mmu.table.map(mapping)
                self._report(message.request_id, PeReport(pe=self.coord))
            case PeOrder(order=UnmapOrder(va_base)):
                self._parts.mmu.table.unmap(va_base)
                self._report(message.request_id, PeReport(pe=self.coord))
            case PeOrder(order=QueueOrder() | QueueRemoval()):
                self._set_up_queues(message)
            case PeOrder(order=LaunchOrder()):
                self._orders.append(message)
                if self._run is None:
                    self._start_next()
            case BarrierRelease():
                self._released(message)
            case _:
                raise UnsupportedError(f"{self.node.id} cannot take a {type(message).__name__}")

    def _set_up_queues(self, message: PeOrder) -> None:
        error: Exception | None = None
        try:
            if isinstance(message.order, QueueOrder):
                self._parts.ipcq.install(message.order.setup)
            else:
                self._parts.ipcq.remove()
        except IpcqError as failure:
            error = failure
        self._report(message.request_id, PeReport(pe=self.coord, error=error))

    def abandon(self, request_ids: frozenset[int]) -> None:
        """End the kernels of these requests, running or in line: their launches fail."""
        for order in [o for o in self._orders if o.request_id in request_ids]:
            self._orders.remove(order)
            self._report(order.request_id, PeReport(pe=self.coord, error=_stopped()))
        if self._run is not None and self._run.launch.request_id in request_ids:
            self._run.stop()
            if self._program is not None:
                self._program.interrupt()

    def blocked(self) -> tuple[str, ...]:
        """What the running kernel waits for."""
        return () if self._run is None else (f"{self.node.id}: {self._run.waits_for()}",)

    def _report(self, request_id: int, report: PeReport) -> None:
        self.machine.send_header(self.node.id, self._m_cpu, Report(request_id=request_id, pes=(report,)), "control")

    def _start_next(self) -> None:
        order = self._orders.popleft()
        assert isinstance(order.order, LaunchOrder)
        self._run = KernelExecution(self.machine, self._parts, self.coord, order.order)
        self._program = self.clock.process(self._execute(self._run, order))

    def _execute(self, run: KernelExecution, order: PeOrder) -> Wait:
        late = self.clock.time > order.start_ps
        start = max(self.clock.time, order.start_ps)
        error: Exception | None = None
        try:
            if not late:
                yield self.clock.timeout(order.start_ps - self.clock.time)
            yield self.clock.timeout(self._launch_ps)
            request = run.resume()
            while request is not None:
                answer = yield from self._serve(run, request, order)
                request = run.resume(answer)
        except simpy.Interrupt:
            error = _stopped()
        except Exception as failure:
            failure.add_note(
                f"on {cube_part(*self.coord[:2], f'pe{self.coord[2]}')}, kernel {run.launch.kernel.name!r}"
            )
            error = failure
        self._program = self._release = None
        run.close()
        yield from run.all_done()
        error = error or run.late_failure()
        run.finish()
        self._run = None
        report = PeReport(pe=self.coord, start_ps=start, end_ps=self.clock.time, late=late, error=error)
        self._report(order.request_id, report)
        if self._orders:
            self._start_next()

    def _serve(
        self, run: KernelExecution, request: KernelRequest, order: PeOrder
    ) -> Generator[simpy.Event, object, object]:
        """Do what the program asks for; returns the answer."""
        if self._issue_ps and isinstance(request, Issue | Send | Receive | PostReceive):
            yield self.clock.timeout(self._issue_ps)
        match request:
            case Issue(command):
                run.issue(command)
            case Send(command):
                yield from run.send(command)
            case Receive():
                return (yield from run.receive(request))
            case PostReceive(command):
                return run.post_receive(command)
            case AwaitCommand():
                yield from run.command_done(request)
            case AwaitSpace():
                yield from run.any_done(request)
            case Meet():
                run.waiting_at = f"barrier at line {request.line}"
                yield from run.all_done()
                yield from self._meet(run, order)
        return None

    def _meet(self, run: KernelExecution, order: PeOrder) -> Wait:
        arrival = BarrierArrival(request_id=order.request_id, pe=self.coord[2], mates=order.mates)
        self._release = self.clock.event()
        self.machine.send_header(self.node.id, self._m_cpu, arrival, "control")
        error = yield self._release
        self._release = None
        if isinstance(error, Exception):
            run.fail_next(error)

    def _released(self, message: BarrierRelease) -> None:
        if self._release is not None:
            self._release.succeed(message.error)
        elif message.error is None:  # a kernel that was stopped waits no more, and its mates' failure is no news to it
            raise UnsupportedError(f"{self.node.id} is released from a barrier where it does not wait")


def _stopped() -> RunError:
    return RunError("the kernel was stopped: its launch was abandoned")
