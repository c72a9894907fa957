"""A run as a JSON document. Nothing in it depends on the computer or the hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from kernbench.cli.console import Json
from kernbench.cli.failures import error_document, place_document
from kernbench.cli.run_extras import EXPLANATION, Extras, extras_document
from kernbench.cli.run_tables import RunHead
from kernbench.common.late import late
from kernbench.runtime_api.bench_runner import BenchSummary
from kernbench.runtime_api.launch_report import LaunchSplit, RunReport
from kernbench.runtime_api.testing import Comparison, verdict
from kernbench.topology.builder import Topology


def run_document(machine: Topology, head: RunHead, report: RunReport, extras: Extras | None = None) -> Json:
    """Everything about a run."""
    found: dict[str, Json] = {}
    if extras is not None and extras.explanation is not None:
        found = {"verdict": late(EXPLANATION, "run_verdict_document")(extras.explanation.verdict)}
    document: dict[str, Json] = {
        **found,
        "bench": head.bench,
        "params": head.params.model_dump(mode="json"),
        "topology": machine.source,
        "digest": machine.digest,
        "configuration": machine.configuration,
        "device": head.device,
        "status": head.status,
        "error": error_document(head.failure),
        "place": place_document(head.place),
        "sim_ns": head.summary.sim_ns,
        "phases": _phases(head.summary),
        "kernels": _kernels(head.summary),
        "launches": [_launch(launch) for launch in report.launches],
        "engines": [asdict(usage) for usage in report.engines],
        "traffic": asdict(report.traffic),
        "used": asdict(report.used),
        "queues": [asdict(each) for each in report.queues],
        "events": report.events,
        "transfers": report.transfers,
        "records": report.records,
        "under_way": list(report.under_way),
        "verification": verification_document(head.comparisons, head.skipped),
        "data": asdict(head.data),
        "leaked": [str(leak) for leak in head.leaks],
    }
    if report.translation is not None:
        document["translation"] = asdict(report.translation)
    if head.unmodelled:
        document["unmodelled"] = dict(head.unmodelled)
    return document if extras is None else document | extras_document(extras)


def verification_document(comparisons: Sequence[Comparison], skipped: int) -> Json:
    """Return the comparisons made and the number of those not evaluated."""
    return {
        "verdict": verdict(comparisons),
        "skipped": skipped,
        "comparisons": [_comparison(each) for each in comparisons],
    }


def _phases(summary: BenchSummary) -> Json:
    return [asdict(phase) for phase in summary.phases]


def _kernels(summary: BenchSummary) -> Json:
    return [asdict(kernel) for kernel in summary.kernels]


def _launch(launch: LaunchSplit) -> Json:
    return {
        "name": launch.name,
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
        "shares": [{"what": share.what, "ns": share.ns} for share in launch.shares],
        "blocks": list(launch.blocks),
    }


def _comparison(each: Comparison) -> Json:
    first = each.first_wrong
    wrong: Json = None
    if first is not None:
        wrong = {"index": list(first.index), "got": first.got, "expected": first.expected, "place": first.place}
    return {
        "name": each.name,
        "passed": each.passed,
        "elements": each.elements,
        "wrong": each.wrong,
        "max_abs_error": each.max_abs_error,
        "max_rel_error": each.max_rel_error,
        "rtol": each.tolerance.rtol,
        "atol": each.tolerance.atol,
        "first_wrong": wrong,
        "pes": each.pes,
        "wrong_pes": [list(pe) for pe in each.wrong_pes],
        "reason": each.reason,
    }
