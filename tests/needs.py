"""What each row of the log waited for, derived a second time: from the programs, the orders, and when rows ended.

``NeedsEngine`` notes what the machine was asked for and in which order (requests of kernels, tokens of the pipeline,
messages, slots that came free), never why anything began. ``check_needs`` then works out all that each row had to wait
for: it begins when the last of that is there, and its cause is one that came last.
"""

from __future__ import annotations

from kernbench.core.log import BY, CAUSE, KIND, PART, START, WIDTH, By, Kind, Row
from needs_of.control import Control
from needs_of.engines import Engines
from needs_of.kernels import Kernels
from needs_of.recorded import NeedsEngine
from needs_of.rows import Need, Needs, Run

__all__ = ("Need", "NeedsEngine", "check_needs")


def check_needs(engine: NeedsEngine) -> dict[Row, Needs]:
    """Each row begins when the last of what it needs is there, and its cause came last. What each needs."""
    run = Run(engine)
    kernels = Kernels(run)
    kernels.derive()
    Control(run, kernels).derive()
    Engines(run, kernels).derive()
    rows, log = run.rows, engine.machine.log
    for row in range(0, len(rows), WIDTH):
        kind, start, by, cause = Kind(rows[row + KIND]), rows[row + START], By(rows[row + BY]), rows[row + CAUSE]
        what = f"{kind.name} {row // WIDTH} of {log.parts[rows[row + PART]]} at {start} by {by.name} {cause // WIDTH}"
        assert row in run.needs, f"{what}: nothing says what it needs"
        needs = run.needs[row]
        if not needs:
            assert by is By.NOTHING, what
            continue
        told = [(each.at, rows[each.row + KIND], each.row // WIDTH, each.by.name) for each in sorted(needs)[-6:]]
        assert max(each.at for each in needs) == start, f"{what}, but needs {told}"
        # What is compared by range may well be the same bytes.
        exact = by is By.MEMORY_RANGE and (start, cause, By.MEMORY) in needs
        assert exact or (start, cause, by) in needs, f"{what}, which is no need that came last: {told}"
    return run.needs
