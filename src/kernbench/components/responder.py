"""The memory side of reads and writes: HBM slices, SRAMs and (for others) the TCM of a PE answer through this.

Read: after ``access_ps`` the bytes are served by the server, and feed the fabric as they come. Write: the server's
time overlaps with the arrival of the data; what is left of it is served when the last byte is there, and after
``access_ps`` more the bytes are committed and the acknowledgement leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeAlias

from kernbench.common.ids import pe_part
from kernbench.components.memory_banks import Banks, BankWalk
from kernbench.components.memory_service import Job, MemoryServer, pace_of
from kernbench.core.log import COMMIT
from kernbench.messages.fabric import (
    Access,
    AtomicData,
    QueueArrival,
    QueueData,
    ReadReply,
    ReadRequest,
    WriteAck,
    WriteData,
)
from kernbench.transport import Pace, Port, Supply, Transfer

if TYPE_CHECKING:
    from kernbench.engine.machine import Component


Server: TypeAlias = MemoryServer | BankWalk


class Answering:
    """What all that answer for ``component`` do: take what comes, commit, tell.

    ``arrived`` takes messages of queues once they are committed; by default a header tells their receiver.
    """

    __slots__ = ("access_ps", "arrived", "clock", "component", "machine")

    def __init__(
        self, component: Component, access_ps: int, arrived: Callable[[QueueData], None] | None = None
    ) -> None:
        self.component = component
        self.machine = component.machine
        self.clock = component.clock
        self.access_ps = access_ps
        self.arrived = arrived or self._announce

    def take(self, message: ReadRequest | WriteData, transfer: Transfer) -> None:
        """Serve a request that has been delivered."""
        now = self.clock.time
        if isinstance(message, ReadRequest):
            self.clock.call_at(now + self.access_ps, self._read, message)
        else:
            self.write(message, transfer)

    def _read(self, request: ReadRequest) -> None:
        raise NotImplementedError

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Take data that have been delivered."""
        raise NotImplementedError

    def make_reply(self, port: Port, request: ReadRequest) -> Transfer:
        """The transfer of the bytes that were asked for."""
        reply = ReadReply(request.op, request.part)
        return self.machine.make(port, self.component.node.id, request.requester, request.access.nbytes, reply)

    def _commit(self, message: WriteData) -> None:
        if isinstance(message, QueueData):
            self.machine.log.rows[message.row + COMMIT] = self.clock.time
            arrived = self.arrived
            arrived(message)
            return
        nbytes = self.machine.header_bytes
        if isinstance(message, AtomicData):
            self.machine.recorder.accessed(message.op, self.clock.time)
            nbytes = message.access.nbytes if message.answers else nbytes
        self.machine.recorder.committed(message.op, self.clock.time)
        ack = WriteAck(message.op, message.part)
        self.machine.send(self.component.node.id, message.requester, nbytes, ack, "ack")

    def _announce(self, message: QueueData) -> None:
        self.machine.send_header(
            self.component.node.id, pe_part(*message.pe, "pe_dma"), QueueArrival(data=message), "arrival"
        )

    def served(self, message: ReadRequest | WriteData, server: Hashable, start: int, end: int) -> None:
        """Tell who observes it that ``server`` works on an access."""
        observation = self.machine.observation
        if observation is not None:
            observation.turn(message, server, start, end)


class Responder(Answering):
    """Answers with servers. ``read_ps`` and ``write_ps`` give the server time of an access in ps."""

    __slots__ = ("_free_ports", "_n_ports", "_write_server", "read_ps", "reads", "write_ps", "writes")

    def __init__(
        self,
        component: Component,
        *,
        reads: MemoryServer | Banks,
        writes: MemoryServer | Banks,
        access_ps: int,
        read_ps: Callable[[Access], int],
        write_ps: Callable[[Access], int],
        arrived: Callable[[QueueData], None] | None = None,
    ) -> None:
        super().__init__(component, access_ps, arrived)
        self.reads = reads
        self.writes = writes
        self._write_server = writes if isinstance(writes, MemoryServer) else None
        self.read_ps = read_ps
        self.write_ps = write_ps
        self._free_ports: list[Port] = []
        self._n_ports = 0

    def _read(self, request: ReadRequest) -> None:
        self.machine.recorder.accessed(request.op, self.clock.time)
        access = request.access
        packet_bytes = self.machine.network.packet_bytes
        pace = pace_of(access.nbytes, packet_bytes, self.read_ps(access))
        port = self._take_port()
        transfer = self.make_reply(port, request)
        after = transfer.done

        def delivered(done: Transfer) -> None:
            self._free_ports.append(port)
            if after is not None:
                after(done)

        transfer.done = delivered
        server = self.reads.serving(access)
        server.submit(_ReadJob(self, request, server, transfer, pace))

    def _take_port(self) -> Port:
        """A port that sends nothing: answers under way at once leave by different ones, so none blocks another."""
        if self._free_ports:
            return self._free_ports.pop()
        self._n_ports += 1
        return self.machine.network.port(self.component.node.id, f"read{self._n_ports}")

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Take data that have been delivered."""
        access, write_ps = message.access, self.write_ps
        server = self._write_server or self.writes.serving(access)
        whole = write_ps(access)
        busy = server.work_since(transfer.head_ps, whole)
        if busy < whole and self.machine.observation is not None:
            self.served(message, server, server.free_at - (whole - busy), server.free_at)
        if busy == 0:
            if self.access_ps:
                self.clock.call_at(self.clock.time + self.access_ps, self._commit, message)
            else:
                self._commit(message)
            return
        packet_bytes = self.machine.network.packet_bytes
        server.submit(_WriteJob(self, message, server, pace_of(access.nbytes, packet_bytes, busy), packet_bytes))

    def commit_at(self, when: int, job: _WriteJob, promise: int) -> None:
        """Commit ``job`` at ``when`` if its ``promise`` still stands then."""
        self.clock.call_at(when + self.access_ps, self._commit_promised, (job, promise))

    def _commit_promised(self, what: tuple[_WriteJob, int]) -> None:
        job, promise = what
        if job.promise == promise:
            self._commit(job.message)


class _ReadJob(Job):
    """Served packets feed the transfer that carries them away."""

    __slots__ = ("request", "responder", "server", "transfer")

    def __init__(
        self, responder: Responder, request: ReadRequest, server: Server, transfer: Transfer, pace: Pace
    ) -> None:
        super().__init__(transfer.packets, pace)
        self.responder = responder
        self.request = request
        self.server = server
        self.transfer = transfer

    def begin(self, first: int, count: int, start: int) -> None:
        responder = self.responder
        responder.served(self.request, self.server, start, start + self.span(first, count))
        network = responder.machine.network
        supply = Supply(first, count, start, self.pace)
        if first == 0:
            network.inject(self.transfer, supply)
        else:
            network.supply(self.transfer, supply)

    def cut(self, count: int) -> None:
        self.responder.machine.network.curtail(self.transfer, count)


class _WriteJob(Job):
    """Served packets are in memory; when all are, the write is committed. ``promise`` counts the cuts."""

    __slots__ = ("message", "promise", "responder", "server")

    def __init__(self, responder: Responder, message: WriteData, server: Server, pace: Pace, packet_bytes: int) -> None:
        super().__init__((message.access.nbytes - 1) // packet_bytes + 1, pace)
        self.responder = responder
        self.message = message
        self.server = server
        self.promise = 0

    def begin(self, first: int, count: int, start: int) -> None:
        self.responder.served(self.message, self.server, start, start + self.span(first, count))
        if first + count == self.packets:
            self.responder.commit_at(start + self.span(first, count), self, self.promise)

    def cut(self, count: int) -> None:
        self.promise += 1
