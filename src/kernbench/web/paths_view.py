"""Where time went, as the page shows it: critical paths step by step, and what bounds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from linecache import getline
from pathlib import Path

from kernbench.messages.requests import PeCoord
from kernbench.observe.critical_path_model import CriticalPath, KernelPlace, Part
from kernbench.observe.roofline import Bound, Roofline
from kernbench.runtime_api.run_explanation import LaunchExplanation, LineWait, RunExplanation, explain_run
from kernbench.web.observer import ObservedRun
from kernbench.web.packing import Json

_PARTS = list(Part)


def paths_view(run: ObservedRun, pes: Mapping[PeCoord, int], requests: Sequence[int]) -> list[Json]:
    """The critical path of the run, and of each launch that one of ``requests`` is; times in ps."""
    engine = run.engine
    found: RunExplanation = explain_run(run.log, engine.handles, 0.0, run.result.sim_ns)
    whole = _path("run", -1, found.path, found.roofline, pes)
    launches = {each.request_id: each for each in found.launches}
    return [whole, *(_launch(launches[each], pes) for each in requests)]


def _launch(launch: LaunchExplanation, pes: Mapping[PeCoord, int]) -> Json:
    lines: list[Json] = [
        [each.line, getline(launch.file, each.line).strip(), round(each.path_ns * 1000)] for each in launch.lines
    ]
    about: dict[str, Json] = {
        "file": Path(launch.file).name,
        "pe_count": launch.pe_count,
        "lines": lines,
        "waits": [_wait(each, pes) for each in launch.waits],
    }
    return {**_path(launch.name, launch.request_id, launch.path, launch.roofline, pes), **about}


def _wait(wait: LineWait, pes: Mapping[PeCoord, int]) -> Json:
    """Who waited, for what, of whom, how often and for how long; kernels as [PE, launch, line or 0]."""
    waiting = _kernel(wait.waiting, wait.waiting_kernel, pes)
    return [waiting, wait.what, _kernel(wait.cause, wait.kernel, pes), wait.count, round(wait.ns * 1000)]


def _kernel(place: KernelPlace, launch: str, pes: Mapping[PeCoord, int]) -> Json:
    return [pes[place.pe], launch, place.line]


def _path(name: str, request: int, path: CriticalPath, bounds: Roofline, pes: Mapping[PeCoord, int]) -> dict[str, Json]:
    """Steps are [part, start ps, end ps, PE or -1, line or 0]."""
    steps: list[Json] = [
        [_PARTS.index(step.part), step.start_ps, step.end_ps, -1 if step.pe is None else pes[step.pe], step.line]
        for step in path.steps
    ]
    return {
        "name": name,
        "request": request,
        "start_ps": path.start_ps,
        "end_ps": path.end_ps,
        "steps": steps,
        "spent": [[_PARTS.index(each.part), each.ps] for each in path.parts],
        "bounds": [_bound(each) for each in bounds.bounds],
        "differences": [[each.what, each.ps] for each in bounds.differences],
    }


def _bound(bound: Bound) -> Json:
    return [bound.resource, bound.where, bound.amount, bound.unit, bound.rate, bound.ps]
