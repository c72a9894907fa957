"""Explanation of a run's time by cause: one form for documents, notebooks, the terminal and comparisons."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.common.figures import figure
from kernbench.common.ids import pe_name
from kernbench.common.late import late
from kernbench.common.units import format_ns, format_size, is_reported, ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.messages.commands import BY_BLOCKS
from kernbench.observe.critical_path_model import Spent
from kernbench.observe.path_resources import PathShare, divide_ties, sum_resources
from kernbench.observe.roofline import BUSY, Bound, Difference, Roofline
from kernbench.observe.slices import SliceTime
from kernbench.observe.verdict import RunVerdict, Verdict
from kernbench.result.table import (
    LINE,
    Table,
    TableColumn,
    TableLine,
    bars,
    count_text,
    fixed_text,
    number,
    percent_text,
    row_texts,
    table_columns,
    text_html,
    words,
)
from kernbench.runtime_api.run_explanation import (
    KernelShare,
    LaunchExplanation,
    LineUse,
    LineWait,
    RunExplanation,
    TimeExplanation,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "kernbench.result.bounds_figure"
NOT_SAID = "no verdict: an earlier version wrote this file"
SMALLEST_SHARE = 0.002
SMALLEST_SPLIT = 0.02
MOST_LINES, MOST_WAITS, MOST_SLICES = 16, 8, 8


@value
class StageTime:
    """The time that a critical path spends in one part on one resource, or on several that tie; empty: on none."""

    part: str
    resource: str
    ps: int

    @property
    def share(self) -> PathShare:
        """The same time as a share of a path."""
        return PathShare(self.part, (self.resource,) if self.resource else (), self.ps)


@value
class ResourceTime:
    """The time that a critical path spends on a resource, and the part of it in the resource's queues."""

    resource: str = figure("the resource on the path, or that the path waits for")
    ps: int = figure()
    queued_ps: int = figure()

    @property
    def ns(self) -> float:
        """The time in ns."""
        return ps_to_ns(self.ps)

    @property
    def queued_ns(self) -> float:
        """The time in queues in ns."""
        return ps_to_ns(self.queued_ps)


@value(kw_only=True)
class PathTimes:
    """A critical path by part, by part and resource, and by resource. Each resource of a tie has an equal part."""

    total_ps: int
    parts: tuple[Spent, ...]
    shares: tuple[StageTime, ...] = ()
    resources: tuple[ResourceTime, ...] = ()


class ExplainedTime:
    """The time of a run or of a launch: its critical path, its roofline and its HBM slices.

    ``title``: the subject of its tables. ``judgement``: the verdict; None in files of early versions. ``roof``: the
    roofline. ``slice_times``: the work of HBM slices with banks.
    """

    __slots__ = ()
    name: str
    judgement: RunVerdict | Verdict | None
    path: PathTimes
    roof: Roofline
    slice_times: tuple[SliceTime, ...]

    @property
    def title(self) -> str:
        """The subject of the tables."""
        return "Run"

    @property
    def total_ns(self) -> float:
        """The explained time in ns."""
        return ps_to_ns(self.path.total_ps)

    @property
    def verdict(self) -> str:
        """The limiting resource, in a sentence."""
        return NOT_SAID if self.judgement is None else str(self.judgement.sentence)

    @property
    def critical_path(self) -> Table[Spent]:
        """The critical path by part. The rows add up to the total time. The terminal shows the parts by resource."""
        return Table(
            "critical path",
            self.path.parts,
            (table_columns(Spent)["part"].words("spent on"), *self._times("share", name="share")),
            title=f"{self.title}: critical path",
            shown=tuple(self._split_parts()) or None,
            below=(TableLine(("all", fixed_text(self.total_ns), "", ""), "bold"),),
        )

    def _split_parts(self) -> Iterator[Spent]:
        """Yield the time by part and resource. In a part with several resources, the small ones are merged."""
        spent: dict[str, int] = {}
        for share in (stage.share for stage in self.path.shares):
            is_shown = share.ps >= SMALLEST_SPLIT * self.path.total_ps or share.says == share.part
            name = share.says if is_shown else f"{share.part}: other"
            spent[name] = spent.get(name, 0) + share.ps
        yield from (Spent(name, ps) for name, ps in spent.items())

    @property
    def resources(self) -> Table[ResourceTime]:
        """The resources on the path with their queues. A faster resource saves at most its share.

        The terminal shows resources that tie in one row.
        """
        tied = sum_resources(stage.share for stage in self.path.shares)
        ns, share, bar = self._times("share")
        queued = TableColumn[Any]("queued_ns", "the time in its queues, in ns")
        queued = queued.number("of it in queues", lambda ns: fixed_text(ns) if ns else "")
        title = "resources on the path"
        return Table(
            title,
            self.path.resources,
            (table_columns(ResourceTime)["resource"].words("resource"), ns, share, queued, bar),
            title=f"{self.title}: {title}",
            shown=tuple(ResourceTime(time.resource, time.ps, time.queued_ps) for time in tied) or None,
        )

    @property
    def bounds(self) -> Table[Bound]:
        """The least time by resource, the largest first. The first row is the roofline bound."""
        of = table_columns(Bound)
        ns, share, bar = self._times("of the time", name="share", width=12)
        columns = (
            of["resource"].words("resource"),
            of["where"].words("busiest"),
            of["amount"],
            of["unit"],
            number("work", _say_work),
            of["rate_per_ns"],
            number("rate", _say_rate),
            replace(ns, name="bound_ns", about="the least time for this work, in ns", heading="at least ns"),
            share,
            bar,
        )
        return Table("bounds", self.roof.bounds, columns, title=f"{self.title}: bounds")

    @property
    def beyond(self) -> Table[Difference]:
        """The parts of the time that exceeds the largest bound. The terminal merges small parts."""
        roof, bound = self.roof, self.roof.largest
        times = self._times("of the time")
        columns = (table_columns(Difference)["what"].words("it had nothing to do during"), *times)
        kind = "time beyond the bound"
        if bound is None:
            return Table(kind, roof.differences, columns)
        least = SMALLEST_SHARE * roof.measured_ps
        ordered = sorted(roof.differences, key=lambda difference: -abs(difference.ps))
        shown = [difference for difference in ordered if abs(difference.ps) >= least]
        if len(shown) < len(ordered):
            shown.append(Difference("anything else", sum(difference.ps for difference in ordered[len(shown) :])))
        return Table(
            kind,
            roof.differences,
            columns,
            title=f"What the time beyond the {bound.resource} bound was spent on",
            shown=tuple(shown),
            above=(TableLine((f"{bound.resource} bound", *row_texts(times, bound)), "cyan"),),
            below=(TableLine(("measured", fixed_text(ps_to_ns(roof.measured_ps)), "", ""), "bold"),),
        )

    @property
    def slices(self) -> Table[SliceTime]:
        """The work of HBM slices with banks; empty for a memory without banks.

        The terminal shows bus time as shares of the total. The buses are idle in the remaining time.
        """
        where, *counts = table_columns(SliceTime).values()
        rows, left = self.slice_times, len(self.slice_times) - MOST_SLICES
        shares = (number(heading, partial(self._share_of, name), percent_text) for name, heading in _BUS_TIMES.items())
        columns = (
            where.words("slice"),
            *counts,
            *shares,
            number("idle", lambda time: max(0.0, 1 - self._share(time.busy_ps)), percent_text),
            number("row hits", lambda time: time.hit_share, percent_text),
        )
        title = f"{self.title}: time of HBM slices" + f", the busiest {MOST_SLICES} of {len(rows)}" * (left > 0)
        return Table("slices of HBM", rows, columns, title=title, shown=rows[:MOST_SLICES])

    def _times(self, heading: str, name: str = "", *, of: str = "ns", width: int = 24) -> tuple[TableColumn[Any], ...]:
        """Return the columns of a time ``of``, its share and its bar. ``name``: the name of the share as data."""
        read_ns = attrgetter(of)

        def read_share(row: Any) -> float:
            return self._share(ns_to_ps(read_ns(row)))

        share = TableColumn[Any](name, "of the whole time", read_share).number(heading, percent_text)
        ns = TableColumn[Any]("ns", "how long, in ns", read_ns).number("ns", fixed_text)
        return ns, share, bars(read_share, width)

    def _share(self, ps: int) -> float:
        return ps / self.path.total_ps if self.path.total_ps else 0.0

    def _share_of(self, name: str, row: Any) -> float:
        return self._share(getattr(row, name))

    def tables(self) -> tuple[Table[Any], ...]:
        """Return the tables in the order of a report."""
        return self.critical_path, self.resources, self.bounds, self.beyond, self.slices

    def report(self) -> Iterator[str | Table[Any]]:
        """Yield the verdict and the tables of a report."""
        yield f"{self.title}: {self.verdict}"
        yield from self.tables()

    def __repr__(self) -> str:
        largest = sorted(self.path.parts, key=lambda part: -part.ps)[:4]
        named: tuple[Sequence[tuple[str, int]], ...] = (
            [(spent.part, spent.ps) for spent in largest],
            [(bound.resource, bound.ps) for bound in self.roof.bounds[:3]],
        )
        parts, bounds = (
            ", ".join(f"{name} {self._share(ps):.0%}" for name, ps in times if is_reported(self._share(ps)))
            for times in named
        )
        lines = (f"{self.name}: {format_ns(self.total_ns)}", f"  path    {parts}", f"  bounds  {bounds}")
        return "\n".join(line[:LINE] for line in lines)

    def _repr_html_(self) -> str:
        return text_html(repr(self), *(table.to_html() for table in self.tables() if len(table)))


_BUS_TIMES = {
    "data_ps": "data",
    "rows_ps": "row misses",
    "turnarounds_ps": "turnarounds",
    "refresh_ps": "refresh",
    "groups_ps": "bank groups",
}


@value(kw_only=True, repr=False)
class ExplainedLaunch(ExplainedTime):
    """The time of a launch, also by line of its kernel. ``ended`` is False for a launch that did not finish.

    ``file``: the kernel's file. ``schedule``: the name of a schedule, empty for a kernel with lines. ``run_ps``: the
    time of the run's critical path in launches of this name.
    """

    name: str = ""
    request_id: int = -1
    pe_count: int = 0
    file: str = ""
    schedule: str = figure(optional=True, default="")
    judgement: Verdict | None = figure(key="verdict", default=None)
    path: PathTimes = figure(key="critical_path")
    line_uses: tuple[LineUse, ...] = figure(key="lines", default=())
    line_waits: tuple[LineWait, ...] = figure(key="waits", default=())
    kernel_shares: tuple[KernelShare, ...] = figure(key="kernels", default=())
    roof: Roofline = figure(key="roofline", default=Roofline())
    slice_times: tuple[SliceTime, ...] = figure(key="slices", optional=True, default=())
    ended: bool = True
    run_ps: int = figure(optional=True, default=0)

    @property
    def title(self) -> str:
        """The subject of the tables."""
        return f"Launch {self.name!r}{'' if self.ended else ', as far as it got'}"

    @property
    def unit(self) -> str:
        """The unit of the program: line or step."""
        return "step" if self.schedule else "line"

    @property
    def lines(self) -> Table[LineUse]:
        """The lines of the kernel that issued commands or are on the critical path. The terminal shows the longest."""
        of, (ns, share, _) = table_columns(LineUse), self._times("share", name="share", of="path_ns")
        busy = "the busy time of engines for this line, in ns, summed over PEs"
        longest = sorted(self.line_uses, key=lambda use: -use.path_ns)[:MOST_LINES]
        count = f"  (busy: added up over {self.pe_count} PEs)" if self.pe_count > 1 else ""
        columns = (
            of["line"].number(self.unit),
            TableColumn[Any]("source", "what it says", self._source).words("does" if self.schedule else "source"),
            replace(of["path_ns"], heading="on the path ns", text=ns.text, is_number=True),
            share,
            TableColumn[Any]("busy", busy, _say_busy),
            words("engines busy, ns", _say_engines),
        )
        title = f"{self.unit.title()}s of {self.schedule or Path(self.file).name}{count}"
        return Table("lines", self.line_uses, columns, title=title, shown=tuple(sorted(longest, key=_line_number)))

    def _source(self, use: LineUse) -> str:
        return use.says or linecache.getline(self.file, use.line).strip()

    @property
    def waits(self) -> Table[LineWait]:
        """The lines on the critical path that waited for other lines, the longest wait first.

        A wait is not part of the path. The path contains the work that ended the wait.
        """
        of, (ns, share, _) = table_columns(LineWait), self._times("of the time")
        rows, left = self.line_waits, self.line_waits[MOST_WAITS:]
        times = row_texts((ns, share), _sum(left))
        remainder = TableLine(("anywhere else", "", "", count_text(sum(wait.count for wait in left)), *times))
        columns = (
            of["waiting"].words("waiting"),
            TableColumn[Any]("waited_for", "for what", lambda wait: f"{wait.waited_for} {wait.direction}".strip()),
            words("for", lambda wait: wait.what),
            of["cause"].words("of"),
            of["count"].number("times", count_text),
            replace(ns, heading="waited ns"),
            share,
        )
        title = f"{self.unit.title()}s on the path that waited for others" + f", the longest {MOST_WAITS}" * bool(left)
        return Table("waits", rows, columns, title, rows[:MOST_WAITS], below=(remainder,) if left else ())

    @property
    def kernels(self) -> Table[KernelShare]:
        """The kernels on the critical path, the longest first."""
        rows, left, (ns, *share) = self.kernel_shares, self.kernel_shares[MOST_WAITS:], self._times("share")
        columns = (
            words("kernel", lambda row: f"{pe_name(row.pe)} ({row.kernel or 'a running kernel'})"),
            *table_columns(KernelShare).values(),
            replace(ns, about="the time of the path in this kernel, in ns"),
            *share,
        )
        remainder = TableLine((f"{len(left)} others", *row_texts((ns, *share), _sum(left))))
        title = "Kernels that the path goes through"
        return Table("kernels", rows, columns, title, rows[:MOST_WAITS], below=(remainder,) if left else ())

    def tables(self) -> tuple[Table[Any], ...]:
        """Return the tables in the order of a report. Kernels are listed if the path crosses more than one."""
        path, resources, *further = ExplainedTime.tables(self)
        kernels = [self.kernels] if len(self.kernel_shares) > 1 else []
        return path, resources, self.lines, self.waits, *kernels, *further


@value(kw_only=True, repr=False)
class Explanation(ExplainedTime):
    """The time of a run by cause, and the time of each of its launches.

    ``main_launch``: the request of the longest launch of the name with most of the critical path.
    """

    name: str = figure(stored=False, default="")
    judgement: RunVerdict | None = figure(key="verdict", default=None)
    path: PathTimes = figure(key="critical_path")
    roof: Roofline = figure(key="roofline", default=Roofline())
    main_launch: int | None = None
    launches: tuple[ExplainedLaunch, ...] = ()
    slice_times: tuple[SliceTime, ...] = figure(key="slices", optional=True, default=())

    def longest_launches(self) -> tuple[ExplainedLaunch, ...]:
        """Return the longest launch of each name, in program order."""
        names = dict.fromkeys(launch.name for launch in self.launches)
        by_name = ([launch for launch in self.launches if launch.name == name] for name in names)
        return tuple(max(launches, key=lambda launch: launch.path.total_ps) for launches in by_name)

    def find_main_launch(self) -> ExplainedLaunch | None:
        """Return the main launch, or the longest launch of a document that does not name it; None without launches."""
        main = [launch for launch in self.launches if launch.request_id == self.main_launch]
        return max(main or self.launches, key=lambda launch: launch.path.total_ps, default=None)

    def roofline_figure(self) -> Figure:
        """Draw the bounds of the run and of its launches beside their measured times."""
        drawing: Figure = late(FIGURES, "draw_bounds")(self)
        return drawing

    def report(self) -> Iterator[str | Table[Any]]:
        """Yield the reports of the longest launch of each name, that with most of the path first, then of the run."""
        for launch in sorted(self.longest_launches(), key=lambda launch: -launch.run_ps):
            yield from launch.report()
        yield from ExplainedTime.report(self)

    def __repr__(self) -> str:
        launches = [f"  launch  {launch.name}: {format_ns(launch.total_ns)}" for launch in self.longest_launches()[:5]]
        return "\n".join([self.verdict[:LINE], ExplainedTime.__repr__(self), *launches])

    def _repr_html_(self) -> str:
        launches = "".join(launch._repr_html_() for launch in self.longest_launches())
        return ExplainedTime._repr_html_(self) + launches


def _sum(rows: Sequence[LineWait | KernelShare]) -> Difference:
    return Difference("", sum(ns_to_ps(row.ns) for row in rows))


def _line_number(use: LineUse) -> int:
    return use.line


def _say_busy(use: LineUse) -> str:
    return ", ".join(f"{engine.engine} {engine.ns:,.0f}" for engine in use.busy)


def _say_engines(use: LineUse) -> str:
    return f"{_say_busy(use)}; {BY_BLOCKS}{', '.join(use.blocks)}" if use.blocks else _say_busy(use)


def _say_work(bound: Bound) -> str:
    if bound.unit == BUSY:
        return ""
    return format_size(bound.amount) if bound.unit == "bytes" else f"{bound.amount:,} {bound.unit}"


def _say_rate(bound: Bound) -> str:
    return "measured" if bound.unit == BUSY else f"{bound.rate:g}{' GB/s' if bound.unit == 'bytes' else '/ns'}"


def describe_explanation(
    bench: str, explained: RunExplanation, chosen: Iterable[LaunchExplanation] | None = None
) -> Explanation:
    """Return the explanation of a run of ``bench`` as plain values; compute what is missing.

    ``chosen``: the launches to explain, in program order; None: all.
    """
    launches = (
        replace(
            describe_launch(launch),
            line_uses=launch.lines,
            line_waits=launch.waits,
            kernel_shares=launch.pes,
            run_ps=explained.path_ps_of(launch.name),
        )
        for launch in (explained.launches if chosen is None else chosen)
    )
    return replace(describe_run(bench, explained), launches=tuple(launches))


def describe_run(bench: str, explained: RunExplanation) -> Explanation:
    """Return the explanation of a run without its launches."""
    main = explained.main_launch
    return Explanation(
        name=bench,
        judgement=explained.verdict,
        path=_path_of(explained),
        roof=explained.roofline,
        main_launch=None if main is None else main.request_id,
        slice_times=explained.slices,
    )


def describe_launch(launch: LaunchExplanation) -> ExplainedLaunch:
    """Return the explanation of a launch without its lines, waits and kernels."""
    return ExplainedLaunch(
        name=launch.name,
        request_id=launch.request_id,
        pe_count=launch.pe_count,
        file=launch.program.file,
        schedule=launch.program.schedule or "",
        judgement=launch.verdict,
        path=_path_of(launch),
        roof=launch.roofline,
        slice_times=launch.slices,
        ended=launch.ended,
    )


def _path_of(explained: TimeExplanation) -> PathTimes:
    path, shares = explained.path, explained.shares
    times = divide_ties(sum_resources(shares))
    return PathTimes(
        total_ps=path.ps,
        parts=path.parts,
        shares=tuple(StageTime(str(share.part), share.resource, share.ps) for share in shares),
        resources=tuple(ResourceTime(time.resource, time.ps, time.queued_ps) for time in times),
    )
