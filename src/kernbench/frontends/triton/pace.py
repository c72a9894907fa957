"""Tell whether a launch comes to its end in the time that the run has left."""

from __future__ import annotations

import time
from dataclasses import field
from math import prod

from kernbench.common.errors import RunStopped
from kernbench.common.values import state
from kernbench.engine.engine import GraphEngine
from kernbench.frontends.triton.running import LaunchGrid

MEASURED = 0.1
"""Of the time that the run may take, so much of a launch is measured before anything is foreseen of the rest."""


@state
class Pace:
    """The pace of the programs of a launch, all PEs together, in the user's time."""

    kernel: str
    grid: LaunchGrid
    engine: GraphEngine
    _begin_s: float = field(default_factory=time.monotonic)
    _done: int = 0

    def count_program(self) -> None:
        """One more has run. RunStopped when the others would take longer than the run may.

        Each of them is taken to need what those before have needed; what phase 2 needs is not in that.
        """
        self._done += 1
        limit_s = self.engine.limits.wall_s
        spent_s = time.monotonic() - self._begin_s
        if limit_s is None or spent_s < MEASURED * limit_s:
            return
        programs, left_s = prod(self.grid), max(self.engine.seconds_left(), 0.0)
        needed_s = spent_s / self._done * (programs - self._done)
        if needed_s > left_s:
            why = (
                f"kernel {self.kernel!r} has run {self._done:,} of the {programs:,} programs of grid {self.grid} in "
                f"{spent_s:.3g} s, {spent_s / self._done:.2g} s each; the others would take {needed_s:,.0f} s, and "
                f"{left_s:,.0f} s are left. Make the problem smaller (of a benchmark: --points N) or the "
                f"limit larger (--max-wall-s inf: none)"
            )
            raise RunStopped(self.engine.out_of_time(why))
