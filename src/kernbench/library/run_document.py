"""The document of a run, which ``kernbench run --json`` prints: results first, the configuration last.

The document depends neither on the computer nor on the time of day.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kernbench.common.program_line import place_document
from kernbench.library.runs import Run, RunFailure, verification_document
from kernbench.runtime_api.launch_report import LaunchSplit


def document_of(run: Run) -> dict[str, Any]:
    """Return everything about a run as plain data, with unrounded numbers."""
    report = run.report
    document: dict[str, Any] = {
        "status": run.status,
        "verdict": {"sentence": run.verdict.sentence, **asdict(run.verdict)},
        "error": None if run.error is None else str(run.error),
        "place": place_document(run.place),
        "bench": run.bench,
        "device": run.device,
        "sim_ns": run.latency_ns,
        "verification": verification_document(run.checks, run.skipped),
        "phases": [asdict(phase) for phase in run.summary.phases],
        "kernels": [asdict(kernel) for kernel in run.summary.kernels],
        "launches": [_launch(launch) for launch in report.launches],
        "engines": [asdict(usage) for usage in report.engines],
        "traffic": asdict(report.traffic),
        "memories": [asdict(each) for each in report.memories],
        "queues": [asdict(each) for each in report.queues],
        "events": report.events,
        "transfers": report.transfers,
        "records": report.records,
        "under_way": list(report.under_way),
        "data": asdict(run.data),
        "leaked": list(run.leaked),
        "left": list(run.left),
    }
    further: dict[str, Any] = {
        "used": asdict(report.used) if report.used.sips else None,
        "said": run.said,
        "translation": None if report.translation is None else asdict(report.translation),
        "unmodelled": dict(run.unmodelled),
        "operators": [asdict(each) for each in run.operators],
        "remarks": list(run.remarks),
        "load": None if run.load is None else asdict(run.load),
        "printed": [asdict(each) for each in run.printed],
        "frontends": dict(run.frontends),
    }
    document |= {name: said for name, said in further.items() if said}
    if run.findings is not None:
        document["findings"] = [asdict(each) for each in run.findings]
    if run.advised is not None:
        document["advice"] = run.advised
    explained = run.explained
    if isinstance(explained, RunFailure):
        document["explanation_failed"] = explained.text
    elif explained is not None:
        document["explanation"] = explained
    made_with = {"params": dict(run.params), "topology": run.source, "digest": run.digest}
    return document | made_with | {"configuration": run.configuration}


def _launch(launch: LaunchSplit) -> dict[str, Any]:
    return {
        "name": launch.name,
        "title": launch.title,
        "algorithm": launch.algorithm,
        "launches": launch.launches,
        "pe_count": launch.pe_count,
        "late_pes": launch.late_pes,
        "total_ns": launch.total_ns,
        "before_ns": launch.before_ns,
        "kernel_ns": launch.kernel_ns,
        "after_ns": launch.after_ns,
        "slowest_pe": list(launch.slowest),
        "slowest_ns": launch.slowest_ns,
        "shares": [asdict(share) for share in launch.shares],
        "blocks": list(launch.blocks),
    }
