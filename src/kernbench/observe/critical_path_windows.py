"""When kernels ran on the PEs: where a critical path leaves a kernel, and which one it comes to on another PE."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from kernbench.engine.requests import RequestHandle
from kernbench.messages.control import PeReport
from kernbench.messages.requests import KernelLaunchMsg, PeCoord


@dataclass(slots=True)
class KernelWindows:
    """The reports of launches that have ended, by launch and PE; and by PE, in the order of time."""

    reports: dict[tuple[int, PeCoord], PeReport]
    by_pe: dict[PeCoord, list[tuple[int, int, int]]]

    def start_of(self, launch_id: int, pe: PeCoord) -> int | None:
        """When a kernel began on a PE; None: it has not ended."""
        report = self.reports.get((launch_id, pe))
        return None if report is None else report.start_ps

    def launch_at(self, pe: PeCoord, when: int) -> int:
        """The launch whose kernel ran on a PE; -1: none that has ended."""
        given = self.by_pe.get(pe, [])
        at = bisect_right(given, when, key=lambda window: window[0])
        return given[at - 1][2] if at and when <= given[at - 1][1] else -1


def kernel_windows(handles: Iterable[RequestHandle]) -> KernelWindows:
    """The windows of all launches among requests."""
    reports: dict[tuple[int, PeCoord], PeReport] = {}
    by_pe: dict[PeCoord, list[tuple[int, int, int]]] = {}
    for handle in handles:
        given = handle.outcome.reports if handle.outcome is not None else ()
        for report in given if isinstance(handle.msg, KernelLaunchMsg) else ():
            reports[handle.request_id, report.pe] = report
            by_pe.setdefault(report.pe, []).append((report.start_ps, report.end_ps, handle.request_id))
    return KernelWindows(reports, {pe: sorted(windows) for pe, windows in by_pe.items()})
