"""What a schedule does, found without simulating: that it cannot stop, and what each chunk of memory ends as.

A rank issues its steps in order and is held up by two things only: a send by a queue all of whose slots are taken, and
a message that it waits for itself. Everything else is done as soon as what it uses is there; and a slot is free again
when the last step that uses it is done. So the order in which ranks are looked at changes nothing. Accesses to the same
bytes of a tensor are done in the order of their steps, as by a DMA with ``ordering: program``; two tensors are taken to
be two places.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kernbench.ccl.pairing import QueueEnd
from kernbench.common.errors import IpcqDeadlock, IpcqError, IpcqInvalidDirection
from kernbench.messages.requests import PeCoord
from kernbench.triton_emu.schedules import Op


class Origin(NamedTuple):
    """What a PE's memory held at first: of one of its tensors, so many bytes from ``offset`` on."""

    pe: PeCoord
    tensor: int
    offset: int
    nbytes: int


Content: TypeAlias = Counter[Origin]
"""How often each of them has gone into an array"""
Place: TypeAlias = tuple[int, int, int]
"""A chunk of memory: tensor, first byte, bytes"""


@dataclass(slots=True)
class _Queue:
    """Messages of one direction between two PEs. ``sent`` counts claimed slots; ``came`` those that are there."""

    name: str
    sent: int = 0
    taken: int = 0
    released: int = 0
    came: dict[int, tuple[int, Content]] = field(default_factory=dict)
    given_back: set[int] = field(default_factory=set)

    def release(self, sequence: int) -> None:
        """The receiver has done with a message: slots are free again in order."""
        self.given_back.add(sequence)
        while self.released in self.given_back:
            self.given_back.remove(self.released)
            self.released += 1


class _Rank:
    """A PE at its steps."""

    def __init__(
        self, pe: PeCoord, name: str, ops: Sequence[Op], out: Mapping[str, _Queue], into: Mapping[str, _Queue]
    ) -> None:
        self.pe, self.name, self.ops = pe, name, ops
        self.out, self.into = out, into
        self.at = 0
        self.memory: dict[Place, Content] = {}
        self._values: dict[int, Content] = {}
        self._slots: dict[int, tuple[_Queue, int]] = {}
        self._waiting: deque[tuple[Op, int]] = deque()  # issued and not done; of a send its number
        self._users: Counter[int] = Counter()
        self._dropped: set[int] = set()

    def advance(self, n_slots: int) -> bool:
        """Do what can be done; whether that was anything."""
        moved = self._complete()
        while self.at < len(self.ops) and self._issue(self.ops[self.at], n_slots):
            self.at += 1
            moved = True
            self._complete()
        return moved

    @property
    def done(self) -> bool:
        """Whether all steps are."""
        return self.at == len(self.ops) and not self._waiting

    @property
    def stands(self) -> str:
        """What it waits for."""
        op = self.ops[self.at] if self.at < len(self.ops) else self._waiting[0][0]
        what = "a slot of" if op.does == "send" and self.at < len(self.ops) else "a message of"
        return f"{self.name}, step {op.line} ({op.does} {op.what}): waits for {what} queue {op.what}"

    def _issue(self, op: Op, n_slots: int) -> bool:
        number = -1
        if op.does == "send":
            queue = self._queue(self.out, op)
            if queue.sent - queue.released >= n_slots:
                return False
            number, queue.sent = queue.sent, queue.sent + 1
        elif op.does in ("receive", "await"):
            queue = self._queue(self.into, op)
            if op.does == "await" and queue.taken not in queue.came:
                return False
            self._slots[op.to] = (queue, queue.taken)
            queue.taken += 1
        self._waiting.append((op, number))
        self._users.update((*op.reads, op.to))
        self._dropped.update(op.drops)
        return True

    def _queue(self, queues: Mapping[str, _Queue], op: Op) -> _Queue:
        found = queues.get(op.what)
        if found is None:
            there = ", ".join(queues) or "none"
            raise IpcqInvalidDirection(
                f"{self.name}, step {op.line} ({op.does} {op.what}): there is no such queue; there are: {there}"
            )
        return found

    def _complete(self) -> bool:
        """Carry out what was issued and has all it needs."""
        before = len(self._waiting)
        held: list[Op] = []  # what comes earlier and is not done
        for _ in range(before):
            op, number = self._waiting.popleft()
            if any(_meet(op, each) for each in held) or not self._carried_out(op, number):
                self._waiting.append((op, number))
                held.append(op)
                continue
            for value in {*op.reads, op.to} - {-1}:
                self._users[value] -= op.reads.count(value) + (op.to == value)
        for value in [value for value in self._dropped if not self._users[value]]:
            self._dropped.remove(value)
            if value in self._slots:
                queue, sequence = self._slots.pop(value)
                queue.release(sequence)
            del self._values[value]
        return len(self._waiting) < before

    def _carried_out(self, op: Op, number: int) -> bool:
        values = self._values
        if any(value not in values for value in op.reads):
            return False
        content = sum((values[value] for value in op.reads), Counter[Origin]())
        place = (op.what, op.offset, op.nbytes) if op.does in ("load", "store") else None
        if op.does == "send":
            self.out[op.what].came[number] = (op.nbytes, content)
        elif op.does in ("receive", "await"):
            return self._received(op)
        elif op.does == "store" and place is not None:
            self.memory[place] = content
        elif place is not None:
            values[op.to] = self._loaded(op, place)
        else:
            values[op.to] = content
        return True

    def _received(self, op: Op) -> bool:
        queue, sequence = self._slots[op.to]
        if sequence not in queue.came:
            return False
        nbytes, content = queue.came.pop(sequence)
        if nbytes != op.nbytes:
            raise IpcqError(
                f"{self.name}, step {op.line} ({op.does} {op.what}): message {sequence} of the queue has {nbytes} "
                f"bytes, {op.nbytes} are received"
            )
        self._values[op.to] = content
        return True

    def _loaded(self, op: Op, place: Place) -> Content:
        """What is there: what was there at first, unless an earlier step has stored exactly that chunk."""
        tensor, first, nbytes = place
        for there, at, size in self.memory:
            if there == tensor and at < first + nbytes and first < at + size and (at, size) != (first, nbytes):
                raise IpcqError(f"{self.name}, step {op.line} (load): part of the chunk was stored by an earlier step")
        return self.memory.get(place) or Counter({Origin(self.pe, *place): 1})


def _meet(a: Op, b: Op) -> bool:
    """Whether two steps access the same bytes, and one of them writes."""
    kinds = {a.does, b.does}
    if "store" not in kinds or not kinds <= {"load", "store"} or a.what != b.what:
        return False
    return a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes


def play_schedules(
    ops: Mapping[PeCoord, Sequence[Op]], ends: Iterable[QueueEnd], n_slots: int, names: Mapping[PeCoord, str]
) -> dict[PeCoord, dict[Place, Content]]:
    """What each chunk that the PEs have stored ends as.

    IpcqDeadlock for schedules that stop with ``n_slots``, IpcqError for messages of another size than is received and
    for those that nobody receives, IpcqInvalidDirection for queues that a PE does not have. They name rank and step.
    """
    out: dict[PeCoord, dict[str, _Queue]] = {pe: {} for pe in ops}
    into: dict[PeCoord, dict[str, _Queue]] = {pe: {} for pe in ops}
    for end in ends:
        if end.sends and end.pe in ops and end.peer in ops:
            queue = _Queue(f"queue {end.direction} of {names[end.pe]}")
            out[end.pe][end.direction] = into[end.peer][end.peer_direction] = queue
    ranks = [_Rank(pe, names[pe], steps, out[pe], into[pe]) for pe, steps in ops.items()]
    while sum(rank.advance(n_slots) for rank in ranks):  # all of them, in turn
        pass
    stuck = [rank.stands for rank in ranks if not rank.done]
    if stuck:
        raise IpcqDeadlock(f"with {n_slots} slots the schedules stop: {len(stuck)} ranks wait", (tuple(stuck),))
    left = [f"{q.sent - q.taken} of {q.name}" for queues in out.values() for q in queues.values() if q.sent > q.taken]
    if left:
        raise IpcqError(f"messages that nobody receives: {', '.join(left)}")
    return {rank.pe: rank.memory for rank in ranks}
