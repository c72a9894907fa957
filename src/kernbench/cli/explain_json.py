"""Where the time of a run went, as a part of its JSON document."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.cli.console import Json
from kernbench.observe.critical_path_model import CriticalPath, KernelPlace, Spent
from kernbench.observe.roofline import Roofline
from kernbench.runtime_api.run_explanation import KernelShare, LaunchExplanation, LineUse, LineWait, RunExplanation


def explanation_document(found: RunExplanation) -> Json:
    """All launches, and the run. Whole ps, so that sums are exact."""
    return {
        "critical_path": _path(found.path),
        "roofline": _roofline(found.roofline),
        "launches": [_launch(launch) for launch in found.launches],
    }


def _launch(launch: LaunchExplanation) -> Json:
    return {
        "name": launch.name,
        "request_id": launch.request_id,
        "pe_count": launch.pe_count,
        "file": launch.file,
        "critical_path": _path(launch.path),
        "lines": [_line(each) for each in launch.lines],
        "waits": [_wait(each) for each in launch.waits],
        "kernels": [_share(each) for each in launch.pes],
        "roofline": _roofline(launch.roofline),
        **({} if launch.ended else {"ended": False}),
    }


def _wait(each: LineWait) -> Json:
    return {
        "waiting": _place(each.waiting, each.waiting_kernel),
        "for": each.waited_for,
        "direction": each.direction,
        "cause": _place(each.cause, each.kernel),
        "count": each.count,
        "ns": each.ns,
    }


def _place(place: KernelPlace, kernel: str) -> Json:
    return {"pe": list(place.pe), "request_id": place.launch_id, "kernel": kernel, "line": place.line}


def _share(each: KernelShare) -> Json:
    return {"pe": list(each.pe), "request_id": each.launch_id, "kernel": each.kernel, "ns": each.ns}


def _path(path: CriticalPath) -> Json:
    return {"total_ps": path.ps, "parts": _parts(path.parts)}


def _parts(parts: Iterable[Spent]) -> Json:
    return [{"part": str(each.part), "ps": each.ps} for each in parts]


def _line(each: LineUse) -> Json:
    return {
        "line": each.line,
        "path_ns": each.path_ns,
        "parts": _parts(each.parts),
        "busy": [{"engine": time.engine, "ns": time.ns} for time in each.busy],
    }


def _roofline(found: Roofline) -> Json:
    binding = found.binding
    return {
        "measured_ps": found.measured_ps,
        "binding": None if binding is None else binding.resource,
        "beyond": found.beyond,
        "useful_macs": found.useful,
        "bounds": [
            {
                "resource": each.resource,
                "where": each.where,
                "amount": each.amount,
                "unit": each.unit,
                "rate_per_ns": each.rate,
                "ps": each.ps,
            }
            for each in found.bounds
        ],
        "differences": [{"what": str(each.what), "ps": each.ps} for each in found.differences],
    }
