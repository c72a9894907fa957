"""Refresh of all banks at once, modelled as an outage that stops bank time, and the throughput of slices with outages.

Bank time advances only between outages.
"""

from __future__ import annotations

from kernbench.common.units import ns_to_ps, transfer_ps
from kernbench.common.values import value
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.hbm_spec import HbmTiming


@value
class RefreshClock:
    """The clock of banks: bank time stops for ``outage_ps`` in every ``period_ps`` of real time, from the first period.

    A bank time at which an outage begins corresponds to two real times: ``out`` returns the real time before the
    outage, ``out_after`` the real time after the outage.
    """

    period_ps: int
    outage_ps: int

    @property
    def used(self) -> float:
        """The fraction of real time outside outages."""
        return 1 - self.outage_ps / self.period_ps

    def into(self, ps: int) -> int:
        """Return the bank time at a real time."""
        periods, phase = divmod(ps, self.period_ps)
        return ps if periods <= 0 else ps - periods * self.outage_ps + max(0, self.outage_ps - phase)

    def out(self, ps: int) -> int:
        """Return the first real time with this bank time."""
        return ps + max(0, (ps - self.outage_ps - 1) // (self.period_ps - self.outage_ps)) * self.outage_ps

    def out_after(self, ps: int) -> int:
        """Return the last real time with this bank time."""
        return ps + max(0, (ps - self.outage_ps) // (self.period_ps - self.outage_ps)) * self.outage_ps

    def outages_around(self, ps: int) -> tuple[int, int]:
        """Return the bank times of the last outage at or before ``ps`` (-1: none) and of the next outage."""
        work_ps = self.period_ps - self.outage_ps
        periods = (ps - self.outage_ps) // work_ps
        if periods <= 0:
            return -1, self.period_ps
        last = periods * work_ps + self.outage_ps
        return last, last + work_ps


NO_REFRESH = RefreshClock(1 << 62, 0)


def refresh_clock(timing: HbmTiming) -> RefreshClock:
    """Return the clock of banks with ``refresh: all-bank``."""
    period_ps = ns_to_ps(timing.refi_ns)
    return RefreshClock(period_ps, round(period_ps * timing.refresh_share))


@value
class SlicePace:
    """The highest throughput of a slice: ``gbs`` between the outages of ``clock``, which come as late as possible."""

    gbs: float
    clock: RefreshClock

    def least_ps(self, nbytes: int) -> int:
        """Return the shortest time in ps in which the slice moves ``nbytes``."""
        return self.clock.out(transfer_ps(nbytes, self.gbs))

    def most_gbs(self, nbytes: int) -> float:
        """Return the bandwidth in GB/s at which ``nbytes`` take ``least_ps``."""
        working = transfer_ps(nbytes, self.gbs)
        return self.gbs * working / self.clock.out(working) if nbytes else self.gbs


def slice_pace(cube: CubeSpec) -> SlicePace:
    """Return the pace of a slice. A run that ends before the first outage moves bytes at peak bandwidth."""
    banks = cube.hbm.banks
    if banks is None or cube.hbm.refresh_mode != "all-bank":
        return SlicePace(cube.slice_bw_gbs, NO_REFRESH)
    return SlicePace(cube.slice_peak_gbs, refresh_clock(banks))
