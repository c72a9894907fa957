"""Probe reports as a JSON document."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.cli.console import Json
from kernbench.common.units import ps_to_ns
from kernbench.probe.report import Crowd, LinkLoad, NotHere, ProbeReport, Sustained, TraceRow, Transaction
from kernbench.topology.builder import Topology


def probe_document(machine: Topology, nbytes: int, reports: Sequence[ProbeReport | NotHere], *, complete: bool) -> Json:
    """All reports; ``complete`` is false when the work was interrupted."""
    return {
        "topology": machine.source,
        "digest": machine.digest,
        "nbytes": nbytes,
        "complete": complete,
        "cases": [_report(each) if isinstance(each, ProbeReport) else _absent(each) for each in reports],
    }


def _absent(report: NotHere) -> Json:
    return {"case": report.case, "description": report.description, "on_this_machine": False, "why": report.why}


def _report(report: ProbeReport) -> Json:
    return {
        "case": report.case,
        "description": report.description,
        "on_this_machine": True,
        "operation": report.operation,
        "initiator": report.initiator,
        "memory": report.memory,
        "transaction": _transaction(report.single),
        "sustained": _sustained(report.sustained),
        "crowd": None if report.crowd is None else _crowd(report.crowd),
        "sweep": [_transaction(step) for step in report.sweep],
        "hops": [_hop(row) for row in report.trace],
    }


def _transaction(single: Transaction) -> Json:
    return {
        "nbytes": single.nbytes,
        "latency_ns": single.latency_ns,
        "closed_form_ns": single.closed_form_ns,
        "breakdown": dict(single.breakdown.parts_ns),
        "bottleneck_gbs": single.bottleneck_gbs,
        "effective_gbs": single.effective_gbs,
        "utilisation": single.utilisation,
    }


def _sustained(stream: Sustained) -> Json:
    return {
        "nbytes": stream.nbytes,
        "transactions": stream.transactions,
        "outstanding": stream.outstanding,
        "flows": stream.flows,
        "duration_ns": ps_to_ns(stream.duration_ps),
        "bottleneck_gbs": stream.bottleneck_gbs,
        "effective_gbs": stream.effective_gbs,
        "utilisation": stream.utilisation,
        "busiest_links": [_link(link) for link in stream.busiest],
    }


def _link(link: LinkLoad) -> Json:
    return {
        "src": link.src,
        "dst": link.dst,
        "bw_gbs": link.bw_gbs,
        "nbytes": link.nbytes,
        "utilisation": link.utilisation,
    }


def _crowd(crowd: Crowd) -> Json:
    rows = zip(crowd.initiators, crowd.latencies_ps, crowd.rates_gbs, strict=True)
    return {
        "min_ns": crowd.min_ns,
        "mean_ns": crowd.mean_ns,
        "max_ns": crowd.max_ns,
        "fairness": crowd.fairness,
        "initiators": [
            {"initiator": node, "latency_ns": ps_to_ns(latency), "stream_gbs": rate} for node, latency, rate in rows
        ],
    }


def _hop(row: TraceRow) -> Json:
    return {
        "leg": row.leg,
        "node": row.node,
        "what": row.what,
        "link_gbs": row.link_gbs,
        "first_byte_ns": ps_to_ns(row.head_ps),
        "last_byte_ns": ps_to_ns(row.tail_ps),
    }
