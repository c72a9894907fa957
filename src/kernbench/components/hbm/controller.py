"""Between the fabric and a slice with banks: requests take turns, and what they are promised feeds the replies.

A requester is a part and one of its channels: the queues of a PE, or all else. Its replies leave in the order it asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.components.hbm.banked import BankedMemory, Stretch
from kernbench.components.hbm.slice import Request, Slice
from kernbench.components.memory_service import pace_of
from kernbench.components.responder import Answering
from kernbench.messages.fabric import QueueData, ReadRequest, WriteData
from kernbench.topology.hbm_timing import HbmTiming
from kernbench.topology.spec import TopologySpec
from kernbench.transport import Port, Supply, Transfer

if TYPE_CHECKING:
    from kernbench.engine.machine import Component


def banked_memory(spec: TopologySpec, banks: HbmTiming) -> BankedMemory:
    """A slice of a machine whose banks have these timings, idle."""
    hbm = spec.cube.hbm
    quantum = spec.quantum_packets * spec.transport.packet_bytes
    return BankedMemory(banks, hbm.num_pcs, hbm.fields(banks), hbm.queue, quantum)


class BankedController(Answering):
    """Answers for a slice whose banks have these timings."""

    __slots__ = ("_ports", "memory", "slice")

    def __init__(self, component: Component, banks: HbmTiming, access_ps: int) -> None:
        super().__init__(component, access_ps)
        self.memory = banked_memory(self.machine.spec, banks)
        self.slice = Slice(self.memory, self.clock)
        self._ports: dict[str, Port] = {}

    def _read(self, request: ReadRequest) -> None:
        self.machine.recorder.accessed(request.op, self.clock.time)
        requester = request.requester
        port = self._ports.get(requester)
        if port is None:
            port = self._ports[requester] = self.machine.network.port(self.component.node.id, f"read {requester}")
        self.slice.submit(_Read(self, request, self.make_reply(port, request)))

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Take data that have been delivered: they came from the head's time on."""
        self.slice.submit(_Write(self, message, transfer.head_ps))

    def commit_if(self, what: tuple[_Write, int]) -> None:
        """Commit a write if what it was promised still stands."""
        write, promise = what
        if write.promise == promise:
            self._commit(write.message)


class _Read(Request):
    """The bytes of its turns feed the reply."""

    __slots__ = ("controller", "message", "supplies", "transfer")

    def __init__(self, controller: BankedController, message: ReadRequest, transfer: Transfer) -> None:
        super().__init__((message.requester, False), message.access, False, 0)
        self.controller = controller
        self.message = message
        self.transfer = transfer
        self.supplies: list[Supply] = []

    def begin(self, first: int, stretch: Stretch) -> None:
        network, nbytes = self.controller.machine.network, stretch.end - first
        start = stretch.first_ps
        if self.supplies:
            before = self.supplies[-1]
            start = max(start, before.start_ps + before.count * before.pace.packet_ps)
        end = max(stretch.last_ps, start)
        self.controller.served(self.message.op, False, start, end)
        packet = network.packet_bytes
        supply = Supply(first // packet, -(-nbytes // packet), start, pace_of(nbytes, packet, end - start))
        self.supplies.append(supply)
        if first:
            network.supply(self.transfer, supply)
        else:
            network.inject(self.transfer, supply)

    def cut(self, end: int) -> None:
        network, promised = self.controller.machine.network, self.supplies[-1]
        count = end // network.packet_bytes
        self.supplies[-1] = Supply(promised.first, count - promised.first, promised.start_ps, promised.pace)
        network.curtail(self.transfer, count)

    def gone(self, now: int) -> int:
        promised, packet = self.supplies[-1], self.controller.machine.network.packet_bytes
        if now < promised.start_ps:
            return 0
        packets = (now - promised.start_ps) // max(promised.pace.packet_ps, 1) + 1
        return (promised.first + packets) * packet


class _Write(Request):
    """Committed when all of its bytes are in the queues of the banks. ``promise`` counts the cuts."""

    __slots__ = ("controller", "message", "promise")

    def __init__(self, controller: BankedController, message: WriteData, since: int) -> None:
        super().__init__((message.requester, isinstance(message, QueueData)), message.access, True, since)
        self.controller = controller
        self.message = message
        self.promise = 0

    def begin(self, first: int, stretch: Stretch) -> None:
        controller, clock = self.controller, self.controller.clock
        over = max(stretch.over_ps, clock.time)
        controller.served(self.message.op, True, min(stretch.first_ps, over), over)
        if stretch.end == self.access.nbytes:
            clock.call_at(over + controller.access_ps, controller.commit_if, (self, self.promise))

    def cut(self, end: int) -> None:
        self.promise += 1
