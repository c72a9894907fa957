"""Report a run as figures: launches and their phases, engines, traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from kernbench.common.errors import AbandonedError
from kernbench.common.figures import figure
from kernbench.common.ids import pe_name, pe_part
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.core.log import LAST_RECORD, READ
from kernbench.di.part import PE_KINDS
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import RequestHandle
from kernbench.messages.control import PeReport
from kernbench.messages.requests import HostMsg, KernelLaunchMsg, PeCoord
from kernbench.observe.statistics import (
    EngineUsage,
    LinkTraffic,
    MachineUse,
    MemoryTraffic,
    QueueTraffic,
    TimeShare,
    Traffic,
    Translation,
    engine_shares,
    engine_usage,
    link_traffic,
    machine_use,
    memory_traffic,
    queue_traffic,
    traffic,
    translation,
)
from kernbench.observe.works import Works


@value(kw_only=True)
class LaunchSplit:
    """A launch in three phases: control path before the first kernel, kernels, control path after the last kernel.

    ``title``: the name of the launch, and for a collective its ``algorithm`` too. ``slowest``: the PE whose kernel ran
    longest, for ``slowest_ns``. ``shares``: the parts of that kernel's time, which add up to ``slowest_ns``.
    ``blocks``: the block sizes of the products, as m×k×n.
    """

    name: str = figure("as the program calls it")
    title: str = figure(fallback="name")
    algorithm: str | None = figure("the schedule or kernel of a collective", default=None)
    launches: int = figure("launches of this name; the figures are of the longest", default=1)
    passed: int = figure("launches of this name that passed without a simulation", optional=True, default=0)
    pe_count: int = figure("PEs that ran it", default=0)
    late_pes: int = figure("PEs that got the order after the common start", default=0)
    total_ns: float = figure("from submission, or from the end of a wait in the queue, to completion")
    before_ns: float = figure("control path to the PEs, from the host or from the queue", default=0.0)
    kernel_ns: float = figure("from the first start of a kernel to the last end", default=0.0)
    after_ns: float = figure("control path from the PEs to the host", default=0.0)
    slowest: PeCoord = figure("the PE that ran longest", key="slowest_pe", show=pe_name, default=(0, 0, 0))
    slowest_ns: float = figure("the time of that PE", default=0.0)
    shares: tuple[TimeShare, ...] = ()
    blocks: tuple[str, ...] = ()


@value(kw_only=True)
class RunReport:
    """The figures measured on the engine of a run.

    ``launches``: the longest launch of each name. ``queues``: the queues of PEs that sent messages. ``under_way``:
    requests that had not ended when the run ended, or that failed and were abandoned. ``translation``: the figures of
    address translation; None without TLBs. ``memories``: the memories that transferred the most bytes.
    """

    launches: tuple[LaunchSplit, ...]
    engines: tuple[EngineUsage, ...]
    traffic: Traffic
    used: MachineUse
    events: int
    transfers: int
    records: int
    under_way: tuple[str, ...] = ()
    queues: tuple[QueueTraffic, ...] = ()
    translation: Translation | None = None
    memories: tuple[MemoryTraffic, ...] = ()


def report_run(
    engine: GraphEngine,
    links: tuple[LinkTraffic, ...] | None = None,
    works: Works | None = None,
    since_ns: float = 0.0,
) -> RunReport:
    """Compute the figures of a run, up to its current time.

    The figures of launches and engines cover the time from ``since_ns`` on, all other figures the time from the start
    of the run. ``links``: the traffic of links at the end of the program; None means the current traffic. ``works``:
    the works of the log, if the caller has computed them already.
    """
    since_ps = ns_to_ps(since_ns)
    launched = [handle for handle in launches_of(engine.handles) if handle.submitted_ps >= since_ps]
    passed = [engine.handles[launch] for launch in engine.machine.passed.launches]
    passed = [handle for handle in passed if handle.submitted_ps >= since_ps and _has_ended(handle)]
    links = link_traffic(engine.machine) if links is None else links
    machine = engine.machine
    works = works or Works(machine.log, machine.log.columns(), machine.passed)
    columns = works.columns
    # These times are not stored, and other columns follow: the copy adds nothing to the largest memory.
    n_records = int(((columns.kind <= LAST_RECORD) & (columns.copy(READ) >= 0)).sum())
    return RunReport(
        launches=tuple(_split_launches(engine, works, launched, passed)),
        engines=_measure_engines(works, launched, max((handle.ended_ps for handle in passed), default=0)),
        traffic=traffic(engine.machine, links),
        used=machine_use(engine.machine, works, links),
        events=engine.n_events,
        transfers=engine.machine.network.n_transfers,
        records=n_records,
        under_way=tuple(_name(handle.msg) for handle in engine.handles if not _has_ended(handle)),
        queues=queue_traffic(engine.machine, works),
        translation=translation(engine.machine),
        memories=memory_traffic(engine.machine, links),
    )


def launches_of(handles: Iterable[RequestHandle]) -> list[RequestHandle]:
    """Return the launches that have ended and whose PEs have reported."""
    return [handle for handle in handles if _list_kernels(handle)]


def _split_launches(
    engine: GraphEngine, works: Works, launched: Sequence[RequestHandle], passed: Sequence[RequestHandle]
) -> Iterable[LaunchSplit]:
    """Yield the longest launch of each title; the sample of its kind if all launches of the title passed."""
    by_title: dict[str, list[RequestHandle]] = {}
    for handle in sorted((*launched, *passed), key=lambda handle: handle.request_id):
        by_title.setdefault(handle.msg.title, []).append(handle)
    skipped = engine.machine.passed
    for title, handles in by_title.items():
        simulated = [handle for handle in handles if handle.request_id not in skipped.launches]
        samples = [engine.handles[skipped.sample_of(handle.request_id)] for handle in handles]
        longest = max(simulated or samples, key=lambda handle: handle.ended_ps - handle.begun_ps)
        split = _split(works, longest, len(handles))
        yield replace(split, name=handles[0].msg.name, title=title, passed=len(handles) - len(simulated))


def _name(msg: HostMsg) -> str:
    kind = type(msg).__name__.removesuffix("Msg")
    return f"{kind} {msg.title!r}" if msg.title else kind


def _has_ended(handle: RequestHandle) -> bool:
    """Return True when a request has ended and was not abandoned."""
    return handle.outcome is not None and not isinstance(handle.outcome.error, AbandonedError)


def _list_kernels(handle: RequestHandle) -> tuple[PeReport, ...]:
    """Return the PE reports of a finished launch; empty for other requests."""
    if handle.outcome is None or not _has_ended(handle) or not isinstance(handle.msg, KernelLaunchMsg):
        return ()
    return handle.outcome.reports


def _split(works: Works, handle: RequestHandle, launches: int) -> LaunchSplit:
    kernels = _list_kernels(handle)
    begin, end = min(kernel.start_ps for kernel in kernels), max(kernel.end_ps for kernel in kernels)
    slowest = max(kernels, key=lambda kernel: kernel.end_ps - kernel.start_ps)
    # A PE runs one kernel at a time, so all work of its components in that time belongs to this kernel.
    parts = {pe_part(*slowest.pe, kind) for kind in PE_KINDS}
    return LaunchSplit(
        name=handle.msg.name,
        title=handle.msg.title,
        algorithm=handle.msg.algorithm if isinstance(handle.msg, KernelLaunchMsg) else None,
        launches=launches,
        pe_count=len(kernels),
        total_ns=ps_to_ns(handle.ended_ps - handle.begun_ps),
        before_ns=ps_to_ns(begin - handle.begun_ps),
        kernel_ns=ps_to_ns(end - begin),
        after_ns=ps_to_ns(handle.ended_ps - end),
        late_pes=sum(kernel.late for kernel in kernels),
        slowest=slowest.pe,
        slowest_ns=ps_to_ns(slowest.end_ps - slowest.start_ps),
        shares=engine_shares(works, parts, slowest.start_ps, slowest.end_ps),
        blocks=tuple(dict.fromkeys(chain.from_iterable(works.blocks_of(handle.msg.request_id).values()))),
    )


def _measure_engines(works: Works, launched: Sequence[RequestHandle], least_end_ps: int) -> tuple[EngineUsage, ...]:
    """Return the use of engines from the first start of a kernel to the last end, at least ``least_end_ps``."""
    kernels = [kernel for handle in launched for kernel in _list_kernels(handle)]
    if not kernels:
        return ()
    begin, end = min(kernel.start_ps for kernel in kernels), max(kernel.end_ps for kernel in kernels)
    end = max(end, least_end_ps)
    return engine_usage(works, ps_to_ns(begin), ps_to_ns(end))
