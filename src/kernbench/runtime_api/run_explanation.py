"""Explain the time of a run and of every launch: critical paths, lines of kernels, rooflines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice

import numpy as np

from kernbench.common.collector import patient_collector
from kernbench.common.figures import figure
from kernbench.common.ids import pe_name
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import KernelLaunchMsg, MemoryReadMsg, MemoryWriteMsg, PeCoord
from kernbench.observe.critical_path import PathFinder
from kernbench.observe.critical_path_model import CriticalPath, KernelPlace, PathHop, PathPart, Spent, WaitedFor
from kernbench.observe.path_resources import PathShare
from kernbench.observe.retiming import Retiming
from kernbench.observe.roofline import Roofline, roofline
from kernbench.observe.slices import SliceTime, slice_times
from kernbench.observe.statistics import unions_ps
from kernbench.observe.trace_log import LogView, TraceLog
from kernbench.observe.verdict import RunVerdict, Verdict, judge, judge_run, say_waits
from kernbench.observe.works import ENGINES, PLAN
from kernbench.runtime_api.launch_report import launches_of
from kernbench.triton_emu.source import ProgramText


@value
class EngineTime:
    """The busy time of an engine: the union of its works' intervals, summed over PEs."""

    engine: str
    ns: float


@value(kw_only=True)
class LineUse:
    """A line of a kernel, or a step of a schedule.

    ``step``: the text of a step. ``source``: the source text of a line. ``path_ns``: the line's time on the
    critical path; ``parts``: that time by part. ``busy``: the time that each engine worked for the line. ``blocks``:
    the block sizes of its products, as m×k×n.
    """

    line: int = figure("the line in the kernel's file, or the step of a schedule")
    step: str = figure(optional=True, default="")
    source: str = figure(optional=True, default="")
    path_ns: float = figure("the time of the path in this line, in ns")
    parts: tuple[Spent, ...]
    busy: tuple[EngineTime, ...]
    blocks: tuple[str, ...] = figure(optional=True, default=())

    @property
    def says(self) -> str:
        """The text of the line or of the step."""
        return self.step or self.source


_WAITED_FOR: Mapping[str, str] = {
    "message": "a message of queue {}",
    "slot": "a slot of queue {}",
    "memory order": "memory order: the same bytes",
    "memory order by range": "memory order: ranges that enclose both",
    "fence": "its writes to be in memory",
    "memory": "memory: a turn at {}",
    "link": "a link: {}",
}


@value(kw_only=True)
class WaitPlace:
    """A line of the kernel of a launch on a PE, or a step of a schedule with its text ``step``; line 0 is no line."""

    pe: PeCoord
    launch_id: int = figure(key="request_id")
    kernel: str
    line: int
    step: str = figure(optional=True, default="")

    @property
    def line_text(self) -> str:
        """The number of the line or of the step, with its unit; empty without one."""
        return f"{'step' if self.step else 'line'} {self.line}" if self.line and self.kernel else ""

    def __str__(self) -> str:
        line = f" {self.line_text}" if self.line_text else ""
        return f"{pe_name(self.pe)} ({self.kernel or 'a running kernel'}{line}{self.step and f': {self.step}'})"


@value(kw_only=True)
class LineWait:
    """The waits, on the critical path, of a kernel's line for another line: ``count`` waits, ``ns`` in total.

    ``waited_for`` is the reason of the waits, and ``cause`` the other line:

    - a message or a slot of queue ``direction``: ``cause``, in another kernel, sends the message or frees the slot;
    - memory order: ``cause``, in the same kernel, accesses the same bytes;
    - a fence: ``cause``, in the same kernel, wrote the data;
    - the memory or link ``direction``: it worked for ``cause``, on another PE.
    """

    waiting: WaitPlace = figure("who waited")
    waited_for: str = figure(key="for")
    direction: str
    cause: WaitPlace = figure("of whom")
    count: int = figure("how often")
    ns: float = figure("how long, in ns")

    @property
    def what(self) -> str:
        """The cause of the wait, as text."""
        return _WAITED_FOR.get(self.waited_for, self.waited_for).format(self.direction)


@value(kw_only=True)
class KernelShare:
    """The part of a critical path's time that is in the kernel of one launch on one PE."""

    pe: PeCoord = figure("the PE", show=pe_name)
    launch_id: int = figure(key="request_id")
    kernel: str = figure("its launch")
    ns: float


class TimeExplanation:
    """The explained time of a run, or of the launch ``request_id``. Each property is computed on first use.

    The explanation describes the state in ``snapshot``, regardless of what the machine does afterwards.
    """

    def __init__(self, snapshot: LogView, request_id: int | None = None) -> None:
        self._seen = snapshot
        self._launch_id = request_id

    @property
    def path(self) -> CriticalPath:
        """The critical path."""
        raise NotImplementedError

    @cached_property
    def shares(self) -> tuple[PathShare, ...]:
        """The time of the path by part and resource."""
        return self._seen.divider.share(self.path.steps)

    @cached_property
    def slices(self) -> tuple[SliceTime, ...]:
        """The use, by all requesters, of HBM slices that have banks, during the time of the path."""
        return slice_times(self._seen, self.path)

    @cached_property
    def roofline(self) -> Roofline:
        """The lower bound of the time by each resource, and the time beyond the largest bound."""
        return roofline(self._seen, self.path, self.slices, self._launch_id)


class LaunchExplanation(TimeExplanation):
    """The explained time of a launch.

    ``ended``: False if the launch is explained only until its run stopped. ``program``: the program of the launch.
    ``programs``: those of all launches of the run.
    """

    def __init__(
        self,
        snapshot: LogView,
        finder: PathFinder,
        handle: RequestHandle,
        names: Mapping[int, str],
        programs: Mapping[int, ProgramText],
        stopped_ps: int | None = None,
    ) -> None:
        assert isinstance(handle.msg, KernelLaunchMsg)
        super().__init__(snapshot, handle.request_id)
        self._finder, self._handle, self._names = finder, handle, names
        self._targets = handle.msg.targets
        self.name = handle.msg.title
        self.request_id = handle.request_id
        self.pe_count = len(self._targets)
        self.program = programs[handle.request_id]
        self.programs = programs
        self.ended = stopped_ps is None
        self._end_ps = handle.ended_ps if stopped_ps is None else stopped_ps

    @property
    def ps(self) -> int:
        """The duration in ps, until the end or the stop of the launch."""
        return self._end_ps - self._finder.begin_of(self._handle)

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path from the submission of the launch."""
        if self.ended:
            return self._finder.of_request(self._handle)
        return self._finder.of_stopped(self._handle, self._end_ps)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict: the bottleneck of the launch."""
        return judge(self.roofline, self.shares, self._gains_of, say_waits(self.path, self._names))

    @cached_property
    def gains_ps(self) -> Mapping[str, int]:
        """The estimated gain in ps for each resource, if that resource alone were a tenth faster.

        The resources are those on the launch's path or at work for the launch. Empty for a launch that has not ended.
        """
        on_path = (name for share in self.shares for name in share.resources)
        return self._gains_of(tuple(dict.fromkeys([*on_path, *(bound.resource for bound in self.roofline.bounds)])))

    def _gains_of(self, resources: Sequence[str] | None) -> Mapping[str, int]:
        if resources is None:
            return self.gains_ps
        return Retiming(self._seen, self.request_id, resources).gains_ps() if self.ended else {}

    @cached_property
    def lines(self) -> tuple[LineUse, ...]:
        """Every line that issued a command, and every line on the path."""
        targets = set(self._targets)  # the path may cross launches of other ranks, which have other steps
        pes = dict.fromkeys([*(share.pe for share in self.pes if share.pe in targets), *self._targets])
        texts = _Texts(self.program, self.path, pes)
        return _sum_lines(self._seen, self.request_id, self.path, texts)

    @cached_property
    def waits(self) -> tuple[LineWait, ...]:
        """The waits of lines for other lines, the longest first."""
        return _sum_waits(self.path, self._describe_place)

    def _describe_place(self, place: KernelPlace) -> WaitPlace:
        program = self.programs.get(place.launch_id)
        step = program.says(place.line, (place.pe,)) if program and program.schedule and place.line else ""
        kernel = self._names.get(place.launch_id, "")
        return WaitPlace(pe=place.pe, launch_id=place.launch_id, kernel=kernel, line=place.line, step=step)

    @cached_property
    def pes(self) -> tuple[KernelShare, ...]:
        """The kernels on the path by PE, the longest first."""
        return _sum_shares(self.path, self._names)


class RunExplanation(TimeExplanation):
    """The explained time of a run and of each of its ``launches``."""

    def __init__(self, snapshot: LogView, handles: Sequence[RequestHandle], begin_ps: int, end_ps: int) -> None:
        super().__init__(snapshot)
        finder = PathFinder(snapshot, handles)
        self._path = finder.of_run(begin_ps, end_ps)
        launched = {handle.request_id: handle.msg for handle in handles if isinstance(handle.msg, KernelLaunchMsg)}
        self._names = {request_id: msg.title for request_id, msg in launched.items()}
        self._copies = {
            handle.request_id for handle in handles if isinstance(handle.msg, MemoryWriteMsg | MemoryReadMsg)
        }
        programs = {request_id: ProgramText(msg) for request_id, msg in launched.items()}
        ended = launches_of(handles)
        self._passed = snapshot.machine.passed
        ended = [handle for handle in ended if handle.request_id not in self._passed.folded]
        stopped = launched.keys() - {handle.request_id for handle in ended} - self._passed.without_rows
        stopped -= {launch for launch, msg in launched.items() if msg.in_order} - snapshot.log.on_device.keys()
        left = [
            handle for handle in handles if handle.request_id in stopped and handle.submitted_ps < self._path.end_ps
        ]
        ended = [handle for handle in ended if handle.submitted_ps >= begin_ps]
        self.launches: tuple[LaunchExplanation, ...] = tuple(
            LaunchExplanation(snapshot, finder, handle, self._names, programs, stopped_ps)
            for group, stopped_ps in ((ended, None), (left, self._path.end_ps))
            for handle in group
        )

    @property
    def path(self) -> CriticalPath:
        """The critical path through all launches, copies and the host program."""
        return self._path

    @cached_property
    def verdict(self) -> RunVerdict:
        """The verdict on the run: its kernels (by the bottleneck of each name's median launch), copies and waits."""
        verdicts = {name: _median(launches).verdict for name, launches in self._by_name.items()}
        for launch in self._passed.without_rows:  # a name of which all launches passed has the verdict of its samples
            verdict = verdicts.get(self._names[self._passed.sample_of(launch)])
            if verdict is not None:
                verdicts.setdefault(self._names[launch], verdict)
        return judge_run(self.path, self._seen.divider, self._names, verdicts, self._copies)

    @property
    def main_launch(self) -> LaunchExplanation | None:
        """The longest launch of the name with the largest share of the critical path; None if no kernel is on it."""
        name = max(self._spent, key=lambda name: self._spent[name], default=None)
        samples = {
            self._passed.sample_of(launch) for launch in self._passed.without_rows if self._names[launch] == name
        }
        return max(
            (launch for launch in self.launches if launch.name == name or launch.request_id in samples),
            key=lambda launch: (launch.name == name, launch.ps),
            default=None,
        )

    @property
    def main_share(self) -> float:
        """The share of the run's critical path in launches of the main launch's name."""
        return max(self._spent.values(), default=0) / self.path.ps if self.path.ps else 0.0

    @cached_property
    def _spent(self) -> dict[str, int]:
        """The time of the path in launches, by name, without the waits of a launch."""
        names = {launch.request_id: launch.name for launch in self.launches}
        names |= {launch: self._names[launch] for launch in self._passed.without_rows}
        spent: dict[str, int] = {}
        for step in self.path.steps:
            name = names.get(step.request_id)
            if name is not None and step.part not in (PathPart.BARRIER, PathPart.WAIT):
                spent[name] = spent.get(name, 0) + step.ps
        return spent

    @property
    def rooflines(self) -> list[tuple[str, int, Roofline]]:
        """The name, the request and the roofline of every launch."""
        return [(launch.name, launch.request_id, launch.roofline) for launch in self.launches]

    def path_ps_of(self, name: str) -> int:
        """Return the time of the run's path in launches of this name, without their waits, in ps."""
        return self._spent.get(name, 0)

    def longest_of_each_name(self) -> tuple[LaunchExplanation, ...]:
        """Return the longest launch of each name, beginning with the name that takes most of the run's path."""
        longest = [max(launches, key=_duration_ps) for launches in self._by_name.values()]
        return tuple(sorted(longest, key=lambda launch: -self.path_ps_of(launch.name)))

    @cached_property
    def _by_name(self) -> dict[str, list[LaunchExplanation]]:
        by_name: dict[str, list[LaunchExplanation]] = {}
        for launch in self.launches:
            by_name.setdefault(launch.name, []).append(launch)
        return by_name


def _duration_ps(launch: LaunchExplanation) -> int:
    return launch.ps


def _median(launches: Sequence[LaunchExplanation]) -> LaunchExplanation:
    """Return a launch of median duration. The longest one may have met a refresh that few others met."""
    return sorted(launches, key=_duration_ps)[len(launches) // 2]


@patient_collector()
def explain_run(log: TraceLog, handles: Sequence[RequestHandle], begin_ns: float, end_ns: float) -> RunExplanation:
    """Explain the time between ``begin_ns`` and ``end_ns`` of a run from ``log``, which records memories."""
    return RunExplanation(log.seen, handles, ns_to_ps(begin_ns), ns_to_ps(end_ns))


def _sum_waits(path: CriticalPath, describe: Callable[[KernelPlace], WaitPlace]) -> tuple[LineWait, ...]:
    """Return the waits on a path, merged for each pair of waiting line and other line."""
    hops_by_lines: dict[tuple[KernelPlace, KernelPlace, WaitedFor, str], list[PathHop]] = {}
    for hop in path.hops:
        hops_by_lines.setdefault((hop.waiting, hop.cause, hop.waited_for, hop.direction), []).append(hop)
    waits = [
        LineWait(
            waiting=describe(waiting),
            waited_for=waited_for,
            direction=direction,
            cause=describe(cause),
            count=len(hops),
            ns=ps_to_ns(sum(hop.ps for hop in hops)),
        )
        for (waiting, cause, waited_for, direction), hops in hops_by_lines.items()
    ]
    return tuple(sorted(waits, key=lambda wait: -wait.ns))


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
"""The number of PEs whose steps of a schedule are examined, beginning with those of the longest time on the path"""


class _Texts:
    """The texts of a launch's lines: for the PEs on which a line is on the path, else for all examined PEs."""

    def __init__(self, program: ProgramText, path: CriticalPath, pes: Iterable[PeCoord]) -> None:
        self._program = program
        self._pes = list(islice(pes, _MOST_PES))
        self._on_path = {(step.pe, step.line) for step in path.steps if step.launch_id == path.launch_id}

    def source(self, line: int) -> str:
        """Return the text of a line; empty for a step."""
        return "" if self._program.schedule else self._text(line)

    def step(self, line: int) -> str:
        """Return the text of a step of a schedule; empty for a line."""
        return self._text(line) if self._program.schedule else ""

    def _text(self, line: int) -> str:
        on_path = [pe for pe in self._pes if (pe, line) in self._on_path]
        return self._program.says(line, on_path or self._pes)


def _sum_lines(snapshot: LogView, launch_id: int, path: CriticalPath, texts: _Texts) -> tuple[LineUse, ...]:
    """Return every line that issued a command, and every line on the path."""
    works = snapshot.works
    of_launch = works.of_launch(launch_id)
    ended = ~works.done_by(PLAN)[of_launch] & (works.columns.end[works.rows[of_launch]] >= 0)
    of_launch = of_launch[ended]
    rows, n_engines, n_parts = works.rows[of_launch], len(ENGINES), len(works.columns.parts)
    of_line = works.columns.line[rows].astype(np.int64) * n_engines + works.engine[of_launch]
    spent = unions_ps(of_line * n_parts + works.columns.part[rows], works.columns.start[rows], works.columns.end[rows])
    busy: dict[int, int] = {}
    for group, ps in spent.items():
        busy[group // n_parts] = busy.get(group // n_parts, 0) + ps
    times: dict[int, list[EngineTime]] = {}
    for group in dict.fromkeys(of_line.tolist()):
        line, engine = divmod(group, n_engines)
        times.setdefault(line, []).append(EngineTime(ENGINES[engine], ps_to_ns(busy[group])))
    on_path, blocks = {use.line: use for use in path.lines}, works.blocks_of(launch_id)
    return tuple(
        LineUse(
            line=line,
            step=texts.step(line),
            source=texts.source(line),
            path_ns=on_path[line].ns if line in on_path else 0.0,
            parts=on_path[line].parts if line in on_path else (),
            busy=tuple(times.get(line, ())),
            blocks=blocks.get(line, ()),
        )
        for line in sorted({*times, *on_path})
    )
