"""Explain where the time of a run went, and that of every launch: critical paths, lines of kernels, rooflines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from kernbench.common.collector import patient_collector
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg, MemoryReadMsg, MemoryWriteMsg, PeCoord
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import CriticalPath, KernelPlace, PathHop, PathPart, Spent, WaitedFor
from kernbench.observe.path_resources import PathShare
from kernbench.observe.roofline import Roofline, roofline
from kernbench.observe.run_verdict import RunVerdict, judge_run, say_waits
from kernbench.observe.slices import SliceTime, slice_times
from kernbench.observe.statistics import unions_ps
from kernbench.observe.trace_log import TraceLog
from kernbench.observe.verdict import Verdict, judge
from kernbench.observe.works import ENGINES, PLAN
from kernbench.runtime_api.launch_report import launches_of
from kernbench.triton_emu.source import ProgramText


@value
class EngineTime:
    """The time that an engine was busy: the union of its works' intervals, summed over PEs."""

    engine: str
    ns: float


@value
class LineUse:
    """A line of a kernel.

    ``says`` is its text, ``path_ns`` its time on the critical path, ``parts`` the same by part; ``busy``: how long
    engines worked for it; ``blocks``: those by which its products went, as m×k×n.
    """

    line: int
    says: str
    path_ns: float
    parts: tuple[Spent, ...]
    busy: tuple[EngineTime, ...]
    blocks: tuple[str, ...] = ()


_WAITED_FOR: Mapping[WaitedFor, str] = {
    "message": "a message of queue {}",
    "slot": "a slot of queue {}",
    "memory order": "memory order: the same bytes",
    "memory order by range": "memory order: ranges that enclose both",
    "fence": "its writes to be in memory",
    "memory": "memory: a turn at {}",
    "link": "a link: {}",
}


@value(kw_only=True)
class LineWait:
    """A kernel's line on the path that waited for another line, ``count`` times and for ``ns`` in all.

    ``waiting`` waited by its queue ``direction`` for a message of ``cause``, or for a slot that ``cause`` held, in
    another kernel; or for an access of ``cause``, in the same one, to the same bytes; or at a fence for what ``cause``,
    likewise, wrote; or for the memory, or link, ``direction``, which worked for ``cause``, another PE. Kernels are
    named by their launches.
    """

    waiting: KernelPlace
    waiting_kernel: str
    waited_for: WaitedFor
    direction: str
    cause: KernelPlace
    kernel: str
    count: int
    ns: float

    @property
    def what(self) -> str:
        """The cause of the wait, in words."""
        return _WAITED_FOR[self.waited_for].format(self.direction)


@value(kw_only=True)
class KernelShare:
    """The time of a path that lies in the kernel of a launch on a PE."""

    pe: PeCoord
    launch_id: int
    kernel: str
    ns: float


@value(kw_only=True)
class LaunchExplanation:
    """The time of a launch, explained.

    ``program``: what it ran. ``ended`` is false when it is explained only as far as it got. ``waits`` and ``pes``:
    waits for other lines, and the kernels that the path goes through, the longest first. ``slices``: the use of slices
    with banks meanwhile, by anybody. ``programs``: those of all launches of the run.
    """

    name: str
    request_id: int
    ended: bool
    pe_count: int
    program: ProgramText
    programs: Mapping[int, ProgramText]
    path: CriticalPath
    shares: tuple[PathShare, ...]
    verdict: Verdict
    lines: tuple[LineUse, ...]
    roofline: Roofline
    waits: tuple[LineWait, ...]
    pes: tuple[KernelShare, ...]
    slices: tuple[SliceTime, ...]


@value(kw_only=True)
class RunExplanation:
    """The time of a run and of each of its launches, explained."""

    path: CriticalPath
    shares: tuple[PathShare, ...]
    verdict: RunVerdict
    roofline: Roofline
    launches: tuple[LaunchExplanation, ...]
    slices: tuple[SliceTime, ...]

    @property
    def main_launch(self) -> LaunchExplanation | None:
        """The longest launch of the name that has most of the run's critical path; None where no kernel is on it."""
        spent = self._sum_by_name()
        name = max(spent, key=lambda each: spent[each], default=None)
        return max((each for each in self.launches if each.name == name), key=lambda each: each.path.ps, default=None)

    @property
    def main_share(self) -> float:
        """The share of the run's critical path that launches of that name have."""
        return max(self._sum_by_name().values(), default=0) / self.path.ps if self.path.ps else 0.0

    def _sum_by_name(self) -> dict[str, int]:
        """Return the time of the path in launches, by name; what a launch only waits for is none of it."""
        names = {each.request_id: each.name for each in self.launches}
        spent: dict[str, int] = {}
        for step in self.path.steps:
            name = names.get(step.request_id)
            if name is not None and step.part not in (PathPart.BARRIER, PathPart.WAIT):
                spent[name] = spent.get(name, 0) + step.ps
        return spent

    @property
    def rooflines(self) -> list[tuple[str, int, Roofline]]:
        """The name, the request and the roofline of every launch."""
        return [(each.name, each.request_id, each.roofline) for each in self.launches]

    def longest_of_each_name(self) -> tuple[LaunchExplanation, ...]:
        """Return the launch of each name that took longest; the name with most of the run's path comes first."""
        found: dict[str, LaunchExplanation] = {}
        for launch in self.launches:
            best = found.get(launch.name)
            if best is None or launch.path.ps > best.path.ps:
                found[launch.name] = launch
        spent = self._sum_by_name()
        return tuple(sorted(found.values(), key=lambda launch: -spent.get(launch.name, 0)))


@patient_collector()
def explain_run(log: TraceLog, handles: Sequence[RequestHandle], begin_ns: float, end_ns: float) -> RunExplanation:
    """Explain from ``log``, with memories, the time between ``begin_ns`` and ``end_ns`` of a run."""
    finder = PathFinder(log, handles)
    path = finder.of_run(ns_to_ps(begin_ns), ns_to_ps(end_ns))
    launched = {each.request_id: each.msg for each in handles if isinstance(each.msg, KernelLaunchMsg)}
    names = {request_id: msg.title for request_id, msg in launched.items()}
    programs = {request_id: ProgramText(msg) for request_id, msg in launched.items()}
    ended = launches_of(handles)
    launches = [_explain_launch(log, handle, finder.of_request(handle), names, programs) for handle in ended]
    stopped = names.keys() - {handle.request_id for handle in ended}
    launches += [
        _explain_launch(log, handle, finder.of_stopped(handle, path.end_ps), names, programs, ended=False)
        for handle in handles
        if handle.request_id in stopped and handle.submitted_ps < path.end_ps
    ]
    slices, divider = slice_times(log, path), log.seen.divider
    longest = sorted(launches, key=lambda launch: launch.path.ps)
    copies = {each.request_id for each in handles if isinstance(each.msg, MemoryWriteMsg | MemoryReadMsg)}
    return RunExplanation(
        path=path,
        shares=divider.share(path.steps),
        verdict=judge_run(path, divider, names, {launch.name: launch.verdict for launch in longest}, copies),
        roofline=roofline(log, path, slices),
        launches=tuple(launches),
        slices=slices,
    )


def _explain_launch(
    log: TraceLog,
    handle: RequestHandle,
    path: CriticalPath,
    names: Mapping[int, str],
    programs: Mapping[int, ProgramText],
    *,
    ended: bool = True,
) -> LaunchExplanation:
    msg = handle.msg
    assert isinstance(msg, KernelLaunchMsg)
    program, shares, slices = programs[handle.request_id], _sum_shares(path, names), slice_times(log, path)
    texts = _Texts(program, path, dict.fromkeys([*(each.pe for each in shares), *msg.targets]))
    spent, found = log.seen.divider.share(path.steps), roofline(log, path, slices, handle.request_id)
    return LaunchExplanation(
        name=msg.title,
        request_id=handle.request_id,
        ended=ended,
        pe_count=len(msg.targets),
        program=program,
        programs=programs,
        path=path,
        shares=spent,
        verdict=judge(found, spent, say_waits(path, names)),
        lines=_sum_lines(log, handle.request_id, path, texts),
        roofline=found,
        waits=_sum_waits(path, names),
        pes=shares,
        slices=slices,
    )


def _sum_waits(path: CriticalPath, names: Mapping[int, str]) -> tuple[LineWait, ...]:
    """Return the hops of a path, those between the same lines added up."""
    found: dict[tuple[KernelPlace, KernelPlace, WaitedFor, str], list[PathHop]] = {}
    for hop in path.hops:
        found.setdefault((hop.waiting, hop.cause, hop.waited_for, hop.direction), []).append(hop)
    made = [
        LineWait(
            waiting=waiting,
            waiting_kernel=names.get(waiting.launch_id, ""),
            waited_for=waited_for,
            direction=direction,
            cause=cause,
            kernel=names.get(cause.launch_id, ""),
            count=len(hops),
            ns=ps_to_ns(sum(hop.ps for hop in hops)),
        )
        for (waiting, cause, waited_for, direction), hops in found.items()
    ]
    return tuple(sorted(made, key=lambda each: -each.ns))


def _sum_shares(path: CriticalPath, names: Mapping[int, str]) -> tuple[KernelShare, ...]:
    spent: dict[tuple[PeCoord, int], int] = {}
    for step in path.steps:
        if step.pe is not None:
            spent[step.pe, step.launch_id] = spent.get((step.pe, step.launch_id), 0) + step.ps
    longest_first = sorted(spent.items(), key=lambda item: -item[1])
    return tuple(
        KernelShare(pe=pe, launch_id=launch, kernel=names.get(launch, ""), ns=ps_to_ns(ps))
        for (pe, launch), ps in longest_first
    )


_MOST_PES = 16
"""Of a schedule's steps those of so many PEs are looked at: first those that the path goes through for longest"""


class _Texts:
    """The texts of a launch's lines: on the PEs where the path goes through them, if there are any."""

    def __init__(self, program: ProgramText, path: CriticalPath, pes: Iterable[PeCoord]) -> None:
        self._program = program
        self._pes = list(islice(pes, _MOST_PES))
        self._on_path = {(each.pe, each.line) for each in path.steps if each.launch_id == path.launch_id}

    def of(self, line: int) -> str:
        """Return the text of ``line``."""
        found = [pe for pe in self._pes if (pe, line) in self._on_path]
        return self._program.says(line, found or self._pes)


def _sum_lines(log: TraceLog, launch_id: int, path: CriticalPath, texts: _Texts) -> tuple[LineUse, ...]:
    """Return every line that issued a command, and those that the path goes through."""
    works = log.seen.works
    mine = works.of_launch(launch_id)
    ended = ~works.done_by(PLAN)[mine] & (works.columns.end[works.rows[mine]] >= 0)
    mine = mine[ended]
    rows, n_engines, n_parts = works.rows[mine], len(ENGINES), len(works.columns.parts)
    of_line = works.columns.line[rows] * n_engines + works.engine[mine]
    spent = unions_ps(of_line * n_parts + works.columns.part[rows], works.columns.start[rows], works.columns.end[rows])
    busy: dict[int, int] = {}
    for group, ps in spent.items():
        busy[group // n_parts] = busy.get(group // n_parts, 0) + ps
    times: dict[int, list[EngineTime]] = {}
    for group in dict.fromkeys(of_line.tolist()):
        line, engine = divmod(group, n_engines)
        times.setdefault(line, []).append(EngineTime(ENGINES[engine], ps_to_ns(busy[group])))
    on_path, blocks = {each.line: each for each in path.lines}, works.blocks_of(launch_id)
    return tuple(
        LineUse(
            line,
            texts.of(line),
            on_path[line].ns if line in on_path else 0.0,
            on_path[line].parts if line in on_path else (),
            tuple(times.get(line, ())),
            blocks.get(line, ()),
        )
        for line in sorted({*times, *on_path})
    )
