"""The timing of a memory: its servers, its banks, and the replies to reads and writes.

``MemoryServer`` serves jobs round-robin, a quantum at a time, and an uncontended job in a single step. The server knows
no addresses or links. A job states the number of its packets and the duration of each, and is notified when they are
served. A grant is a span of service that the server has promised to one job. A competitor that arrives during a grant
cuts the grant at the end of the current quantum::

    alone            AAAAAAAAAAAA            one grant of 12 packets
    B arrives at 3   AAAA BB AA BB AA ...    the grant is cut after 4; then grants of a quantum, here 2 packets

``BankedServer`` is a memory of several such servers, its banks. Addresses are interleaved over the banks,
``bank_bytes`` in each, and each bank has the bandwidth of the memory. Accesses to one bank are served round-robin.
Accesses to different banks overlap. An access moves its bytes in order, so an uncontended access takes the same time
with any number of banks. An access that covers several banks visits them in order, packet by packet, and waits for a
grant in each. The bank of a packet is the bank of its first byte.

``Responder`` replies for a memory. The bytes of a read are served after ``access_ps``, and enter the fabric as they are
served. The server works on a write while the data arrive. Work that is left when the last byte has arrived is served
then. After another ``access_ps`` the bytes are committed and the acknowledgement leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, TypeAlias

from kernbench.common.ids import pe_part
from kernbench.core.clock import Clock
from kernbench.core.log import COMMIT
from kernbench.engine.machine import Machine
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
from kernbench.topology.fields import BankedSpec
from kernbench.transport import Pace, Port, Supply, Transfer

if TYPE_CHECKING:
    from kernbench.engine.machine import Component


class Job:
    """An access to be served: ``packets`` at ``pace``, of which ``served`` have been granted."""

    __slots__ = ("pace", "packets", "served")

    def __init__(self, packets: int, pace: Pace) -> None:
        self.packets = packets
        self.pace = pace
        self.served = 0

    def begin(self, first: int, count: int, start: int) -> None:
        """Receive a grant: packets ``first`` … ``first + count - 1`` are served in order from ``start`` ps on."""
        raise NotImplementedError

    def cut(self, count: int) -> None:
        """Cut the last grant: it is valid up to packet ``count - 1`` only."""
        raise NotImplementedError

    def span(self, first: int, count: int) -> int:
        """Return the service time of ``count`` packets from ``first`` on, in ps."""
        last = first + count == self.packets
        return (count - last) * self.pace.packet_ps + last * self.pace.last_ps


def pace_of(nbytes: int, packet_bytes: int, total_ps: int) -> Pace:
    """Spread ``total_ps`` over the packets of ``nbytes``: equal shares for full packets, the remainder for the last."""
    full = total_ps * packet_bytes // nbytes if nbytes > packet_bytes else total_ps
    n_full = (nbytes - 1) // packet_bytes
    return Pace(full, total_ps - n_full * full)


class MemoryServer:
    """A server of jobs: an SRAM, a port of a TCM, or one of their banks. ``quantum`` is in packets.

    ``free_at``: the end of the last grant, in ps. ``busy_ps``: the total duration of all grants.
    """

    __slots__ = ("_clock", "_current", "_first", "_queue", "_start", "_turn_due", "busy_ps", "free_at", "quantum")

    def __init__(self, clock: Clock, quantum: int) -> None:
        self._clock = clock
        self.quantum = quantum
        self.free_at = 0
        self.busy_ps = 0
        self._queue: deque[Job] = deque()
        self._current: Job | None = None
        self._first = 0
        self._start = 0
        self._turn_due = False

    @property
    def idle(self) -> bool:
        """Return True when no job is being served."""
        return self.free_at <= self._clock.time and not self._queue

    def banks_of(self, access: Access) -> MemoryServer:
        """Return the server of any access: this server, which has no banks."""
        return self

    def work_since(self, since: int, busy: int) -> int:
        """Do as much of ``busy`` ps of work as fits in the idle time from ``since`` to now; return the remaining ps.

        Call this for work that becomes known late, such as a write whose data have been arriving since ``since``.
        """
        free, now = self.free_at, self._clock.time
        if free > now or self._queue:
            return busy
        start = since if since > free else free
        done = now - start
        if done > busy:
            done = busy
        elif done < 0:
            done = 0
        self.free_at = start + done
        self.busy_ps += done
        return busy - done

    def submit(self, job: Job) -> None:
        """Queue ``job`` for service, round-robin."""
        if self.idle:
            self._serve(job, job.packets - job.served)
            return
        self._queue.append(job)
        if not self._turn_due:
            self._cut_current()
            self._turn_due = True
            self._clock.call_at(self.free_at, self._turn)

    def _cut_current(self) -> None:
        """End the current grant after its current quantum, and queue the remainder of the job."""
        job = self._current
        assert job is not None
        elapsed = self._clock.time - self._start
        packets = elapsed // job.pace.packet_ps if job.pace.packet_ps else job.packets
        keep = (packets // self.quantum + 1) * self.quantum
        if self._first + keep < job.served:
            planned = self.free_at
            job.served = self._first + keep
            job.cut(job.served)
            self.free_at = self._start + job.span(self._first, keep)
            self.busy_ps -= planned - self.free_at
            self._queue.append(job)

    def _turn(self, _: object) -> None:
        self._turn_due = False
        job = self._queue.popleft()
        left = job.packets - job.served
        if not self._queue:
            self._serve(job, left)
            return
        self._serve(job, min(left, self.quantum))
        if job.served < job.packets:
            self._queue.append(job)
        self._turn_due = True
        self._clock.call_at(self.free_at, self._turn)

    def _serve(self, job: Job, count: int) -> None:
        now = self._clock.time
        self._current, self._first, self._start = job, job.served, now
        job.served += count
        span = job.span(self._first, count)
        self.free_at = now + span
        self.busy_ps += span
        job.begin(self._first, count, now)


class BankedServer:
    """The banks of a memory, or of one of its ports. ``quantum`` is in packets of ``packet_bytes``."""

    __slots__ = ("_bank_bytes", "_clock", "_packet_bytes", "_servers")

    def __init__(self, clock: Clock, quantum: int, packet_bytes: int, spec: BankedSpec) -> None:
        self._clock = clock
        self._packet_bytes = packet_bytes
        self._bank_bytes = spec.bank_bytes
        self._servers = [MemoryServer(clock, quantum) for _ in range(spec.banks)]

    def banks_of(self, access: Access) -> MemoryServer | BankSequence:
        """Return the bank that serves an access, or the sequence of banks if there are several."""
        pieces = [(self._servers[bank], sum(1 for _ in run)) for bank, run in groupby(self._bank_numbers(access))]
        return pieces[0][0] if len(pieces) == 1 else BankSequence(self._clock, pieces)

    def _bank_numbers(self, access: Access) -> Iterator[int]:
        """Yield the bank number of each packet."""
        for at in range(0, access.nbytes, self._packet_bytes):
            row, column = divmod(at, access.row_bytes)
            yield (access.pa + row * access.stride + column) // self._bank_bytes % len(self._servers)


class BankSequence:
    """The server of one access that covers several banks.

    ``pieces``: the banks in order, with the number of packets in each. ``free_at``: the end of the work done by
    ``work_since``, in ps.
    """

    __slots__ = ("_clock", "_pieces", "free_at")

    def __init__(self, clock: Clock, pieces: list[tuple[MemoryServer, int]]) -> None:
        self._clock = clock
        self._pieces = pieces
        self.free_at = 0

    def work_since(self, since: int, busy: int) -> int:
        """Do as much of ``busy`` ps of work as fits in idle time up to now, bank by bank; return the remaining ps."""
        packets, left = sum(count for _, count in self._pieces), busy
        for bank, count in self._pieces:
            share = min(left, -(-busy * count // packets))
            undone = bank.work_since(since, share)
            if undone < share:
                since = self.free_at = bank.free_at
            left -= share - undone
            if undone:
                break
        return left

    def submit(self, job: Job) -> None:
        """Queue ``job``. Each piece is queued at its bank when the preceding piece is done."""
        pieces, first = [], 0
        for bank, count in self._pieces:
            pieces.append(_BankPackets(self._clock, job, bank, first, count))
            first += count
        for piece, following in pairwise(pieces):
            piece.following = following
        pieces[0].start()


class _BankPackets(Job):
    """The packets of a job that are in one bank, from ``offset`` on."""

    __slots__ = ("_bank", "_clock", "_cuts", "_offset", "_whole", "following")

    def __init__(self, clock: Clock, job: Job, bank: MemoryServer, offset: int, packets: int) -> None:
        super().__init__(packets, job.pace)
        self._clock = clock
        self._whole = job
        self._bank = bank
        self._offset = offset
        self._cuts = 0
        self.following: _BankPackets | None = None

    def start(self) -> None:
        """Queue the piece at its bank: the preceding pieces are done."""
        self._bank.submit(self)

    def span(self, first: int, count: int) -> int:
        return self._whole.span(self._offset + first, count)

    def begin(self, first: int, count: int, start: int) -> None:
        self._whole.begin(self._offset + first, count, start)
        if first + count == self.packets and self.following is not None:
            self._clock.call_at(start + self.span(first, count), self._start_following, self._cuts)

    def cut(self, count: int) -> None:
        self._cuts += 1
        self._whole.cut(self._offset + count)

    def _start_following(self, cuts: object) -> None:
        if cuts == self._cuts and self.following is not None:
            self.following.start()


def make_server(machine: Machine, spec: BankedSpec) -> MemoryServer | BankedServer:
    """Make the server of an SRAM, or of a port of a TCM."""
    quantum = machine.spec.quantum_packets
    if spec.banks == 1:
        return MemoryServer(machine.clock, quantum)
    return BankedServer(machine.clock, quantum, machine.network.packet_bytes, spec)


Server: TypeAlias = MemoryServer | BankSequence
"""The server of one access"""


class Answering:
    """The base class of replies for the memory ``component``: it takes requests, commits writes and acknowledges them.

    ``arrived`` is called with queue messages once they are committed. By default a header notifies the receiver.
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
        """Serve a delivered request."""
        now = self.clock.time
        if isinstance(message, ReadRequest):
            self.clock.call_at(now + self.access_ps, self._read, message)
        else:
            self.write(message, transfer)

    def _read(self, request: ReadRequest) -> None:
        raise NotImplementedError

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Serve the delivered data of a write, and commit them."""
        raise NotImplementedError

    def make_reply(self, port: Port, request: ReadRequest) -> Transfer:
        """Return a transfer that carries the requested bytes from ``port`` to the requester."""
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

    def observe_turn(self, message: ReadRequest | WriteData, server: Hashable, start: int, end: int) -> None:
        """Notify the observer, if there is one, that ``server`` works on an access."""
        observation = self.machine.observation
        if observation is not None:
            observation.turn(message, server, start, end)


class Responder(Answering):
    """Replies for a memory with servers. ``read_ps`` and ``write_ps`` return the server time of an access in ps.

    ``bytes_read``, ``bytes_written``: the bytes of all accesses so far.
    """

    __slots__ = (
        *("_free_ports", "_n_ports", "_write_server", "bytes_read", "bytes_written", "read_ps", "reads", "write_ps"),
        "writes",
    )

    def __init__(
        self,
        component: Component,
        *,
        reads: MemoryServer | BankedServer,
        writes: MemoryServer | BankedServer,
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
        self.bytes_read = self.bytes_written = 0

    def _read(self, request: ReadRequest) -> None:
        self.machine.recorder.accessed(request.op, self.clock.time)
        access = request.access
        self.bytes_read += access.rows * access.row_bytes
        packet_bytes = self.machine.network.packet_bytes
        pace = pace_of(access.nbytes, packet_bytes, self.read_ps(access))
        port = self._take_port()
        transfer = self.make_reply(port, request)
        after = transfer.done

        def on_delivered(done: Transfer) -> None:
            self._free_ports.append(port)
            if after is not None:
                after(done)

        transfer.done = on_delivered
        server = self.reads.banks_of(access)
        server.submit(_ReadJob(self, request, server, transfer, pace))

    def _take_port(self) -> Port:
        """Return a port without a reply in flight, so that no reply blocks another."""
        if self._free_ports:
            return self._free_ports.pop()
        self._n_ports += 1
        return self.machine.network.port(self.component.node.id, f"read{self._n_ports}")

    def write(self, message: WriteData, transfer: Transfer) -> None:
        """Serve the delivered data of a write, and commit them."""
        access, write_ps = message.access, self.write_ps
        self.bytes_written += access.rows * access.row_bytes
        server = self._write_server or self.writes.banks_of(access)
        total_ps = write_ps(access)
        busy = server.work_since(transfer.head_ps, total_ps)
        if busy < total_ps and self.machine.observation is not None:
            self.observe_turn(message, server, server.free_at - (total_ps - busy), server.free_at)
        if busy == 0:
            if self.access_ps:
                self.clock.call_at(self.clock.time + self.access_ps, self._commit, message)
            else:
                self._commit(message)
            return
        packet_bytes = self.machine.network.packet_bytes
        server.submit(_WriteJob(self, message, server, pace_of(access.nbytes, packet_bytes, busy), packet_bytes))

    def commit_at(self, when: int, job: _WriteJob) -> None:
        """Commit ``job``, whose packets are served by ``when``, unless its grant is cut before that time."""
        self.clock.call_at(when + self.access_ps, self._commit_uncut, (job, job.cuts))

    def _commit_uncut(self, promise: tuple[_WriteJob, int]) -> None:
        job, cuts = promise
        if job.cuts == cuts:
            self._commit(job.message)


class _ReadJob(Job):
    """The packets of a read. The transfer of the reply is supplied with packets as they are served."""

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
        responder.observe_turn(self.request, self.server, start, start + self.span(first, count))
        network = responder.machine.network
        supply = Supply(first, count, start, self.pace)
        if first == 0:
            network.inject(self.transfer, supply)
        else:
            network.supply(self.transfer, supply)

    def cut(self, count: int) -> None:
        self.responder.machine.network.curtail(self.transfer, count)


class _WriteJob(Job):
    """The packets of a write, which is committed when all of them are served. ``cuts``: the number of cut grants."""

    __slots__ = ("cuts", "message", "responder", "server")

    def __init__(self, responder: Responder, message: WriteData, server: Server, pace: Pace, packet_bytes: int) -> None:
        super().__init__((message.access.nbytes - 1) // packet_bytes + 1, pace)
        self.responder = responder
        self.message = message
        self.server = server
        self.cuts = 0

    def begin(self, first: int, count: int, start: int) -> None:
        end = start + self.span(first, count)
        self.responder.observe_turn(self.message, self.server, start, end)
        if first + count == self.packets:
            self.responder.commit_at(end, self)

    def cut(self, count: int) -> None:
        self.cuts += 1
