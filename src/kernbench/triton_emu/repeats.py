"""Repeated work of a long kernel, of which a part is simulated in a run that reuses launches.

A task of a kernel computes pieces, one after another: blocks of an array. All pieces of all its tasks are computed
alike, so that their time is in proportion to their elements. Two rules decide what is simulated:

- of tasks of one kind, the first ``SAMPLES``;
- of the pieces of a task, the first ones, up to ``MOST_ELEMENTS``.

The other pieces are left out, and the launch takes longer in proportion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import field
from itertools import accumulate
from math import prod
from typing import TypeAlias

from kernbench.common.dtypes import Shape
from kernbench.common.values import state

Piece: TypeAlias = tuple[Shape, Shape]
"""The corner and the extents of a piece"""
SAMPLES = 2
"""Simulated tasks of a kind"""
MOST_ELEMENTS = 1 << 20
"""Elements of a task that are simulated on a PE: they take some ten refreshes of the memory, which stop it"""


@state(eq=False)
class RepeatedWork:
    """The elements that the programs of a launch compute, in all, and those that are left out."""

    simulated: int = 0
    left_out: int = 0

    @property
    def more(self) -> float:
        """The elements that are left out, by the simulated ones."""
        return self.left_out / self.simulated if self.simulated else 0.0


@state(eq=False)
class Repeats:
    """The tasks of a program on a PE, by kind. ``work``: that of all programs of the launch."""

    work: RepeatedWork
    _tasks: Counter[Hashable] = field(default_factory=Counter)

    def choose(self, pieces: Iterable[Piece], kind: Hashable) -> tuple[Piece, ...]:
        """Return the pieces of a task to simulate, and count the others."""
        pieces = tuple(pieces)
        sizes = [prod(extents) for _, extents in pieces]
        self._tasks[kind] += 1
        n_chosen = 0
        if self._tasks[kind] <= SAMPLES:
            n_chosen = sum(before < MOST_ELEMENTS for before in accumulate(sizes[:-1], initial=0))
        self.work.simulated += sum(sizes[:n_chosen])
        self.work.left_out += sum(sizes[n_chosen:])
        return pieces[:n_chosen]
