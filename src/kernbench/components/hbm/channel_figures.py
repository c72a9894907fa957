"""The times of a channel of HBM in ps, and what is counted of it."""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.units import PS_PER_NS, ns_to_ps
from kernbench.topology.hbm_spec import HbmTiming

FAR = 1 << 62


class Tally(NamedTuple):
    """What a channel has done: bursts, rows opened, and of each bus, in ps, time for turns and then for rows.

    ``idle``: all that of what was done in idle time, which gave buses ``idle_ps`` of work.
    """

    done: tuple[int, ...]
    idle: tuple[int, ...]
    idle_ps: int

    def plus(self, other: Tally, times: int = 1) -> Tally:
        """Both together, the other so many times."""
        done, idle = (
            tuple([own + times * more for own, more in zip(mine, others, strict=True)])
            for mine, others in ((self.done, other.done), (self.idle, other.idle))
        )
        return Tally(done, idle, self.idle_ps + times * other.idle_ps)


class Figures:
    """The times of a channel in ps, and the places of its banks. All channels of a slice share them.

    Work is longer by what refresh takes, once for every counter; latencies are not.
    """

    def __init__(self, timing: HbmTiming, pcs: int, queue_entries: int) -> None:
        def work(ns: float) -> int:
            return round(ns * PS_PER_NS / (1 - timing.refresh_share))

        self.burst, self.same_group, self.same_stack = map(work, (timing.ccd_s_ns, timing.ccd_l_ns, timing.ccd_r_ns))
        self.act, self.command, self.cycle = map(work, (timing.act_ns, timing.row_bus_ns, timing.rc_ns))
        self.precharge = ns_to_ps(timing.rp_ns)
        self.column = ns_to_ps(timing.rcd_ns), ns_to_ps(timing.rcd_write_ns)
        self.closing = (
            ns_to_ps(timing.rtp_ns + timing.rp_ns),
            ns_to_ps(timing.cwl_ns + timing.wr_ns + timing.rp_ns),
        )
        self.turning = work(timing.wtr_ns + timing.turn_ns), work(timing.rtw_ns + timing.turn_ns)
        self.queue = queue_entries
        # Of reads, which wait in front of the queue; writes have waited before they were kept back.
        self.rooms = queue_entries, FAR
        self.high, self.low = int(timing.high * queue_entries), round(timing.low * queue_entries)
        self.pcs, self.stacks, self.groups = pcs, pcs * timing.stacks, pcs * timing.stacks * timing.groups
        self.stacked = timing.stacks > 1
        # Of banks: PC, stack, and group, which is a lane behind the buses.
        self.places = [
            (bank // timing.banks_per_pc, bank // timing.banks // timing.groups, pcs + bank // timing.banks)
            for bank in range(pcs * timing.banks_per_pc)
        ]
        # Of runs by their bursts: how long they keep their group, until their last byte if they wait for it, their bus.
        self.lengths = [
            (n * self.same_group, (n - 1) * self.same_group + self.burst, n * self.burst)
            for n in range(timing.columns + 1)
        ]
