"""Engines whose critical paths are asked for, and what holds of every path."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from engine_support import Placed, machine
from kernbench.engine.engine import GraphEngine, RequestHandle
from kernbench.messages.requests import HostMsg, KernelLaunchMsg, KernelRef, PeCoord
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import CriticalPath, Part
from kernbench.observe.roofline import Roofline, roofline
from kernbench.observe.trace_log import TraceLog

SMALL = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1")


class Watched(GraphEngine):
    """An engine of timing that is observed, and keeps its requests."""

    def __init__(self, *overrides: str, small: bool = True) -> None:
        super().__init__(machine(*(SMALL if small else ()), *overrides), enable_data=False)
        self.log = TraceLog(self.machine, memories=True)
        self.handles: list[RequestHandle] = []

    def submit(self, msg: HostMsg) -> RequestHandle:
        self.handles.append(super().submit(msg))
        return self.handles[-1]

    def run(
        self, kernel: Callable[..., object], *args: Placed | float, targets: tuple[PeCoord, ...] = ((0, 0, 0),)
    ) -> RequestHandle:
        given = tuple(a.arg if isinstance(a, Placed) else a for a in args)
        msg = KernelLaunchMsg(kernel=KernelRef(name="kernel", function=kernel), args=given, targets=targets)
        handle = self.submit(msg)
        self.wait(handle)
        return handle

    def path(self, handle: RequestHandle) -> CriticalPath:
        return PathFinder(self.log, self.handles).of_request(handle)

    def roofline(self, handle: RequestHandle) -> Roofline:
        return roofline(self.log, self.path(handle), handle.request_id)


def check(path: CriticalPath, start_ps: int, end_ps: int) -> None:
    """Contiguous from begin to end, so that the sum is exact."""
    assert (path.start_ps, path.end_ps) == (start_ps, end_ps)
    assert path.steps[0].start_ps == start_ps
    assert path.steps[-1].end_ps == end_ps
    assert all(before.end_ps == after.start_ps for before, after in pairwise(path.steps))
    assert all(step.ps > 0 for step in path.steps)
    assert sum(each.ps for each in path.parts) == end_ps - start_ps


def check_request(engine: Watched, handle: RequestHandle) -> dict[Part, int]:
    path = engine.path(handle)
    check(path, handle.submitted_ps, handle.ended_ps)
    found = engine.roofline(handle)
    if found.binding is not None:
        assert found.binding.ps + sum(each.ps for each in found.differences) == path.ps
    return {each.part: each.ps for each in path.parts}
