"""The pointers of all queues of a machine, for who looks after the queues have begun anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.common.values import state
from kernbench.engine.deadlock import dump_lines
from kernbench.engine.machine import Machine
from kernbench.engine.queue_state import QueuePart


@state
class Pointers:
    """The pointers of ``machine``: as they are, or as they were when they were kept, until queues are used again."""

    machine: Machine
    _kept: tuple[str, ...] | None = None
    _kept_until: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """A line for every queue pair, by PE and in the order of installation."""
        return self._now() if self._kept is None or self._used else self._kept

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, kernels are ended: keep the pointers as they are before, if one of them waits for a queue."""
        if any(part.waiting is not None for part in self._parts):
            self._kept = self._now()
        elif self._used:
            self._kept = None
        yield
        self._kept_until = self._n_sent

    def forget(self) -> None:
        """Other queues are installed."""
        self._kept = None

    def _now(self) -> tuple[str, ...]:
        by_pe = sorted(self._parts, key=lambda part: part.coord)
        return tuple(dump_lines({part.coord: part.queue_pairs for part in by_pe}, self.machine.addresses))

    @property
    def _used(self) -> bool:
        return self._n_sent != self._kept_until

    @property
    def _parts(self) -> list[QueuePart]:
        return [part for part in self.machine.components if isinstance(part, QueuePart)]

    @property
    def _n_sent(self) -> int:
        return sum(carried.messages for part in self._parts for carried in part.carried.values())
