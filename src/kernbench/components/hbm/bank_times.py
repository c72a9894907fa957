"""The timings of banks in whole ps, and where each bank is."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.units import PS_PER_NS, ns_to_ps
from kernbench.topology.hbm_timing import HbmTiming

FAR = 1 << 62
"""Later than everything."""


@dataclass(frozen=True, slots=True)
class BankTimes:
    """What runs take. Work includes the share that refresh takes of everything; latencies do not.

    Pairs are of reads and of writes. ``works``: by bursts of a run, the work of its group, the time until its last
    burst has left the group, and the work of its bus. ``turning``: work of a turn to reads, and of one to writes.
    """

    burst: int
    same_stack: int
    act: int
    command: int
    cycle: int
    precharge: int
    column: tuple[int, int]
    closing: tuple[int, int]
    turning: tuple[int, int]
    works: tuple[tuple[int, int, int], ...]


def bank_times(timing: HbmTiming) -> BankTimes:
    """In ps, from ns."""

    def work(ns: float) -> int:
        return round(ns * PS_PER_NS / (1 - timing.refresh_share))

    burst, same_group = work(timing.ccd_s_ns), work(timing.ccd_l_ns)
    return BankTimes(
        burst=burst,
        same_stack=work(timing.ccd_r_ns),
        act=work(timing.act_ns),
        command=work(timing.row_bus_ns),
        cycle=work(timing.rc_ns),
        precharge=ns_to_ps(timing.rp_ns),
        column=(ns_to_ps(timing.rcd_ns), ns_to_ps(timing.rcd_write_ns)),
        closing=(ns_to_ps(timing.rtp_ns + timing.rp_ns), ns_to_ps(timing.cwl_ns + timing.wr_ns + timing.rp_ns)),
        turning=(work(timing.wtr_ns + timing.turn_ns), work(timing.rtw_ns + timing.turn_ns)),
        works=tuple((n * same_group, (n - 1) * same_group + burst, n * burst) for n in range(timing.columns + 1)),
    )


def places_of_banks(timing: HbmTiming, num_pcs: int) -> list[tuple[int, int, int, int]]:
    """Of each bank: its channel, PC, stack, and group, which is the lane of this number behind those of the buses."""
    places = []
    for bank in range(num_pcs * timing.banks_per_pc):
        pc, group = bank // timing.banks_per_pc, bank // timing.banks
        places.append((pc // 2, pc, group // timing.groups, num_pcs + group))
    return places
