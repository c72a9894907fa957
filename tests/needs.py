"""What each row of the log waited for, derived a second time: from the programs, the orders, and when rows ended.

``NeedsEngine`` notes what the machine was asked for and in which order (requests of kernels, tokens of the pipeline,
messages, slots that came free), never why anything began. ``check_needs`` then works out all that each row had to wait
for: it begins when the last of that is there, and its cause is one that came last.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from causes import accessed
from kernbench.common.dtypes import row_major
from kernbench.common.ids import pe_part
from kernbench.common.units import ns_to_ps
from kernbench.components import pe_cpu
from kernbench.components.execution import KernelExecution
from kernbench.components.pe_ipcq import PeIpcq
from kernbench.components.queue_lane import Lane
from kernbench.components.stage import Stage, StageUnit, Token
from kernbench.components.tcm_use import names_tcm, tcm_meets
from kernbench.components.tile_dma import TileWork
from kernbench.core.log import (
    BY,
    CAUSE,
    END,
    KIND,
    LAUNCH,
    PARENT,
    PART,
    START,
    TILE,
    WHAT,
    WIDTH,
    By,
    Cause,
    Kind,
    Row,
)
from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import Moved, OpStarted, SlotReleased, Streamed
from kernbench.engine.queue_state import QueuePair, queue_pairs_of
from kernbench.engine.recorder import Recorder
from kernbench.engine.requests import RequestHandle
from kernbench.messages.commands import (
    AwaitCommand,
    AwaitSpace,
    Command,
    GemmComposite,
    LoadCommand,
    MathComposite,
    Meet,
    MemoryRef,
    Receive,
    RecvCommand,
    SendCommand,
    StoreCommand,
)
from kernbench.messages.control import (
    BarrierArrival,
    BarrierRelease,
    CubeOrder,
    LaunchOrder,
    PeOrder,
    QueueRemoval,
    Report,
    SipOrder,
)
from kernbench.messages.requests import HostMsg, PeCoord, PeDmaMsg
from kernbench.topology.builder import Topology
from kernbench.transport import Transfer
from kernbench.triton_emu.places import Slot


class Need(NamedTuple):
    """Something is there at ``at``, because of ``row``."""

    at: int
    row: Row
    by: By


Needs = list[Need]
_DMA = (Kind.DMA_READ, Kind.DMA_WRITE)


@dataclass(slots=True, eq=False)
class Asked:
    """What a kernel asked for, which commands were under way then, and which message of whose queue it got."""

    request: Any
    under_way: frozenset[int]
    message: Any = None


@dataclass(slots=True, eq=False)
class Program:
    """A kernel on a PE: what it asked for. ``runs``: its own code runs at this moment."""

    pe: PeCoord
    launch: int
    asked: list[Asked] = field(default_factory=list)
    runs: bool = False
    returned: bool = False
    rows: dict[int, Row] = field(default_factory=dict)  # of its commands, by serial
    posted: dict[int, tuple[QueuePair, int]] = field(default_factory=dict)  # the messages of receives, likewise


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """A slot came free: while the code of ``program`` ran, before its request number ``before``, or not."""

    event: SlotReleased
    sender: QueuePair
    address: int
    program: Program
    before: int
    ran: bool
    returned: bool


class NeedsEngine(GraphEngine):
    """An engine whose needs can be checked after the run."""

    def __init__(self, topology: Topology, enable_data: bool = False) -> None:
        super().__init__(topology, enable_data)
        self.waited: dict[int, RequestHandle | None] = {}  # what the host had waited for when it submitted a request
        self.programs: dict[PeCoord, list[Program]] = {}
        self.sent: list[Transfer] = []
        self.releases: list[Release] = []
        self.messages: dict[tuple[QueuePair, int], Row] = {}  # by the queue that sends them, and number
        self.place_of: dict[Row, tuple[QueuePair, int]] = {}
        self.takers: dict[Stage, list[Token]] = {}  # of the slots of a stage, in order
        self.slots: dict[Stage, int] = {}
        self._host_waited: RequestHandle | None = None
        hooks = self.machine.hooks
        hooks.sent.subscribe(self.sent.append)
        hooks.slot_released.subscribe(self._released)

    def submit(self, msg: HostMsg) -> RequestHandle:
        self.waited[len(self.handles)] = self._host_waited
        return super().submit(msg)

    def next_ended(self) -> Sequence[RequestHandle]:
        before = {each.request_id for each in self.handles if each.done}
        ended = super().next_ended()
        for each in ended:
            if each.request_id not in before:
                self._host_waited = each
        return ended

    def run_until(self, ns: float) -> None:
        super().run_until(ns)
        self._host_waited = None

    def note_begun(self, component: str, command: object, row: Row) -> None:
        """A part has begun a command of a kernel."""
        node = self.machine.graph.node(component)
        if isinstance(command, Command) and node.pe is not None:
            self.programs[node.pe_coord][-1].rows[command.serial] = row

    def sender_to(self, pe: PeCoord, direction: str) -> QueuePair:
        """The queue whose messages come by queue ``direction`` of a PE."""
        peer = queue_pairs_of(self.machine, pe)[direction].peer
        return queue_pairs_of(self.machine, peer.pe)[peer.direction]

    def _released(self, event: SlotReleased) -> None:
        program = self.programs[event.pe][-1]
        address = queue_pairs_of(self.machine, event.pe)[event.direction].slot_pa(event.sequence)
        state = len(program.asked), program.runs, program.returned
        self.releases.append(Release(event, self.sender_to(event.pe, event.direction), address, program, *state))

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Inside, what kernels ask for is noted, and the order in which tokens take slots."""
        engine = self

        class Observed(KernelExecution):
            """Tells what its kernel asks for."""

            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                program = Program(self.coord, self.launch.request_id)
                engine.programs.setdefault(self.coord, []).append(program)
                inner = self.resume

                def resume(answer: Any = None) -> Any:
                    if isinstance(answer, Slot):
                        sender = engine.sender_to(self.coord, answer.direction)
                        program.asked[-1].message = sender, answer.sequence
                    program.runs = True
                    try:
                        request = inner(answer)
                    finally:
                        program.runs = False
                    if request is None:
                        program.returned = True
                    else:
                        program.asked.append(Asked(request, frozenset(self.board.under_way)))
                    return request

                self.resume = resume

        claim, enter = Stage.claim_next, StageUnit.enter
        started, math, send = Recorder.started, Recorder.math, Lane.send

        def begun(recorder: Recorder, event: OpStarted, cause: Cause) -> Row:
            row, what = started(recorder, event, cause), event.what
            engine.note_begun(event.component, what.what if isinstance(what, Moved | Streamed) else what, row)
            return row

        def computed(recorder: Recorder, part: int, command: Any, *rest: Any) -> Row:
            row = math(recorder, part, command, *rest)
            engine.note_begun(engine.machine.log.parts[part], command, row)
            return row

        def sent(lane: Lane, op: int, place: Any, sequence: int, row: Row, command: Any, done: Any) -> None:
            engine.note_begun(lane.sender, command, row)
            engine.place_of[row] = lane.pair, sequence
            engine.messages[lane.pair, sequence] = row
            send(lane, op, place, sequence, row, command, done)

        def claim_next(stage: Stage, token: Token) -> bool:
            following = None if token.to_pass < 2 else token.route[token.to_pass - 2]
            if following is not None:
                engine.slots.setdefault(following, following.free)
            found = claim(stage, token)
            if found and following is not None:
                engine.takers.setdefault(following, []).append(token)
            return found

        def entered(stage: StageUnit, token: Token) -> None:
            engine.slots.setdefault(stage, stage.free)
            engine.takers.setdefault(stage, []).append(token)
            enter(stage, token)

        with (
            patch.object(pe_cpu, "KernelExecution", Observed),
            patch.object(Stage, "claim_next", claim_next),
            patch.object(StageUnit, "enter", entered),
            patch.object(Recorder, "started", begun),
            patch.object(Recorder, "math", computed),
            patch.object(Lane, "send", sent),
        ):
            yield


def check_needs(engine: NeedsEngine) -> dict[Row, Needs]:
    """Each row begins when the last of what it needs is there, and its cause came last. What each needs."""
    derived = _Derived(engine)
    derived.derive()
    rows, log = derived.rows, engine.machine.log
    for row in range(0, len(rows), WIDTH):
        kind, start, by, cause = Kind(rows[row + KIND]), rows[row + START], By(rows[row + BY]), rows[row + CAUSE]
        what = f"{kind.name} {row // WIDTH} of {log.parts[rows[row + PART]]} at {start} by {by.name} {cause // WIDTH}"
        assert row in derived.needs, f"{what}: nothing says what it needs"
        needs = derived.needs[row]
        if not needs:
            assert by is By.NOTHING, what
            continue
        told = [(each.at, rows[each.row + KIND], each.row // WIDTH, each.by.name) for each in sorted(needs)[-6:]]
        assert max(each.at for each in needs) == start, f"{what}, but needs {told}"
        assert (start, cause, by) in needs, f"{what}, which is no need that came last: {told}"
    return derived.needs


def _at(need: Need) -> int:
    return need.at


def _last(needs: Iterable[Need]) -> Needs:
    """Those that came last."""
    found = list(needs)
    latest = max((each.at for each in found), default=0)
    return [each for each in found if each.at == latest]


def _as(by: By, needs: Iterable[Need]) -> Needs:
    return [each._replace(by=by) for each in needs]


class _Derived:
    """Works out the needs of all rows of a run that has ended well."""

    def __init__(self, engine: NeedsEngine) -> None:
        self.engine = engine
        self.machine = engine.machine
        self.log = engine.machine.log
        self.rows = engine.machine.log.rows
        self.needs: dict[Row, Needs] = {}
        spec = engine.machine.spec
        self.setup_ps = ns_to_ps(spec.pe.dma.setup_ns + spec.pe.mmu.tlb_hit_ns)
        self.queue_ps = ns_to_ps(spec.pe.components.pe_ipcq.attrs.overhead_ns)
        self.ordered = spec.pe.dma.ordering == "program"
        self.all = range(0, len(self.rows), WIDTH)
        self.of_kind: dict[Kind, list[Row]] = {kind: [] for kind in Kind}
        for row in self.all:
            self.of_kind[Kind(self.rows[row + KIND])].append(row)
        self.send_of = {self.rows[row + PARENT]: row for row in self.of_kind[Kind.SEND]}
        self.over: dict[Program, Needs] = {}
        self.ready: dict[tuple[Program, int], Needs] = {}
        self.states: dict[Program, list[Needs]] = {}
        self.arrivals: dict[tuple[tuple[int, ...], int], list[Needs]] = {}
        self.control: list[tuple[Transfer, Any]] = [(each, each.arg) for each in engine.sent if each.row >= 0]
        self.control_of: dict[tuple[type, int], list[Transfer]] = {}
        for transfer, message in self.control:
            self.control_of.setdefault((type(message), message.request_id), []).append(transfer)
        self.credits: dict[tuple[int, int | None], list[Row]] = {}  # by when they were given, and came
        for row in self.of_kind[Kind.CREDIT]:
            self.credits.setdefault((self.rows[row + START], self.rows[row + END]), []).append(row)

    def derive(self) -> None:
        for row in self.of_kind[Kind.REQUEST]:
            self.needs[row] = self._host(self.rows[row + LAUNCH])
        for row in (*self.of_kind[Kind.MEMORY_WRITE], *self.of_kind[Kind.MEMORY_READ]):
            self.needs[row] = self._host_op(row)
        for programs in self.engine.programs.values():
            for program in programs:
                self._walk(program)
        for release in self.engine.releases:
            self._credit(release)
        self._control_path()
        self._launches()
        self._pipelines()
        self._math()
        self._dma()
        self._raw()

    def _ended(self, row: Row, by: By) -> Need:
        return Need(self.rows[row + END], row, by)

    # The host.

    def _host(self, request_id: int) -> Needs:
        waited = self.engine.waited[request_id]
        return [] if waited is None else [self._ended(self.log.requests[waited.request_id], By.HOST)]

    def _host_op(self, row: Row) -> Needs:
        """A transfer begins with its request: nothing else begins at the host's at that row."""
        before = [each for each in self.of_kind[Kind.REQUEST] if each < row]
        return self._host(self.rows[before[-1] + LAUNCH])

    # Kernels.

    def _walk(self, program: Program) -> None:
        rows = self.rows
        cpu = self.log.part(pe_part(*program.pe, "pe_cpu"))
        mine = [row for row in self.of_kind[Kind.ISSUE] if rows[row + LAUNCH] == program.launch]
        issues = iter([row for row in mine if rows[row + PART] == cpu])
        (launch,) = (
            row for row in self.of_kind[Kind.LAUNCH] if (rows[row + PART], rows[row + LAUNCH]) == (cpu, program.launch)
        )
        after = [self._ended(launch, By.KERNEL)]
        states = self.states[program] = []
        commands: list[Any] = []
        for asked in program.asked:
            states.append(after)
            request = asked.request
            match request:
                case AwaitCommand(serial=serial):
                    after = after + _as(By.OPERAND, self._done(program, serial))
                case AwaitSpace():
                    each = [_last(self._done(program, serial)) for serial in asked.under_way]
                    first = min(needs[0].at for needs in each)
                    after = after + _as(By.SPACE, [need for needs in each for need in needs if need.at == first])
                case Meet():
                    came = [*after, *self._all_done(program, commands)]
                    self.arrivals.setdefault((program.pe, program.launch), []).append(came)
                    after = [self._release_of(program, len(self.arrivals[program.pe, program.launch]) - 1)]
                case _:
                    issue = next(issues)
                    self.needs[issue] = after
                    after = [self._ended(issue, By.ISSUE)]
                    if isinstance(request, Receive):
                        after += self._come(asked.message, By.MESSAGE)
                    elif isinstance(request, RecvCommand):
                        program.posted[request.serial] = asked.message
                        commands.append(request)
                    else:
                        if isinstance(request, SendCommand):
                            after = after + self._slot(program, request, rows[issue + END])
                        self._command(program, request, after, commands)
                        commands.append(request)
        assert next(issues, None) is None
        states.append(after)
        self.over[program] = [*after, *self._all_done(program, commands), *self._last_credits(program)]

    def _all_done(self, program: Program, commands: Iterable[Any]) -> Needs:
        return [need for each in commands for need in self._done(program, each.serial)]

    def _done(self, program: Program, serial: int) -> Needs:
        """When a command of a kernel is done."""
        row = program.rows.get(serial)
        if serial in program.posted:
            found = self._come(program.posted[serial], By.OPERAND)
        elif row is None:  # what takes no time is done as it could begin
            found = _as(By.OPERAND, self.ready[program, serial])
        else:
            found = [self._ended(self.send_of.get(row, row), By.OPERAND)]
        return found

    def _come(self, message: tuple[QueuePair, int], by: By) -> Needs:
        """A message can be received when it and those before it are there, which may come in another order."""
        pair, sequence = message
        return [
            self._ended(self.engine.messages[pair, each], by)
            for each in range(max(0, sequence - pair.n_slots), sequence + 1)
        ]

    def _command(self, program: Program, command: Any, after: Needs, before: Sequence[Any]) -> None:
        needs = [*after, *(need for serial in command.after for need in self._done(program, serial))]
        for each in before:
            if self.ordered:
                needs = needs + self._memory(program, each, command)
                named = names_tcm(each) or names_tcm(command)
                if named and each.serial not in command.after and tcm_meets(each, command):
                    needs = needs + _as(By.MEMORY_END, self._done(program, each.serial))
        self.ready[program, command.serial] = needs
        row = program.rows.get(command.serial)
        if row is not None:
            self.needs[row] = needs

    def _memory(self, program: Program, earlier: Any, later: Any) -> Needs:
        """What ``later`` waits for of the bytes that ``earlier`` accesses."""
        row = program.rows.get(earlier.serial)
        how = _conflict(earlier, later)
        if row is None or not how:
            return []
        ends = isinstance(earlier, GemmComposite | MathComposite)
        at = self.rows[row + END] if ends else accessed(self.rows, row)
        # What only ranges say is waited for where rows are too many to compare, or may be.
        found = self.rows[program.rows.get(later.serial, row) + BY]
        if how is By.MEMORY or found == By.MEMORY_RANGE:
            return [Need(at, row, how)]
        return []

    # Queues.

    def _slot(self, program: Program, command: SendCommand, since: int) -> Needs:
        """The slot of the peer that a message takes."""
        pair, sequence = self.engine.place_of[program.rows[command.serial]]
        last = sequence - min(pair.n_slots, command.window)
        if last < 0:
            return []
        pe, direction = program.pe, command.direction
        mine = [each.event for each in self.engine.releases if each.sender is pair]
        given = max(each.time_ps for each in mine if each.sequence <= last)
        ipcq = self.machine.part(pe_part(*pe, "pe_ipcq"), PeIpcq)
        credited = given + next(each.credited_ps - each.time_ps for each in mine if each.credited_ps is not None)
        here = self.log.part(pe_part(*pe, "pe_ipcq")), self.log.named(direction)
        given_back = [
            each
            for each in self.of_kind[Kind.CREDIT]
            if self.rows[each + END] == credited and (self.rows[each + PART], self.rows[each + WHAT]) == here
        ]
        if ipcq.poll_ps:
            polls = -(-(credited - since) // ipcq.poll_ps)
            return [Need(since + polls * ipcq.poll_ps, each, By.POLL) for each in given_back or [-1]]
        return [Need(credited, each, By.CREDIT) for each in given_back or [-1]]

    def _credit(self, release: Release) -> None:
        """A slot is given back by the kernel's code, or when the last command that used it is done."""
        event = release.event
        needs = self.states[release.program][release.before] if release.ran else self._used(release)
        for row in self.credits.get((event.time_ps, event.credited_ps), ()):
            self.needs.setdefault(row, []).extend(_as(By.OPERAND, needs))

    def _used(self, release: Release) -> Needs:
        program, event = release.program, release.event
        users = [each.request for each in program.asked if _uses(each.request, release.address)]
        needs = [each for each in self._all_done(program, users) if each.at <= event.time_ps]
        return needs + (self.states[program][-1] if release.returned else [])

    def _last_credits(self, program: Program) -> Needs:
        """A kernel is over when the slots that it has given back are known to be free."""
        found = []
        for release in self.engine.releases:
            event = release.event
            if release.program is program and event.credited_ps is not None:
                rows = self.credits.get((event.time_ps, event.credited_ps))
                found += [Need(event.credited_ps, each, By.CREDIT) for each in rows or [-1]]
        return found

    # The control path.

    def _sent(self, kind: type, request_id: int, *, src: str = "", dst: str = "") -> list[Row]:
        """The messages of a kind, for a request, from a part or to one."""
        return [
            transfer.row
            for transfer in self.control_of.get((kind, request_id), ())
            if src in ("", transfer.port.name) and dst in ("", transfer.route.links[-1].dst)
        ]

    def _release_of(self, program: Program, number: int) -> Need:
        """The end of a barrier of a program."""
        row = self._sent(BarrierRelease, program.launch, dst=pe_part(*program.pe, "pe_cpu"))[number]
        return self._ended(row, By.BARRIER)

    def _control_path(self) -> None:
        for transfer, message in self.control:
            self.needs[transfer.row] = self._of_message(transfer, message)
        fills: dict[int, list[Row]] = {}
        for row in self.of_kind[Kind.RAW]:
            if self.rows[row + LAUNCH] >= 0:
                fills.setdefault(self.rows[row + PART], []).append(row)
        channels = self.machine.spec.cube.components.m_cpu.attrs.dma_channels
        for part, made in fills.items():
            ends = [self._ended(each, By.ENGINE) for each in made]
            for number, row in enumerate(made):
                orders = self._sent(CubeOrder, self.rows[row + LAUNCH], dst=self.log.parts[part])
                self.needs[row] = [*self._after(orders), *self._nth(ends, number - channels)]

    def _after(self, rows: Iterable[Row], by: By = By.ORDER) -> Needs:
        return [self._ended(each, by) for each in rows]

    def _of_message(self, transfer: Transfer, message: Any) -> Needs:
        """What a message of the control path is sent after."""
        src, dst, request = transfer.port.name, transfer.route.links[-1].dst, message.request_id
        match message:
            case SipOrder():
                needs = self._host(request)
            case CubeOrder():
                needs = self._after(self._sent(SipOrder, request, dst=src))
            case PeOrder():
                needs = self._after(self._sent(CubeOrder, request, dst=src))
            case BarrierArrival(pe=pe):
                number = self._sent(BarrierArrival, request, src=src).index(transfer.row)
                needs = self.arrivals[(*self._coord(src)[:2], pe), request][number]
            case BarrierRelease():
                number = self._sent(BarrierRelease, request, dst=dst).index(transfer.row)
                mates = {other.port.name for other in self.control_of[BarrierArrival, request]}
                came = [self._sent(BarrierArrival, request, src=mate, dst=src) for mate in mates]
                needs = self._after((each[number] for each in came if each), By.BARRIER)
            case Report() if src.endswith("pe_cpu"):
                needs = self._pe_report(src, request)
            case _:
                needs = self._after(self._sent(Report, request, dst=src)) + self._after(
                    self._filled(src, request), By.OPERAND
                )
        return needs

    def _filled(self, m_cpu: str, request: int) -> list[Row]:
        """The fills that an M_CPU does for a request."""
        here = self.log.part(m_cpu), request
        return [row for row in self.of_kind[Kind.RAW] if (self.rows[row + PART], self.rows[row + LAUNCH]) == here]

    def _nth(self, given: Iterable[Need], number: int) -> Needs:
        """The need that comes as number ``number`` in time, with those at the same instant; none for a negative one."""
        return self._of_instant(sorted(given), number)

    @staticmethod
    def _of_instant(given: Needs, number: int) -> Needs:
        if number < 0:
            return []
        at = given[number].at
        return given[bisect_left(given, at, key=_at) : bisect_right(given, at, key=_at)]

    @staticmethod
    def _coord(node: str) -> tuple[int, ...]:
        """Where a part is: its SIP, its cube, its PE."""
        return tuple(int(found) for found in re.findall(r"(?:sip|cube|pe)(\d+)\.", f"{node}."))

    def _programs(self, node: str) -> list[Program]:
        """The kernels of the PE that a part belongs to."""
        sip, cube, pe = self._coord(node)
        return self.engine.programs.get((sip, cube, pe), [])

    def _pe_report(self, src: str, request: int) -> Needs:
        ((order, message),) = (
            (transfer.row, message)
            for transfer, message in self.control
            if isinstance(message, PeOrder) and message.request_id == request and transfer.route.links[-1].dst == src
        )
        programs = self._programs(src)
        if isinstance(message.order, LaunchOrder):
            (program,) = (each for each in programs if each.launch == request)
            return self.over[program]
        needs = [self._ended(order, By.ORDER)]
        if isinstance(message.order, QueueRemoval):
            needs += self._behind([each for each in programs if each.launch < request])
        return needs

    def _behind(self, programs: Iterable[Program]) -> Needs:
        """The ends of kernels on a PE, for what is in line behind them."""
        found = [each for program in programs for each in self.over[program]]
        return [each if each.by is By.CREDIT else each._replace(by=By.KERNEL) for each in found]

    def _launches(self) -> None:
        for row in self.of_kind[Kind.LAUNCH]:
            launch, order = self.rows[row + LAUNCH], self.rows[row + PARENT]
            here = self.log.parts[self.rows[row + PART]]
            programs = self._programs(here)
            at = [each.launch for each in programs].index(launch)
            ((start_ps, io_cpu),) = (
                (message.start_ps, f"{here.partition('.')[0]}.io_cpu")
                for transfer, message in self.control
                if transfer.row == order
            )
            (first,) = self._sent(SipOrder, launch, dst=io_cpu)
            needs = [self._ended(order, By.ORDER), Need(start_ps, first, By.START)]
            self.needs[row] = needs + self._behind(programs[:at])

    # The pipeline.

    def _pipelines(self) -> None:
        rows = self.rows
        self.tile_rows: dict[tuple[Row, int, Kind], list[Row]] = {}
        for row in self.all:
            if rows[row + TILE] >= 0:
                key = rows[row + PARENT], rows[row + TILE], Kind(rows[row + KIND])
                self.tile_rows.setdefault(key, []).append(row)
        # Each stage passes its tokens on, and lets go of a slot for each.
        self.passed: dict[tuple[Stage, Token], Need] = {}
        self.places: dict[Stage, tuple[dict[Token, int], Needs]] = {}
        tokens: dict[Token, list[Stage]] = {}
        for stage, takers in self.engine.takers.items():
            for token in takers:
                tokens.setdefault(token, [])
            latest: Need | None = None
            for token in takers:
                row = max(self._in_stage(stage, token), key=lambda each: rows[each + END])
                own = self._ended(row, By.OPERAND)
                if stage.name.startswith("dma") and latest is not None and latest.at >= own.at:
                    own = latest  # in order
                latest = self.passed[stage, token] = own
            passed = sorted(self.passed[stage, token]._replace(by=By.SLOT) for token in takers)
            self.places[stage] = {token: at for at, token in enumerate(takers)}, passed
        per_part: dict[int, list[Token]] = {}
        for token in tokens:
            if isinstance(token.work, TileWork):
                (issue,) = self.tile_rows[token.work.plan.row, token.work.number, Kind.TILE_ISSUE]
                per_part.setdefault(rows[issue + PART], []).append(token)
        for given in per_part.values():
            self._pipeline(sorted(given, key=self._issue_of))

    def _issue_of(self, token: Token) -> Row:
        return self.tile_rows[token.work.plan.row, token.work.number, Kind.TILE_ISSUE][0]

    def _in_stage(self, stage: Stage, token: Token) -> list[Row]:
        if not isinstance(token.work, TileWork):
            return [token.row]
        kinds = {"dma_in": Kind.DMA_READ, "dma_out": Kind.DMA_WRITE, "issue": Kind.TILE_ISSUE}
        kind = kinds[stage.name] if stage.name in kinds else Kind[stage.name.upper()]
        return self.tile_rows[token.work.plan.row, token.work.number, kind]

    def _pipeline(self, tokens: list[Token]) -> None:
        """The tiles of a PE, in the order in which they are issued."""
        in_flight = self.machine.spec.pe.components.pe_scheduler.attrs.tiles_in_flight
        retired = sorted(self.passed[token.route[0], token]._replace(by=By.SLOT) for token in tokens)
        for number, token in enumerate(tokens):
            issue, plan = self._issue_of(token), token.work.plan
            needs = (
                self._of_instant(retired, number - in_flight)
                + self._plan(plan.row)
                + self._claim(token.route[-2], token)
            )
            if number:
                needs.append(self._ended(self._issue_of(tokens[number - 1]), By.ENGINE))
            self.needs[issue] = needs
            if number == 0 or tokens[number - 1].work.plan is not plan:  # a command begins with its first tile
                self.needs[plan.row] = needs
        stages = {stage for token in tokens for stage in token.route[:-1]}
        for stage in stages:
            arrange = self._dma_stage if stage.name.startswith("dma") else self._unit
            arrange(stage, self.engine.takers[stage])

    def _plan(self, row: Row) -> Needs:
        """What the command of a plan waited for before it came to the scheduler."""
        for programs in self.engine.programs.values():
            for program in programs:
                for serial, each in program.rows.items():
                    if each == row and (program, serial) in self.ready:
                        return self.ready[program, serial]
        raise AssertionError(f"no command has row {row // WIDTH}")

    def _claim(self, stage: Stage, token: Token) -> Needs:
        """The slot of ``stage`` that a token takes when it begins in the one before."""
        place, passed = self.places[stage]
        return self._of_instant(passed, place[token] - self.engine.slots[stage])

    def _before(self, stage: Stage, token: Token) -> Need:
        """It comes from the stage before."""
        before = token.route[token.route.index(stage) + 1]
        if before.name == "issue":
            return self._ended(self._issue_of(token), By.OPERAND)
        return self.passed[before, token]

    def _enters(self, stage: Stage, token: Token) -> Needs:
        """What a token needs to begin in a stage, beside the stage itself."""
        at = token.route.index(stage)
        return [self._before(stage, token), *(self._claim(token.route[at - 1], token) if at else ())]

    def _dma_stage(self, stage: Stage, tokens: list[Token]) -> None:
        ahead: Needs = []
        for token in tokens:
            ahead = _last([*ahead, *self._enters(stage, token)])
            for row in self._in_stage(stage, token):
                self.needs[row] = ahead

    def _unit(self, stage: Stage, tokens: list[Token]) -> None:
        made = sorted((self._in_stage(stage, token)[0], at) for at, token in enumerate(tokens))
        busy: Needs = []
        for row, at in made:
            token = tokens[at]
            if isinstance(token.work, TileWork):
                self.needs[row] = [*self._enters(stage, token), *busy]
            busy = [self._ended(row, By.ENGINE)]

    def _math(self) -> None:
        """Single commands have the engine after what was there before; they hold slots of it as tiles do."""
        for stage, tokens in self.engine.takers.items():
            if stage.name != "math":
                continue
            made = sorted(self._in_stage(stage, token)[0] for token in tokens)
            for before, row in pairwise(made):
                if self.rows[row + TILE] < 0:
                    self.needs[row] = [*self.needs[row], self._ended(before, By.ENGINE)]

    # The DMA.

    def _dma(self) -> None:
        """Descriptors of a channel are set up one after the other."""
        dmas = (Kind.DMA_READ, Kind.DMA_WRITE, Kind.RAW)
        for kinds in (dmas, (Kind.SEND,)):
            of_part: dict[int, list[Row]] = {}
            for kind in kinds:
                for row in self.of_kind[kind]:
                    if kind is not Kind.RAW or self.rows[row + LAUNCH] < 0:
                        of_part.setdefault(self.rows[row + PART], []).append(row)
            for given in of_part.values():
                self._channel(sorted(given, key=lambda row: (self.rows[row + START], row)))

    def _channel(self, given: list[Row]) -> None:
        rows = self.rows
        for row in given:
            if rows[row + KIND] == Kind.SEND:
                message = rows[row + PARENT]
                self.needs[row] = [Need(rows[message + START] + self.queue_ps, message, By.QUEUE)]
        for before, row in pairwise(given):
            self.needs[row] = [
                *self.needs.get(row, []),
                Need(rows[before + START] + self.setup_ps, before, By.SETUP),
            ]

    def _raw(self) -> None:
        """Raw traffic: so many descriptors of a request at once."""
        raw = [row for row in self.of_kind[Kind.RAW] if self.rows[row + LAUNCH] < 0]
        streams: dict[PeCoord, list[PeDmaMsg]] = {}
        for handle in self.engine.handles:
            if isinstance(handle.msg, PeDmaMsg):
                streams.setdefault(handle.msg.pe, []).append(handle.msg)
        for pe, messages in streams.items():
            part = self.log.part(pe_part(*pe, "pe_dma"))
            mine = iter(sorted((row for row in raw if self.rows[row + PART] == part), key=self._start))
            for msg in messages:  # one after the other on a PE, in these tests
                stream = [next(mine) for _ in range(msg.repeat)]
                ends = [self._ended(each, By.SLOT) for each in stream]
                for number, row in enumerate(stream):
                    before = self._nth(ends, number - msg.outstanding)
                    self.needs[row] = [*self.needs.get(row, []), *(before or self._host(msg.request_id))]

    def _start(self, row: Row) -> int:
        return self.rows[row + START]


def _refs(command: Any) -> tuple[list[Any], list[Any]]:
    """What a command reads in memory, and what it writes: (address, shape, itemsize, strides, physical)."""
    match command:
        case LoadCommand(dst=array) | StoreCommand(src=array):
            shape = array.shape if command.valid is None else command.valid
            strides = command.strides
            if strides is None and command.valid is not None:
                strides = row_major(array.shape, array.dtype.itemsize)
            found = [(command.va, shape, array.dtype.itemsize, strides, command.physical)]
            return (found, []) if isinstance(command, LoadCommand) else ([], found)
        case GemmComposite(a=a, b=b):
            given: list[Any] = [a, b]
        case MathComposite(inputs=inputs):
            given = [*inputs]
        case _:
            return [], []
    given += [step.operand for step in command.epilogue]
    refs = [each for each in given if isinstance(each, MemoryRef)]
    return [_of_ref(each) for each in refs], [_of_ref(command.out)]


def _of_ref(ref: MemoryRef) -> Any:
    return ref.va, ref.shape, ref.dtype.itemsize, ref.strides, False


def _reach(at: int, shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None, _: bool) -> tuple[int, int]:
    """The range that encloses the bytes."""
    steps = [(n - 1) * step for n, step in zip(shape, strides or row_major(shape, itemsize), strict=True)]
    return at + sum(step for step in steps if step < 0), at + sum(step for step in steps if step > 0) + itemsize


def _bytes(at: int, shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None, _: bool) -> Any:
    found = np.arange(itemsize, dtype=np.int64) + at
    for n, step in zip(shape, strides or row_major(shape, itemsize), strict=True):
        found = np.unique((found[:, None] + np.arange(n, dtype=np.int64) * step).reshape(-1))
    return found


def _conflict(earlier: Any, later: Any) -> By | None:
    """Whether two commands touch bytes of which one writes some: surely, by the ranges that enclose them, or not."""
    (reads, writes), (others, overwrites) = _refs(earlier), _refs(later)
    how = None
    for some, many in ((writes, others), (writes, overwrites), (reads, overwrites)):
        for x in some:
            for y in many:
                found = None if x[4] != y[4] or 0 in (*x[1], *y[1]) else _meet(x, y)
                if found is By.MEMORY:
                    return found
                how = found or how
    return how


def _meet(x: Any, y: Any) -> By | None:
    (low, high), (start, end) = _reach(*x), _reach(*y)
    if low >= end or start >= high:
        return None
    if x[3] is None and y[3] is None:
        return By.MEMORY
    return By.MEMORY if np.intersect1d(_bytes(*x), _bytes(*y)).size else By.MEMORY_RANGE


def _uses(command: Any, address: int) -> bool:
    """Whether a command works on what lies at an address."""
    if not isinstance(command, Command) or isinstance(command, RecvCommand):
        return False
    if isinstance(command, LoadCommand) and command.physical and command.va == address:
        return True
    return f"address={address}," in repr(command)
