"""What a run did, as figures to print: launches and their parts, engines, traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernbench.cli.run_engine import RunEngine
from kernbench.common.ids import HOST, SWITCH, pe_part
from kernbench.common.units import ps_to_ns
from kernbench.di.kinds import PE_KINDS
from kernbench.messages.control import PeReport
from kernbench.messages.requests import HostMsg, KernelLaunchMsg, PeCoord
from kernbench.sim_engine.engine import RequestHandle
from kernbench.sim_engine.op_log import OpRecord
from kernbench.sim_engine.statistics import ENGINE_OF, EngineUsage, LinkTraffic, engine_usage, link_traffic

BUSIEST_LINKS = 8
NONE = "no engine: CPU and waiting"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a PE's kernel time, by the engines that were busy: one, several at once (``A + B``), or none."""

    what: str
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSplit:
    """A launch: control path before the first kernel starts, kernels, control path after the last has ended.

    ``shares`` split the time of ``slowest``, the PE whose kernel ran longest; they add up to ``slowest_ns``.
    """

    name: str
    launches: int
    pe_count: int
    before_ns: float
    kernel_ns: float
    after_ns: float
    late_pes: int
    slowest: PeCoord
    slowest_ns: float
    shares: tuple[Share, ...]

    @property
    def total_ns(self) -> float:
        """From submission to completion."""
        return self.before_ns + self.kernel_ns + self.after_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes on links, headers included: into and out of all HBM slices, from and to the host; the busiest links."""

    hbm_in: int
    hbm_out: int
    to_machine: int
    from_machine: int
    host_utilisation: float
    busiest: tuple[LinkTraffic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Everything that is measured on the engine of a run.

    ``launches``: the longest one of each name; ``under_way``: requests that had not ended when the run did.
    """

    launches: tuple[LaunchSplit, ...]
    engines: tuple[EngineUsage, ...]
    traffic: Traffic
    events: int
    transfers: int
    records: int
    under_way: tuple[str, ...] = ()


def report_run(engine: RunEngine) -> RunReport:
    """The figures of a run, as far as it got."""
    launched = [handle for handle in engine.handles if _kernels(handle)]
    return RunReport(
        launches=tuple(_launches(engine, launched)),
        engines=_engines(engine, launched),
        traffic=_traffic(engine),
        events=engine.n_events,
        transfers=engine.machine.network.n_transfers,
        records=len(engine.op_log),
        under_way=tuple(_name(handle.msg) for handle in engine.handles if not handle.done),
    )


def _name(msg: HostMsg) -> str:
    what = type(msg).__name__.removesuffix("Msg")
    return f"{what} {msg.name!r}" if msg.name else what


def _kernels(handle: RequestHandle) -> tuple[PeReport, ...]:
    """What the PEs of a finished launch reported; empty for other requests."""
    if handle.outcome is None or not isinstance(handle.msg, KernelLaunchMsg):
        return ()
    return handle.outcome.reports


def _launches(engine: RunEngine, launched: Sequence[RequestHandle]) -> Iterable[LaunchSplit]:
    for name in dict.fromkeys(handle.msg.name for handle in launched):
        same = [handle for handle in launched if handle.msg.name == name]
        longest = max(same, key=lambda handle: handle.ended_ps - handle.submitted_ps)
        yield _split(engine, longest, len(same))


def _split(engine: RunEngine, handle: RequestHandle, launches: int) -> LaunchSplit:
    kernels = _kernels(handle)
    begin, end = min(each.start_ps for each in kernels), max(each.end_ps for each in kernels)
    slowest = max(kernels, key=lambda each: each.end_ps - each.start_ps)
    parts = {pe_part(*slowest.pe, kind) for kind in PE_KINDS}
    # A PE runs one kernel at a time, so what its parts do meanwhile belongs to this one.
    records = [
        each
        for each in engine.op_log
        if each.component in parts and slowest.start_ps <= each.t_start_ps <= slowest.end_ps
    ]
    return LaunchSplit(
        name=handle.msg.name,
        launches=launches,
        pe_count=len(kernels),
        before_ns=ps_to_ns(begin - handle.submitted_ps),
        kernel_ns=ps_to_ns(end - begin),
        after_ns=ps_to_ns(handle.ended_ps - end),
        late_pes=sum(each.late for each in kernels),
        slowest=slowest.pe,
        slowest_ns=ps_to_ns(slowest.end_ps - slowest.start_ps),
        shares=shares(records, slowest.start_ps, slowest.end_ps),
    )


def shares(records: Iterable[OpRecord], begin: int, end: int) -> tuple[Share, ...]:
    """The time from ``begin`` to ``end`` ps by which engines of a PE were busy; adds up to all of it.

    The record of a whole GEMM is left out where its tiles are there: it includes their waiting.
    """
    steps: list[tuple[int, str, int]] = []
    for record in records:
        engine = ENGINE_OF.get(record.kind)
        if engine is not None and record.t_end_ps >= 0 and not (record.kind == "gemm" and record.tile is None):
            steps += [(max(record.t_start_ps, begin), engine, 1), (min(record.t_end_ps, end), engine, -1)]
    spent: dict[str, int] = {}
    active = dict.fromkeys(ENGINE_OF.values(), 0)
    reached = begin
    for when, engine, change in sorted([*steps, (end, "", 0)]):
        state = " + ".join(each for each, count in active.items() if count) or NONE
        spent[state] = spent.get(state, 0) + when - reached
        reached = when
        if engine:
            active[engine] += change
    longest_first = sorted(spent.items(), key=lambda item: -item[1])
    return tuple(Share(what, ps_to_ns(ps)) for what, ps in longest_first if ps)


def _engines(engine: RunEngine, launched: Sequence[RequestHandle]) -> tuple[EngineUsage, ...]:
    """Usage from the first start of a kernel to the last end of one."""
    kernels = [each for handle in launched for each in _kernels(handle)]
    if not kernels:
        return ()
    begin, end = min(each.start_ps for each in kernels), max(each.end_ps for each in kernels)
    return engine_usage(engine.op_log, ps_to_ns(begin), ps_to_ns(end))


def _traffic(engine: RunEngine) -> Traffic:
    links = link_traffic(engine.machine)
    nodes = engine.machine.graph.nodes
    down = [link for link in links if link.src == HOST and link.dst == SWITCH]
    up = [link for link in links if link.src == SWITCH and link.dst == HOST]
    return Traffic(
        hbm_in=sum(link.nbytes for link in links if nodes[link.dst].kind == "hbm_ctrl"),
        hbm_out=sum(link.nbytes for link in links if nodes[link.src].kind == "hbm_ctrl"),
        to_machine=sum(link.nbytes for link in down),
        from_machine=sum(link.nbytes for link in up),
        host_utilisation=max((link.utilisation for link in [*down, *up]), default=0.0),
        busiest=tuple(sorted(links, key=lambda link: -link.utilisation)[:BUSIEST_LINKS]),
    )
