"""Find faults of a run that returned results: reads of unwritten bytes, differing copies, races, misuse of queues, and
waits for scratch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TypeAlias

from kernbench.common.ids import pe_name, pe_names, pe_part
from kernbench.common.units import format_ns, format_size, ps_to_ns
from kernbench.common.values import state, value
from kernbench.core.clock import NEVER
from kernbench.core.log import END, KIND, LAUNCH, PARENT, PART, START, WHAT, WIDTH, Kind
from kernbench.core.op_log import OpRecord
from kernbench.engine.engine import GraphEngine, HostRead, Observer, SomeElements, UnlikeCopies
from kernbench.engine.hooks import Inverted, ScratchWaited
from kernbench.engine.machine import Machine
from kernbench.engine.recorder import Recorded
from kernbench.messages.commands import Opcode
from kernbench.messages.requests import (
    HostMsg,
    IpcqRemoveMsg,
    MemoryReadMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    PeCoord,
    TensorMapping,
)
from kernbench.numerics.intervals import ExtentIndex, bounds
from kernbench.observe.findings import Finding, FindingKind, Party
from kernbench.observe.sanitizer_races import OperandUse, Race, accesses_of, find_races
from kernbench.observe.trace_queues import QueueLog, QueueMessage

Key: TypeAlias = tuple[object, ...]


class Sanitizer(Observer):
    """Watches a machine through its hooks and its op-log; one of the ``observers`` of an engine."""

    needs_data = True

    def begin(self, machine: Machine) -> None:
        """Watch ``machine``."""
        self._graph = machine.graph
        self._log = machine.op_log
        self._rows = machine.log
        self._in_order = machine.spec.pe.dma.ordering == "program"
        self._contents = machine.contents
        self._tensors = TensorNames()
        self._noted: dict[Key, Finding] = {}
        self._queues = QueueWatch(machine)
        hooks = machine.hooks
        hooks.scratch_waited.subscribe(self._scratch_waited)
        hooks.inverted.subscribe(self._note_inversion)

    def submitted(self, msg: HostMsg, time_ps: int) -> None:
        """Handle ``msg``, which the host submitted, to learn the names of mapped tensors."""
        self._tensors.submitted(msg, time_ps)
        self._queues.submitted(msg, time_ps)

    def unwritten(self, record: OpRecord | None, space: str, address: int, nbytes: int) -> None:
        """Record that the replay of ``record`` read ``nbytes`` that were never written, the first at ``address``."""
        if record is None:  # the host inspects memory outside the run
            return
        side = self._side(record, writes=False)
        tensor = self._tensors.name_at(address, record.t_read_ps)
        message = f"{side} reads {format_size(nbytes)} of {_place(tensor, space, address)} that nobody wrote"
        finding = Finding("unwritten", message, side, space, tensor, address, nbytes)
        _note(self._noted, ("unwritten", side.kernel, side.line, side.action), finding)

    def read_unwritten(self, read: HostRead, elements: SomeElements) -> None:
        """Record that the host read or compared elements that were never written."""
        holder = f"{pe_name(elements.pe)}, {elements.pa:#x} in {self._space_of(elements.pa)}"
        message = (
            f"{_host_side(read)} reads {elements.count:,} of {elements.total:,} elements of tensor {read.tensor!r} "
            f"that nobody wrote, the first {list(elements.index)} ({holder})"
        )
        self._note_read("unwritten", read, elements, message, (elements.pe,))

    def read_unlike(self, read: HostRead, elements: SomeElements, copies: UnlikeCopies) -> None:
        """Record that the host read or compared elements whose copies differ."""
        unwritten = "" if copies.written else ", which nobody wrote"
        holder = f"{pe_name(elements.pe)} ({elements.pa:#x} in {self._space_of(elements.pa)}) holds {copies.held:.9g}"
        message = (
            f"{_host_side(read)}: the copies of tensor {read.tensor!r} differ in {elements.count:,} of "
            f"{elements.total:,} elements: at {list(elements.index)} {holder}{unwritten}, the first copy, on "
            f"{pe_name(copies.first_pe)}, {copies.first_held:.9g}; unlike the first are those of {len(copies.pes)} of "
            f"{copies.owners} PEs: {pe_names(copies.pes)}"
        )
        self._note_read("copies", read, elements, message, copies.pes)

    def _note_read(
        self, kind: FindingKind, read: HostRead, elements: SomeElements, message: str, owners: tuple[PeCoord, ...]
    ) -> None:
        side = _host_side(read)
        where = self._space_of(elements.pa), read.tensor, elements.pa, elements.nbytes
        finding = Finding(kind, message, side, *where, owners=owners)
        _note(self._noted, (kind, side.file, side.line, side.action, read.tensor), finding)

    def _space_of(self, pa: int) -> str:
        return self._contents.bytes_at(pa, 1).space

    def _pe_of(self, component: str) -> PeCoord | None:
        node = self._graph.node(component)
        return None if node.pe is None else node.pe_coord

    def findings(self, engine: GraphEngine) -> tuple[Finding, ...]:
        """Return the faults of all work that has ended in ``engine``: one per place in the kernels, sorted by time."""
        engine.replay()
        # Kernels in flight may still receive the messages in their queues.
        busy = {pe for launch in engine.launches_in_flight for pe in launch.targets}
        noted = dict(self._noted)
        ends = self._queues.source_ends()
        for misuse in self._queues.misuses(self._log, ends):
            finding = self._misuse(misuse)
            _note(noted, ("slot", finding.kernel, finding.line, finding.side.action), finding)
        for message in self._queues.list_unreceived(busy):
            finding = self._describe_unreceived(message)
            _note(noted, ("message", finding.kernel, finding.line), finding)
        fences = self._fence_ends()
        for race in find_races(self._log, self._host_reads(), self._pe_of, ends, fences, in_order=self._in_order):
            finding = self._race(race)
            assert finding.other is not None
            sides = sorted((s.kernel, s.line, s.action, s.writes) for s in (finding.side, finding.other))
            _note(noted, ("race", finding.tensor, *sides), finding)
        return tuple(sorted(noted.values(), key=lambda f: (f.t_start_ns, f.kind, f.kernel, f.line)))

    def _race(self, race: Race) -> Finding:
        later, earlier = self._of_access(race.later), self._of_access(race.earlier)
        ending = f"that {earlier} {_does(earlier)} at the same time: {_span(later)} and {_span(earlier)}"
        return self._of_two("race", later, earlier, race, (race.later.operand.space, race.later.start_ps), ending)

    def _of_two(
        self,
        kind: FindingKind,
        later: Party,
        earlier: Party,
        overlap: Race | Inverted,
        where: tuple[str, int],
        ending: str,
    ) -> Finding:
        """Return a finding about bytes that two accesses share.

        ``where`` is the memory space of the bytes, and the begin of the later access in ps.
        """
        space, when = where
        tensor = self._tensors.name_at(overlap.address, when)
        bytes_of = f"{format_size(overlap.nbytes)} of {_place(tensor, space, overlap.address)}"
        message = f"{later} {_does(later)} {bytes_of} {ending}"
        return Finding(kind, message, later, space, tensor, overlap.address, overlap.nbytes, earlier)

    def _misuse(self, misuse: Misuse) -> Finding:
        side, message, other = self._of_access(misuse.access), misuse.message, misuse.other
        space = misuse.access.operand.space
        slot = next(queued for queued in (message, other) if queued is not None)
        read = f"{side} reads {format_size(misuse.nbytes)} of a slot of queue {slot.queue} of {pe_name(slot.peer)}"
        text = f"{read} ({space} at {misuse.address:#x}) from {_span(side)}"
        if message is not None:
            text += f", which was released at {ps_to_ns(message.released_ps):.3f} ns (message {message.sequence})"
        if other is not None:
            arrived = f"which arrived at {ps_to_ns(other.arrived_ps):.3f} ns"
            text += f"; message {other.sequence}, {arrived}, had not been received yet"
        return Finding("slot", text, side, space, "", misuse.address, misuse.nbytes)

    def _describe_unreceived(self, message: QueueMessage) -> Finding:
        launch_id, times = self._rows.rows[message.row + LAUNCH], (message.sent_ps, message.arrived_ps)
        action = f"send {message.direction}"
        side = self._party(action, message.kernel, launch_id, message.line, message.pe, times, writes=True)
        text = (
            f"message {message.sequence} of queue {message.queue} of {pe_name(message.peer)} "
            f"({format_size(message.nbytes)}, {side}) was never received: the kernels there have ended, "
            "and the next one that receives from this queue gets it"
        )
        return Finding("message", text, side, self._space_of(message.pa), "", message.pa, message.nbytes)

    def _of_access(self, access: OperandUse) -> Party:
        """Return the party of a record, or of the composite that a tile belongs to, at the time of the access."""
        record = access.record
        command = self._log[record.parent] if record.parent >= 0 else record
        side = self._side(command, writes=access.writes)
        return replace(side, t_start_ns=ps_to_ns(access.start_ps), t_end_ns=ps_to_ns(access.end_ps))

    def _side(self, record: OpRecord, *, writes: bool) -> Party:
        tiled, pe = record.params.tile_sizes is not None and record.kind == "math", self._pe_of(record.component)
        action = f"composite {record.name}" if tiled else (record.name if record.kernel else record.kind)
        times = record.t_start_ps, record.t_end_ps
        return self._party(action, record.kernel, record.launch_id, record.line, pe, times, writes=writes)

    def _party(
        self,
        action: str,
        kernel: str,
        launch_id: int,
        line: int,
        pe: PeCoord | None,
        times_ps: tuple[int, int],
        *,
        writes: bool,
    ) -> Party:
        """Return the party for a line of a launch's kernel on a PE."""
        start_ns, end_ns = map(ps_to_ns, times_ps)
        return Party(
            action=action,
            kernel=kernel,
            line=line,
            pe=pe,
            writes=writes,
            t_start_ns=start_ns,
            t_end_ns=end_ns,
            place=self._rows.place(launch_id, line, pe),
        )

    def _host_reads(self) -> Iterator[OpRecord]:
        """Yield the finished reads of the host, with their operands.

        The op-log has no operands of these reads, since the replay skips them.
        """
        log, rows = self._rows, self._rows.rows
        for row in range(0, len(rows), WIDTH):
            recorded = log.whats[rows[row + WHAT]] if rows[row + KIND] == Kind.MEMORY_READ else None
            if isinstance(recorded, Recorded) and isinstance(recorded.command, MemoryReadMsg) and rows[row + END] >= 0:
                yield OpRecord(
                    seq=-1 - row,
                    component=log.parts[rows[row + PART]],
                    kind="memory_read",
                    t_start_ps=rows[row + START],
                    t_read_ps=rows[row + START],
                    t_end_ps=rows[row + END],
                    name=recorded.command.name,
                    inputs=(self._contents.bytes_at(recorded.command.pa, recorded.command.nbytes),),
                )

    def _fence_ends(self) -> dict[PeCoord, list[int]]:
        """Collect the end times of finished fences, by PE."""
        log, rows = self._rows, self._rows.rows
        ends: dict[PeCoord, list[int]] = {}
        for row in range(0, len(rows), WIDTH):
            if rows[row + KIND] == Kind.FENCE and rows[row + END] >= 0:
                pe = self._pe_of(log.parts[rows[row + PART]])
                assert pe is not None
                ends.setdefault(pe, []).append(rows[row + END])
        return ends

    def _note_inversion(self, event: Inverted) -> None:
        later, earlier = (
            self._party(
                _ACTIONS[access.command.op],
                event.kernel,
                event.launch_id,
                access.command.line,
                event.pe,
                (access.start_ps, access.end_ps),
                writes=access.writes,
            )
            for access in (event.later, event.earlier)
        )
        space = self._space_of(event.address)
        ending = (
            f"at {later.t_end_ns:.3f} ns, before {earlier}, which comes first in the program, {_does(earlier)} them at "
            f"{earlier.t_start_ns:.3f} ns: put {'tl.fence() or ' if earlier.writes else ''}tl.barrier() between them, "
            "or set pe.dma.ordering to program"
        )
        finding = self._of_two("inversion", later, earlier, event, (space, event.later.start_ps), ending)
        _note(self._noted, ("inversion", event.kernel, later.line, earlier.line), finding)

    def _scratch_waited(self, event: ScratchWaited) -> None:
        times = event.start_ps, event.end_ps
        side = self._party("allocation", event.kernel, event.launch_id, event.line, event.pe, times, writes=False)
        waited = format_ns(side.t_end_ns - side.t_start_ns)
        message = f"{side} waits {waited} for {format_size(event.nbytes)} of scratch that commands in flight hold"
        finding = Finding("scratch", message, side, "tcm", "", 0, event.nbytes)
        _note(self._noted, ("scratch", event.kernel, event.line), finding)


_ACTIONS: Mapping[Opcode, str] = {
    Opcode.LOAD: "load",
    Opcode.STORE: "store",
    Opcode.ATOMIC: "atomic",
    Opcode.GEMM: "composite gemm",
    Opcode.TILED_MATH: "composite",
}


def _host_side(read: HostRead) -> Party:
    line = read.line
    return Party(
        action=read.action,
        kernel="",
        line=0 if line is None else line.line,
        pe=None,
        writes=False,
        t_start_ns=ps_to_ns(read.start_ps),
        t_end_ns=ps_to_ns(read.end_ps),
        place="" if line is None else str(line),
        file="" if line is None else line.file,
    )


def _note(findings: dict[Key, Finding], key: Key, finding: Finding) -> None:
    """Add a finding, or count it if ``key`` already has one."""
    first = findings.get(key)
    findings[key] = finding if first is None else replace(first, count=first.count + 1)


def _does(side: Party) -> str:
    return "writes" if side.writes else "reads"


def _span(side: Party) -> str:
    return f"{side.t_start_ns:.3f} to {side.t_end_ns:.3f} ns"


def _place(tensor: str, space: str, address: int) -> str:
    return f"tensor {tensor!r} ({address:#x} in {space})" if tensor else f"{space} at {address:#x}"


@state
class _Mapped:
    """A tensor in the address space of one SIP, with the time of its mapping."""

    sip: int
    mapping: TensorMapping
    from_ps: int
    until_ps: int = NEVER

    def holds(self, pa: int) -> bool:
        return any(shard.pa <= pa < shard.pa + shard.nbytes for shard in self.mapping.shards)

    def away(self, time_ps: int) -> int:
        """Return the distance of a time from the mapping, in ps: a host may fill a tensor before mapping it."""
        return max(self.from_ps - time_ps, time_ps - self.until_ps, 0)


class TensorNames:
    """Names of tensors by address and time, from the requests of the host."""

    def __init__(self) -> None:
        self._mapped: list[_Mapped] = []

    def submitted(self, msg: HostMsg, time_ps: int) -> None:
        """Handle ``msg``, which the host submitted."""
        if isinstance(msg, MmuMapMsg):
            self._mapped.append(_Mapped(msg.sip, msg.mapping, time_ps))
        elif isinstance(msg, MmuUnmapMsg):
            for mapped in self._mapped:
                if mapped.sip == msg.sip and mapped.mapping.va_base == msg.va_base and mapped.until_ps == NEVER:
                    mapped.until_ps = time_ps

    def name_at(self, pa: int, time_ps: int) -> str:
        """Return the tensor that contains ``pa`` at a time, or at the nearest time; empty if no tensor ever did."""
        here = [mapped for mapped in self._mapped if mapped.holds(pa)]
        return min(here, key=lambda mapped: mapped.away(time_ps)).mapping.name if here else ""


@value
class Misuse:
    """A read of ``nbytes`` of a slot, the first at ``address``, by a kernel that does not own the slot at that time.

    ``message`` is the last message that the kernel received in the slot, if any. ``other`` is a message that arrived
    there and that the kernel had not received.
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
        """Handle ``msg``, which the host submitted: the slots of removed queues become ordinary memory."""
        if isinstance(msg, IpcqRemoveMsg):
            self._removed[msg.pe] = time_ps

    def source_ends(self) -> dict[tuple[str, int, int], int]:
        """Return the times when sends finish reading their source, by component, start and address of the slot.

        A send has read its source when the last byte is in the slot. Its record lasts until the message has arrived.
        """
        log, ends = self.machine.log, {}
        for send in range(0, len(log.rows), WIDTH):
            if log.rows[send + KIND] == Kind.SEND:
                message, end = self._log.messages[log.rows[send + PARENT]], log.rows[send + END]
                ends[pe_part(*message.pe, "pe_ipcq"), message.sent_ps, message.pa] = NEVER if end < 0 else end
        return ends

    def list_unreceived(self, busy: Collection[PeCoord]) -> Iterator[QueueMessage]:
        """Yield messages that remain in queues although no kernel is ``busy`` on their PE to receive them."""
        for message in self._log.messages.values():
            if message.arrived_ps < NEVER and message.taken_ps == NEVER and message.peer not in busy:
                yield message

    def misuses(self, records: Iterable[OpRecord], source_ends: dict[tuple[str, int, int], int]) -> Iterator[Misuse]:
        """Yield the reads of slots that the reading kernel does not own at that time."""
        slots: dict[int, list[QueueMessage]] = {}
        for message in self._log.messages.values():
            if message.arrived_ps < NEVER:
                slots.setdefault(message.pa, []).append(message)
        if not slots:
            return
        index: ExtentIndex[int] = ExtentIndex()
        for pa, messages in slots.items():
            index.add(pa, pa + max(message.nbytes for message in messages), pa)
        for record in records:
            for access in accesses_of(record, source_ends):
                if not access.writes:
                    yield from self._of_access(access, slots, index)

    def _of_access(
        self, access: OperandUse, slots: dict[int, list[QueueMessage]], index: ExtentIndex[int]
    ) -> Iterator[Misuse]:
        met = {pa for low, high in bounds(access.operand) for pa in index.find(low, high)}
        for pa in sorted(met):
            misuse = self._judge(access, slots[pa])
            if misuse is not None:
                yield misuse

    def _judge(self, access: OperandUse, messages: list[QueueMessage]) -> Misuse | None:
        """Return the misuse in a read of a slot that stored ``messages``; None if the read is correct."""
        removed = self._removed.get(messages[0].peer, NEVER)
        messages = [message for message in messages if not message.arrived_ps <= removed <= access.start_ps]
        if any(message.taken_ps <= access.start_ps and access.end_ps <= message.released_ps for message in messages):
            return None
        received = [message for message in messages if message.taken_ps <= access.start_ps]
        later = [message for message in messages if message not in received and message.arrived_ps <= access.end_ps]
        touched = [(message.pa, message.pa + message.nbytes) for message in (*received, *later)]
        reads = bounds(access.operand)
        common = [(max(a, low), min(b, high)) for a, b in touched for low, high in reads if a < high and low < b]
        if not common:
            return None
        low, high = min(a for a, _ in common), max(b for _, b in common)
        return Misuse(access, low, high - low, received[-1] if received else None, later[-1] if later else None)
