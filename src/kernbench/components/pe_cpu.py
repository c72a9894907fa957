"""The CPU of a PE: it runs kernels and issues their commands to the engines.

Like every CPU of the control path, the CPU of a PE handles one message at a time, in arrival order, for ``overhead_ns``
each.

Kernels of the default stream run one at a time. Kernels of other streams run concurrently: while one kernel waits for a
slot or for its commands, the others continue. Concurrent kernels share the CPU, which issues one command at a time, and
the scratch, in equal parts.
"""

from __future__ import annotations

from collections import deque

from kernbench.common.errors import AbandonedError, KernbenchError, UnsupportedError
from kernbench.common.ids import cube_part
from kernbench.components.addressing import PeParts
from kernbench.components.dispatch import Dispatcher
from kernbench.components.sequencer import IssueSlot, Sequencer
from kernbench.core.log import NONE, By, Cause, Row
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine
from kernbench.messages.control import (
    BarrierArrival,
    BarrierRelease,
    ControlMessage,
    LaunchOrder,
    MapOrder,
    PeOrder,
    PeReport,
    QueueOrder,
    QueueRemoval,
    Report,
    UnmapOrder,
)
from kernbench.messages.requests import LaunchStream
from kernbench.policy.address.allocator import ALIGNMENT_BYTES
from kernbench.topology.graph import Node
from kernbench.topology.pe_spec import PeCpuAttrs
from kernbench.transport import Transfer


class SerialCpu(Component):
    """A component that handles messages serially: it calls ``handle`` when the handling time of a message is over.

    ``cause``: the log row that the next action follows, and the rule. In ``handle`` it is the row of the message.
    """

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.cause: Cause = (NONE, By.NOTHING)
        self._free_at = 0
        self._handling_ps = self.overhead_ps

    @property
    def handles_serially(self) -> bool:
        """Return True: the overhead occupies the CPU, not the link."""
        return True

    def receive(self, message: object, transfer: Transfer) -> None:
        """Queue the message for handling."""
        if not self._handling_ps:
            self._handle(transfer)
            return
        self._free_at = max(self._free_at, self.clock.time) + self._handling_ps
        self.clock.call_at(self._free_at, self._handle, transfer)

    def _handle(self, transfer: Transfer) -> None:
        row = transfer.row
        if row >= 0:
            self.machine.log.close(row, self.clock.time)
        self.cause = row, By.ORDER
        self.handle(transfer.arg)

    def handle(self, message: object) -> None:
        """Act on a message."""
        raise NotImplementedError

    def tell(self, dst: str, message: ControlMessage) -> None:
        """Send a control-path message to another component."""
        self.machine.send_control(self.node.id, dst, message, self.cause)


@register("builtin.pe_cpu", kind="pe_cpu")
class PeCpu(SerialCpu):
    """The CPU of a PE. It starts kernels at their common start and reports when all commands of a kernel are done.

    The kernels of a stream run in arrival order. Queues are removed once all kernels ordered earlier are done.
    """

    Attrs = PeCpuAttrs

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        attrs = self.attrs_as(PeCpuAttrs)
        self._launch_ps = attrs.launch_ps
        self._issue_ps = attrs.issue_ps
        self._value_ps = attrs.value_ps
        self.coord = node.pe_coord
        self._m_cpu = cube_part(*node.cube_coord, "m_cpu")
        self._parts = PeParts(machine, self.coord)
        self._orders: deque[tuple[PeOrder, Row]] = deque()
        self._programs: dict[int, Sequencer] = {}  # running kernels, by launch
        self._at_barrier: set[int] = set()  # launches whose kernels wait at a barrier
        self._issue_slot = IssueSlot()
        self._scratch_part = 0  # bytes of scratch per concurrent kernel

    def handle(self, message: object) -> None:
        """Act on an order of the M_CPU, or on the release of a barrier."""
        match message:
            case PeOrder(request_id=launch, order=LaunchOrder()) if launch in self.machine.given_up:
                self._refuse(message)
            case PeOrder(order=LaunchOrder() | QueueRemoval()):
                self._orders.append((message, self.cause[0]))
                self._go_on()
            case PeOrder():
                self._set_up(message)
            case BarrierRelease():
                self._leave_barrier(message)
            case _:
                raise UnsupportedError(f"{self.node.id} cannot take a {type(message).__name__}")

    def _set_up(self, message: PeOrder) -> None:
        """Carry out an order that concerns the PE itself, and report its success or failure."""
        error: Exception | None = None
        try:
            match message.order:
                case MapOrder(mapping):
                    self._parts.mmu.map(mapping)
                case UnmapOrder(va_base):
                    self._parts.mmu.unmap(va_base)
                case QueueOrder(setup):
                    self._parts.ipcq.install(setup)
                case QueueRemoval(installation):
                    self._parts.ipcq.remove(installation)
                case _:
                    raise UnsupportedError(f"{self.node.id} cannot take a {type(message.order).__name__}")
        except KernbenchError as failure:
            error = failure
        self._report(message.request_id, PeReport(pe=self.coord, error=error))

    def abandon(self, request_ids: frozenset[int]) -> None:
        """End the kernels of these requests, running or queued. Their launches fail."""
        launches = [pending for pending in self._orders if isinstance(pending[0].order, LaunchOrder)]
        for queued in [queued for queued in launches if queued[0].request_id in request_ids]:
            self._orders.remove(queued)
            self._refuse(queued[0])
        for launch, program in tuple(self._programs.items()):
            if launch in request_ids:
                self._at_barrier.discard(launch)
                program.stop()

    def _refuse(self, order: PeOrder) -> None:
        self._report(order.request_id, PeReport(pe=self.coord, error=AbandonedError("its launch was abandoned")))

    def blocked(self) -> tuple[str, ...]:
        """Return a line about what each running kernel waits for."""
        return tuple(program.waits_for() for program in self._programs.values())

    def _report(self, request_id: int, report: PeReport) -> None:
        self.tell(self._m_cpu, Report(request_id=request_id, pes=(report,)))

    def _go_on(self) -> None:
        """Carry out the queued orders that need not wait for an earlier order."""
        while (at := self._find_next()) is not None:
            message, row = self._orders[at]
            del self._orders[at]
            if isinstance(message.order, LaunchOrder):
                self._start(message, message.order, row)
            else:
                self._set_up(message)

    def _find_next(self) -> int | None:
        """Return the position of the first order that can be carried out; None if all orders have to wait.

        An order of the default stream waits for all earlier orders. An order of another stream waits for the earlier
        orders of that stream and of the default stream.
        """
        before = {_stream_of(program.order) for program in self._programs.values()}
        for at, (order, _) in enumerate(self._orders):
            stream = _stream_of(order)
            if stream is None or None in before:
                return None if before else at
            if stream not in before:
                return at
            before.add(stream)
        return None

    def _start(self, order: PeOrder, launch: LaunchOrder, row: Row) -> None:
        shares = launch.launch.stream is not None
        scratch_bytes = self._take_scratch(launch.launch.stream)
        run = Dispatcher(self.machine, self._parts, self.coord, launch, scratch_bytes)
        part = self.machine.log.part(self.node.id)
        slot = self._issue_slot if shares else None
        program = Sequencer(run, order, part, self._issue_ps, self._value_ps, self._meet, self._on_finish, slot)
        self._programs[order.request_id] = program
        waits = order.start_ps > self.clock.time
        program.begin(self._launch_ps, (order.start_row, By.START) if waits else self.cause, row)

    def _take_scratch(self, stream: LaunchStream | None) -> int:
        """Return the bytes of scratch for a kernel of ``stream``: the complete scratch, or an equal part per stream."""
        nbytes = self.machine.memories.pes[self.coord].largest_tcm_hole()[1]
        if stream is None:
            return nbytes
        if not self._programs:
            self._scratch_part = nbytes // stream.count // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        return self._scratch_part

    def _meet(self, program: Sequencer) -> None:
        order, self.cause = program.order, program.cause
        self._at_barrier.add(order.request_id)
        arrival = BarrierArrival(request_id=order.request_id, pe=self.coord[2], mates=order.mates)
        self.tell(self._m_cpu, arrival)

    def _leave_barrier(self, message: BarrierRelease) -> None:
        program = self._programs.get(message.request_id)
        if program is not None and message.request_id in self._at_barrier:
            self._at_barrier.remove(message.request_id)
            program.cause = self.cause[0], By.BARRIER
            if message.error is not None:
                program.fail(message.error)
            else:
                program.resume_program()
        elif message.error is None:  # a stopped kernel does not wait; the failure of another PE does not concern it
            raise UnsupportedError(f"{self.node.id} is released from a barrier at which it does not wait")

    def _on_finish(self, launch: int, report: PeReport) -> None:
        program = self._programs.pop(launch)
        self.cause = program.cause
        self._report(launch, report)
        row, by = program.cause
        self.cause = row, by if by in (By.CREDIT, By.NOTHING) else By.KERNEL
        self._go_on()


def _stream_of(order: PeOrder) -> LaunchStream | None:
    """Return the stream of an order, or None (the default stream) if the order is not a launch."""
    return order.order.launch.stream if isinstance(order.order, LaunchOrder) else None
