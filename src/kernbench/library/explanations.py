"""Explanation of a run's time by cause: plain data in the document of an observed run, and tables."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kernbench.common.ids import pe_name
from kernbench.common.late import late
from kernbench.common.units import format_ns, is_reported, ps_to_ns
from kernbench.common.values import value
from kernbench.observe.critical_path_model import CriticalPath, KernelPlace, Spent
from kernbench.observe.path_resources import PathShare, divide_ties, sum_resources
from kernbench.observe.roofline import Roofline
from kernbench.observe.slices import SliceTime
from kernbench.observe.verdict import RunVerdict
from kernbench.result.table import LINE, Table, make_table, text_html
from kernbench.runtime_api.run_explanation import KernelShare, LaunchExplanation, LineUse, LineWait, RunExplanation
from kernbench.triton_emu.source import ProgramText

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kernbench.evaluation.advice import Advice

FIGURES = "kernbench.library.live_outputs"
NOT_SAID = "no verdict: an earlier version wrote this file"


@value
class PartTime:
    """The time that a critical path spends in one part."""

    part: str
    ns: float
    share: float


@value
class ResourceRow:
    """The time that a critical path spends on a resource and in its queues."""

    resource: str
    ns: float
    queued_ns: float


@value
class BoundRow:
    """The least time that a resource needs for its work."""

    resource: str
    where: str
    amount: int
    unit: str
    rate_per_ns: float
    bound_ns: float
    share: float


@value
class BeyondRow:
    """A part of the time that exceeds the largest bound."""

    what: str
    ns: float


@value
class LineRow:
    """The use of time by a line of a kernel, or by a step of a schedule."""

    line: int
    source: str
    path_ns: float
    share: float
    busy: str


@value
class WaitRow:
    """A line on the critical path that waited for another line."""

    waiting: str
    waited_for: str
    cause: str
    count: int
    ns: float


@value
class KernelRow:
    """A kernel on the critical path."""

    pe: str
    kernel: str
    ns: float


class ExplainedTime:
    """The time of a run or of a launch: its critical path and its roofline."""

    def __init__(self, name: str, document: Mapping[str, Any]) -> None:
        self.name = name
        self._document = document
        self.total_ns = ps_to_ns(document["critical_path"]["total_ps"])

    @property
    def critical_path(self) -> Table[PartTime]:
        """The critical path by part. The rows add up to the total time."""
        parts = self._document["critical_path"]["parts"]
        rows = [PartTime(each["part"], ps_to_ns(each["ps"]), self._share(ps_to_ns(each["ps"]))) for each in parts]
        return make_table("critical path", rows, _PATH)

    @property
    def verdict(self) -> str:
        """The limiting resource, in a sentence."""
        found = self._document.get("verdict")
        return NOT_SAID if found is None else str(found["sentence"])

    @property
    def resources(self) -> Table[ResourceRow]:
        """The resources on the critical path with their queues. A faster resource saves at most its share."""
        rows = [
            ResourceRow(each["resource"], ps_to_ns(each["ps"]), ps_to_ns(each["queued_ps"]))
            for each in self._document["critical_path"].get("resources", ())
        ]
        return make_table("resources on the path", rows, _RESOURCES)

    @property
    def bounds(self) -> Table[BoundRow]:
        """The least time by resource, the largest first. The first row is the roofline bound."""
        return make_table("bounds", list(self._bounds()), _BOUNDS)

    def _bounds(self) -> Iterator[BoundRow]:
        for each in self._document["roofline"]["bounds"]:
            ns = ps_to_ns(each["ps"])
            work = each["amount"], each["unit"], each["rate_per_ns"]
            yield BoundRow(each["resource"], each["where"], *work, ns, self._share(ns))

    @property
    def beyond(self) -> Table[BeyondRow]:
        """The parts of the time that exceeds the largest bound."""
        rows = [BeyondRow(each["what"], ps_to_ns(each["ps"])) for each in self._document["roofline"]["differences"]]
        return make_table("time beyond the bound", rows, {"what": "what it was spent on", "ns": "how long, in ns"})

    @property
    def slices(self) -> Table[dict[str, Any]]:
        """The work of HBM slices with banks; empty for a memory without banks."""
        return make_table("slices of HBM", self._document.get("slices", []), _SLICES)

    def _share(self, ns: float) -> float:
        return ns / self.total_ns if self.total_ns else 0.0

    def __repr__(self) -> str:
        largest = sorted(self.critical_path, key=lambda each: -each.ns)[:4]
        parts = ", ".join(f"{each.part} {each.share:.0%}" for each in largest if is_reported(each.share))
        bounds = ", ".join(f"{each.resource} {each.share:.0%}" for each in self.bounds[:3] if is_reported(each.share))
        return "\n".join(
            line[:LINE]
            for line in (f"{self.name}: {format_ns(self.total_ns)}", f"  path    {parts}", f"  bounds  {bounds}")
        )

    def _tables(self) -> tuple[Table[Any], ...]:
        return self.critical_path, self.resources, self.bounds, self.beyond, self.slices

    def _repr_html_(self) -> str:
        return text_html(repr(self), *(each.to_html() for each in self._tables() if len(each)))


class ExplainedLaunch(ExplainedTime):
    """The time of a launch, also by line of its kernel. ``ended`` is False for a launch that did not finish."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(document["name"], document)
        self.pe_count: int = document["pe_count"]
        self.ended: bool = document.get("ended", True)
        self.file: str = document["file"]

    @property
    def lines(self) -> Table[LineRow]:
        """The lines of the kernel that issued commands or that are on the critical path."""
        return make_table("lines", [self._line(each) for each in self._document["lines"]], _LINES)

    def _line(self, each: Mapping[str, Any]) -> LineRow:
        source = each.get("step") or linecache.getline(self.file, each["line"]).strip()
        busy = ", ".join(f"{time['engine']} {time['ns']:,.0f}" for time in each["busy"])
        return LineRow(each["line"], source, each["path_ns"], self._share(each["path_ns"]), busy)

    @property
    def waits(self) -> Table[WaitRow]:
        """The lines on the critical path that waited for other lines, the longest wait first."""
        rows = [
            WaitRow(
                _place(each["waiting"]),
                f"{each['for']} {each['direction']}".strip(),
                _place(each["cause"]),
                each["count"],
                each["ns"],
            )
            for each in self._document["waits"]
        ]
        return make_table("waits", rows, _WAITS)

    @property
    def kernels(self) -> Table[KernelRow]:
        """The kernels on the critical path, the longest first."""
        rows = [KernelRow(pe_name(tuple(each["pe"])), each["kernel"], each["ns"]) for each in self._document["kernels"]]
        return make_table("kernels", rows, _KERNELS)

    def _tables(self) -> tuple[Table[Any], ...]:
        return *super()._tables(), self.lines, self.waits, self.kernels


class Explanation(ExplainedTime):
    """The time of a run by cause, and the time of each of its launches."""

    def __init__(self, bench: str, document: Mapping[str, Any]) -> None:
        super().__init__(bench, document)
        self.launches = tuple(ExplainedLaunch(each) for each in document["launches"])

    def longest_launches(self) -> tuple[ExplainedLaunch, ...]:
        """Return the longest launch of each name, in program order."""
        names = dict.fromkeys(each.name for each in self.launches)
        own = ([each for each in self.launches if each.name == name] for name in names)
        return tuple(max(each, key=lambda launch: launch.total_ns) for each in own)

    def roofline_figure(self) -> Figure:
        """Draw the bounds of the run and of its launches beside their measured times."""
        figure: Figure = late(FIGURES, "draw_bounds")(self)
        return figure

    def __repr__(self) -> str:
        launches = [f"  launch  {each.name}: {format_ns(each.total_ns)}" for each in self.longest_launches()[:5]]
        return "\n".join([self.verdict[:LINE], super().__repr__(), *launches])

    def _repr_html_(self) -> str:
        return super()._repr_html_() + "".join(each._repr_html_() for each in self.longest_launches())


def _place(found: Mapping[str, Any]) -> str:
    line = f" line {found['line']}" if found["line"] else ""
    return f"{pe_name(tuple(found['pe']))} ({found['kernel'] or 'a running kernel'}{line})"


_PATH = {"part": "the part on the path", "ns": "how long, in ns", "share": "of the whole time"}
_RESOURCES = {
    "resource": "the resource on the path, or that the path waits for",
    "ns": "how long, in ns",
    "queued_ns": "the time in its queues, in ns",
}
_BOUNDS = {
    "resource": "the resource",
    "where": "its busiest instance",
    "amount": "the work of that instance",
    "unit": "of what",
    "rate_per_ns": "work per ns",
    "bound_ns": "the least time for this work, in ns",
    "share": "of the whole time",
}
_LINES = {
    "line": "the line in the kernel's file, or the step of a schedule",
    "source": "what it says",
    "path_ns": "the time of the path in this line, in ns",
    "share": "of the whole time",
    "busy": "the busy time of engines for this line, in ns, summed over PEs",
}
_WAITS = {
    "waiting": "who waited",
    "waited_for": "for what",
    "cause": "of whom",
    "count": "how often",
    "ns": "how long, in ns",
}
_KERNELS = {"pe": "the PE", "kernel": "its launch", "ns": "the time of the path in this kernel, in ns"}
_SLICES = {
    "where": "which slice",
    "bursts": "the number of bursts",
    "hits": "the number of row hits",
    **{f"{name}_ps": f"bus time for {name}, in ps" for name in ("data", "rows", "turnarounds", "refresh", "groups")},
}


def explanation_document(explained: RunExplanation) -> dict[str, Any]:
    """Return the explanation of a run and its launches as plain data. Times are whole ps, so sums are exact."""
    return {
        "verdict": run_verdict_document(explained.verdict),
        "critical_path": _path_of(explained.path, explained.shares),
        "roofline": _roofline_of(explained.roofline),
        "main_launch": None if explained.main_launch is None else explained.main_launch.request_id,
        "launches": [_launch_of(launch) for launch in explained.launches],
        **_slices_of(explained.slices),
    }


def _launch_of(launch: LaunchExplanation) -> dict[str, Any]:
    return {
        "name": launch.name,
        "request_id": launch.request_id,
        "pe_count": launch.pe_count,
        "file": launch.program.file,
        **({"schedule": launch.program.schedule} if launch.program.schedule else {}),
        "verdict": {"sentence": launch.verdict.sentence, "label": launch.verdict.label, **asdict(launch.verdict)},
        "critical_path": _path_of(launch.path, launch.shares),
        "lines": [_line_of(each, launch.program) for each in launch.lines],
        "waits": [_wait_of(each) for each in launch.waits],
        "kernels": [_share_of(each) for each in launch.pes],
        "roofline": _roofline_of(launch.roofline),
        **_slices_of(launch.slices),
        **({} if launch.ended else {"ended": False}),
    }


def _slices_of(found: Sequence[SliceTime]) -> dict[str, Any]:
    """Return the slices with banks, if the machine has any."""
    return {"slices": [asdict(each) for each in found]} if found else {}


def _wait_of(each: LineWait) -> dict[str, Any]:
    return {
        "waiting": _place_of(each.waiting, each.waiting_kernel),
        "for": each.waited_for,
        "direction": each.direction,
        "cause": _place_of(each.cause, each.kernel),
        "count": each.count,
        "ns": each.ns,
    }


def _place_of(place: KernelPlace, kernel: str) -> dict[str, Any]:
    return {"pe": list(place.pe), "request_id": place.launch_id, "kernel": kernel, "line": place.line}


def _share_of(each: KernelShare) -> dict[str, Any]:
    return {"pe": list(each.pe), "request_id": each.launch_id, "kernel": each.kernel, "ns": each.ns}


def run_verdict_document(verdict: RunVerdict) -> dict[str, Any]:
    """Return a verdict as plain data for the document of the run."""
    return {"sentence": verdict.sentence, "label": verdict.label, **asdict(verdict)}


def advice_document(advice: Advice) -> dict[str, Any]:
    """Return advice as plain data for the document of the run."""
    return {
        "launch": advice.launch,
        "run_ns": ps_to_ns(advice.timing.run_ps),
        "machine": [asdict(each) for each in advice.machine],
        "program": [asdict(each) for each in advice.program],
    }


def _path_of(path: CriticalPath, shares: Sequence[PathShare]) -> dict[str, Any]:
    return {
        "total_ps": path.ps,
        "parts": _parts_of(path.parts),
        "shares": [{"part": str(each.part), "resource": each.resource, "ps": each.ps} for each in shares],
        "resources": [
            {"resource": each.resource, "ps": each.ps, "queued_ps": each.queued_ps}
            for each in divide_ties(sum_resources(shares))
        ],
    }


def _parts_of(parts: Iterable[Spent]) -> list[dict[str, Any]]:
    return [{"part": str(each.part), "ps": each.ps} for each in parts]


def _line_of(each: LineUse, program: ProgramText) -> dict[str, Any]:
    return {
        "line": each.line,
        **({"step": each.says} if program.schedule else {}),
        "path_ns": each.path_ns,
        "parts": _parts_of(each.parts),
        "busy": [{"engine": time.engine, "ns": time.ns} for time in each.busy],
        **({"blocks": list(each.blocks)} if each.blocks else {}),
    }


def _roofline_of(found: Roofline) -> dict[str, Any]:
    binding = found.binding
    return {
        "measured_ps": found.measured_ps,
        "binding": None if binding is None else binding.resource,
        "ties": [list(group) for group in found.ties],
        "beyond": found.beyond,
        "useful_macs": found.useful,
        "bounds": [
            {
                "resource": each.resource,
                "where": each.where,
                "amount": each.amount,
                "unit": each.unit,
                "rate_per_ns": each.rate,
                "ps": each.ps,
            }
            for each in found.bounds
        ],
        "differences": [{"what": str(each.what), "ps": each.ps} for each in found.differences],
    }
