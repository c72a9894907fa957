"""The controller of an HBM slice: it arbitrates between requesters, and supplies replies as bytes are granted.

Requesters are served round-robin, a quantum at a time, and the requests of each in order. A requester is a component
and one of its channels: the queues of a PE, or all other traffic.

A requester without competitors is granted its complete access at once. Such a grant is a *stretch*. If a request of
another requester arrives during a stretch, the stretch is cut after the current quantum. The slice then returns to its
state before the stretch, and repeats the quanta up to the cut. The times of these quanta remain valid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kernbench.common.values import state
from kernbench.components.hbm.banks import BankedMemory, Grant, Histories, SliceWork
from kernbench.components.hbm.ideal import Channels, IdealMemory
from kernbench.components.memory_server import Answering, pace_of
from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access, QueueData, ReadReply, ReadRequest, WriteData
from kernbench.transport import Port, Route, Supply, Transfer

if TYPE_CHECKING:
    from kernbench.engine.machine import Component, Machine
    from kernbench.topology.graph import Node


SliceMemory: TypeAlias = BankedMemory | IdealMemory
"""The memory of a slice: it serves grants, knows addresses but no requesters, and never changes its state in place"""


class Request:
    """An access, of which ``served`` bytes have been granted. The data of a write arrive from ``since`` on."""

    __slots__ = ("access", "requester", "served", "since", "write")

    def __init__(self, requester: Hashable, access: Access, write: bool, since: int) -> None:
        self.requester = requester
        self.access = access
        self.write = write
        self.since = since
        self.served = 0

    def begin(self, first: int, grant: Grant) -> None:
        """Receive a grant of bytes ``first`` … ``grant.end - 1``."""
        raise NotImplementedError

    def cut(self, end: int) -> None:
        """Cut the last grant: it is valid for bytes up to ``end`` only."""
        raise NotImplementedError

    def bytes_left_port(self, now: int) -> int:
        """Return the number of bytes that may have left by ``now``: a cut leaves the grant valid for these bytes."""
        return 0


class _OpenGrant(NamedTuple):
    """A stretch of several quanta, and the state that is needed to cut the stretch."""

    request: Request
    begin: int
    start_ps: int
    before: Any


class SliceArbiter:
    """The arbiter of one slice. ``over_ps``: the end of the grants made so far."""

    __slots__ = ("_clock", "_lines", "_memory", "_open", "_ring", "_turn_at", "over_ps")

    def __init__(self, memory: SliceMemory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self.over_ps = 0
        self._lines: dict[Hashable, deque[Request]] = {}
        self._ring: deque[Hashable] = deque()
        self._open: _OpenGrant | None = None
        self._turn_at = -1  # the time of the next grant, if requests wait

    def submit(self, request: Request) -> None:
        """Queue a request and grant it round-robin."""
        self._line_of(request).append(request)
        now = self._clock.time
        if self.over_ps > now:
            if self._open is not None and self._open.request.requester != request.requester:
                self._cut(self._open, now)
            self._await_turn()
        elif self._turn_at < 0:
            self._give_turn()

    def _await_turn(self) -> None:
        if self._turn_at != self.over_ps:
            self._turn_at = self.over_ps
            self._clock.call_at(self.over_ps, self._due, self.over_ps)

    def _due(self, when: int) -> None:
        if when == self._turn_at:
            self._turn_at = -1
            self._give_turn()

    def _give_turn(self) -> None:
        """Serve a quantum of the next requester, or all of its access if no other requester waits."""
        requester = self._ring.popleft()
        line = self._lines[requester]
        request = line[0]
        access, begin = request.access, request.served
        memory, now = self._memory, self._clock.time
        nbytes, quantum = access.rows * access.row_bytes, memory.quantum
        alone = not self._ring
        end = nbytes if alone else min(begin + quantum, nbytes)
        start = max(self.over_ps, request.since) if request.write else now
        self._open = None
        if end - begin > quantum:
            self._open = _OpenGrant(request, begin, start, memory.at)
        grant = memory.serve(access, request.write, begin, end, start)
        self.over_ps = max(grant.over_ps, now)
        request.served = end
        request.begin(begin, grant)
        if end == nbytes:
            line.popleft()
        if line:
            self._ring.append(requester)
        else:
            del self._lines[requester]
        if self._ring:
            self._await_turn()

    def _cut(self, promise: _OpenGrant, now: int) -> None:
        """End a stretch after the current quantum. The remaining access becomes the first of its requester again."""
        self._open = None
        memory, request = self._memory, promise.request
        memory.at = promise.before
        end = request.access.nbytes
        grant = memory.serve(
            request.access, request.write, promise.begin, end, promise.start_ps, now, request.bytes_left_port(now)
        )
        self.over_ps = max(grant.over_ps, now)
        if grant.end == end:
            return
        request.served = grant.end
        request.cut(grant.end)
        self._line_of(request).appendleft(request)

    def _line_of(self, request: Request) -> deque[Request]:
        """Return the waiting requests of a request's requester; a new requester joins the round-robin."""
        line = self._lines.get(request.requester)
        if line is None:
            line = self._lines[request.requester] = deque()
            self._ring.append(request.requester)
        return line


def idle_memory(machine: Machine, node: Node) -> SliceMemory:
    """Return the idle memory of a slice. All slices of a machine share the caches of accesses and histories."""
    hbm, banks = machine.spec.cube.hbm, machine.spec.cube.hbm.banks
    quantum = machine.spec.quantum_packets * machine.network.packet_bytes
    if banks is None:
        channels = machine.shared(Channels, lambda: Channels(hbm))
        return IdealMemory(channels, quantum, machine.spec.cube.pc_ps_per_byte)

    def make_histories() -> Histories:
        histories = Histories(banks, hbm.num_pcs, hbm.fields(banks), hbm.queue, hbm.refresh_mode)
        machine.caches.append(histories.forget)
        return histories

    kind = machine.shared(Histories, make_histories)
    return BankedMemory(kind, quantum, machine.addresses.base_of_slice(node))


class SliceController(Answering):
    """The controller of a slice."""

    __slots__ = ("_memory", "_outputs", "slice")

    def __init__(self, component: Component, access_ps: int) -> None:
        super().__init__(component, access_ps)
        self._memory = idle_memory(self.machine, component.node)
        self.slice = SliceArbiter(self._memory, self.clock)
        self._outputs: dict[str, _Output] = {}

    @property
    def work(self) -> SliceWork:
        """The bytes that the slice has read, written and held back so far, and the rows that it has opened."""
        return self._memory.work

    def _read(self, request: ReadRequest) -> None:
        self.machine.recorder.accessed(request.op, self.clock.time)
        self._memory.observed = self.machine.observation is not None
        requester = request.requester
        output = self._outputs.get(requester)
        if output is None:
            here = self.component.node.id
            port = self.machine.network.port(here, f"read {requester}")
            output = self._outputs[requester] = _Output(port, self.machine.route(here, requester))
        self.slice.submit(_Read(self, request, output))

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Serve the delivered data of a write, which have been arriving since the time of their head."""
        self._memory.observed = self.machine.observation is not None
        self.slice.submit(_Write(self, message, transfer.head_ps))

    def turned(self, request: Request, message: ReadRequest | WriteData, since: int, grant: Grant) -> None:
        """Notify the observer of a grant that a requester waited for from ``since`` on."""
        observation, took = self.machine.observation, self._memory.took
        if observation is not None and took is not None:
            end = max(since, grant.last_ps)
            start, split = took.split(since, end)
            waited = start > request.since or split.turning > 0
            observation.turn_in_banks(message, self.slice, (start, end), waited, split)

    def cut_short(self, message: ReadRequest | WriteData, since: int, end: int) -> None:
        """Notify the observer that a grant was cut, and ends at ``end``."""
        observation, took = self.machine.observation, self._memory.took
        if observation is not None and took is not None:
            start, split = took.split(since, end)
            observation.cut_in_banks(message, (start, max(end, start)), split)

    def commit_if(self, pending: tuple[_Write, int]) -> None:
        """Commit a write, unless its last grant has been cut."""
        write, promise = pending
        if write.promise == promise:
            self._commit(write.message)


@state
class _Output:
    """The route of the replies to a requester; at ``over_ps`` the last granted reply has been supplied."""

    port: Port
    route: Route
    over_ps: int = 0


class _Read(Request):
    """A read, whose reply is supplied by its grants. ``promised``: the supply of the last grant."""

    __slots__ = ("controller", "message", "output", "promised", "transfer", "waited_ps")

    promised: Supply
    waited_ps: int
    """The time at which the last grant was made, or at which the requester's earlier replies ended if that is later"""

    def __init__(self, controller: SliceController, message: ReadRequest, output: _Output) -> None:
        super().__init__((message.requester, False), message.access, False, controller.clock.time)
        self.controller = controller
        self.message = message
        self.output = output
        machine, reply = controller.machine, ReadReply(message.op, message.part)
        nbytes = message.access.rows * message.access.row_bytes
        self.transfer = machine.network.make(output.port, output.route, nbytes, machine.delivered, reply)

    def begin(self, first: int, grant: Grant) -> None:
        controller, output, nbytes = self.controller, self.output, grant.end - first
        network = controller.machine.network
        since = self.waited_ps = max(controller.clock.time, output.over_ps)
        start = max(grant.first_ps, since)
        end = output.over_ps = max(grant.last_ps, start)
        controller.turned(self, self.message, since, grant)
        packet = network.packet_bytes
        supply = Supply(first // packet, -(-nbytes // packet), start, pace_of(nbytes, packet, end - start))
        self.promised = supply
        if first:
            network.supply(self.transfer, supply)
        else:
            network.inject(self.transfer, supply)

    def cut(self, end: int) -> None:
        network, promised = self.controller.machine.network, self.promised
        count = end // network.packet_bytes
        self.output.over_ps = promised.start_ps + (count - promised.first) * promised.pace.packet_ps
        self.controller.cut_short(self.message, self.waited_ps, self.output.over_ps)
        network.curtail(self.transfer, count)

    def bytes_left_port(self, now: int) -> int:
        promised, packet = self.promised, self.controller.machine.network.packet_bytes
        if now < promised.start_ps:
            return 0
        packets = (now - promised.start_ps) // max(promised.pace.packet_ps, 1) + 1
        return (promised.first + packets) * packet


class _Write(Request):
    """A write, committed when all bytes are written (with banks: when all are queued). ``promise`` counts the cuts."""

    __slots__ = ("controller", "message", "promise")

    def __init__(self, controller: SliceController, message: WriteData, since: int) -> None:
        super().__init__((message.requester, isinstance(message, QueueData)), message.access, True, since)
        self.controller = controller
        self.message = message
        self.promise = 0

    def begin(self, first: int, grant: Grant) -> None:
        controller, clock = self.controller, self.controller.clock
        over = max(grant.last_ps, clock.time)
        if controller.machine.observation is not None:
            controller.turned(self, self.message, self.since, grant)
        if grant.end == self.access.nbytes:
            clock.call_at(over + controller.access_ps, controller.commit_if, (self, self.promise))

    def cut(self, end: int) -> None:
        self.promise += 1
        self.controller.cut_short(self.message, self.since, self.controller.slice.over_ps)
