"""A PE of the mock: it runs a kernel and carries out its commands as soon as their operands are there."""

from __future__ import annotations

from kernbench.ccl.mock_memory import MEMORY_COMMANDS, CommandUnit, MockTcm
from kernbench.ccl.mock_queues import MockQueues
from kernbench.common.errors import KernelError
from kernbench.engine.queue_state import QueuePair, QueueWait
from kernbench.messages.commands import (
    AwaitCommand,
    AwaitSpace,
    Command,
    KernelRequest,
    Meet,
    PeCommand,
    ReadValue,
    Receive,
    RecvCommand,
    SendCommand,
    awaited_by,
)
from kernbench.messages.requests import PeCoord
from kernbench.triton_emu.kernel_run import KernelRun
from kernbench.triton_emu.places import ReceivedSlot
from kernbench.triton_emu.schedule_run import ScheduleRun


class _Later(Exception):  # noqa: N818 - a signal of this module, not an error
    """The request cannot be answered yet."""


class MockPe:
    """Runs ``run`` on PE ``pe``; ``advance`` until it is ``finished``."""

    def __init__(
        self, pe: PeCoord, run: KernelRun | ScheduleRun, queues: MockQueues, unit: CommandUnit, tcm: MockTcm
    ) -> None:
        self.pe = pe
        self.queues = queues
        self.finished = False
        self._run = run
        self._unit = unit
        self._tcm = tcm
        self._begun = False
        self._request: KernelRequest | None = None
        self._failure: KernelError | None = None
        self._under_way: dict[int, PeCommand] = {}
        self._claims: dict[int, tuple[QueuePair, int]] = {}
        self._posted: dict[int, tuple[QueuePair, int]] = {}
        self._awaited: tuple[QueuePair, int] | None = None
        self._completions = 0
        self._seen = 0
        self._released = False

    @property
    def at_barrier(self) -> bool:
        """Whether the kernel waits for its mates, all its commands done."""
        return isinstance(self._request, Meet) and not self._under_way and not self._released

    def release(self) -> None:
        """All mates have come to the barrier."""
        self._released = True

    def close(self) -> None:
        """End the kernel if it has not ended."""
        self._run.close()

    def advance(self) -> bool:
        """Run until the kernel has to wait for another PE; whether anything happened. Raises what the kernel raises."""
        moved = not self.finished and self._carry_out_ready()
        while not self.finished and self._step():
            moved = True
            self._carry_out_ready()
        return moved

    def _step(self) -> bool:
        """Answer the kernel's request if that can be done now, and run it to its next one."""
        if self._begun and self._request is None:
            return self._finish()
        try:
            answer = self._answer(self._request) if self._request is not None else None
        except _Later:
            return False
        except KernelError as error:
            self._failure = error
            answer = None
            if isinstance(self._request, Command):
                self._run.completed(self._request.serial)
        self._begun, failure, self._failure = True, self._failure, None
        self._request = self._run.resume(answer) if failure is None else self._run.throw(failure)
        self._seen = self._completions
        return True

    def _finish(self) -> bool:
        """The kernel has returned: it ends with its last command."""
        if self._failure is not None:
            raise self._failure
        if self._under_way:
            return False
        self._run.close()
        self.finished = True
        return True

    def _answer(self, request: KernelRequest) -> object:
        match request:
            case SendCommand():
                self._claim(request)
            case RecvCommand():
                return self._post(request)
            case Receive(None, nbytes):
                return self._receive_any(nbytes)
            case Receive():
                return self._receive(request)
            case AwaitCommand(serial):
                self._later_unless(serial not in self._under_way)
            case ReadValue(array):
                return self._tcm.view(array).copy()
            case AwaitSpace():
                self._later_unless(self._completions > self._seen)
            case Meet():
                self._later_unless(self._released)
                self._released = False
            case _:
                self._under_way[request.serial] = request
        return None

    def _later_unless(self, now: bool) -> None:
        if not now:
            raise _Later

    def _claim(self, command: SendCommand) -> None:
        pair = self.queues.to_send(command.direction, command.src.nbytes)
        sequence = pair.claim()
        if sequence is None:
            raise _Later
        self._claims[command.serial] = (pair, sequence)
        self._under_way[command.serial] = command

    def _post(self, command: RecvCommand) -> ReceivedSlot:
        pair = self.queues.to_receive(command.direction, command.nbytes)
        pending, sequence = not pair.ready, pair.take()
        if pending:
            self._posted[command.serial] = (pair, sequence)
            self._under_way[command.serial] = command
        else:
            self.queues.check_size(pair, sequence, command.nbytes)
        return self.queues.slot(pair, sequence, pending)

    def _receive_any(self, nbytes: int) -> ReceivedSlot:
        pair = self.queues.whichever()
        if pair is None:
            raise _Later
        sequence = pair.take()
        self.queues.check_size(pair, sequence, nbytes)
        return self.queues.slot(pair, sequence)

    def _receive(self, request: Receive) -> ReceivedSlot:
        assert request.direction is not None
        if self._awaited is None:
            pair = self.queues.to_receive(request.direction, request.nbytes)
            self._awaited = (pair, pair.take())
        pair, sequence = self._awaited
        self._later_unless(pair.peer_head_cache > sequence)
        self._awaited = None
        self.queues.check_size(pair, sequence, request.nbytes)
        return self.queues.slot(pair, sequence)

    def _carry_out_ready(self) -> bool:
        """Carry out every command whose operands are there; whether there was one."""
        before = self._completions
        again = True
        while again:
            again = False
            held: list[PeCommand] = []  # accesses that come earlier and are not done
            for command in tuple(self._under_way.values()):
                if self._ready(command) and not any(self._unit.meet(command, each) for each in held):
                    self._carry_out(command)
                    again = True
                elif isinstance(command, MEMORY_COMMANDS):
                    held.append(command)
        return self._completions > before

    def _ready(self, command: PeCommand) -> bool:
        if isinstance(command, RecvCommand):
            pair, sequence = self._posted[command.serial]
            return pair.peer_head_cache > sequence
        return not any(serial in self._under_way for serial in command.after)

    def _carry_out(self, command: PeCommand) -> None:
        if isinstance(command, SendCommand):
            pair, sequence = self._claims.pop(command.serial)
            self.queues.deliver(pair, sequence, self._tcm.window(command.src.address, command.src.nbytes))
        elif isinstance(command, RecvCommand):
            self._received(command)
        else:
            self._unit.carry_out(command)
        del self._under_way[command.serial]
        self._completions += 1
        self._run.completed(command.serial)

    def _received(self, command: RecvCommand) -> None:
        try:
            self.queues.check_size(*self._posted.pop(command.serial), command.nbytes)
        except KernelError as error:
            self._failure = error

    @property
    def waiting(self) -> QueueWait | None:
        """The queue that the kernel waits for: where it stands, else the first receive that it posted."""
        match self._request:
            case SendCommand(direction=direction, line=line):
                return QueueWait(pe=self.pe, kind="send", direction=direction, line=line)
            case Receive(direction, _, line):
                return QueueWait(pe=self.pe, kind="recv", direction=direction, line=line)
        for serial, (pair, _) in self._posted.items():
            line = self._under_way[serial].line
            return QueueWait(pe=self.pe, kind="recv", direction=pair.direction, line=line)
        return None

    def waits_for(self) -> str:
        """What the kernel waits for, in words."""
        return "its commands to end" if self._request is None else awaited_by(self._request, self._run.place)
