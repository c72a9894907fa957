"""Results of a probe case, and the hops of one transaction. Times are integers in ps, so that sums are exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kernbench.common.figures import figure
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
    """One transaction of ``nbytes``: its measured latency, the components, and the uncontended closed form.

    ``bottleneck_gbs`` is the bandwidth of the narrowest link on the data's route, or of the memory if that is less.
    """

    nbytes: int
    latency_ps: int
    closed_form_ps: int
    breakdown: Breakdown
    bottleneck_gbs: float

    @property
    def latency_ns(self) -> float:
        """The time from the request to its completion in ns."""
        return ps_to_ns(self.latency_ps)

    @property
    def closed_form_ns(self) -> float:
        """The uncontended latency in ns."""
        return ps_to_ns(self.closed_form_ps)

    @property
    def effective_gbs(self) -> float:
        """The bytes of the transaction divided by its latency, in GB/s."""
        return self.nbytes / self.latency_ns

    @property
    def utilisation(self) -> float:
        """Effective bandwidth divided by the bandwidth of the bottleneck."""
        return self.effective_gbs / self.bottleneck_gbs


@value(kw_only=True)
class TraceRow:
    """The arrival of the first and the last byte of a transaction at ``node``, in ps since the request.

    ``link_gbs`` is the bandwidth of the link to the node, None at the start of a leg and for the memory's step.
    """

    leg: Literal["request", "memory", "response"]
    node: str
    what: str
    link_gbs: float | None
    head_ps: int
    tail_ps: int


@value(kw_only=True)
class LinkLoad:
    """The load of a link in a stream: bytes, and the share of the stream's time in which the link serialised."""

    src: str = figure("from")
    dst: str = figure("to")
    nbytes: int = figure("bytes it carried, headers included")
    bw_gbs: float = figure("bandwidth")
    utilisation: float = figure("share of the stream's time in which it serialised")


@value(kw_only=True)
class Sustained:
    """Simultaneous streams of all flows: ``transactions`` of ``nbytes`` each, ``outstanding`` in flight.

    ``bottleneck_gbs`` is the sum of the fair rates of the flows. ``busiest`` are the busiest links.
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
        """The bytes of all flows divided by the time from the first request to the last completion, in GB/s."""
        return self.nbytes * self.transactions * self.flows / ps_to_ns(self.duration_ps)

    @property
    def utilisation(self) -> float:
        """Effective bandwidth divided by the bandwidth of the bottleneck."""
        return self.effective_gbs / self.bottleneck_gbs


@value(kw_only=True)
class Crowd:
    """Several simultaneous initiators: the latency of one transaction each, and the rate of each stream.

    ``latencies_ps`` and ``rates_gbs`` are in the order of ``initiators``.
    """

    initiators: tuple[str, ...]
    latencies_ps: tuple[int, ...]
    rates_gbs: tuple[float, ...]

    @property
    def min_ns(self) -> float:
        """The shortest latency in ns."""
        return ps_to_ns(min(self.latencies_ps))

    @property
    def mean_ns(self) -> float:
        """The mean latency in ns."""
        return ps_to_ns(sum(self.latencies_ps)) / len(self.latencies_ps)

    @property
    def max_ns(self) -> float:
        """The longest latency in ns."""
        return ps_to_ns(max(self.latencies_ps))

    @property
    def fairness(self) -> float:
        """Jain's index of the rates: 1 if all are equal, 1/n if one initiator has the complete bandwidth."""
        squares = sum(rate * rate for rate in self.rates_gbs)
        return sum(self.rates_gbs) ** 2 / (len(self.rates_gbs) * squares)


@value(kw_only=True)
class ProbeReport:
    """The results of a case on a machine.

    - ``initiator``, ``memory``: node ids
    - ``pe``: the PE of the initiator, None for the host
    - ``single``: one transaction of the requested size; with several initiators, the slowest of their simultaneous
      transactions
    - ``sweep``, ``trace``: empty unless details were requested
    - ``crowd``: None with one initiator
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
    """A case that the machine lacks, and the reason."""

    case: str
    description: str
    why: str


def trace_rows(engine: GraphEngine, flow: ProbeFlow, handle: RequestHandle) -> tuple[TraceRow, ...]:
    """Return the rows of a transaction that ended on an engine with ``trace_hops``."""
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
    """Return the row of the memory's work between request and answer: for a write, until the commit is over."""
    step = "access until the first byte" if flow.reading else "rest of the write, and access"
    return TraceRow(
        leg="memory",
        node=flow.memory,
        what=step,
        link_gbs=None,
        head_ps=request.delivered_ps - begin,
        tail_ps=response.injected_ps - begin,
    )
