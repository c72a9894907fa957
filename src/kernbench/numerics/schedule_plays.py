"""What phase 2 is told of schedules, to compute them for all PEs at once: which PE has played what, and where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from kernbench.messages.operands import Operand
from kernbench.messages.queues import BufferKind
from kernbench.messages.requests import PeCoord
from kernbench.messages.schedules import Op

Written: TypeAlias = tuple[Operand, int]
"""Where an array lay in scratch, and the number of its value"""
_RECEIVES = frozenset(("receive", "await"))
_WITHOUT_PLACE = itemgetter(*(Op._fields.index(name) for name in Op._fields if name not in {"line", "at"}))


@dataclass(frozen=True, slots=True)
class QueueStart:
    """A queue of a PE as a program finds it: the numbers of the messages that it will send and take first.

    ``ring_pa``: where its own ring begins, ``peer_ring_pa``: that of its peer; None where there is none.
    """

    sent: int
    taken: int
    ring_pa: int | None
    peer_ring_pa: int | None
    n_slots: int
    slot_size: int


class Program:
    """What the ``ops`` of a schedule compute, wherever its data lie: all but its stores, and what follows from them.

    Values, in order: ``loads``; ``sends`` and ``takes``, by direction. By the index of a command, ``turns``: of a send,
    the how-manieth of its direction; ``free``: those that read nothing. Of a value, ``makers``: the command that makes
    it; ``users``: those that compute with it or send it. ``inside``: how many commands only scratch and slots see, and
    the bytes of their results; ``brought_in``: how many messages are used, and their bytes.
    """

    def __init__(self, ops: Sequence[Op], stored: set[int]) -> None:
        self.ops = ops
        self.loads: list[int] = []
        self.sends: dict[str, list[int]] = defaultdict(list)
        self.takes: dict[str, list[int]] = defaultdict(list)
        self.turns: dict[int, int] = {}
        self.makers: dict[int, int] = {}
        self.free: list[int] = []
        self.users: dict[int, list[int]] = {}
        self._last: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for i, op in enumerate(ops):
            if op.does == "send":
                self.turns[i] = len(self.sends[op.what])
                self.sends[op.what].append(op.reads[0])
            elif op.does in _RECEIVES:
                self.takes[op.what].append(op.to)
            elif op.does == "load":
                self.loads.append(op.to)
            elif not op.reads:
                self.free.append(i)
            if op.to >= 0:
                self.makers[op.to], self.users[op.to] = i, []
            for value in op.reads:
                self.users[value].append(i)
        inside = [op.nbytes for op in ops if op.does != "load" and op.does not in _RECEIVES]
        used = stored.union(*(op.reads for op in ops))
        brought_in = [op.nbytes for op in ops if op.does in _RECEIVES and op.to in used]
        self.inside, self.brought_in = (len(inside), sum(inside)), (len(brought_in), sum(brought_in))

    def last_in_slots(self, direction: str, queue: QueueStart) -> list[tuple[int, int]]:
        """What lies in the slots of a queue at the end: (address, value), in the order in which it came."""
        key = direction, queue.n_slots
        found = self._last.get(key)
        if found is None:
            found = self._last[key] = self._last_of(*key)
        assert queue.ring_pa is not None
        base, size = queue.ring_pa, queue.slot_size
        return [(base + (queue.taken + k) % queue.n_slots * size, value) for k, value in found]

    def _last_of(self, direction: str, n_slots: int) -> list[tuple[int, int]]:
        """Number and value of the messages that no later one of at least their size has overwritten."""
        found: list[tuple[int, int]] = []
        widest: dict[int, int] = {}  # bytes by slot
        for k, value in reversed(list(enumerate(self.takes[direction]))):
            nbytes = self.ops[self.makers[value]].nbytes
            if nbytes > widest.get(k % n_slots, 0):
                widest[k % n_slots] = nbytes
                found.append((k, value))
        return found[::-1]


NOTHING = Program((), set())


@dataclass(slots=True, eq=False)
class Play:
    """A schedule on PE ``pe``, one of the ``n_pes`` of ``launch``. ``end_ps`` is -1 until all its commands are done.

    ``scratch`` and the rings of ``queues``, which lie in ``rings_in``, hold its values while it runs: (address,
    nbytes). ``stored``: the values that it stores, in order. ``written``: what lies in scratch at the end, in the order
    in which it was written.
    """

    launch: int
    n_pes: int
    pe: PeCoord
    start_ps: int
    scratch: tuple[int, int]
    rings_in: BufferKind
    queues: Mapping[str, QueueStart]
    program: Program = NOTHING
    stored: Sequence[int] = ()
    written: Sequence[Written] = ()
    end_ps: int = -1
    failed: bool = False


class Plays:
    """The plays of a run, until phase 2 takes them.

    Programs that differ only in their places in memory, and in the order of their stores, are one.
    """

    def __init__(self) -> None:
        self._plays: list[Play] = []
        self._known: list[tuple[list[tuple[Hashable, ...]], Program]] = []
        self._last: tuple[Sequence[Op], Program] = (), NOTHING

    def begin(self, play: Play) -> None:
        """A PE begins to play."""
        self._plays.append(play)

    def end(self, play: Play, ops: Sequence[Op], written: Sequence[Written], end_ps: int, *, failed: bool) -> None:
        """All commands of ``play``, which are ``ops``, are done."""
        if ops is not self._last[0]:
            self._last = ops, self._program(ops)
        play.program, play.written, play.end_ps, play.failed = self._last[1], written, end_ps, failed
        play.stored = [op.reads[0] for op in ops if op.does == "store"]

    def take(self) -> list[Play]:
        """All that have begun since the last time."""
        plays = self._plays
        if plays:
            self._plays, self._known, self._last = [], [], ((), NOTHING)
        return plays

    def _program(self, ops: Sequence[Op]) -> Program:
        inner, stored = [], set()
        for op in ops:
            if op.does == "store":
                stored.add(op.reads[0])
            else:
                inner.append(op)
        text = [*map(_WITHOUT_PLACE, inner), tuple(sorted(stored))]
        found = next((program for known, program in self._known if known == text), None)
        if found is None:
            found = Program(inner, stored)
            self._known.append((text, found))
        return found
