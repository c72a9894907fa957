"""Refresh of all banks at once: an outage, in which their time stands still; and the pace of slices with outages."""

from __future__ import annotations

from kernbench.common.units import ns_to_ps, transfer_ps
from kernbench.common.values import value
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.hbm_spec import HbmTiming


@value
class RefreshClock:
    """The time of banks: it stands still for ``outage_ps`` every ``period_ps`` of real time, from the first period on.

    Of a stretch of bank time that begins or ends with an outage, ``out`` gives the end before it, ``out_after`` the
    begin after it.
    """

    period_ps: int
    outage_ps: int

    @property
    def used(self) -> float:
        """The part of a long time that is not lost."""
        return 1 - self.outage_ps / self.period_ps

    def into(self, ps: int) -> int:
        """Return the bank time of a real time."""
        periods, rest = divmod(ps, self.period_ps)
        return ps if periods <= 0 else ps - periods * self.outage_ps + max(0, self.outage_ps - rest)

    def out(self, ps: int) -> int:
        """Return the first real time of a bank time."""
        return ps + max(0, (ps - self.outage_ps - 1) // (self.period_ps - self.outage_ps)) * self.outage_ps

    def out_after(self, ps: int) -> int:
        """Return the last real time of a bank time."""
        return ps + max(0, (ps - self.outage_ps) // (self.period_ps - self.outage_ps)) * self.outage_ps

    def outages_around(self, ps: int) -> tuple[int, int]:
        """Return the bank times of the last outage that began up to a bank time, or -1, and of the next one."""
        work_ps = self.period_ps - self.outage_ps
        periods = (ps - self.outage_ps) // work_ps
        if periods <= 0:
            return -1, self.period_ps
        last = periods * work_ps + self.outage_ps
        return last, last + work_ps


NO_REFRESH = RefreshClock(1 << 62, 0)


def refresh_clock(timing: HbmTiming) -> RefreshClock:
    """Return the time of banks with ``refresh: all-bank``."""
    period_ps = ns_to_ps(timing.refi_ns)
    return RefreshClock(period_ps, round(period_ps * timing.refresh_share))


@value
class SlicePace:
    """The most that a slice moves: ``gbs`` while no outage of ``clock`` comes, and these as late as they can come."""

    gbs: float
    clock: RefreshClock

    def least_ps(self, nbytes: int) -> int:
        """Return the least time in which it moves so many bytes."""
        return self.clock.out(transfer_ps(nbytes, self.gbs))

    def most_gbs(self, nbytes: int) -> float:
        """Return the bandwidth with which so many bytes take their least time."""
        working = transfer_ps(nbytes, self.gbs)
        return self.gbs * working / self.clock.out(working) if nbytes else self.gbs


def slice_pace(cube: CubeSpec) -> SlicePace:
    """Return the pace of a slice. A run that is over before an outage moves bytes at peak, not at what is sustained."""
    banks = cube.hbm.banks
    if banks is None or cube.hbm.refresh_mode != "all-bank":
        return SlicePace(cube.slice_bw_gbs, NO_REFRESH)
    return SlicePace(cube.slice_peak_gbs, refresh_clock(banks))
