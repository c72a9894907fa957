"""Banks of an SRAM or a TCM: accesses to one bank take turns, accesses to different ones overlap.

Bytes lie in the banks in turn, ``bank_bytes`` in each. Each bank has the bandwidth of the memory. An access moves its
bytes in order, so alone it takes the same time with any number of banks: where it covers several, it goes from bank to
bank, packet by packet (a packet is served by the bank of its first byte), and waits in each for its turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

from kernbench.components.memory_service import Job, MemoryServer
from kernbench.core.clock import Clock
from kernbench.engine.machine import Machine
from kernbench.messages.fabric import Access
from kernbench.topology.fields import BankedSpec


class Banks:
    """The banks of a memory, or of one of its ports. ``quantum`` and ``packet_bytes`` are as for accesses."""

    __slots__ = ("_bank_bytes", "_clock", "_packet_bytes", "_servers")

    def __init__(self, clock: Clock, quantum: int, packet_bytes: int, spec: BankedSpec) -> None:
        self._clock = clock
        self._packet_bytes = packet_bytes
        self._bank_bytes = spec.bank_bytes
        self._servers = [MemoryServer(clock, quantum) for _ in range(spec.banks)]

    def serving(self, access: Access) -> MemoryServer | BankWalk:
        """Who serves an access: its bank, or several, one after the other."""
        pieces = [(self._servers[bank], sum(1 for _ in run)) for bank, run in groupby(self._banks_of(access))]
        return pieces[0][0] if len(pieces) == 1 else BankWalk(self._clock, pieces)

    def _banks_of(self, access: Access) -> Iterator[int]:
        """The bank of each packet."""
        for at in range(0, access.nbytes, self._packet_bytes):
            row, column = divmod(at, access.row_bytes)
            yield (access.pa + row * access.stride + column) // self._bank_bytes % len(self._servers)


class BankWalk:
    """An access that goes through several banks: ``pieces`` of it are so many packets in this bank, then in that one.

    For one access it is what a server is for many. ``free_at``: when what ``work_since`` did was over.
    """

    __slots__ = ("_clock", "_pieces", "free_at")

    def __init__(self, clock: Clock, pieces: list[tuple[MemoryServer, int]]) -> None:
        self._clock = clock
        self._pieces = pieces
        self.free_at = 0

    def work_since(self, since: int, busy: int) -> int:
        """Do as much of ``busy`` ps of work as fits in idle time up to now, one bank after the other; what is left."""
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
        """Serve ``job``: each piece as soon as the one before it is done and its turn comes."""
        pieces, first = [], 0
        for bank, count in self._pieces:
            pieces.append(_Piece(self._clock, job, bank, first, count))
            first += count
        for piece, following in pairwise(pieces):
            piece.following = following
        pieces[0].start()


class _Piece(Job):
    """Packets of a job that lie in one bank, from ``offset`` on. ``_promise`` counts the cuts."""

    __slots__ = ("_bank", "_clock", "_offset", "_promise", "_whole", "following")

    def __init__(self, clock: Clock, whole: Job, bank: MemoryServer, offset: int, packets: int) -> None:
        super().__init__(packets, whole.pace)
        self._clock = clock
        self._whole = whole
        self._bank = bank
        self._offset = offset
        self._promise = 0
        self.following: _Piece | None = None

    def start(self) -> None:
        """The pieces before it are done."""
        self._bank.submit(self)

    def span(self, first: int, count: int) -> int:
        return self._whole.span(self._offset + first, count)

    def begin(self, first: int, count: int, start: int) -> None:
        self._whole.begin(self._offset + first, count, start)
        if first + count == self.packets and self.following is not None:
            self._clock.call_at(start + self.span(first, count), self._over, self._promise)

    def cut(self, count: int) -> None:
        self._promise += 1
        self._whole.cut(self._offset + count)

    def _over(self, promise: object) -> None:
        if promise == self._promise and self.following is not None:
            self.following.start()


def servers(machine: Machine, spec: BankedSpec) -> MemoryServer | Banks:
    """What serves the accesses of an SRAM, or of a port of a TCM."""
    quantum = machine.spec.quantum_packets
    if spec.banks == 1:
        return MemoryServer(machine.clock, quantum)
    return Banks(machine.clock, quantum, machine.network.packet_bytes, spec)
