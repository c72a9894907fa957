"""The results of probing a case, and the course of one transaction. Times are whole ps, so that sums are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import PeCoord
from kernbench.probe.cases import ProbeFlow
from kernbench.probe.closed_form import Breakdown
from kernbench.transport import Transfer


@value(kw_only=True)
class Transaction:
    """One transaction of ``nbytes``: measured, its parts, and the closed form for it alone.

    ``bottleneck_gbs``: the narrowest link of the data's way, or what the memory sustains if that is less.
    """

    nbytes: int
    latency_ps: int
    closed_form_ps: int
    breakdown: Breakdown
    bottleneck_gbs: float

    @property
    def latency_ns(self) -> float:
        """From the request to its completion."""
        return ps_to_ns(self.latency_ps)

    @property
    def closed_form_ns(self) -> float:
        """The time that it takes alone."""
        return ps_to_ns(self.closed_form_ps)

    @property
    def effective_gbs(self) -> float:
        """Bytes over latency."""
        return self.nbytes / self.latency_ns

    @property
    def utilisation(self) -> float:
        """Effective bandwidth over that of the bottleneck."""
        return self.effective_gbs / self.bottleneck_gbs


@value(kw_only=True)
class TraceRow:
    """The times at which the first and the last byte of a transaction came to ``node``, counted from the request.

    ``link_gbs`` is the link it came by, None at the start of a leg and at the memory's own step.
    """

    leg: Literal["request", "memory", "response"]
    node: str
    what: str
    link_gbs: float | None
    head_ps: int
    tail_ps: int


@value(kw_only=True)
class LinkLoad:
    """A link in a stream: bytes it carried, and its serialising time over the time of the stream."""

    src: str
    dst: str
    nbytes: int
    bw_gbs: float
    utilisation: float


@value(kw_only=True)
class Sustained:
    """Streams of all flows at once: ``transactions`` of ``nbytes`` for each, ``outstanding`` under way.

    ``bottleneck_gbs``: what the flows could have together; ``busiest``: the links that were busiest.
    """

    nbytes: int
    transactions: int
    outstanding: int
    flows: int
    duration_ps: int
    bottleneck_gbs: float
    busiest: tuple[LinkLoad, ...]

    @property
    def effective_gbs(self) -> float:
        """All bytes over the time from the first request to the last completion."""
        return self.nbytes * self.transactions * self.flows / ps_to_ns(self.duration_ps)

    @property
    def utilisation(self) -> float:
        """Effective bandwidth over that of the bottleneck."""
        return self.effective_gbs / self.bottleneck_gbs


@value(kw_only=True)
class Crowd:
    """Several initiators at once: the latency of one transaction each, and the rate of each one's stream.

    ``latencies_ps`` and ``rates_gbs`` are by initiator, in the order of ``initiators``.
    """

    initiators: tuple[str, ...]
    latencies_ps: tuple[int, ...]
    rates_gbs: tuple[float, ...]

    @property
    def min_ns(self) -> float:
        """The shortest latency."""
        return ps_to_ns(min(self.latencies_ps))

    @property
    def mean_ns(self) -> float:
        """The mean latency."""
        return ps_to_ns(sum(self.latencies_ps)) / len(self.latencies_ps)

    @property
    def max_ns(self) -> float:
        """The longest latency."""
        return ps_to_ns(max(self.latencies_ps))

    @property
    def fairness(self) -> float:
        """Jain's index of the rates: 1 when all are equal, 1/n when one has everything."""
        squares = sum(rate * rate for rate in self.rates_gbs)
        return sum(self.rates_gbs) ** 2 / (len(self.rates_gbs) * squares)


@value(kw_only=True)
class ProbeReport:
    """A case on a machine.

    ``initiator`` and ``memory`` are node ids, ``pe`` is the initiator's PE (None: the host).
    ``single``: one transaction of the size asked for; with several initiators, the slowest of those sent at once.
    ``sweep`` and ``trace`` are empty unless details were asked for; ``crowd`` is None with one initiator.
    """

    case: str
    description: str
    operation: Literal["read", "write"]
    initiator: str
    pe: PeCoord | None
    memory: str
    single: Transaction
    sustained: Sustained
    crowd: Crowd | None
    sweep: tuple[Transaction, ...]
    trace: tuple[TraceRow, ...]


@value(kw_only=True)
class NotHere:
    """A case that the machine cannot have, and why."""

    case: str
    description: str
    why: str


def trace_rows(engine: GraphEngine, flow: ProbeFlow, handle: RequestHandle) -> tuple[TraceRow, ...]:
    """Return the rows of a transaction that ended on an engine which traces hops."""
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


def _memory_step(flow: ProbeFlow, request: Transfer, response: Transfer, begin: int) -> TraceRow:
    """Return the row of the memory between the request and the answer; for a write, the rest of committing it."""
    step = "access until the first byte" if flow.reading else "rest of the write, and access"
    return TraceRow(
        leg="memory",
        node=flow.memory,
        what=step,
        link_gbs=None,
        head_ps=request.delivered_ps - begin,
        tail_ps=response.injected_ps - begin,
    )
