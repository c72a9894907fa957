"""Whose turn it is at a slice: requesters take turns, a quantum at a time, and each is served in the order it asked.

A requester that is alone is promised its whole access at once. What it was promised is a *stretch*; if a request of
another comes in it, the stretch is cut after the quantum that has its turn: the slice is put back to before the
stretch, and goes through the quanta up to there once more. What was promised of them stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

from kernbench.components.hbm.bank_times import FAR
from kernbench.components.hbm.banked import Stretch
from kernbench.components.hbm.took import Took
from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access


class Memory(Protocol):
    """What serves the turns: it knows addresses, and nothing of requesters. ``quantum`` is in bytes.

    What it saves, only it reads. ``took``: what the last stretch took of banks, if that is ``observed``.
    """

    observed: bool
    took: Took | None

    @property
    def quantum(self) -> int: ...

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Stretch: ...

    def save(self) -> Any: ...

    def restore(self, saved: Any) -> None: ...


class Request:
    """An access, ``served`` bytes of which have had their turn. Data of a write come from ``since`` on."""

    __slots__ = ("access", "requester", "served", "since", "write")

    def __init__(self, requester: Hashable, access: Access, write: bool, since: int) -> None:
        self.requester = requester
        self.access = access
        self.write = write
        self.since = since
        self.served = 0

    def begin(self, first: int, stretch: Stretch) -> None:
        """Bytes ``first`` … ``stretch.end - 1`` have their turn."""
        raise NotImplementedError

    def cut(self, end: int) -> None:
        """What was begun holds for bytes up to ``end`` only."""
        raise NotImplementedError

    def gone(self, now: int) -> int:
        """Bytes that may have left by ``now``: what was begun holds for them."""
        return 0


class _Promise(NamedTuple):
    """A stretch of several quanta, and what is needed to cut it."""

    request: Request
    begin: int
    start_ps: int
    before: Any


class Slice:
    """The turns of one slice. ``over_ps``: when the turns it has given are over."""

    __slots__ = ("_clock", "_lines", "_memory", "_promise", "_ring", "_turn_at", "over_ps")

    def __init__(self, memory: Memory, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self.over_ps = 0
        self._lines: dict[Hashable, deque[Request]] = {}
        self._ring: deque[Hashable] = deque()
        self._promise: _Promise | None = None
        self._turn_at = -1  # when the next turn is due, if requests wait

    def submit(self, request: Request) -> None:
        """Serve a request when its turn comes."""
        requester = request.requester
        line = self._lines.get(requester)
        if line is None:
            self._lines[requester] = deque((request,))
            self._ring.append(requester)
        else:
            line.append(request)
        now = self._clock.time
        if self.over_ps > now:
            if self._promise is not None and self._promise.request.requester != requester:
                self._cut(self._promise, now)
            self._await_turn()
        elif self._turn_at < 0:
            self._give_turn()

    def access(self, at: int, requester: Hashable, pa: int, nbytes: int, write: bool) -> tuple[int, int]:
        """Run an access alone, from ``at`` on: when its first byte is on a bus and when its last has been, in ps."""
        request = _Alone(requester, Access(pa, nbytes), write, at)
        self._clock.call_at(at, lambda _: self.submit(request), None)
        self._clock.advance()
        return request.first_ps, request.last_ps

    def _await_turn(self) -> None:
        if self._turn_at != self.over_ps:
            self._turn_at = self.over_ps
            self._clock.call_at(self.over_ps, self._due, self.over_ps)

    def _due(self, when: int) -> None:
        if when == self._turn_at:
            self._turn_at = -1
            self._give_turn()

    def _give_turn(self) -> None:
        """Serve a quantum of the next requester, or all of its access if no other waits."""
        requester = self._ring.popleft()
        line = self._lines[requester]
        request = line[0]
        access, begin = request.access, request.served
        memory, now = self._memory, self._clock.time
        nbytes, quantum = access.nbytes, memory.quantum
        alone = not self._ring
        end = nbytes if alone else min(begin + quantum, nbytes)
        start = max(self.over_ps, request.since) if request.write else now
        self._promise = None
        if end - begin > quantum:
            self._promise = _Promise(request, begin, start, memory.save())
        stretch = memory.serve(access, request.write, begin, end, start)
        self.over_ps = max(stretch.over_ps, now)
        request.served = end
        request.begin(begin, stretch)
        if end == nbytes:
            line.popleft()
        if line:
            self._ring.append(requester)
        else:
            del self._lines[requester]
        if self._ring:
            self._await_turn()

    def _cut(self, promise: _Promise, now: int) -> None:
        """End a stretch with the quantum that has its turn; the rest of the access is first in its line again."""
        self._promise = None
        memory, request = self._memory, promise.request
        memory.restore(promise.before)
        end = request.access.nbytes
        stretch = memory.serve(
            request.access, request.write, promise.begin, end, promise.start_ps, now, request.gone(now)
        )
        self.over_ps = max(stretch.over_ps, now)
        if stretch.end == end:
            return
        request.served = stretch.end
        request.cut(stretch.end)
        line = self._lines.get(request.requester)
        if line is None:
            self._lines[request.requester] = deque((request,))
            self._ring.append(request.requester)
        else:
            line.appendleft(request)


class _Alone(Request):
    """Remembers when it was served."""

    __slots__ = ("first_ps", "last_ps")

    def __init__(self, requester: Hashable, access: Access, write: bool, since: int) -> None:
        super().__init__(requester, access, write, since)
        self.first_ps, self.last_ps = FAR, 0

    def begin(self, first: int, stretch: Stretch) -> None:
        self.first_ps = min(self.first_ps, stretch.first_ps)
        self.last_ps = stretch.last_ps

    def cut(self, end: int) -> None:
        self.last_ps = 0
