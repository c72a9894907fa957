"""Divide the busy time of HBM slices with banks: data, row misses, turnarounds, refresh."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernbench.common.figures import figure
from kernbench.common.units import PS_PER_NS
from kernbench.common.values import value
from kernbench.core.observed import Column, TurnColumns
from kernbench.observe.critical_path_model import CriticalPath
from kernbench.observe.trace_log import LogView
from kernbench.observe.works import distinct
from kernbench.topology.hbm_refresh import refresh_clock
from kernbench.topology.hbm_spec import HbmSpec, HbmTiming


@value(kw_only=True)
class SliceTime:
    """The work of a slice: ``bursts``, of which ``hits`` found their row open, and the busy time of its buses by cause.

    Times are averages per bus, in ps. The buses were idle in the remaining time.

    - ``data_ps``: bursts
    - ``rows_ps``: the bus carried no data, since a row was not open yet
    - ``turnarounds_ps``: turnarounds between reads and writes
    - ``refresh_ps``: outages during grants, or the slow-down of data and turnarounds if refresh is spread
    - ``groups_ps``: gaps between consecutive bursts of one bank group
    """

    where: str = figure("which slice")
    bursts: int = figure("the number of bursts")
    hits: int = figure("the number of row hits")
    data_ps: int = figure("bus time for data, in ps")
    rows_ps: int = figure("bus time for rows, in ps")
    turnarounds_ps: int = figure("bus time for turnarounds, in ps")
    refresh_ps: int = figure("bus time for refresh, in ps")
    groups_ps: int = figure("bus time for groups, in ps")

    @property
    def busy_ps(self) -> int:
        """The busy time in ps: the sum of all causes."""
        return self.data_ps + self.rows_ps + self.turnarounds_ps + self.refresh_ps + self.groups_ps

    @property
    def hit_share(self) -> float:
        """The share of the bursts that found their row open."""
        return self.hits / self.bursts if self.bursts else 0.0


def slice_times(snapshot: LogView, path: CriticalPath) -> tuple[SliceTime, ...]:
    """Return the slices that were busy in the time of a path, the busiest first; none for slices without banks.

    Only grants inside the path count, see ``CriticalPath.encloses``. Grants to samples also count for launches that
    passed. Grants to a launch of which a part was simulated count for all of it.
    """
    hbm = snapshot.machine.spec.cube.hbm
    banks, turns = hbm.banks, snapshot.turns
    if banks is None:
        return ()
    passed = snapshot.machine.passed
    whole_run = path.launch_id < 0 and not passed.is_empty
    weights = (
        snapshot.weights_of(snapshot.transfers.of[turns.of])
        if whole_run
        else np.full(len(turns.of), passed.extension(path.launch_id))
    )
    worked = path.encloses(turns.start, turns.end) & ((turns.bursts > 0) | (turns.taken > 0))
    times = [
        _slice_time(
            snapshot.columns.parts[memory],
            turns,
            np.flatnonzero(worked & (turns.memory == memory)),
            weights,
            hbm,
            path.ps,
        )
        for memory in distinct(turns.memory[worked], len(snapshot.columns.parts))
    ]
    return tuple(sorted(times, key=lambda time: -time.busy_ps))


def _slice_time(
    where: str,
    turns: TurnColumns,
    numbers: Column,
    weights: NDArray[np.float64],
    hbm: HbmSpec,
    interval_ps: int,
) -> SliceTime:
    """Return the busy time of a slice by cause, from its grants within an interval; ``weights``: of all grants.

    While a grant waited for its row, other grants may have used the bus. The time lost to row misses is therefore at
    most ``opened``.

    Writes are drained after the grants that delivered them, in idle time before other grants. The sum over the buses
    may therefore exceed the interval slightly. Each cause is then scaled down by the same factor.
    """
    banks, buses = hbm.banks, hbm.num_pcs
    assert banks is not None, "only slices with banks have grants of banks"
    share = banks.refresh_share if hbm.refresh_mode == "spread" else 0.0
    bursts, hits, occupancy, opened, turnaround = (
        round(float((column[numbers] * weights[numbers]).sum()))
        for column in (turns.bursts, turns.hits, turns.taken, turns.opened, turns.turned)
    )
    data = bursts * banks.ccd_s_ns * PS_PER_NS
    work = data / (1 - share)
    lost = max(0.0, occupancy - work - turnaround)
    outages = _outages_ps(banks, turns.start[numbers], turns.end[numbers]) if hbm.refresh_mode == "all-bank" else 0
    outages = round(outages * float(weights[numbers].mean()))
    rows, refresh = min(opened, lost), work - data + turnaround * share + buses * outages
    total = work + turnaround + lost + buses * outages

    def per_bus(ps: float) -> int:
        return round(ps / buses) if total < interval_ps * buses else int(ps * interval_ps / total)

    return SliceTime(
        where=where,
        bursts=bursts,
        hits=hits,
        data_ps=per_bus(data),
        rows_ps=per_bus(rows),
        turnarounds_ps=per_bus(turnaround * (1 - share)),
        refresh_ps=per_bus(refresh),
        groups_ps=per_bus(lost - rows),
    )


def _outages_ps(banks: HbmTiming, starts: Column, ends: Column) -> int:
    """Return the total duration of the refreshes that began during at least one of the grants."""
    clock = refresh_clock(banks)
    first, last = -(-starts // clock.period_ps), (ends - 1) // clock.period_ps
    met = {number for begin, end in zip(first.tolist(), last.tolist(), strict=True) for number in range(begin, end + 1)}
    return len(met - {0}) * clock.outage_ps
