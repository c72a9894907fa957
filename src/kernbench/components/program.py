"""A kernel as the CPU of a PE runs it: one request after another, and the waits between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kernbench.common.errors import AbandonedError, KernelError
from kernbench.common.ids import pe_name
from kernbench.components.execution import KernelExecution
from kernbench.components.pe_ipcq import PeIpcq
from kernbench.messages.commands import (
    AwaitCommand,
    AwaitSpace,
    Issue,
    Meet,
    PostReceive,
    Receive,
    Send,
    SendCommand,
)
from kernbench.messages.control import PeOrder, PeReport
from kernbench.sim_engine.hooks import QueueWaited, ScratchWaited
from kernbench.sim_engine.queue_state import QueuePair, QueueWait, WaitKind
from kernbench.triton_emu.slots import Slot


class KernelProgram:
    """Runs the kernel of ``order``: every command takes ``issue_ps``, and has its effect at the end of it.

    ``meet(program)`` is called when the kernel has come to a barrier, ``over(report)`` when all is done.
    """

    def __init__(
        self,
        run: KernelExecution,
        order: PeOrder,
        issue_ps: int,
        meet: Callable[[KernelProgram], None],
        over: Callable[[PeReport], None],
    ) -> None:
        self.run = run
        self.order = order
        self._clock = run.clock
        self._issue_ps = issue_ps
        self._meet = meet
        self._over = over
        self._waits_at = "has not begun"
        self._error: Exception | None = None
        self._returned = False
        self._ipcq: PeIpcq | None = None
        self._serve_by: dict[type, Callable[[Any], None]] = {
            Issue: self._issue,
            Send: self._send,
            Receive: self._receive,
            PostReceive: self._post,
            AwaitCommand: self._await_command,
            AwaitSpace: self._await_space,
            Meet: self._come_to_barrier,
        }
        self._late = run.clock.time > order.start_ps
        self._start_ps = max(run.clock.time, order.start_ps)

    def begin(self, launch_ps: int) -> None:
        """Run the kernel ``launch_ps`` after its start."""
        self._clock.call_at(self._start_ps + launch_ps, self.go_on)

    def go_on(self, answer: object = None) -> None:
        """The kernel gets ``answer`` to its last request, and makes its next."""
        if self._returned:
            return
        try:
            request = self.run.resume(answer)
        except Exception as failure:
            failure.add_note(f"on {pe_name(self.run.coord)}, kernel {self.run.launch.kernel.name!r}")
            self._return(failure)
            return
        if request is None:
            self._return(None)
        elif type(request) in _ISSUED:
            self._clock.call_at(self._clock.time + self._issue_ps, self._serve, request)
        else:
            self._serve(request)

    def _serve(self, request: Any) -> None:
        if not self._returned:
            self._serve_by[type(request)](request)

    def _issue(self, request: Issue) -> None:
        self.run.issue(request.command)
        self.go_on()

    @property
    def _queues(self) -> PeIpcq:
        """The queues of the PE, which the kernel uses from now on."""
        if self._ipcq is None:
            self._ipcq = self.run.parts.ipcq
        return self._ipcq

    def _send(self, request: Send) -> None:
        command = request.command
        try:
            pair = self._queues.pair_to_send(command.direction, command.src.nbytes)
        except KernelError as fault:
            self.fail(fault)
            return
        if pair.full:
            self._wait_at("send", command.direction, command.line)
            self._queues.when_free(pair, partial(self._slot_free, command, pair, self._clock.time))
        else:
            self._claim(command, pair)

    def _slot_free(self, command: SendCommand, pair: QueuePair, since: int) -> None:
        self._waited("send", pair.direction, pair.my_head, command.line, since)
        if not self._returned:
            self._claim(command, pair)

    def _claim(self, command: SendCommand, pair: QueuePair) -> None:
        sequence, pa = pair.claim()
        self.run.issue(command, (pair, sequence, pa))
        self.go_on()

    def _receive(self, request: Receive) -> None:
        ipcq, since = self._queues, self._clock.time
        try:
            if request.direction is None:
                slot = ipcq.receive_any(request.nbytes, partial(self._message, request, since))
            else:
                slot = ipcq.receive_next(
                    request.direction, request.nbytes, request.line, partial(self._message, request, since)
                )
        except KernelError as fault:
            self.fail(fault)
            return
        if slot is None:
            self._wait_at("recv", request.direction, request.line)
        else:
            self.go_on(slot)

    def _message(self, request: Receive, since: int, found: Slot | Exception) -> None:
        direction = found.direction if isinstance(found, Slot) else request.direction or "any"
        self._waited("recv", direction, -1, request.line, since)
        if isinstance(found, Exception):
            self.fail(found)
        else:
            self.go_on(found)

    def _post(self, request: PostReceive) -> None:
        command = request.command
        try:
            slot = self._queues.post(
                command.direction, command.nbytes, command.line, partial(self.run.received, command)
            )
        except KernelError as fault:
            self.fail(fault)
            return
        if slot.pending:
            self.run.board.issue(command)
        self.go_on(slot)

    def fail(self, error: Exception) -> None:
        """The call that the kernel waits in raises ``error``."""
        self.run.fail_next(error)
        self.go_on()

    def _wait_at(self, kind: WaitKind, direction: str | None, line: int) -> None:
        queue = "any queue" if direction is None else f"queue {direction}"
        what = "a slot" if kind == "send" else "a message"
        self._waits_at = f"{what} of {queue}, at line {line}"
        self._queues.waiting_for = QueueWait(pe=self.run.coord, kind=kind, direction=direction, line=line)

    def _waited(self, kind: WaitKind, direction: str, sequence: int, line: int, since: int) -> None:
        run = self.run
        self._queues.waiting_for = None
        self._waits_at = "runs"
        hook = run.machine.hooks.queue_waited
        if hook.listeners:
            launch = run.launch
            where = (run.coord, launch.kernel.name, launch.request_id, line, kind, direction, sequence)
            hook.emit(QueueWaited(*where, since, self._clock.time))

    def _await_command(self, request: AwaitCommand) -> None:
        self._waits_at = f"the command that line {request.line} waits for"
        self._until(lambda: request.serial not in self.run.board, self.go_on)

    def _await_space(self, request: AwaitSpace) -> None:
        self._waits_at = f"{request.nbytes} bytes of scratch at line {request.line}"
        under_way = len(self.run.board)
        since = self._clock.time
        self._until(lambda: len(self.run.board) < under_way, partial(self._space, request, since))

    def _space(self, request: AwaitSpace, since: int) -> None:
        hook, run = self.run.machine.hooks.scratch_waited, self.run
        if hook.listeners:
            launch = run.launch
            waited = (request.line, request.nbytes, since, self._clock.time)
            hook.emit(ScratchWaited(run.coord, launch.kernel.name, launch.request_id, *waited))
        self.go_on()

    def _come_to_barrier(self, request: Meet) -> None:
        self._waits_at = f"barrier at line {request.line}"
        self._until(self._idle, partial(self._meet, self))

    def _idle(self) -> bool:
        return not len(self.run.board)

    def _until(self, holds: Callable[[], bool], then: Callable[[], None]) -> None:
        """Go on with ``then`` once ``holds``, which changes only when a command is done."""
        if holds():
            then()
            return

        def look() -> None:
            if holds():
                self.run.on_completion = None
                then()

        self.run.on_completion = look

    def stop(self) -> None:
        """End the kernel where it is."""
        if not self._returned:
            self._return(AbandonedError("the kernel was stopped: its launch was abandoned"))
        if self._ipcq is not None:
            self._ipcq.cancel()

    def _return(self, error: Exception | None) -> None:
        """The kernel makes no more requests; it is over when its commands are done."""
        self._returned = True
        self._error = error
        self._waits_at = "its commands to end"
        if self._ipcq is not None:
            self._ipcq.waiting_for = None
        self.run.close()
        self._until(self._idle, self._finish)

    def _finish(self) -> None:
        run = self.run
        error = self._error or run.late_failure()
        run.finish()
        self._over(
            PeReport(pe=run.coord, start_ps=self._start_ps, end_ps=self._clock.time, late=self._late, error=error)
        )

    def waits_for(self) -> str:
        """For a deadlock report: the kernel, what it waits for, the commands that are not done."""
        text = f"kernel {self.run.launch.kernel.name!r} waits for {self._waits_at}"
        pending = self.run.under_way()
        return f"{text}; under way: {pending}" if pending else text


_ISSUED = frozenset((Issue, Send, Receive, PostReceive))
"""Requests that take the CPU's time to issue"""
