"""The sequencer: it runs a kernel on the CPU of a PE, one request after another, and waits where a request waits.

A request occupies the CPU for ``issue_ps`` (a row of the log) and then takes effect: a command goes to the dispatcher.
The kernel then continues at once, unless the request waits:

- a send, for a slot of the peer: the queue calls ``_on_slot_free``;
- a receive, for a message: the queue calls ``_on_message``;
- a fence, for writes: the scoreboard's ``on_written`` calls ``_pass_fence``;
- a result, room in the scratch, a barrier, and the end of the kernel, for commands to be done: ``_stall_until``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from kernbench.common.errors import AbandonedError, KernbenchError, KernelError, KernelNote
from kernbench.components.dispatch import Dispatcher
from kernbench.components.pe_ipcq import PeIpcq
from kernbench.components.queue import PendingReceive, Queue
from kernbench.core.log import BY_ISSUE, BY_MESSAGE, NONE, ROOT, By, Cause, Kind, Row, pack_row
from kernbench.engine.hooks import QueueWaited, ScratchWaited
from kernbench.engine.queues import WaitKind, find_queue
from kernbench.messages.commands import (
    RECEIVE,
    SEND,
    AwaitCommand,
    AwaitSpace,
    Command,
    Fence,
    KernelRequest,
    Meet,
    Opcode,
    ReadValue,
    Receive,
    awaited_by,
)
from kernbench.messages.control import PeOrder, PeReport
from kernbench.triton_emu.handles import Slot

_ISSUE = int(Kind.ISSUE)


class IssueSlot:
    """The time of a CPU that concurrent kernels share: busy until ``free_ps`` with the request of ``row``."""

    __slots__ = ("free_ps", "row")

    def __init__(self) -> None:
        self.free_ps = 0
        self.row: Row = NONE

    def claim(self, now: int, duration: int, cause: Cause, row: Row) -> tuple[int, Cause]:
        """Occupy the CPU for ``duration`` ps with the request of ``row``; return the start and the start's cause."""
        start = now
        if self.free_ps > now:
            start, cause = self.free_ps, (self.row, By.ENGINE)
        self.free_ps, self.row = start + duration, row
        return start, cause


class Sequencer:
    """The sequencer of the kernel of ``order``, whose commands ``run`` carries out.

    A request occupies the CPU for ``issue_ps`` (a request for a value: ``value_ps``), and then takes effect.
    ``part``: the CPU's number in the log. ``on_barrier(self)`` is called when the kernel reaches a barrier,
    ``on_finish(launch, report)`` when the kernel is done. ``issue_slot`` is set for a kernel that runs concurrently
    with others.

    Before the kernel continues, ``cause`` is set to the row and the reason that released it. The row is stored as the
    scoreboard's ``now``, the reason in this object.
    """

    __slots__ = (
        "_board",
        "_by",
        "_clock",
        "_error",
        "_ipcq",
        "_issue",
        "_issue_ps",
        "_issue_slot",
        "_late",
        "_launch_id",
        "_on_barrier",
        "_on_finish",
        "_part",
        "_queue_waited",
        "_receive_under_way",
        "_request",
        "_returned",
        "_rows",
        "_start_ps",
        "_value_ps",
        "order",
        "run",
    )

    def __init__(
        self,
        run: Dispatcher,
        order: PeOrder,
        part: int,
        issue_ps: int,
        value_ps: int,
        on_barrier: Callable[[Sequencer], None],
        on_finish: Callable[[int, PeReport], None],
        issue_slot: IssueSlot | None = None,
    ) -> None:
        self.run = run
        self.order = order
        self._board = run.board
        self._rows = run.machine.log.rows
        self._part, self._launch_id = part, run.launch.request_id
        self._by = By.KERNEL
        self._clock = run.clock
        self._issue_ps = issue_ps
        self._issue_slot = issue_slot
        self._value_ps = value_ps
        self._on_barrier = on_barrier
        self._on_finish = on_finish
        self._request: KernelRequest | None = None
        self._error: Exception | None = None
        self._returned = False
        self._ipcq: PeIpcq | None = None
        self._issue = NONE  # the row of the last issue
        self._receive_under_way = PendingReceive(self._on_message)
        self._queue_waited = run.machine.hooks.queue_waited
        self._late = run.clock.time > order.start_ps
        self._start_ps = max(run.clock.time, order.start_ps)

    @property
    def cause(self) -> Cause:
        """Return the row that the kernel's next action follows, and the reason."""
        return self._board.now, self._by

    @cause.setter
    def cause(self, cause: Cause) -> None:
        self._board.now, self._by = cause

    def begin(self, launch_ps: int, cause: Cause, order: Row) -> None:
        """Run the kernel ``launch_ps`` after its start, which follows ``cause``. ``order``: the row of its order."""
        start, end = self._start_ps, self._start_ps + launch_ps
        log = self.run.machine.log
        row = log.open(self._part, Kind.LAUNCH, start, cause, launch=self._launch_id, parent=order, read=start, end=end)
        self.cause = row, By.KERNEL
        self._clock.call_at(end, self.resume_program)

    def resume_program(self, answer: object = None) -> None:
        """Pass ``answer`` to the kernel's last request, and take its next request."""
        if self._returned:
            return
        run = self.run
        try:
            resume = run.resume
            request: Any = resume(answer) if run.failure is None else run.throw()
        except Exception as failure:
            failure.add_note(KernelNote(run.coord, run.launch.kernel.name, run.launch.launched_at))
            self._return(failure)
            return
        except KeyboardInterrupt as interrupt:
            # By the user, or at the end of the run's time: this kernel ends, and the machine can continue.
            interrupt.add_note(KernelNote(run.coord, run.launch.kernel.name, run.launch.launched_at))
            self._return(AbandonedError(f"the kernel was ended by a {type(interrupt).__name__}"))
            raise
        if request is None:
            self._return(None)
            return
        self._request = request
        kind = request.__class__
        wait = _WAITS.get(kind)
        if wait is not None:
            wait(self, request)
            return
        # The CPU is busy with the request from now on.
        rows, clock = self._rows, self._clock
        start, duration = clock.time, self._issue_ps if kind is not ReadValue else self._value_ps
        launch, line, after, by = self._launch_id, request.line, self._board.now, self._by
        if self._issue_slot is not None:
            start, (after, by) = self._issue_slot.claim(start, duration, (after, by), len(rows))
        end = start + duration
        self._issue, self._by = len(rows), BY_ISSUE
        rows.frombytes(
            pack_row(self._part, _ISSUE, NONE, launch, line, NONE, NONE, start, start, end, end, after, by, NONE)
        )
        if kind is Receive and request.direction is not None:
            receive, queue = self._receive_under_way, (self._ipcq or self._queues).queues.get(request.direction)
            receive.nbytes, receive.line = request.nbytes, line
            if queue is not None and queue.post_receive(receive, end):
                queue.receiver = self._board
                return  # no event until the message arrives
        clock.call_at(end, _EFFECTS.get(request.op if isinstance(request, Command) else kind, ISSUE), self)

    def issue(self) -> None:
        """Put the request into effect: pass the command to the dispatcher."""
        if not self._returned:
            command: Any = self._request
            board = self._board
            board.now = row = self._issue
            self.run.issue(command, (row, BY_ISSUE))
            board.now = row
            self.resume_program()

    @property
    def _queues(self) -> PeIpcq:
        """Return the queues of the PE, looked up on first use."""
        if self._ipcq is None:
            self._ipcq = self.run.parts.ipcq
        return self._ipcq

    def _send(self) -> None:
        """Put the request into effect: send a message if there is a slot for it, else wait."""
        if self._returned:
            return
        command: Any = self._request
        ipcq, board = self._ipcq or self._queues, self._board
        board.now = row = self._issue
        try:
            queue = find_queue(ipcq.node.id, ipcq.queues, command.name, command.srcs[0].nbytes, sends=True)
        except KernelError as fault:
            self.fail(fault)
            return
        sequence = queue.claim()
        if sequence is None:
            resume = partial(self._on_slot_free, command, queue, self._clock.time)
            queue.wait_for_slot(board, command.line, resume)
            return
        self.run.issue_send(command, queue, sequence, (row, BY_ISSUE))
        board.now = row
        self.resume_program()

    def _on_slot_free(self, command: Command, queue: Queue, since: int, cause: Cause) -> None:
        head = queue.my_head
        sequence = None if self._returned else queue.claim()
        if self._queue_waited.listeners:
            self._emit_waited("send", command.name, head, command.line, since)
        if sequence is not None:
            board = self._board
            board.now, self._by = cause
            self.run.issue_send(command, queue, sequence, cause)
            board.now, self._by = cause
            self.resume_program()

    def _receive(self) -> None:
        """Put the request into effect: the kernel continues when a message has arrived."""
        if self._returned:
            return
        request: Any = self._request
        ipcq, nbytes, since = self._ipcq or self._queues, request.nbytes, self._clock.time
        self._board.now = self._issue
        try:
            if request.direction is None:
                on_receive = partial(self._deliver_message, request, since)
                slot = ipcq.receive_any(self._board, nbytes, request.line, on_receive)
            else:
                queue = find_queue(ipcq.node.id, ipcq.queues, request.direction, nbytes, sends=False)
                queue.receiver = self._board
                slot = queue.receive_next(self._receive_under_way)
        except KernelError as fault:
            self.fail(fault)
            return
        if slot is not None:
            self.resume_program(slot)

    def _on_message(self, slot: Slot | Exception | None, row: Row) -> None:
        """Continue the kernel with the slot of the awaited message, which arrived with ``row``.

        None for the slot: the message arrived before its receive takes effect.
        """
        receive = self._receive_under_way
        if slot is None:
            self._clock.at_place(receive.due_ps, receive.place, TAKE, self)
        elif isinstance(slot, Exception) or self._queue_waited.listeners:
            self._deliver_message(self._request, receive.due_ps, slot, row)
        else:
            self._board.now, self._by = row, BY_MESSAGE
            self.resume_program(slot)

    def take_message(self) -> None:
        """Put the receive into effect; its message has already arrived."""
        request = self._request
        if self._returned or not isinstance(request, Receive):
            return
        assert request.direction is not None
        self._board.now = self._issue
        try:
            slot = self._queues.queues[request.direction].slot_of(self._receive_under_way.sequence, request.nbytes)
        except KernelError as fault:
            self.fail(fault)
        else:
            self.resume_program(slot)

    def _deliver_message(self, request: Any, since: int, slot: Slot | Exception | None, row: Row) -> None:
        """Pass the awaited message to the kernel."""
        self.cause = row, By.MESSAGE
        if self._queue_waited.listeners:
            direction = slot.direction if isinstance(slot, Slot) else request.direction or "any"
            self._emit_waited("recv", direction, -1, request.line, since)
        if isinstance(slot, Exception):
            self.fail(slot)
        else:
            self.resume_program(slot)

    def _post(self) -> None:
        """Put the request into effect: the kernel continues with the slot of a message that may arrive later."""
        if self._returned:
            return
        command: Any = self._request
        ipcq, nbytes = self._ipcq or self._queues, command.nbytes
        self._board.now = self._issue
        try:
            queue = find_queue(ipcq.node.id, ipcq.queues, command.name, nbytes, sends=False)
            queue.receiver = self._board
            slot = queue.receive_ahead(nbytes, command.line, partial(self.run.on_message, command))
        except KernelError as fault:
            self.fail(fault)
            return
        if slot.pending:
            self.run.board.enter(command)
        self.resume_program(slot)

    def give_value(self) -> None:
        """Pass the requested numbers to the kernel, with their present values."""
        request = self._request
        if self._returned or not isinstance(request, ReadValue):
            return
        self._board.now = self._issue
        if request.expected is not None:
            self.resume_program(request.expected)
            return
        try:
            values = self.run.machine.values_of(request.array)
        except KernbenchError as fault:
            self.fail(fault)
        else:
            self.resume_program(values)

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in the kernel, from the call at which the kernel waits."""
        self._cancel_request()
        self.run.fail_next(error)
        self.resume_program()

    def _emit_waited(self, kind: WaitKind, direction: str, sequence: int, line: int, since: int) -> None:
        """Notify the listeners that the kernel has waited at a queue."""
        run = self.run
        launch = run.launch
        where = (run.coord, launch.kernel.name, launch.request_id, line, kind, direction, sequence)
        self._queue_waited.emit(QueueWaited(*where, since, self._clock.time))

    def _await_command(self, request: AwaitCommand) -> None:
        serial, under_way = request.serial, self._board.under_way
        self._stall_until(lambda: serial not in under_way, self.resume_program, By.OPERAND)

    def _await_space(self, request: AwaitSpace) -> None:
        under_way = len(self.run.board)
        since = self._clock.time
        self._stall_until(lambda: len(self.run.board) < under_way, partial(self._pass_space, request, since), By.SPACE)

    def _pass_space(self, request: AwaitSpace, since: int) -> None:
        hook, run = self.run.machine.hooks.scratch_waited, self.run
        if hook.listeners:
            launch = run.launch
            waited = (request.line, request.nbytes, since, self._clock.time)
            hook.emit(ScratchWaited(run.coord, launch.kernel.name, launch.request_id, *waited))
        self.resume_program()

    def _wait_at_barrier(self, request: Meet) -> None:
        if request.drains:
            self._stall_until(self._idle, partial(self._on_barrier, self), By.OPERAND)
        else:
            self._on_barrier(self)

    def _issue_fence(self, request: Fence) -> None:
        """Issue a fence. Its row stays open until the kernel continues."""
        log, launch = self.run.machine.log, self._launch_id
        start, cause = self._clock.time, self.cause
        if self._issue_slot is not None:
            start, cause = self._issue_slot.claim(start, self._issue_ps, cause, len(self._rows))
        end = start + self._issue_ps
        self._issue = log.open(self._part, Kind.FENCE, start, cause, launch=launch, line=request.line, read=end)
        self._clock.call_at(end, self._fence)

    def _fence(self, _: object) -> None:
        """Put a fence into effect: the kernel continues when its writes are in memory."""
        if not self._board.writes:
            self._pass_fence(NONE)
        else:
            # By a separate event: kernels do not run inside the actions of a memory.
            self._board.on_written = lambda row: self._clock.call_at(self._clock.time, self._pass_fence, row)

    def _pass_fence(self, last: Row) -> None:
        """Continue the kernel after a fence: all writes are in memory, the last by row ``last``."""
        self.run.machine.log.close(self._issue, self._clock.time, last)
        if not self._returned:
            self.cause = self._issue, By.FENCE
            self.resume_program()

    def _idle(self) -> bool:
        return not len(self.run.board)

    def _stall_until(self, holds: Callable[[], bool], then: Callable[[], None], by: By) -> None:
        """Call ``then``, with the reason ``by``, once ``holds()``; its value changes only when a command is done."""
        if holds():
            then()
            return

        def check() -> None:
            if holds():
                self.run.board.on_completion = None
                self._by = by
                then()

        self.run.board.on_completion = check

    def stop(self) -> None:
        """Stop the kernel where it is."""
        if not self._returned:
            self._cancel_request()
            self.cause = ROOT  # the host abandons the launch, whatever the simulation does
            self._return(AbandonedError("the kernel was stopped: its launch was abandoned"))
        if self._ipcq is not None:
            self._ipcq.cancel(self._board)

    def _cancel_request(self) -> None:
        """Withdraw the kernel's last request, which will not be issued."""
        if isinstance(self._request, Command):
            self.run.board.withdraw(self._request.serial)

    def _return(self, error: Exception | None) -> None:
        """End the program. The kernel makes no more requests, and ends when its commands are done."""
        self._returned = True
        self._error = error
        self.run.close()
        self._stall_until(self._idle, self._finish, By.OPERAND)

    def _finish(self) -> None:
        run = self.run
        error = self._error or run.take_failure()
        run.finish()
        now = self._clock.time
        report = PeReport(pe=run.coord, start_ps=self._start_ps, end_ps=now, late=self._late, error=error)
        last_credit = None if self._ipcq is None else self._ipcq.find_last_credit(self._board)
        # The end is reported only when the queues have all their credits.
        if last_credit is not None and last_credit[1][0] > now:
            queue, credit = last_credit
            self.cause = queue.log_credit(credit), By.CREDIT
            self._clock.call_at(credit[0], partial(self._on_finish, self._launch_id), report)
        else:
            self._on_finish(self._launch_id, report)

    # Requests without an issue row: waits that do not occupy the CPU, and fences.
    WAITS: ClassVar[dict[type, Callable[[Sequencer, Any], None]]] = {
        AwaitCommand: _await_command,
        AwaitSpace: _await_space,
        Meet: _wait_at_barrier,
        Fence: _issue_fence,
    }
    # The effects of requests that are not plain commands for an engine.
    EFFECTS: ClassVar[dict[type | Opcode, Callable[[Sequencer], None]]] = {
        SEND: _send,
        Receive: _receive,
        RECEIVE: _post,
        ReadValue: give_value,
    }

    def waits_for(self) -> str:
        """Return a text for a deadlock report: the kernel, its wait, and the commands that are not done."""
        cause = "its commands to end" if self._returned else awaited_by(self._request, self.run.place)
        launch = self.run.launch
        launched = f", launched at {launch.launched_at}," if launch.launched_at else ""
        text = f"kernel {launch.kernel.name!r}{launched} waits for {cause}"
        pending = self.run.under_way(None if self._returned else self._request)
        return f"{text}; in flight: {pending}" if pending else text


# Looked up once, like the command tables in ``dispatch``.
_WAITS = Sequencer.WAITS
_EFFECTS = Sequencer.EFFECTS
ISSUE = Sequencer.issue
TAKE = Sequencer.take_message
