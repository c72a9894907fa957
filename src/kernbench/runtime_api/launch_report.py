"""Report a run as figures: launches and their phases, engines, traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from itertools import chain

from kernbench.common.errors import AbandonedError
from kernbench.common.figures import figure
from kernbench.common.ids import pe_name, pe_part
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import state, value
from kernbench.core.log import LAST_RECORD, READ
from kernbench.di.part import PE_KINDS
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Machine
from kernbench.engine.passed_launches import WorkSums
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
    has_queue_traffic,
    join_works,
    link_traffic,
    machine_use,
    memory_traffic,
    queue_traffic,
    sum_works,
    traffic,
    translation,
)
from kernbench.observe.works import Works, distinct

PIECE = 1 << 17
"""Rows of the log that are summed at a time"""


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
    since_ps, machine = ns_to_ps(since_ns), engine.machine
    launched = [handle for handle in launches_of(engine.handles) if handle.submitted_ps >= since_ps]
    passed = [engine.handles[launch] for launch in machine.passed.launches]
    passed = [handle for handle in passed if handle.submitted_ps >= since_ps and _has_ended(handle)]
    links = link_traffic(machine) if links is None else links
    window = _find_window(launched, max((handle.ended_ps for handle in passed), default=0))
    sums = _sum_rows(
        machine,
        (Works(log, log.columns(), machine.passed) for log in machine.log.divide(PIECE)) if works is None else (works,),
        window,
        longest := _find_longest(engine, launched, passed),
    )
    return RunReport(
        launches=tuple(_describe(longest_of, sums.splits[longest_of.handle.request_id]) for longest_of in longest),
        engines=engine_usage(sums.engines, ps_to_ns(window[0]), ps_to_ns(window[1])) if launched else (),
        traffic=traffic(machine, links),
        used=machine_use(machine, sorted(sums.parts), links),
        events=engine.n_events,
        transfers=machine.network.n_transfers,
        records=sums.n_records + machine.log.n_folded_records,
        under_way=tuple(_name(handle.msg) for handle in engine.handles if not _has_ended(handle)),
        queues=queue_traffic(machine, sums.all_time),
        translation=translation(machine),
        memories=memory_traffic(machine, links),
    )


@value
class _Longest:
    """The longest launch of a title; the sample of its kind if all launches of the title passed.

    ``name``, ``title``: those of the ``launches``, of which ``passed`` passed.
    """

    handle: RequestHandle
    name: str
    title: str
    launches: int
    passed: int


@state
class _RowSums:
    """The sums over the rows of the log that a report needs.

    ``engines``: the sums of works in the time of the launches, ``all_time``: those of all works if queues sent
    messages. ``parts``: the components with rows. ``splits``: the launches that are described, by request.
    """

    engines: WorkSums
    all_time: WorkSums
    n_records: int = 0
    parts: set[int] = field(default_factory=set)
    splits: dict[int, LaunchSplit] = field(default_factory=dict)


def _sum_rows(
    machine: Machine, pieces: Iterable[Works], window: tuple[int, int], longest: Sequence[_Longest]
) -> _RowSums:
    """Sum the rows of the log, one piece after the other, so that little memory is needed beside the log."""
    engines, all_time = list(machine.passed.works), list(machine.passed.works)
    sums, sends = _RowSums(join_works(()), join_works(())), has_queue_traffic(machine)
    described = {launch.handle.request_id: launch.handle for launch in longest}
    for works in pieces:
        columns = works.columns
        engines.append(sum_works(works, *window))
        if sends:
            all_time.append(sum_works(works))
        sums.n_records += int(((columns.kind <= LAST_RECORD) & (columns.copy(READ) >= 0)).sum())
        sums.parts.update(distinct(columns.part, len(columns.parts)))
        # Rows of no launch, -1, mark the number after the last launch.
        for launch in described.keys() & set(distinct(columns.launch, int(columns.launch.max(initial=0)) + 2)):
            sums.splits[launch] = _split(works, described[launch])
    sums.engines, sums.all_time = join_works(engines), join_works(all_time)
    return sums


def launches_of(handles: Iterable[RequestHandle]) -> list[RequestHandle]:
    """Return the launches that have ended and whose PEs have reported."""
    return [handle for handle in handles if _list_kernels(handle)]


def _find_longest(
    engine: GraphEngine, launched: Sequence[RequestHandle], passed: Sequence[RequestHandle]
) -> list[_Longest]:
    """Return the longest launch of each title."""
    by_title: dict[str, list[RequestHandle]] = {}
    for handle in sorted((*launched, *passed), key=lambda handle: handle.request_id):
        by_title.setdefault(handle.msg.title, []).append(handle)
    skipped = engine.machine.passed
    longest = []
    for title, handles in by_title.items():
        simulated = [handle for handle in handles if handle.request_id not in skipped.launches]
        samples = [engine.handles[skipped.sample_of(handle.request_id)] for handle in handles]
        handle = max(simulated or samples, key=lambda handle: handle.ended_ps - handle.begun_ps)
        longest.append(_Longest(handle, handles[0].msg.name, title, len(handles), len(handles) - len(simulated)))
    return longest


def _describe(longest: _Longest, split: LaunchSplit) -> LaunchSplit:
    return replace(split, name=longest.name, title=longest.title, launches=longest.launches, passed=longest.passed)


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


def _split(works: Works, handle: RequestHandle) -> LaunchSplit:
    kernels = _list_kernels(handle)
    begin, end = min(kernel.start_ps for kernel in kernels), max(kernel.end_ps for kernel in kernels)
    slowest = max(kernels, key=lambda kernel: kernel.end_ps - kernel.start_ps)
    # A PE runs one kernel at a time, so all work of its components in that time belongs to this kernel.
    parts = {pe_part(*slowest.pe, kind) for kind in PE_KINDS}
    return LaunchSplit(
        name=handle.msg.name,
        title=handle.msg.title,
        algorithm=handle.msg.algorithm if isinstance(handle.msg, KernelLaunchMsg) else None,
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


def _find_window(launched: Sequence[RequestHandle], least_end_ps: int) -> tuple[int, int]:
    """Return the time from the first start of a kernel to the last end, at least ``least_end_ps``."""
    kernels = [kernel for handle in launched for kernel in _list_kernels(handle)]
    if not kernels:
        return 0, 0
    return min(kernel.start_ps for kernel in kernels), max(least_end_ps, *(kernel.end_ps for kernel in kernels))
