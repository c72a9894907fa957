"""Divide the time of slices of HBM with banks: data, rows, turns of direction, refresh."""

from __future__ import annotations

import numpy as np

from kernbench.common.units import PS_PER_NS
from kernbench.common.values import value
from kernbench.core.observed import Column, TurnColumns
from kernbench.observe.critical_path_model import CriticalPath
from kernbench.observe.trace_log import Seen
from kernbench.observe.works import distinct
from kernbench.topology.hbm_refresh import refresh_clock
from kernbench.topology.hbm_spec import HbmSpec, HbmTiming


@value(kw_only=True)
class SliceTime:
    """The work of a slice: bursts, of which ``hits`` found their row open, and how long its buses took, each, for what.

    ``rows_ps``: nothing was on the bus, as a row was not open yet. ``turnarounds_ps``: between reads and writes.
    ``refresh_ps``: outages that came in a turn, or what data and turnarounds took longer if refresh is spread.
    ``groups_ps``: bursts of one bank group came one after another. The rest of the time the buses had nothing to do.
    """

    where: str
    bursts: int
    hits: int
    data_ps: int
    rows_ps: int
    turnarounds_ps: int
    refresh_ps: int
    groups_ps: int

    @property
    def busy_ps(self) -> int:
        """All of it."""
        return self.data_ps + self.rows_ps + self.turnarounds_ps + self.refresh_ps + self.groups_ps

    @property
    def hit_share(self) -> float:
        """The part of the bursts that found their row open."""
        return self.hits / self.bursts if self.bursts else 0.0


def slice_times(snapshot: Seen, path: CriticalPath) -> tuple[SliceTime, ...]:
    """The slices that did something in the time of a path, the busiest first; none where they have no banks.

    Turns count that the path ``encloses``.
    """
    hbm = snapshot.machine.spec.cube.hbm
    banks, turns = hbm.banks, snapshot.turns
    if banks is None:
        return ()
    worked = path.encloses(turns.start, turns.end) & ((turns.bursts > 0) | (turns.taken > 0))
    times = [
        _slice_time(
            snapshot.columns.parts[memory],
            turns,
            np.flatnonzero(worked & (turns.memory == memory)),
            hbm,
            path.ps,
        )
        for memory in distinct(turns.memory[worked], len(snapshot.columns.parts))
    ]
    return tuple(sorted(times, key=lambda time: -time.busy_ps))


def _slice_time(where: str, turns: TurnColumns, numbers: Column, hbm: HbmSpec, interval_ps: int) -> SliceTime:
    """Return what turns within an interval took. While one waited for its row others may have used the bus: ``opened``
    is the most that it lost.

    Writes are drained after the turns that brought them, and in idle time before others. So buses may have been given
    a little more than the interval has; no more than all of it was spent there, on each part alike.
    """
    banks, buses = hbm.banks, hbm.num_pcs
    assert banks is not None, "turns of banks are of slices that have some"
    share = banks.refresh_share if hbm.refresh_mode == "spread" else 0.0
    bursts, hits, occupancy, opened, turned = (
        int(column[numbers].sum()) for column in (turns.bursts, turns.hits, turns.taken, turns.opened, turns.turned)
    )
    data = bursts * banks.ccd_s_ns * PS_PER_NS
    work = data / (1 - share)
    lost = max(0.0, occupancy - work - turned)
    outages = _outages_ps(banks, turns.start[numbers], turns.end[numbers]) if hbm.refresh_mode == "all-bank" else 0
    rows, refresh = min(opened, lost), work - data + turned * share + buses * outages
    granted = work + turned + lost + buses * outages

    def per_bus(ps: float) -> int:
        return round(ps / buses) if granted < interval_ps * buses else int(ps * interval_ps / granted)

    return SliceTime(
        where=where,
        bursts=bursts,
        hits=hits,
        data_ps=per_bus(data),
        rows_ps=per_bus(rows),
        turnarounds_ps=per_bus(turned * (1 - share)),
        refresh_ps=per_bus(refresh),
        groups_ps=per_bus(lost - rows),
    )


def _outages_ps(banks: HbmTiming, starts: Column, ends: Column) -> int:
    """Return the time of the refreshes that began in any of some turns."""
    clock = refresh_clock(banks)
    first, last = -(-starts // clock.period_ps), (ends - 1) // clock.period_ps
    met = {number for begin, end in zip(first.tolist(), last.tolist(), strict=True) for number in range(begin, end + 1)}
    return len(met - {0}) * clock.outage_ps
