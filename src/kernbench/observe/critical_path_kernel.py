"""The critical path through kernels, walked backwards: from the end of one to the start of it, or of another's.

What began when something else ended waited for it: a command for its operands and its issue, a program for a command,
for the PE that was last at a barrier, for a message of another PE, for a slot that another PE gave back. There the path
goes on in the kernel of that PE, whichever launch it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kernbench.common.ids import pe_part
from kernbench.engine.hooks import Issued, Ordered, QueueWaited, SlotReleased
from kernbench.messages.commands import SendCommand
from kernbench.messages.control import BarrierArrival
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_control import ControlIndex
from kernbench.observe.critical_path_dma import walk_access, walk_dma, walk_message
from kernbench.observe.critical_path_history import is_dma, rank, stages
from kernbench.observe.critical_path_model import Hop, KernelPlace, Part, WaitedFor
from kernbench.observe.critical_path_pipeline import Ended, Issuing, Leaving, PeWalk, Place, Running, Starting
from kernbench.observe.critical_path_windows import KernelWindows
from kernbench.observe.trace_log import PLAN, Action, Exchange, TraceLog, Work
from kernbench.observe.trace_queues import Message, Took

ENGINE_PARTS = {"fetch": Part.FETCH, "GEMM": Part.GEMM, "MATH": Part.MATH, "store": Part.STORE, "other": Part.OTHER}


@dataclass(slots=True)
class KernelWalk(PeWalk):
    """Walks ``chain`` from the end of the kernel of ``launch_id`` on ``pe`` to the start of a kernel.

    ``windows``: when every kernel ran; ``sends``: the works of messages, by operation.
    """

    log: TraceLog
    control: ControlIndex
    windows: KernelWindows
    sends: Mapping[int, Work]
    launch_id: int
    _seen: set[tuple[int, int]] = field(default_factory=set)
    _waits: set[int] = field(default_factory=set)

    def walk(self) -> None:
        """Go to the start of a kernel, of ``launch_id`` on ``pe`` then, or to the begin of the chain before that."""
        self.chain.launch_id = self.launch_id
        self._credits_back()
        place: Place | None = self._end()
        while place is not None and self.chain.at_ps > self.chain.floor_ps:
            place = self._step(place)

    def _credits_back(self) -> None:
        """A PE reports when its credits have come: before that was the last thing of its kernel."""
        here, at = self._here, self.chain.at_ps
        acted = self._actions and here.times[self._actions - 1] == at
        if (self.pe, at) in self.log.queues.given and not acted and not here.ended_at(at):
            self.chain.back_to(max(here.last_end_before(at), here.last_action_before(at)), Part.CREDIT, self.pe)

    @property
    def _actions(self) -> int:
        """How much the programs of the PE had done by now."""
        return self._here.actions_by(self.chain.at_ps)

    def _go_to(self, pe: PeCoord, launch_id: int) -> None:
        self.pe = pe
        self.launch_id = self.chain.launch_id = launch_id

    def _end(self) -> Place:
        last = self._command_ended()
        return Ended(last) if last is not None else Running(self._actions)

    def _step(self, place: Place) -> Place | None:
        if isinstance(place, Ended):
            return self._ended(place.work)
        found = self._cause(place)
        return found if found is not None else self._unexplained(place)

    def _cause(self, place: Place) -> Place | None:
        match place:
            case Running(actions):
                return None if self._launched(actions) else self._program(actions)
            case Starting(work):
                return self._tile_start(work) if work.whole is not None else self._command_start(work)
            case Issuing(work):
                return self._issue_start(work)
            case Leaving(work):
                return self._message_left(work)
        return None

    def _unexplained(self, place: Place) -> Place | None:
        """Back to the last thing that ended before; None at the start of the kernel."""
        start = self.windows.start_of(self.launch_id, self.pe)
        if start is None or self.chain.at_ps <= start:
            return None
        at = self.chain.at_ps
        before = max(start, self._here.last_end_before(at), self._here.last_action_before(at))
        line = 0 if isinstance(place, Running) else place.work.line
        self.chain.back_to(before, Part.WAIT, self.pe, line)
        return None if before == start else self._resume()

    def _resume(self) -> Place:
        """Go on from whatever ended now."""
        ended = next(stages(self._here.ended_at(self.chain.at_ps)), None)
        return Ended(ended) if ended is not None else Running(self._actions)

    # What ended.

    def _ended(self, work: Work) -> Place | None:
        if work.engine == PLAN:
            return self._plan_ended(work)
        if work.op in self.sends:
            return self._message_gone(work)
        if is_dma(work):
            exchange = max(self.log.exchanges.get(work.op, ()), key=_answered, default=None)
            walk_dma(self.chain, work, exchange, self.log.turns_of.get(work.op, []), self.machine)
        else:
            self.chain.back_to(work.start_ps, ENGINE_PARTS.get(work.engine, Part.WAIT), self.pe, work.line)
        return Starting(work)

    def _plan_ended(self, plan: Work) -> Place | None:
        tiles = [each for each in stages(self._here.ended_at(self.chain.at_ps)) if each.whole is not None]
        parts = [each for each in tiles if each.whole is plan]
        # Tiles leave in order: that of another plan may have held up the last one of this.
        if tiles:
            return Ended(max(parts or tiles, key=rank))
        self.chain.back_to(plan.start_ps, Part.WAIT, self.pe, plan.line)
        return Starting(plan)

    def _message_gone(self, work: Work) -> Place:
        """From a slot, or on its way to one, back to where it left the PE."""
        walk_message(self.chain, work, self.log.exchanges[work.op][0], self.log.turns_of.get(work.op, []), self.machine)
        return Leaving(work)

    # The program.

    def _launched(self, actions: int) -> bool:
        """Whether the program has just been entered; if so, the path is at the kernel's start."""
        start = self.windows.start_of(self.launch_id, self.pe)
        launch_ps = self.machine.spec.pe.components.pe_cpu.attrs.launch_ps
        here = self._here
        if start is None or self.chain.at_ps != start + launch_ps or (actions and here.times[actions - 1] > start):
            return False
        self.chain.back_to(start, Part.LAUNCH, self.pe)
        return True

    def _program(self, actions: int) -> Place | None:
        at, here = self.chain.at_ps, self._here
        if actions and here.times[actions - 1] == at:
            return self._acted(here.actions[actions - 1], actions)
        met = self._met()
        if met is not None:
            return met
        ended = self._command_ended()
        return Ended(ended) if ended is not None else self._posted_message()

    def _acted(self, action: Action, actions: int) -> Place | None:
        """Before the last action of the program, which was over now."""
        if isinstance(action, QueueWaited):
            return self._queue_waited(action, actions)
        line = action.command.line if isinstance(action, Issued) else 0
        if not self._waited_before(action, actions):
            self._issue(line)
        return Running(actions - 1)

    def _waited_before(self, action: Action, actions: int) -> bool:
        """Whether a send was entered when it had a slot, after its issue and a wait."""
        before = self._here.actions[actions - 2] if actions > 1 else None
        return (
            isinstance(action, Issued)
            and isinstance(action.command, SendCommand)
            and isinstance(before, QueueWaited)
            and (before.kind, before.line, before.end_ps) == ("send", action.command.line, action.time_ps)
        )

    def _issue(self, line: int) -> None:
        issue_ps = self.machine.spec.pe.components.pe_cpu.attrs.issue_ps
        self.chain.back_to(self.chain.at_ps - issue_ps, Part.ISSUE, self.pe, line)

    def _command_ended(self) -> Work | None:
        found = [
            each
            for each in self._here.ended_at(self.chain.at_ps)
            if each.whole is None and each.launch_id == self.launch_id and self._new(each)
        ]
        return max(found, key=lambda each: each.serial, default=None)

    def _new(self, work: Work) -> bool:
        """Whether the path has not been at the end of ``work``: what takes no time could lead back to itself."""
        if work.start_ps < work.end_ps:
            return True
        key = (work.op, work.end_ps)
        known = key in self._seen
        self._seen.add(key)
        return not known

    def _met(self) -> Place | None:
        """A barrier that has just ended: back to the PE that came last."""
        release = self.control.release_at(pe_part(*self.pe, "pe_cpu"), self.launch_id, self.chain.at_ps)
        if release is None:
            return None
        self.chain.back_to(release.transfer.injected_ps, Part.BARRIER, self.pe)
        arrival = self.control.arrival_at(release.src, self.launch_id, self.chain.at_ps)
        if arrival is None:
            return None
        self.chain.back_to(arrival.transfer.injected_ps, Part.BARRIER, self.pe)
        assert isinstance(arrival.message, BarrierArrival)
        self.pe = (*self.pe[:2], arrival.message.pe)
        return Running(self._actions)

    # Queues.

    def _queue_waited(self, wait: QueueWaited, actions: int) -> Place | None:
        """Back to the kernel whose message, or whose credit, ended a wait."""
        if self._first_time(wait):
            message = self._message_at(wait.direction) if wait.kind == "recv" else None
            if message is not None:
                return self._along(message, wait.line, wait.start_ps)
            end = (self.pe, wait.direction)
            credit = self.log.queues.credit_before(end, wait.start_ps, wait.end_ps) if wait.kind == "send" else None
            if credit is not None:
                return self._credited(wait, credit)
        self.chain.back_to(wait.start_ps, Part.QUEUES, self.pe, wait.line)
        self._issue(wait.line)
        received = wait.kind == "recv" and actions > 1 and isinstance(self._here.actions[actions - 2], Took)
        return Running(actions - 2 if received else actions - 1)

    def _first_time(self, wait: QueueWaited) -> bool:
        """Whether the path has not been at the end of ``wait``: what takes no time could lead back to it."""
        known = id(wait) in self._waits
        self._waits.add(id(wait))
        return not known

    def _message_at(self, direction: str | None = None) -> Message | None:
        """The message that has just come by a queue, or that was received before it came."""
        for each in self.log.queues.arrivals.get((self.pe, self.chain.at_ps), ()):
            if each.posted if direction is None else each.queue == direction:
                return each
        return None

    def _posted_message(self) -> Place | None:
        """A message that was received before it came, and has just come."""
        message = self._message_at()
        return None if message is None else self._along(message, 0, self._here.last_action_before(self.chain.at_ps))

    def _along(self, message: Message, line: int, since_ps: int) -> Place:
        """From the arrival of a message, for which ``line`` has waited since then, back to its sender."""
        work = self.sends[message.op]
        self._hop("message", message.queue, line, since_ps, work.pe, work.launch_id, work.line)
        overhead_ps = self.machine.component(pe_part(*self.pe, "pe_ipcq")).overhead_ps
        self.chain.back_to(self.chain.at_ps - overhead_ps, Part.QUEUES, self.pe, line)
        self._go_to(work.pe, work.launch_id)
        return self._message_gone(work)

    def _credited(self, wait: QueueWaited, credit: SlotReleased) -> Place:
        """From the end of a wait for a slot back to its release."""
        assert credit.credited_ps is not None
        launch_id = self.windows.launch_at(credit.pe, credit.time_ps)
        self._hop("slot", wait.direction, wait.line, wait.start_ps, credit.pe, launch_id, 0)
        self.chain.back_to(credit.credited_ps, Part.POLL, self.pe, wait.line)
        self.chain.back_to(credit.time_ps, Part.CREDIT, self.pe, wait.line)
        self._go_to(credit.pe, launch_id)
        return self._end()

    def _hop(
        self, what: WaitedFor, direction: str, line: int, since_ps: int, pe: PeCoord, launch_id: int, there: int
    ) -> None:
        """The path leaves this kernel for another."""
        hop = Hop(
            waiting=KernelPlace(pe=self.pe, launch_id=self.launch_id, line=line),
            cause=KernelPlace(pe=pe, launch_id=launch_id, line=there),
            waited_for=what,
            direction=direction,
            start_ps=since_ps,
            end_ps=self.chain.at_ps,
        )
        self.chain.hops.append(hop)

    # What began.

    def _command_start(self, work: Work) -> Place | None:
        here, at = self._here, self.chain.at_ps
        for serial in reversed(work.after):
            operand = here.commands.get((work.launch_id, serial))
            if operand is not None and operand.end_ps == at:
                return Ended(operand)
        issued = here.issue_of(work.launch_id, work.serial)
        if issued and here.times[issued - 1] == at:
            return Running(issued)
        if any(not here.issue_of(work.launch_id, serial) for serial in work.after):  # a receive that was posted
            message = self._message_at()
            if message is not None:
                return self._along(message, work.line, here.times[issued - 1] if issued else at)
        ordered = self.log.ordered.get((work.pe, work.launch_id, work.serial))
        if ordered is not None and ordered.time_ps == at:
            return self._in_order(work, ordered)
        return self._engine_busy(work)

    def _in_order(self, work: Work, ordered: Ordered) -> Place | None:
        """From the end of a wait for an earlier access to the same bytes into that access."""
        here = self._here
        earlier = here.commands.get((work.launch_id, ordered.earlier.serial))
        if earlier is None:
            return None
        issued = here.issue_of(work.launch_id, work.serial)
        hop = Hop(
            waiting=KernelPlace(pe=self.pe, launch_id=self.launch_id, line=work.line),
            cause=KernelPlace(pe=self.pe, launch_id=self.launch_id, line=earlier.line),
            waited_for="memory order by range" if ordered.how == "range" else "memory order",
            direction="",
            start_ps=here.times[issued - 1] if issued else self.chain.at_ps,
            end_ps=self.chain.at_ps,
        )
        self.chain.hops.append(hop)
        if not is_dma(earlier):
            return Ended(earlier)
        exchanges, turns = self.log.exchanges.get(earlier.op, []), self.log.turns_of.get(earlier.op, [])
        walk_access(self.chain, earlier, exchanges, turns, self.machine)
        return Starting(earlier)


def _answered(exchange: Exchange) -> int:
    return exchange.answered.delivered_ps if exchange.answered is not None else -1
