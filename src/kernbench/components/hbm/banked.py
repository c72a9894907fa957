"""A slice with banks, as whoever gives turns sees it: some bytes of an access from a time on, and when they came.

A long stretch of memory comes to the same places again, sweep after sweep, a row further each time. Two of them are
gone through; the others are as the second: by then the queues are full, and all open rows are the stretch's own.
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.values import value
from kernbench.components.hbm.banks import Banks, Saved
from kernbench.components.hbm.channel_figures import FAR
from kernbench.components.hbm.layout import Layout
from kernbench.components.hbm.plan import Planner
from kernbench.components.hbm.took import Counts, Took, TookOfBanks
from kernbench.messages.fabric import Access
from kernbench.topology.hbm_spec import AddressMapping, HbmTiming

LONG = 8
"""Quanta of an access before which it is worth a look whether channels are in step."""


@value
class Stretch:
    """Bytes of an access up to ``end`` had their turn until ``over_ps``; on a bus from ``first_ps`` to ``last_ps``."""

    end: int
    over_ps: int
    first_ps: int
    last_ps: int


class _Place(NamedTuple):
    """A stretch between two sweeps."""

    over_ps: int
    banks: Saved


class BankedMemory:
    """The banks of a slice and the plans of its accesses. ``quantum``: in bytes; ``quanta``: gone through so far.

    ``planner``: that of other slices with this layout, if there are any. ``took``: what the last stretch took of the
    banks, if that is ``observed``.
    """

    def __init__(
        self,
        timing: HbmTiming,
        num_pcs: int,
        mapping: AddressMapping,
        queue_entries: int,
        quantum: int,
        planner: Planner | None = None,
    ) -> None:
        self.quantum = quantum
        self._timing = timing
        self.banks = Banks(timing, num_pcs, queue_entries)
        self.sweep_bytes = num_pcs * timing.banks_per_pc * timing.row_bytes
        self.quanta = 0
        self.observed = False
        self.took: Took | None = None
        self._planner = planner or Planner(Layout(timing, num_pcs, mapping))

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return self.banks.counts

    def save(self) -> Saved:
        """The state, to ``restore``."""
        return self.banks.save()

    def restore(self, saved: Saved) -> None:
        """Put the state back to one that was saved."""
        self.banks.restore(saved)

    def serve(
        self, access: Access, write: bool, begin: int, end: int, now: int, until: int = FAR, least: int = 0
    ) -> Stretch:
        """Serve bytes ``begin`` … ``end - 1`` of an access, in quanta.

        No further one begins after ``until``, unless it has bytes before ``least``.
        """
        banks, planner, quantum, sweep = self.banks, self._planner, self.quantum, self.sweep_bytes
        before = banks.taken() if self.observed else None
        if end - begin >= LONG * quantum:
            banks.meet(now)
        first, last, at, over = FAR, now, begin, now
        repeats = access.rows == 1 and end - begin >= 3 * sweep and not sweep % quantum
        mark_at = begin + sweep if repeats else FAR
        place: _Place | None = None
        while at < end and (over <= until or at < least):
            if at == mark_at:
                place = _Place(over, banks.save())
            elif place is not None and at == mark_at + sweep:
                took = over - place.over_ps
                times = min((end - at) // sweep, max(0, (until - over) // took))
                banks.repeat(place.banks, times, took)
                at, over, last = at + times * sweep, over + times * took, last + times * took
                place = None
                continue
            base, parts = planner.parts(access, at, min(quantum, end - at))
            over, begins, ends = banks.serve(over, base, parts, write)
            first, last = min(first, begins), max(last, ends)
            at += quantum
            self.quanta += 1
        if before is not None:
            self.took = TookOfBanks(before, banks.taken(), now, write, self._timing)
        return Stretch(min(at, end), over, first, last)
