"""What a run is asked for, noted as it goes on: an engine whose needs can be worked out afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from kernbench.common.data_policy import DataPolicy
from kernbench.components import pe_cpu
from kernbench.components.dispatch import Dispatcher
from kernbench.components.pe_scheduler import PeScheduler
from kernbench.components.queue import Queue
from kernbench.components.stage import Stage, StageUnit, Token
from kernbench.core.log import ROOT, Cause, Row
from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import SlotReleased
from kernbench.engine.queues import QueuePair, queue_pairs_of
from kernbench.engine.recorder import OpStarted, Recorded, Recorder
from kernbench.engine.requests import RequestHandle
from kernbench.messages.commands import Command
from kernbench.messages.requests import HostMsg, PeCoord
from kernbench.topology.builder import Topology
from kernbench.triton_emu.handles import Slot


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
        super().__init__(topology, DataPolicy(keep=enable_data, zeros=not enable_data), trace_hops=True)
        self.waited: dict[int, RequestHandle | None] = {}  # what the host had waited for when it submitted a request
        self.programs: dict[PeCoord, list[Program]] = {}
        self.sent = self.machine.network.traced
        self.releases: list[Release] = []
        self.messages: dict[tuple[QueuePair, int], Row] = {}  # by the queue that sends them, and number
        self.place_of: dict[Row, tuple[Queue, int]] = {}
        self.takers: dict[Stage, list[Token]] = {}  # of the slots of a stage, in order
        self.slots: dict[Stage, int] = {}
        self._host_waited: RequestHandle | None = None
        self.machine.hooks.slot_released.subscribe(self._released)

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

        class Observed(Dispatcher):
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
        begin = PeScheduler.begin_list
        started, math, send = Recorder.started, Recorder.math, Queue.send

        def begun(recorder: Recorder, event: OpStarted, cause: Cause) -> Row:
            row, what = started(recorder, event, cause), event.subject
            engine.note_begun(event.component, what.command if isinstance(what, Recorded) else what, row)
            return row

        def computed(recorder: Recorder, part: int, command: Any, *rest: Any) -> Row:
            row = math(recorder, part, command, *rest)
            engine.note_begun(engine.machine.log.parts[part], command, row)
            return row

        def sent(queue: Queue, command: Any, sequence: int, *rest: Any) -> None:
            row = len(engine.machine.log.rows)  # the next one is the message's
            send(queue, command, sequence, *rest)
            engine.note_begun(queue.ipcq.node.id, command, row)
            engine.place_of[row] = queue, sequence
            engine.messages[queue, sequence] = row

        def listed(scheduler: PeScheduler, plan: Any, source: Iterable[Any], *rest: Any) -> None:
            """Scheduled tiles take slots in their order, though no stage sees them."""
            for tile in source:
                token = scheduler.make_token(plan, tile, ROOT)
                for stage in token.route[-2::-1]:
                    engine.slots.setdefault(stage, stage.free)
                    engine.takers.setdefault(stage, []).append(token)
            begin(scheduler, plan, source, *rest)

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
            patch.object(pe_cpu, "Dispatcher", Observed),
            patch.object(Stage, "claim_next", claim_next),
            patch.object(StageUnit, "enter", entered),
            patch.object(PeScheduler, "begin_list", listed),
            patch.object(Recorder, "started", begun),
            patch.object(Recorder, "math", computed),
            patch.object(Queue, "send", sent),
        ):
            yield
