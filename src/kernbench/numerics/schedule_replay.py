"""What schedules compute, a step for all PEs at once that can take it: the numbers do not depend on time.

The PEs of a group that have the same program are a *cohort*. A value of its program is one matrix, a PE a row. A
command is carried out as soon as what it reads is there, as one operation on the rows of all PEs for which that is so.
When several can be, the first of the program is, so that who is behind catches up with the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from kernbench.common.errors import RunError
from kernbench.common.operators import compute, operator
from kernbench.messages.operands import Operand
from kernbench.messages.schedules import Op
from kernbench.numerics.schedule_groups import Group, Way
from kernbench.numerics.schedule_plays import Play, Program, Written

Array: TypeAlias = np.ndarray[Any, Any]
_NOBODY: frozenset[int] = frozenset()


class Route(NamedTuple):
    """Messages of one direction go from rows to rows (``rows``) of ``cohort``, where they are ``values`` in turn.

    ``order``: of all rows, so that they are in the order of those there; None when they are not all of both.
    """

    cohort: Cohort
    values: list[int]
    rows: dict[int, int]
    order: list[int] | None


class Cohort:
    """PEs that play ``program``, and their values as far as somebody still needs them."""

    def __init__(self, program: Program, awake: list[Cohort]) -> None:
        self.program = program
        self.plays: list[Play] = []
        self.routes: dict[str, list[Route]] = defaultdict(list)
        self._awake = awake  # those of the team that may be able to do something
        self._all: set[int] = set()
        self._values: dict[int, Array] = {}
        self._there: dict[int, set[int]] = {}  # the rows of a value that have been made
        self._left: dict[int, set[int]] = {}  # those that have yet to carry out a command, once some have
        self._due: list[int] = []  # commands that some rows may be able to carry out
        self._uses: dict[int, int] = {}  # of a value, that are to come

    def begin(self, kept: Iterable[int]) -> None:
        """All ``plays`` are known, and begin; ``kept``: each value that memory takes of one of them."""
        n, program = len(self.plays), self.program
        self._all = set(range(n))
        self._uses = {value: (1 + len(users)) * n for value, users in program.users.items()}
        for value in kept:
            self._uses[value] += 1
        self._wake(program.free)

    def give(self, value: int, rows: Collection[int], arrays: Array) -> None:
        """These rows of a value are made, to ``arrays``; if they are all, then in their order."""
        op = self.program.ops[self.program.makers[value]]
        arrays = arrays.view(op.dtype.numpy)
        n = len(self.plays)
        if len(rows) == n:
            self._values[value], self._there[value] = arrays, self._all
        else:
            found = self._values.get(value)
            if found is None:
                found = self._values[value] = np.empty((n, *op.shape), op.dtype.numpy)
            found[list(rows)] = arrays
            self._there.setdefault(value, set()).update(rows)
        self._wake(self.program.users[value])
        self._used(value, len(rows))

    def take(self, value: int, row: int) -> Array:
        """A value of a row, to be kept in memory. RunError when it is not there, which cannot be."""
        if row not in self._there.get(value, ()):
            raise RunError(f"value {value} of its schedule is used before it is made")
        found: Array = self._values[value][row]
        self._used(value, 1)
        return found

    def play(self) -> None:
        """Go as far as possible."""
        while self._due:
            at = heappop(self._due)
            op, left = self.program.ops[at], self._left.get(at, self._all)
            rows = left.intersection(*(self._there.get(value, _NOBODY) for value in op.reads))
            if rows:
                self._left[at] = left - rows
                self._carry_out(op, at, rows)

    def _wake(self, commands: Iterable[int]) -> None:
        """Some rows may now be able to carry these out."""
        if not self._due:
            self._awake.append(self)
        for at in commands:
            heappush(self._due, at)

    def _carry_out(self, op: Op, at: int, rows: set[int]) -> None:
        order = None if len(rows) == len(self.plays) else list(rows)
        args: list[Any] = [self._values[x] if order is None else self._values[x][order] for x in op.reads]
        if op.does == "send":
            self._send(op, self.program.turns[at], order, args[0])
        else:
            if op.number is not None:
                args.append(op.number)
            made = compute(operator(op.does), args, op.dtype, (len(rows), *op.shape))
            self.give(op.to, rows if order is None else order, made)
        for value in op.reads:
            self._used(value, len(rows))

    def _send(self, op: Op, turn: int, mine: list[int] | None, source: Array) -> None:
        """Messages of the rows ``mine``, in this order, or of all: the rows of ``source``."""
        for cohort, values, to, order in self.routes[op.what]:
            if mine is None and order is not None:
                cohort.give(values[turn], order, source[order])
                continue
            rows = range(len(source)) if mine is None else mine
            sent = sorted((to[row], at) for at, row in enumerate(rows) if row in to)
            if sent:
                cohort.give(values[turn], [row for row, _ in sent], source[[at for _, at in sent]])

    def _used(self, value: int, times: int) -> None:
        left = self._uses[value] = self._uses[value] - times
        if not left:
            del self._values[value], self._there[value]


class Place(NamedTuple):
    """Where a PE of a group is: row ``row`` of ``cohort``."""

    team: Team
    cohort: Cohort
    row: int


class Team:
    """A group at play."""

    def __init__(self, group: Group) -> None:
        self._awake: list[Cohort] = []
        cohorts: dict[Program, Cohort] = {}
        kept: dict[Program, list[int]] = defaultdict(list)
        self.places: dict[Play, Place] = {}
        for play in group.plays:
            program = play.program
            cohort = cohorts.setdefault(program, Cohort(program, self._awake))
            self.places[play] = Place(self, cohort, len(cohort.plays))
            cohort.plays.append(play)
            kept[program] += [*play.stored, *(value for _, value in self._remains(play))]
        self._lay_routes(group.ways)
        for program, cohort in cohorts.items():
            cohort.begin(kept[program])

    def _lay_routes(self, ways: Sequence[Way]) -> None:
        rows: dict[tuple[Cohort, str, Cohort, str], dict[int, int]] = defaultdict(dict)
        for way in ways:
            mine, theirs = self.places[way.sender], self.places[way.receiver]
            rows[mine.cohort, way.direction, theirs.cohort, way.there][mine.row] = theirs.row
        for (sender, direction, receiver, there), to in rows.items():
            is_all = len(to) == len(sender.plays) == len(receiver.plays)
            order = sorted(to, key=to.__getitem__) if is_all else None
            sender.routes[direction].append(Route(receiver, receiver.program.takes[there], to, order))

    def give(self, place: Place, value: int, array: Array) -> None:
        """What a load has read."""
        place.cohort.give(value, [place.row], array[None])

    def take(self, place: Place, value: int) -> Array:
        """A value of a PE, which is there by now: all go as far as they can."""
        while self._awake:
            self._awake.pop().play()
        return place.cohort.take(value, place.row)

    def left_by(self, play: Play) -> list[tuple[Operand, Array]]:
        """What lies in scratch and in slots when ``play`` is over, in the order in which it came there."""
        return [(operand, self.take(self.places[play], value)) for operand, value in self._remains(play)]

    def _remains(self, play: Play) -> Iterator[Written]:
        yield from play.written
        program = play.program
        for direction in program.takes:
            for pa, value in program.last_in_slots(direction, play.queues[direction]):
                op = program.ops[program.makers[value]]
                yield Operand(play.rings_in, play.pe, pa, op.nbytes, op.shape, op.dtype), value
