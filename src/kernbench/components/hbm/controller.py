"""Between the fabric and a slice of HBM: requests take turns, and what they are promised feeds the replies.

A requester is a part and one of its channels: the queues of a PE, or all else. Its replies leave in the order it asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.common.values import state
from kernbench.components.hbm.banked import BankedMemory, Stretch
from kernbench.components.hbm.channels import Channels
from kernbench.components.hbm.ideal import IdealMemory
from kernbench.components.hbm.layout import Layout
from kernbench.components.hbm.plan import Planner
from kernbench.components.hbm.slice import Memory, Request, Slice
from kernbench.components.memory_server import Answering, pace_of
from kernbench.messages.fabric import QueueData, ReadReply, ReadRequest, WriteData
from kernbench.transport import Port, Route, Supply, Transfer

if TYPE_CHECKING:
    from kernbench.engine.machine import Machine
    from kernbench.engine.part import Component


def idle_memory(machine: Machine) -> Memory:
    """A slice of this machine, idle. What is known of accesses by their addresses, all slices share."""
    hbm, banks = machine.spec.cube.hbm, machine.spec.cube.hbm.banks
    quantum = machine.spec.quantum_packets * machine.network.packet_bytes
    if banks is None:
        channels = machine.shared(Channels, lambda: Channels(hbm))
        return IdealMemory(channels, quantum, machine.spec.cube.pc_ps_per_byte)
    mapping = hbm.fields(banks)
    planner = machine.shared(Planner, lambda: Planner(Layout(banks, hbm.num_pcs, mapping)))
    return BankedMemory(banks, hbm.num_pcs, mapping, hbm.queue, quantum, planner)


class SliceController(Answering):
    """Answers for a slice."""

    __slots__ = ("_memory", "_outputs", "slice")

    def __init__(self, component: Component, access_ps: int) -> None:
        super().__init__(component, access_ps)
        self._memory = idle_memory(self.machine)
        self.slice = Slice(self._memory, self.clock)
        self._outputs: dict[str, _Output] = {}

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
        """Take data that have been delivered: they came from the head's time on."""
        self._memory.observed = self.machine.observation is not None
        self.slice.submit(_Write(self, message, transfer.head_ps))

    def turned(self, request: Request, message: ReadRequest | WriteData, since: int, stretch: Stretch) -> None:
        """Tell who observes it of a turn that a requester waited for from ``since`` on."""
        observation, took = self.machine.observation, self._memory.took
        if observation is not None and took is not None:
            end = max(since, stretch.last_ps)
            start, split = took.split(since, end)
            observation.turn_in_banks(message, self.slice, (start, end), start > request.since, split)

    def cut_short(self, message: ReadRequest | WriteData, since: int, end: int) -> None:
        """Tell who observes it that a turn is over earlier than it was to be."""
        observation, took = self.machine.observation, self._memory.took
        if observation is not None and took is not None:
            start, split = took.split(since, end)
            observation.cut_in_banks(message, (start, max(end, start)), split)

    def commit_if(self, what: tuple[_Write, int]) -> None:
        """Commit a write if what it was promised still stands."""
        write, promise = what
        if write.promise == promise:
            self._commit(write.message)


@state
class _Output:
    """The way of the replies to a requester, and when what was promised of them has come: they come in their order."""

    port: Port
    route: Route
    over_ps: int = 0


class _Read(Request):
    """The bytes of its turns feed the reply. ``promised``: what the last one did."""

    __slots__ = ("controller", "message", "output", "promised", "transfer", "waited_ps")

    promised: Supply
    waited_ps: int
    """Once it has begun; since when nothing of its own was in its way"""

    def __init__(self, controller: SliceController, message: ReadRequest, output: _Output) -> None:
        # As Request has it, once more: a call for each would be dear.
        self.requester = message.requester, False
        self.access = access = message.access
        self.write = False
        self.since = controller.clock.time
        self.served = 0
        self.controller = controller
        self.message = message
        self.output = output
        machine, reply = controller.machine, ReadReply(message.op, message.part)
        nbytes = access.rows * access.row_bytes
        self.transfer = machine.network.make(output.port, output.route, nbytes, machine.delivered, reply)

    def begin(self, first: int, stretch: Stretch) -> None:
        controller, output, nbytes = self.controller, self.output, stretch.end - first
        network = controller.machine.network
        since = self.waited_ps = max(controller.clock.time, output.over_ps)
        start = max(stretch.first_ps, since)
        end = output.over_ps = max(stretch.last_ps, start)
        if controller.machine.observation is not None:
            controller.turned(self, self.message, since, stretch)
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

    def gone(self, now: int) -> int:
        promised, packet = self.promised, self.controller.machine.network.packet_bytes
        if now < promised.start_ps:
            return 0
        packets = (now - promised.start_ps) // max(promised.pace.packet_ps, 1) + 1
        return (promised.first + packets) * packet


class _Write(Request):
    """Committed when all of its bytes are written, of banks in their queues. ``promise`` counts the cuts."""

    __slots__ = ("controller", "message", "promise")

    def __init__(self, controller: SliceController, message: WriteData, since: int) -> None:
        self.requester = message.requester, isinstance(message, QueueData)
        self.access = message.access
        self.write = True
        self.since = since
        self.served = 0
        self.controller = controller
        self.message = message
        self.promise = 0

    def begin(self, first: int, stretch: Stretch) -> None:
        controller, clock = self.controller, self.controller.clock
        over = max(stretch.last_ps, clock.time)
        if controller.machine.observation is not None:
            controller.turned(self, self.message, self.since, stretch)
        if stretch.end == self.access.nbytes:
            clock.call_at(over + controller.access_ps, controller.commit_if, (self, self.promise))

    def cut(self, end: int) -> None:
        self.promise += 1
        self.controller.cut_short(self.message, self.since, self.controller.slice.over_ps)
