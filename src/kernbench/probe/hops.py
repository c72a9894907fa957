"""The course of one transaction: when its first and its last byte are at every node, there and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from kernbench.engine.requests import RequestHandle
from kernbench.probe.flow import Flow
from kernbench.probe.report import TraceRow
from kernbench.transport import Transfer


def trace_rows(engine: GraphEngine, flow: Flow, handle: RequestHandle) -> tuple[TraceRow, ...]:
    """The rows of a transaction that ended on an engine which traces hops."""
    _, trace = engine.get_completion(handle)
    request, response = trace.transfers
    begin = handle.submitted_ps
    return (
        *_leg(engine.machine, request, "request", begin),
        _memory_step(flow, request, response, begin),
        *_leg(engine.machine, response, "response", begin),
    )


def _leg(machine: Machine, transfer: Transfer, leg: Literal["request", "response"], begin: int) -> Iterator[TraceRow]:
    hops = transfer.hops
    departs = transfer.injected_ps - begin
    source = "sends" if leg == "response" or not departs else "DMA set up, sends"
    yield TraceRow(leg=leg, node=hops[0].src, what=source, link_gbs=None, head_ps=departs, tail_ps=departs)
    for hop in hops:
        link = machine.network.links[hop.src, hop.dst]
        yield TraceRow(
            leg=leg,
            node=hop.dst,
            what="" if hop is not hops[-1] else "receives",
            link_gbs=link.bw_gbs,
            head_ps=hop.start_ps + link.overhead_ps - begin,
            tail_ps=hop.tail_ps + link.overhead_ps - begin,
        )


def _memory_step(flow: Flow, request: Transfer, response: Transfer, begin: int) -> TraceRow:
    """The memory between the request and the answer; for a write this is the rest of committing it."""
    what = "access until the first byte" if flow.reading else "rest of the write, and access"
    return TraceRow(
        leg="memory",
        node=flow.memory,
        what=what,
        link_gbs=None,
        head_ps=request.delivered_ps - begin,
        tail_ps=response.injected_ps - begin,
    )
