"""Who runs now: the program itself, or one of the ranks it spawned."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import TypeVar

from kernbench.common.values import state
from kernbench.triton_emu.kernel_runner import check_host_calls

DEBUG_VARIABLE = "KERNBENCH_DEBUG"
T = TypeVar("T")


class HandedOn(ABC):
    """What a program keeps and the ranks that it spawns begin with."""

    @abstractmethod
    def in_rank(self, rank: int, n_ranks: int) -> object | None:
        """What rank ``rank`` of ``n_ranks`` keeps in its place, of the same class; None: it does not hold there."""


class RankLocal:
    """What libraries above this one keep for a rank, as a process keeps globals: one object of each class."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[type[object], object] = {}

    def for_rank(self, rank: int, n_ranks: int) -> RankLocal:
        """What rank ``rank`` of ``n_ranks`` begins with when the program, whose this is, spawns it."""
        made = RankLocal()
        for value in self._kept.values():
            handed_on = value.in_rank(rank, n_ranks) if isinstance(value, HandedOn) else None
            if handed_on is not None:
                made.put(handed_on)
        return made

    def put(self, value: object) -> None:
        """Keep ``value`` in place of what there was of its class."""
        self._kept[type(value)] = value

    def get(self, kind: type[T]) -> T | None:
        """What is kept of a class."""
        found = self._kept.get(kind)
        return found if isinstance(found, kind) else None

    def drop(self, kind: type[object]) -> None:
        """Keep nothing of a class any more."""
        self._kept.pop(kind, None)

    def clear(self) -> None:
        """Keep nothing any more."""
        self._kept.clear()


@state(eq=False)
class Worker:
    """What a rank has of its own: its number, how many were spawned with it, and the SIP it chose, if it chose one.

    ``local``: what libraries keep for it. The program that is alone is one implicit rank 0; only ``spawned`` ones were
    made by ``spawn``.
    """

    rank: int = 0
    n_ranks: int = 1
    spawned: bool = False
    device: int | None = None
    local: RankLocal = field(default_factory=RankLocal)

    def __str__(self) -> str:
        return f"rank {self.rank}" if self.spawned else "the program"


class Workers:
    """The worker that runs now, of one context."""

    __slots__ = ("_current", "main")

    def __init__(self) -> None:
        self.main = Worker()
        self._current = self.main

    @property
    def current(self) -> Worker:
        """The rank whose code runs, or the program's own worker. KernelError when it is a kernel that asks."""
        check_host_calls()
        return self._current

    @contextmanager
    def running(self, worker: Worker) -> Iterator[None]:
        """Inside, ``worker`` is the current one."""
        before, self._current = self._current, worker
        try:
            yield
        finally:
            self._current = before


def wants_debugging() -> bool:
    """Whether the user asked to be warned of what is allowed and probably not meant."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")
