"""A memory's time: accesses are served in turn, a quantum at a time, and one that is alone in a single step.

The server knows nothing of addresses or links. A job tells it how many packets it has and how long each takes, and is
told when they are served. A stretch is what the server has promised to one job; a competitor that comes in the middle
of one cuts it at the end of the quantum under way.
"""

from __future__ import annotations

from collections import deque

from kernbench.core.clock import Clock
from kernbench.messages.fabric import Access
from kernbench.transport import Pace


class Job:
    """An access to be served: ``packets`` of them at ``pace``."""

    __slots__ = ("pace", "packets", "served")

    def __init__(self, packets: int, pace: Pace) -> None:
        self.packets = packets
        self.pace = pace
        self.served = 0

    def begin(self, first: int, count: int, start: int) -> None:
        """Packets ``first`` … ``first + count - 1`` are served one after another from ``start`` ps on."""
        raise NotImplementedError

    def cut(self, count: int) -> None:
        """What was begun holds for the first ``count`` packets only."""
        raise NotImplementedError

    def span(self, first: int, count: int) -> int:
        """How long those packets take, in ps."""
        last = first + count == self.packets
        return (count - last) * self.pace.packet_ps + last * self.pace.last_ps


class MemoryServer:
    """One server (a slice, an SRAM, a port of a TCM). ``quantum`` is in packets.

    ``free_at`` is when what it has promised is over; ``busy_ps`` how long it has been promised in all.
    """

    __slots__ = ("_clock", "_current", "_first", "_queue", "_start", "_turn_due", "busy_ps", "free_at", "quantum")

    def __init__(self, clock: Clock, quantum: int) -> None:
        self._clock = clock
        self.quantum = quantum
        self.free_at = 0
        self.busy_ps = 0
        self._queue: deque[Job] = deque()
        self._current: Job | None = None
        self._first = 0
        self._start = 0
        self._turn_due = False

    @property
    def idle(self) -> bool:
        """True when nothing is being served."""
        return self.free_at <= self._clock.time and not self._queue

    def serving(self, access: Access) -> MemoryServer:
        """Who serves an access: itself, whatever it is."""
        return self

    def work_since(self, since: int, busy: int) -> int:
        """Do as much of ``busy`` ps of work as fits in the idle time from ``since`` to now; what is left of it.

        For work that became known late: the data of a write have been coming in since ``since``.
        """
        free, now = self.free_at, self._clock.time
        if free > now or self._queue:
            return busy
        start = since if since > free else free
        done = now - start
        if done > busy:
            done = busy
        elif done < 0:
            done = 0
        self.free_at = start + done
        self.busy_ps += done
        return busy - done

    def submit(self, job: Job) -> None:
        """Serve ``job`` as soon as its turn comes."""
        if self.idle:
            self._serve(job, job.packets - job.served)
            return
        self._queue.append(job)
        if not self._turn_due:
            self._cut_current()
            self._turn_due = True
            self._clock.call_at(self.free_at, self._turn)

    def _cut_current(self) -> None:
        """End the stretch under way with its current quantum and put the rest of the job in line."""
        job = self._current
        assert job is not None
        elapsed = self._clock.time - self._start
        packets = elapsed // job.pace.packet_ps if job.pace.packet_ps else job.packets
        keep = (packets // self.quantum + 1) * self.quantum
        if self._first + keep < job.served:
            planned = self.free_at
            job.served = self._first + keep
            job.cut(job.served)
            self.free_at = self._start + job.span(self._first, keep)
            self.busy_ps -= planned - self.free_at
            self._queue.append(job)

    def _turn(self, _: object) -> None:
        self._turn_due = False
        job = self._queue.popleft()
        left = job.packets - job.served
        if not self._queue:
            self._serve(job, left)
            return
        self._serve(job, min(left, self.quantum))
        if job.served < job.packets:
            self._queue.append(job)
        self._turn_due = True
        self._clock.call_at(self.free_at, self._turn)

    def _serve(self, job: Job, count: int) -> None:
        now = self._clock.time
        self._current, self._first, self._start = job, job.served, now
        job.served += count
        span = job.span(self._first, count)
        self.free_at = now + span
        self.busy_ps += span
        job.begin(self._first, count, now)


def pace_of(nbytes: int, packet_bytes: int, total_ps: int) -> Pace:
    """``total_ps`` spread over the packets of ``nbytes``: full packets take their share, the last one the rest."""
    full = total_ps * packet_bytes // nbytes if nbytes > packet_bytes else total_ps
    n_full = (nbytes - 1) // packet_bytes
    return Pace(full, total_ps - n_full * full)
