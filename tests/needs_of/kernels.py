"""What kernels need: their issues, commands, messages, slots and credits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from causes import accessed, written
from kernbench.common.ids import pe_part
from kernbench.components.memory_order import names_tcm, tcm_meets
from kernbench.core.log import BY, END, LAST, LAUNCH, NONE, PARENT, PART, READ, START, WHAT, By, Kind, Row
from kernbench.engine.queues import QueuePair
from kernbench.messages.commands import (
    COMPOSITES,
    MATH,
    MEMORY_WRITERS,
    RECEIVE,
    SEND,
    AwaitCommand,
    AwaitSpace,
    Command,
    Fence,
    Meet,
    ReadValue,
    Receive,
)
from kernbench.messages.control import (
    BarrierRelease,
)
from needs_of.accesses import conflict, uses
from needs_of.recorded import Program, Release
from needs_of.rows import Need, Needs, Run, last, relabelled


class Kernels:
    """Of all kernels of a run: when their commands could begin (``ready``), and what each ended with (``over``).

    ``arrivals``: what each had done when it came to a barrier, by PE and launch.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.over: dict[Program, Needs] = {}
        self.ready: dict[tuple[Program, int], Needs] = {}
        self.arrivals: dict[tuple[tuple[int, ...], int], list[Needs]] = {}
        self._ordered = run.machine.spec.pe.dma.ordering == "program"
        self._send_of = {run.rows[row + PARENT]: row for row in run.of_kind[Kind.SEND]}
        self._states: dict[Program, list[Needs]] = {}  # after what it makes each request, and ends
        self._credits: dict[tuple[int, int | None], list[Row]] = {}  # by when they were given, and came
        for row in run.of_kind[Kind.CREDIT]:
            self._credits.setdefault((run.rows[row + START], run.rows[row + END]), []).append(row)

    def derive(self) -> None:
        """The needs of their rows."""
        for programs in self.run.engine.programs.values():
            for program in programs:
                self._walk(program)
        for release in self.run.engine.releases:
            self._credit(release)

    def _walk(self, program: Program) -> None:
        """Request by request: ``after`` is what the kernel goes on after."""
        rows = self.run.rows
        cpu = self.run.log.part(pe_part(*program.pe, "pe_cpu"))
        issues, fences = (
            iter([r for r in self.run.of_kind[kind] if (rows[r + LAUNCH], rows[r + PART]) == (program.launch, cpu)])
            for kind in (Kind.ISSUE, Kind.FENCE)
        )
        launches = [row for row in self.run.of_kind[Kind.LAUNCH] if rows[row + PART] == cpu]
        (launch,) = (row for row in launches if rows[row + LAUNCH] == program.launch)
        after = [self.run.ended(launch, By.KERNEL)]
        states = self._states[program] = []
        commands: list[Any] = []
        for asked in program.asked:
            states.append(after)
            request = asked.request
            match request:
                case AwaitCommand(serial=serial):
                    after = after + relabelled(By.OPERAND, self._done(program, serial))
                case AwaitSpace():
                    each = [last(self._done(program, serial)) for serial in asked.under_way]
                    first = min(needs[0].at for needs in each)
                    after = after + relabelled(By.SPACE, [need for needs in each for need in needs if need.at == first])
                case Meet(drains=drains):
                    came = [*after, *(self._all_done(program, commands) if drains else ())]
                    self.arrivals.setdefault((program.pe, program.launch), []).append(came)
                    after = [self._release_of(program, len(self.arrivals[program.pe, program.launch]) - 1)]
                case Fence():
                    fence = next(fences)
                    self.run.needs[fence] = after
                    self._check_fence(program, fence, commands)
                    after = [self.run.ended(fence, By.FENCE)]
                case _:
                    issue = next(issues)
                    self.run.needs[issue] = after
                    after = [self.run.ended(issue, By.ISSUE)]
                    if isinstance(request, ReadValue):
                        continue
                    if isinstance(request, Receive):
                        after += self._come(asked.message, By.MESSAGE)
                    elif request.op is RECEIVE:
                        program.posted[request.serial] = asked.message
                        commands.append(request)
                    else:
                        if request.op is SEND:
                            after = after + self._slot(program, request, rows[issue + END])
                        self._command(program, request, after, commands)
                        commands.append(request)
        assert next(issues, None) is None
        assert next(fences, None) is None
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
            found = relabelled(By.OPERAND, self.ready[program, serial])
        else:
            found = [self.run.ended(self._send_of.get(row, row), By.OPERAND)]
        return found

    def _check_fence(self, program: Program, fence: Row, before: Iterable[Any]) -> None:
        """A fence ends when it is issued and all that was written before is in memory, by the row that was last."""
        rows, there = self.run.rows, []
        for each in before:
            if each.op in MEMORY_WRITERS or (each.op is MATH and each.dst.by_address):
                row = program.rows.get(each.serial)
                if row is None:  # nothing of it is valid: it is over as it could begin
                    there += last(self.ready[program, each.serial])
                else:
                    there.append(Need(written(rows, row), row, By.FENCE))
        issued, final = rows[fence + READ], last(there)
        assert rows[fence + END] == max([issued, *(each.at for each in final)])
        waited_for = [each.row for each in final if each.at >= issued]
        assert rows[fence + LAST] in waited_for or (rows[fence + END] == issued and rows[fence + LAST] == NONE)

    def _come(self, message: tuple[QueuePair, int], by: By) -> Needs:
        """A message can be received when it and those before it are there, which may come in another order."""
        pair, sequence = message
        return [
            self.run.ended(self.run.engine.messages[pair, each], by)
            for each in range(max(0, sequence - pair.n_slots), sequence + 1)
        ]

    def _command(self, program: Program, command: Any, after: Needs, before: Sequence[Any]) -> None:
        """A command begins after the CPU has issued it, its operands, and whoever accesses its bytes before."""
        needs = [*after, *(need for serial in command.after for need in self._done(program, serial))]
        for each in before:
            if self._ordered:
                needs = needs + self._memory(program, each, command)
                named = names_tcm(each) or names_tcm(command)
                if named and each.serial not in command.after and tcm_meets(each, command):
                    needs = needs + relabelled(By.MEMORY_END, self._done(program, each.serial))
        self.ready[program, command.serial] = needs
        row = program.rows.get(command.serial)
        if row is not None:
            self.run.needs[row] = needs

    def _memory(self, program: Program, earlier: Any, later: Any) -> Needs:
        """What ``later`` waits for of the bytes that ``earlier`` accesses."""
        row = program.rows.get(earlier.serial)
        how = conflict(earlier, later)
        if row is None or not how:
            return []
        ends = earlier.op in COMPOSITES
        at = self.run.rows[row + END] if ends else accessed(self.run.rows, row)
        # What only ranges say is waited for where rows are too many to compare, or may be.
        found = self.run.rows[program.rows.get(later.serial, row) + BY]
        if how is By.MEMORY or found == By.MEMORY_RANGE:
            return [Need(at, row, how)]
        return []

    # Queues.

    def _slot(self, program: Program, command: Command, since: int) -> Needs:
        """The slot of the peer that a message takes."""
        queue, sequence = self.run.engine.place_of[program.rows[command.serial]]
        before = sequence - queue.n_slots  # the message whose slot it takes
        if before < 0:
            return []
        pe, direction = program.pe, command.name
        mine = [each.event for each in self.run.engine.releases if each.sender is queue]
        given = max(each.time_ps for each in mine if each.sequence <= before)
        credited = given + next(each.credited_ps - each.time_ps for each in mine if each.credited_ps is not None)
        here = self.run.log.part(pe_part(*pe, "pe_ipcq")), self.run.log.intern(direction)
        rows = self.run.rows
        given_back = [
            each
            for each in self.run.of_kind[Kind.CREDIT]
            if rows[each + END] == credited and (rows[each + PART], rows[each + WHAT]) == here
        ]
        if queue.poll_ps:
            polls = -(-(credited - since) // queue.poll_ps)
            return [Need(since + polls * queue.poll_ps, each, By.POLL) for each in given_back or [-1]]
        return [Need(credited, each, By.CREDIT) for each in given_back or [-1]]

    def _credit(self, release: Release) -> None:
        """A slot is given back by the kernel's code, or when the last command that used it is done."""
        event = release.event
        needs = self._states[release.program][release.before] if release.ran else self._used(release)
        for row in self._credits.get((event.time_ps, event.credited_ps), ()):
            self.run.needs.setdefault(row, []).extend(relabelled(By.OPERAND, needs))

    def _used(self, release: Release) -> Needs:
        program, event = release.program, release.event
        users = [each.request for each in program.asked if uses(each.request, release.address)]
        needs = [each for each in self._all_done(program, users) if each.at <= event.time_ps]
        return needs + (self._states[program][-1] if release.returned else [])

    def _last_credits(self, program: Program) -> Needs:
        """A kernel is over when the slots that it has given back are known to be free."""
        found = []
        for release in self.run.engine.releases:
            event = release.event
            if release.program is program and event.credited_ps is not None:
                rows = self._credits.get((event.time_ps, event.credited_ps))
                found += [Need(event.credited_ps, each, By.CREDIT) for each in rows or [-1]]
        return found

    def _release_of(self, program: Program, number: int) -> Need:
        """The end of a barrier of a program."""
        row = self.run.sent(BarrierRelease, program.launch, dst=pe_part(*program.pe, "pe_cpu"))[number]
        return self.run.ended(row, By.BARRIER)
