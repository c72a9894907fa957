"""A running kernel at its PE's queues: where it waits for slots and for messages."""

from __future__ import annotations

from collections.abc import Callable, Generator

import simpy

from kernbench.components.pe_ipcq import PeIpcq
from kernbench.messages.commands import Receive, RecvCommand, SendCommand
from kernbench.messages.requests import KernelLaunchMsg
from kernbench.sim_engine.hooks import QueueWaited
from kernbench.sim_engine.queue_state import QueuePair, QueueWait, WaitKind
from kernbench.triton_emu.slots import Slot


class KernelQueues:
    """What the kernel of ``launch`` does with the queues of its PE. Raises KernelError for what it must not do."""

    def __init__(self, ipcq: PeIpcq, launch: KernelLaunchMsg) -> None:
        self._ipcq = ipcq
        self._launch = launch
        self._claims: dict[int, tuple[QueuePair, tuple[int, int]]] = {}

    def claim(self, command: SendCommand) -> Generator[simpy.Event, object, tuple[int, int]]:
        """Wait until the peer has a free slot, and take it: (sequence number, physical address)."""
        ipcq = self._ipcq
        pair = ipcq.pair_to_send(command.direction, command.src.nbytes)
        start = ipcq.clock.time
        while pair.full:
            ipcq.waiting_for = self._wait("send", command.direction, command.line)
            yield ipcq.slot_free(pair)
            ipcq.waiting_for = None
        claim = pair.claim()
        self._claims[command.serial] = (pair, claim)
        if ipcq.clock.time > start:
            self._waited("send", pair.direction, claim[0], command.line, start)
        return claim

    def _wait(self, kind: WaitKind, direction: str | None, line: int) -> QueueWait:
        return QueueWait(pe=self._ipcq.coord, kind=kind, direction=direction, line=line)

    def claimed(self, command: SendCommand) -> tuple[int, int]:
        """The slot that ``claim`` took for a send: (sequence number, physical address)."""
        return self._claims[command.serial][1]

    def peer_of(self, command: SendCommand) -> QueuePair:
        """The pair that a send goes by."""
        return self._claims[command.serial][0]

    def send(self, op: int, command: SendCommand, done: Callable[[], None]) -> None:
        """Write the message of a send that has its slot; ``done`` when it is delivered."""
        pair, claim = self._claims.pop(command.serial)
        self._ipcq.send(op, pair, claim, command.src.nbytes, done)

    def receive(self, request: Receive) -> Generator[simpy.Event, object, Slot]:
        """Wait for the next message of a queue, or of any."""
        ipcq = self._ipcq
        start = ipcq.clock.time
        if request.direction is None:
            found = ipcq.receive_any(request.nbytes)
            if isinstance(found, Slot):
                return found
            slot = yield from self._until(found, request)
            assert isinstance(slot, Slot)
        else:
            here = ipcq.clock.event()
            slot = ipcq.receive_next(request.direction, request.nbytes, request.line, here.succeed)
            if not slot.pending:
                return slot
            yield from self._until(here, request)
        self._waited("recv", slot.direction, -1, request.line, start)
        return slot

    def _until(self, event: simpy.Event, request: Receive) -> Generator[simpy.Event, object, object]:
        """Wait for ``event``; raises its value if that is an error."""
        self._ipcq.waiting_for = self._wait("recv", request.direction, request.line)
        value = yield event
        self._ipcq.waiting_for = None
        if isinstance(value, Exception):
            raise value
        return value

    def post(self, command: RecvCommand, done: Callable[[Exception | None], object]) -> Slot:
        """Take the next message of a queue, which may be yet to come: then ``done`` is called when it has."""
        return self._ipcq.receive_next(command.direction, command.nbytes, command.line, done)

    def stop(self) -> None:
        """The kernel is over before its time: it waits for nothing any more."""
        self._ipcq.waiting_for = None
        self._ipcq.cancel_receives()

    def _waited(self, kind: WaitKind, direction: str, sequence: int, line: int, start: int) -> None:
        hook = self._ipcq.machine.hooks.queue_waited
        if hook.listeners:
            launch = self._launch
            where = (self._ipcq.coord, launch.kernel.name, launch.request_id, line, kind, direction, sequence)
            hook.emit(QueueWaited(*where, start, self._ipcq.clock.time))
