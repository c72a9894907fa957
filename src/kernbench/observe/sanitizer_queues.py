"""Find misuse of queues: reads of slots that are not the kernel's, messages that nobody receives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import field

from kernbench.common.ids import pe_part
from kernbench.common.values import state, value
from kernbench.core.clock import NEVER
from kernbench.core.log import END, KIND, PARENT, WIDTH, Kind
from kernbench.core.op_log import OpRecord
from kernbench.engine.machine import Machine
from kernbench.messages.requests import HostMsg, IpcqRemoveMsg, PeCoord
from kernbench.numerics.intervals import ExtentIndex, bounds
from kernbench.observe.sanitizer_races import OperandUse, accesses_of
from kernbench.observe.trace_queues import QueueLog, QueueMessage


@value
class Misuse:
    """``access`` reads ``nbytes`` of a slot, the first at ``address``, when that is not its kernel's.

    ``message`` is what the kernel had there before, if anything; ``other`` is what lies there now or later.
    """

    access: OperandUse
    address: int
    nbytes: int
    message: QueueMessage | None
    other: QueueMessage | None


@state
class QueueWatch:
    """Watches the queues of ``machine``."""

    machine: Machine
    _log: QueueLog = field(init=False)
    _removed: dict[PeCoord, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._log = QueueLog(self.machine)
        self._log.watch()

    def submitted(self, msg: HostMsg, time_ps: int) -> None:
        """The host has submitted ``msg``: where queues are removed, their slots become ordinary memory."""
        if isinstance(msg, IpcqRemoveMsg):
            self._removed[msg.pe] = time_ps

    def source_ends(self) -> dict[tuple[str, int, int], int]:
        """Until when a send reads what it sends, by component, start and address of the slot: its last byte is there.

        Its record goes on until the message has arrived.
        """
        log, found = self.machine.log, {}
        for send in range(0, len(log.rows), WIDTH):
            if log.rows[send + KIND] == Kind.SEND:
                message, end = self._log.messages[log.rows[send + PARENT]], log.rows[send + END]
                found[pe_part(*message.pe, "pe_ipcq"), message.sent_ps, message.pa] = NEVER if end < 0 else end
        return found

    def left(self, busy: Collection[PeCoord]) -> Iterator[QueueMessage]:
        """Messages that lie in queues though no kernel is ``busy`` on their PE to receive them."""
        for each in self._log.messages.values():
            if each.arrived_ps < NEVER and each.taken_ps == NEVER and each.peer not in busy:
                yield each

    def misuses(self, records: Iterable[OpRecord], source_ends: dict[tuple[str, int, int], int]) -> Iterator[Misuse]:
        """The reads of slots that are not the kernel's at that time."""
        slots: dict[int, list[QueueMessage]] = {}
        for each in self._log.messages.values():
            if each.arrived_ps < NEVER:
                slots.setdefault(each.pa, []).append(each)
        if not slots:
            return
        index: ExtentIndex[int] = ExtentIndex()
        for pa, messages in slots.items():
            index.add(pa, pa + max(each.nbytes for each in messages), pa)
        for record in records:
            for access in accesses_of(record, source_ends):
                if not access.writes:
                    yield from self._of_access(access, slots, index)

    def _of_access(
        self, access: OperandUse, slots: dict[int, list[QueueMessage]], index: ExtentIndex[int]
    ) -> Iterator[Misuse]:
        met = {pa for low, high in bounds(access.operand) for pa in index.find(low, high)}
        for pa in sorted(met):
            found = self._judge(access, slots[pa])
            if found is not None:
                yield found

    def _judge(self, access: OperandUse, messages: list[QueueMessage]) -> Misuse | None:
        """Judge a read of a slot that has had ``messages``; None when nothing is wrong."""
        removed = self._removed.get(messages[0].peer, NEVER)
        messages = [each for each in messages if not each.arrived_ps <= removed <= access.start_ps]
        if any(each.taken_ps <= access.start_ps and access.end_ps <= each.released_ps for each in messages):
            return None
        had = [each for each in messages if each.taken_ps <= access.start_ps]
        others = [each for each in messages if each not in had and each.arrived_ps <= access.end_ps]
        touched = [(each.pa, each.pa + each.nbytes) for each in (*had, *others)]
        reads = bounds(access.operand)
        common = [(max(a, low), min(b, high)) for a, b in touched for low, high in reads if a < high and low < b]
        if not common:
            return None
        low, high = min(a for a, _ in common), max(b for _, b in common)
        return Misuse(access, low, high - low, had[-1] if had else None, others[-1] if others else None)
