"""The DMA of a PE: descriptors of its own kernel, and the way by which others reach its TCM.

Two virtual channels, ``compute`` and ``queue``, are two ports on the fabric and interleave per packet. Each takes
``setup_ns`` (and the MMU's look-up) per descriptor, one after another; transfers overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kernbench.common.errors import UnsupportedError
from kernbench.common.ids import pe_part
from kernbench.components.initiator import Initiator, Target
from kernbench.components.pe_tcm import PeTcm
from kernbench.components.responder import Responder
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Done, Machine, Outcome
from kernbench.engine.queue_state import QueuePart
from kernbench.messages.fabric import Access, QueueArrival, QueueData, ReadReply, ReadRequest, WriteAck, WriteData
from kernbench.messages.requests import HostMsg, PeDmaMsg
from kernbench.topology.graph import Node
from kernbench.transport import Transfer


class DmaChannel:
    """One virtual channel: sets descriptors up one at a time, then reads or writes."""

    __slots__ = ("_clock", "_ready_at", "_setup_ps", "initiator", "port")

    def __init__(self, dma: PeDma, name: str, setup_ps: int) -> None:
        self._clock = dma.clock
        self._setup_ps = setup_ps
        self._ready_at = 0
        self.initiator = Initiator(dma, name)
        self.port = dma.machine.network.port(dma.node.id, name)

    def start(
        self, op: int, reading: bool, targets: Sequence[Target], begun: Callable[[int], None], done: Callable[[], None]
    ) -> None:
        """Queue a descriptor; ``begun(now)`` when its set-up begins, ``done()`` when all of it is acknowledged."""
        begin = max(self._ready_at, self._clock.time)
        self._ready_at = begin + self._setup_ps
        move = self.initiator.read if reading else self.initiator.write

        def go(_: object) -> None:
            if reading:
                begun(begin)
            move(op, targets, done)

        if not reading:  # what is written is read when the set-up begins: then, not later, others may look
            if begin > self._clock.time:
                self._clock.call_at(begin, lambda _: begun(begin))
            else:
                begun(begin)
        self._clock.call_at(self._ready_at, go)

    def post(self, after_ps: int, ready: Callable[[Any], None], posting: object) -> None:
        """Queue a descriptor that comes in ``after_ps``: ``ready(posting)`` when it can go on the ``port``."""
        clock = self._clock
        begin = clock.time + after_ps
        begin = begin if begin > self._ready_at else self._ready_at
        self._ready_at = ready_at = begin + self._setup_ps
        clock.call_at(ready_at, ready, posting)


@register("builtin.pe_dma", kind="pe_dma")
class PeDma(Component):
    """Moves data between this PE's TCM and any memory, and answers for the TCM."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        setup_ps = machine.spec.pe.descriptor_ps
        self.compute = DmaChannel(self, "compute", setup_ps)
        self.queue = DmaChannel(self, "queue", setup_ps)
        tcm = machine.part(pe_part(*node.pe_coord, "pe_tcm"), PeTcm)
        self._responder = Responder(
            self,
            reads=tcm.read_port,
            writes=tcm.write_port,
            access_ps=0,
            read_ps=tcm.read_ps,
            write_ps=tcm.write_ps,
            arrived=self._arrived,
        )
        self._channel_of: dict[int, DmaChannel] = {}
        self._ipcq_id = pe_part(*node.pe_coord, "pe_ipcq")

    def start(
        self,
        op: int,
        reading: bool,
        targets: Sequence[Target],
        begun: Callable[[int], None],
        done: Callable[[], None],
        channel: DmaChannel | None = None,
    ) -> None:
        """Queue a descriptor on ``channel`` (default: compute)."""
        self.check_reach(node for node, _ in targets)
        channel = channel or self.compute
        self._channel_of[op] = channel

        def over() -> None:
            del self._channel_of[op]
            done()

        channel.start(op, reading, targets, begun, over)

    def _arrived(self, message: QueueData) -> None:
        # Found when the first message comes; the others go to it straight away.
        arrived = self._responder.arrived = self.machine.part(self._ipcq_id, QueuePart).arrived
        arrived(message)

    def check_reach(self, nodes: Iterable[str]) -> None:
        """UnsupportedError when one of the memories at ``nodes`` is the TCM that this DMA itself serves."""
        if self.node.id in nodes:
            raise UnsupportedError(f"{self.node.id}: its own TCM is not reached by DMA, use the data in place")

    def receive(self, message: object, transfer: Transfer) -> None:
        """Answers to this DMA, and requests of others for the TCM."""
        match message:
            case ReadReply() | WriteAck():
                self._channel_of[message.op].initiator.answered(message)
            case ReadRequest() | WriteData():
                self._responder.take(message, transfer)
            case QueueArrival(data=data):
                self._arrived(data)
            case _:
                super().receive(message, transfer)

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Take a message of a queue whose ring lies in the TCM."""
        self._responder.write(message, transfer)

    def accept(self, msg: HostMsg, done: Done) -> None:
        """Generate the traffic of a PeDmaMsg."""
        if not isinstance(msg, PeDmaMsg):
            super().accept(msg, done)
            return
        stream = _Stream(self, msg, done)
        for _ in range(min(msg.outstanding, msg.repeat)):
            stream.start_next()


@dataclass(slots=True)
class _Stream:
    """Descriptors of one PeDmaMsg: ``issued`` have begun, ``ended`` are over."""

    dma: PeDma
    msg: PeDmaMsg
    done: Done
    issued: int = 0
    ended: int = 0

    def start_next(self) -> None:
        """Queue the next descriptor."""
        msg, machine = self.msg, self.dma.machine
        pa = msg.pa + self.issued * msg.stride_bytes
        self.issued += 1
        places = machine.addresses.by_node(((pa, msg.nbytes),))
        targets = [(node, Access(start, nbytes)) for node, (start, nbytes) in places]
        self.dma.start(machine.next_op(), msg.op == "read", targets, _unobserved, self._ended)

    def _ended(self) -> None:
        self.ended += 1
        if self.issued < self.msg.repeat:
            self.start_next()
        elif self.ended == self.msg.repeat:
            self.done(Outcome())


def _unobserved(_: int) -> None:
    """Raw traffic has no operands to read."""
