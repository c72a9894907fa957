"""Engines whose critical paths are asked for, and what holds of every path."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from engine_support import Placed, launch, machine
from kernbench.core.log import By
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import CriticalPath, PathPart
from kernbench.observe.roofline import Roofline, roofline
from kernbench.observe.slices import slice_times
from observed import log_of, logged

SMALL = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1")

BANKS = (
    "cube.hbm.timing=hbm3",
    "cube.hbm.access_bytes=null",
    "cube.components.hbm_ctrl.attrs={access_ns: 2.5}",
)
"""Slices with banks."""


def watched(*overrides: str, small: bool = True) -> GraphEngine:
    """An engine whose critical paths are asked for."""
    return logged(machine(*(SMALL if small else ()), *overrides))


def run(
    engine: GraphEngine,
    kernel: Callable[..., object],
    *args: Placed | float,
    targets: tuple[PeCoord, ...] = ((0, 0, 0),),
) -> RequestHandle:
    """Run a kernel and wait for it."""
    launch(engine, kernel, *args, targets=targets)
    return engine.handles[-1]


def path_of(engine: GraphEngine, handle: RequestHandle) -> CriticalPath:
    """The critical path of a request."""
    return PathFinder(log_of(engine).seen, engine.handles).of_request(handle)


def roofline_of(engine: GraphEngine, handle: RequestHandle) -> Roofline:
    """What bounds a launch."""
    seen, path = log_of(engine).seen, path_of(engine, handle)
    return roofline(seen, path, slice_times(seen, path), handle.request_id)


def check(path: CriticalPath, start_ps: int, end_ps: int) -> None:
    """Contiguous from begin to end, so that the sum is exact."""
    assert (path.start_ps, path.end_ps) == (start_ps, end_ps)
    assert path.steps[0].start_ps == start_ps
    assert path.steps[-1].end_ps == end_ps
    assert all(before.end_ps == after.start_ps for before, after in pairwise(path.steps))
    assert all(step.ps > 0 for step in path.steps)
    assert sum(each.ps for each in path.parts) == end_ps - start_ps


def check_request(engine: GraphEngine, handle: RequestHandle) -> dict[PathPart, int]:
    path = path_of(engine, handle)
    check(path, handle.submitted_ps, handle.ended_ps)
    found = roofline_of(engine, handle)
    if found.largest is not None:
        assert found.largest.ps + sum(each.ps for each in found.differences) == path.ps
    return {each.part: each.ps for each in path.parts}


def check_turns(engine: GraphEngine) -> None:
    """What turns took of their own time is no more than that, and they begin after what they waited for had begun."""
    turns = log_of(engine).seen.turns
    for took in (turns.rows, turns.turning, turns.refresh):
        assert (took >= 0).all()
    assert (turns.rows + turns.turning + turns.refresh <= turns.end - turns.start).all()
    behind = np.flatnonzero(turns.by == By.BANK)
    assert (turns.cause[behind] < behind).all()
