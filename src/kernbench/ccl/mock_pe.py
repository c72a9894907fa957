"""A PE of the mock: its queues, and a kernel whose commands it carries out as soon as their operands are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kernbench.ccl.mock_memory import PeMemory
from kernbench.common.errors import IpcqError, KernelError
from kernbench.common.ids import pe_part
from kernbench.engine.queues import QueuePair, QueueWait, find_queue, find_ready, find_receivers, size_error
from kernbench.messages.commands import (
    MEMORY_WRITERS,
    AwaitCommand,
    AwaitSpace,
    Command,
    Fence,
    KernelRequest,
    LoadCommand,
    Meet,
    PeCommand,
    PrintCommand,
    ReadValue,
    Receive,
    RecvCommand,
    SendCommand,
    awaited_by,
)
from kernbench.messages.requests import PeCoord
from kernbench.triton_emu.kernel_run import KernelRun
from kernbench.triton_emu.places import Slot
from kernbench.triton_emu.schedule_run import ScheduleRun

_LATER: Final = object()
"""The answer to a request that cannot be answered yet"""
_MEMORY_COMMANDS = (LoadCommand, *MEMORY_WRITERS)
"""Those that access tensors: in program order where they touch the same bytes, as the machine's DMA has it"""


class MockQueues:
    """The queue pairs of PE ``pe``, whose rings lie in its TCM, in ``memory``; ``everywhere``: those of all PEs.

    What cannot be raises as on the machine.
    """

    def __init__(
        self,
        pe: PeCoord,
        pairs: Mapping[str, QueuePair],
        memory: PeMemory,
        everywhere: Mapping[PeCoord, MockQueues],
    ) -> None:
        self.pe = pe
        self.pairs = pairs
        self.memory = memory
        self._name = pe_part(*pe, "pe_ipcq")
        self._everywhere = everywhere
        self._turn = 0

    def pair(self, direction: str, nbytes: int, *, sends: bool) -> QueuePair:
        """The pair by which ``nbytes`` can be sent, or may come."""
        return find_queue(self._name, self.pairs, direction, nbytes, sends=sends)

    def whichever(self) -> QueuePair | None:
        """The next pair, in turn, that has a message to take."""
        receiving = find_receivers(self._name, self.pairs)
        found = find_ready(receiving, self._turn)
        if found is None:
            return None
        self._turn = found + 1
        return receiving[found]

    def take(self, pair: QueuePair, nbytes: int) -> Slot:
        """The slot of the kernel's next message; when that is there, it has to have ``nbytes``."""
        pending, sequence = not pair.ready, pair.take()
        if not pending:
            self.check_size(pair, sequence, nbytes)
        return Slot(pair.direction, "tcm", self.pe, pair.slot_pa(sequence), self, sequence, pending)

    def check_size(self, pair: QueuePair, sequence: int, nbytes: int) -> None:
        """KernelError when the message, which is there, has another size."""
        if pair.sizes[sequence] != nbytes:
            raise size_error(self._name, pair, sequence, nbytes)

    def free(self, slot: Slot, /) -> None:
        """Take ``slot`` back, and give its sender a credit."""
        pair = self.pairs[slot.direction]
        if pair.release(slot.sequence):
            self._everywhere[pair.peer.pe].pairs[pair.peer.direction].peer_tail_cache = pair.my_tail

    def deliver(self, pair: QueuePair, sequence: int, message: Any, nbytes: int) -> None:
        """Message number ``sequence`` comes to its slot of the peer."""
        pa, there = pair.peer_slot_pa(sequence), self._everywhere[pair.peer.pe]
        there.memory.put(pa, message)
        there.pairs[pair.peer.direction].arrive(sequence, pa, nbytes)

    def check_empty(self) -> None:
        """IpcqError when messages have come that the kernel never received."""
        left = [(pair.direction, pair.peer_head_cache - pair.taken, pair.peer.pe) for pair in self.pairs.values()]
        found = [f"{n} of queue {name} (from {pe_part(*pe, 'pe_ipcq')})" for name, n, pe in left if n]
        if found:
            raise IpcqError(f"{self._name}: the kernel has ended and left messages unreceived: {', '.join(found)}")


class MockPe:
    """Runs ``run`` on the PE of ``queues``; ``advance`` until it is ``finished``. ``name``: what it prints as."""

    def __init__(self, name: str, run: KernelRun | ScheduleRun, queues: MockQueues) -> None:
        self.pe = queues.pe
        self.queues = queues
        self.finished = False
        self._name = name
        self._run = run
        self._memory = queues.memory
        self._begun = False
        self._request: KernelRequest | None = None
        self._failure: KernelError | None = None
        self._under_way: dict[int, PeCommand] = {}
        self._messages: dict[int, tuple[QueuePair, int]] = {}  # of what is under way: those sent and received
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
        answer: object = None
        try:
            if self._request is not None:
                answer = self._answer(self._request)
        except KernelError as error:
            self._failure = error
            if isinstance(self._request, Command):
                self._run.completed(self._request.serial)
        if answer is _LATER:
            return False
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
        ready = True
        match request:
            case SendCommand(direction=direction, src=src):
                pair = self.queues.pair(direction, src.nbytes, sends=True)
                sequence = pair.claim()
                ready = sequence is not None
                if sequence is not None:
                    self._begin(request, pair, sequence)
            case RecvCommand(direction=direction, nbytes=nbytes):
                pair = self.queues.pair(direction, nbytes, sends=False)
                slot = self.queues.take(pair, nbytes)
                if slot.pending:
                    self._begin(request, pair, slot.sequence)
                return slot
            case Receive(direction, nbytes):
                awaited = self.queues.pair(direction, nbytes, sends=False) if direction else self.queues.whichever()
                return self.queues.take(awaited, nbytes) if awaited is not None and awaited.ready else _LATER
            case ReadValue(array):
                return self._memory.get(array)
            case AwaitCommand(serial):
                ready = serial not in self._under_way
            case AwaitSpace():
                ready = self._completions > self._seen
            case Meet():
                ready, self._released = self._released, False
            case Fence():
                ready = not any(isinstance(each, MEMORY_WRITERS) for each in self._under_way.values())
            case _:
                self._under_way[request.serial] = request
        return None if ready else _LATER

    def _begin(self, command: SendCommand | RecvCommand, pair: QueuePair, sequence: int) -> None:
        self._messages[command.serial] = (pair, sequence)
        self._under_way[command.serial] = command

    def _carry_out_ready(self) -> bool:
        """Carry out every command whose operands are there; whether there was one."""
        before = self._completions
        again = True
        while again:
            again = False
            held: list[PeCommand] = []  # accesses that come earlier and are not done
            for command in tuple(self._under_way.values()):
                if self._ready(command) and not any(self._memory.meet(command, each) for each in held):
                    self._carry_out(command)
                    again = True
                elif isinstance(command, _MEMORY_COMMANDS):
                    held.append(command)
        return self._completions > before

    def _ready(self, command: PeCommand) -> bool:
        if isinstance(command, RecvCommand):
            pair, sequence = self._messages[command.serial]
            return pair.peer_head_cache > sequence
        return not any(serial in self._under_way for serial in command.after)

    def _carry_out(self, command: PeCommand) -> None:
        match command:
            case SendCommand(serial=serial, src=src):
                self.queues.deliver(*self._messages.pop(serial), self._memory.get(src), src.nbytes)
            case RecvCommand():
                self._receive(command)
            case PrintCommand(parts=parts):
                print(f"{self._name}:", *(x if isinstance(x, str) else self._memory.get(x) for x in parts))
            case _:
                self._memory.carry_out(command)
        del self._under_way[command.serial]
        self._completions += 1
        self._run.completed(command.serial)

    def _receive(self, command: RecvCommand) -> None:
        try:
            self.queues.check_size(*self._messages.pop(command.serial), command.nbytes)
        except KernelError as error:
            error.add_note(self._run.place(command.line))
            self._failure = error

    @property
    def waiting(self) -> QueueWait | None:
        """The queue that the kernel waits for: where it stands, else the first receive that it posted."""
        posted = (command for command in self._under_way.values() if isinstance(command, RecvCommand))
        match self._request:
            case SendCommand(direction=direction, line=line):
                return QueueWait(pe=self.pe, kind="send", direction=direction, line=line)
            case Receive() as request:
                found: Receive | RecvCommand | None = request
            case _:
                found = next(posted, None)
        if found is None:
            return None
        return QueueWait(pe=self.pe, kind="recv", direction=found.direction, line=found.line)

    def waits_for(self) -> str:
        """What the kernel waits for, in words."""
        return "its commands to end" if self._request is None else awaited_by(self._request, self._run.place)
