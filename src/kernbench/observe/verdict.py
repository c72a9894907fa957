"""Name the bottleneck of a launch or a run in one sentence: a resource, latency, or resources that tie.

A resource is the bottleneck if its work, at its rate, takes at least half of the time. Otherwise the time is latency.
The verdict then names the resource or cause with the largest share of the critical path, if a faster one would save
much time. If not, the verdict names no resource.

Pipeline stages that take equally long tie: one of them alone, made faster, saves no time. The verdict on a run divides
the run's time: kernels by their bottleneck, copies, waits for other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeAlias

from kernbench.common.figures import derived_after
from kernbench.common.units import is_reported, ps_to_ns
from kernbench.common.values import value
from kernbench.observe.critical_path_model import CriticalPath, PathHop, PathPart, PathStep
from kernbench.observe.path_resources import (
    PathDivider,
    PathShare,
    ResourceShare,
    join_words,
    sum_causes,
    sum_resources,
)
from kernbench.observe.retiming import SAVED
from kernbench.observe.roofline import Bound, Roofline

BINDS = 0.5
"""The share of the time from which a bound is the bottleneck"""
BOUND_BY = "bound by "
NO_SINGLE_KIND = "no single kind"
NAMED = 0.5
"""The share of the largest gain from which a resource is named as the latency"""
ON_PATH = 0.5
"""The share of a bound that the critical path must spend on its resource"""
MENTIONED = 0.25
"""The share of a launch's time from which its waits for others are reported"""
KERNELS, COPIES, SETUP, HOST = "kernels", "copies", "maps and queues", "host program"


class VerdictKind(StrEnum):
    """The kinds of verdict."""

    BOUND = "bound"
    LATENCY = "latency"
    SPREAD = "spread"
    TIE = "tie"
    NOTHING = "nothing"


@value
class Busy:
    """A resource and its share of a time."""

    resource: str
    share: float

    def __str__(self) -> str:
        return f"{self.resource} {self.share:.0%}"


@value(kw_only=True)
class Verdict:
    """The verdict on a time of ``time_ps``.

    - ``resources``: the bottleneck, the resources that tie, or the resource with most of the critical path
    - ``share``: the share of the time of these resources, by their work or by the path
    - ``where``: the busiest instance of the resource
    - ``next``: the busiest of the other resources
    - ``tile_ns``: the time per tile of each resource of a tie, 0 without tiles
    - ``waits``: the longer waits of the path, in words
    """

    kind: VerdictKind
    time_ps: int
    resources: tuple[str, ...] = ()
    share: float = 0.0
    where: str = ""
    next: Busy | None = None
    tile_ns: float = 0.0
    waits: tuple[str, ...] = ()

    @derived_after(None)
    def sentence(self) -> str:
        """The verdict as a sentence."""
        return "; ".join((self._says(), *self.waits))

    @derived_after(None)
    def label(self) -> str:
        """The verdict in a few words, for a table."""
        match self.kind:
            case VerdictKind.BOUND:
                return self.resources[0]
            case VerdictKind.TIE:
                return f"a tie of {join_words(self.resources)}"
            case VerdictKind.LATENCY:
                return f"latency: {self.resources[0]}"
            case VerdictKind.SPREAD:
                return f"latency: {NO_SINGLE_KIND}"
            case VerdictKind.NOTHING:
                return "nothing"

    @property
    def phrase(self) -> str:
        """The label as a part of a sentence."""
        return f"{BOUND_BY}{self.label}" if self.kind in (VerdictKind.BOUND, VerdictKind.TIE) else self.label

    def _says(self) -> str:
        following = ""
        if self.next is not None and is_reported(self.next.share):
            is_busier = self.next.share > self.share
            following = f"; {self.next}, off the critical path" if is_busier else f"; next: {self.next}"
        busy = f"busy {self.share:.0%} of {time_text(self.time_ps)}"
        match self.kind:
            case VerdictKind.BOUND:
                return f"bound by {self.resources[0]} at {self.where}: {busy}{following}"
            case VerdictKind.TIE:
                on_path = f"on {self.share:.0%} of the critical path"
                detail = f"each {f'{self.tile_ns:g} ns a tile' if self.tile_ns else busy}" if self.where else on_path
                alone = "neither gains" if len(self.resources) == 2 else "none gains"
                return f"bound by a tie: {join_words(self.resources)}, {detail}; alone {alone}{following}"
            case VerdictKind.LATENCY:
                share = 0.0 if self.next is None else max(self.next.share, 0.01)
                most = f"no resource is busy more than {share:.0%}" if share else "no resource is busy"
                return f"bound by latency: {self.resources[0]} is {self.share:.0%} of the critical path; {most}"
            case VerdictKind.SPREAD:
                largest = f"the largest on the path is {self.resources[0]}, {self.share:.0%}"
                return f"bound by latency: {NO_SINGLE_KIND}; {largest}"
            case VerdictKind.NOTHING:
                return "nothing was computed or moved"


GainsOf: TypeAlias = Callable[[Sequence[str] | None], Mapping[str, int]]
"""The estimated gains in ps of resources by name; None: of all. Empty if they cannot be estimated."""


def judge(
    roofline: Roofline,
    shares: Sequence[PathShare],
    gains_of: GainsOf,
    waits: Iterable[str] = (),
) -> Verdict:
    """Return the verdict on a launch, or on any path, from its roofline and the shares of its path.

    A resource is the bottleneck only if the critical path spends at least half of the resource's bound on it, or on
    resources that tie with it. Otherwise its work was done while other resources were on the critical path. A resource
    is named as the latency only if its gain, estimated by ``gains_of``, is at least half of the largest gain that the
    path allows.
    """
    time_ps, wait_texts = roofline.measured_ps, tuple(waits)
    if not time_ps:
        return Verdict(kind=VerdictKind.NOTHING, time_ps=0)
    spent = sum_resources(shares)
    for bound in roofline.bounds:
        group = roofline.tied_with(bound.resource)
        on_path = sum(share.ps for share in spent if not set(group).isdisjoint(share.resources))
        if bound.ps >= BINDS * time_ps and on_path >= ON_PATH * bound.ps:
            return _bind(roofline, bound, wait_texts)
    longest = next(iter(sum_causes(shares)), None)
    if longest is None:
        return Verdict(kind=VerdictKind.NOTHING, time_ps=time_ps, waits=wait_texts)
    if len(roofline.tied_with(longest.resource)) > 1:
        return _bind(
            roofline, next(bound for bound in roofline.bounds if bound.resource == longest.resource), wait_texts
        )
    busiest = roofline.bounds[0] if roofline.bounds else None
    kind = VerdictKind.LATENCY if len(longest.resources) == 1 else VerdictKind.TIE
    if kind is VerdictKind.LATENCY and longest in spent and not _is_named(longest, spent, gains_of):
        kind = VerdictKind.SPREAD
    return Verdict(
        kind=kind,
        time_ps=time_ps,
        resources=longest.resources,
        share=longest.ps / time_ps,
        next=None if busiest is None else Busy(busiest.resource, busiest.ps / time_ps),
        waits=wait_texts,
    )


def _is_named(longest: ResourceShare, spent: Sequence[ResourceShare], gains_of: GainsOf) -> bool:
    """Return True if the gain of ``longest`` is at least `NAMED` of the largest gain, or if gains are unknown.

    An estimated gain counts up to the time that the faster resource saves on the path. If the gain of ``longest`` is
    large enough beside these times, the other gains are not estimated.
    """
    name = longest.resource
    own_ps = gains_of((name,)).get(name)
    saved_ps = {share.resource: share.ps * SAVED for share in spent if len(share.resources) == 1 and share != longest}
    if own_ps is None or own_ps >= NAMED * max(saved_ps.values(), default=0):
        return True
    gains_ps = gains_of(None)
    return own_ps >= NAMED * max(min(gains_ps[other], most_ps) for other, most_ps in saved_ps.items())


def _bind(roofline: Roofline, bound: Bound, waits: tuple[str, ...]) -> Verdict:
    group = roofline.tied_with(bound.resource)
    other = next((candidate for candidate in roofline.bounds if candidate.resource not in group), None)
    return Verdict(
        kind=VerdictKind.TIE if len(group) > 1 else VerdictKind.BOUND,
        time_ps=roofline.measured_ps,
        resources=group,
        share=bound.ps / roofline.measured_ps,
        where=bound.where,
        next=None if other is None else Busy(other.resource, other.ps / roofline.measured_ps),
        tile_ns=ps_to_ns(bound.tile_ps),
        waits=waits,
    )


def time_text(ps: int) -> str:
    """Return a time in words: ``107.1 µs``."""
    for unit, size in (("s", 10**12), ("ms", 10**9), ("µs", 10**6)):
        if ps >= size:
            return f"{ps / size:.4g} {unit}"
    return f"{ps / 1000:.4g} ns"


@value
class Spending:
    """A share of a run's critical path, with its reasons ``why``: verdicts on its kernels, or its main resource."""

    what: str
    share: float
    why: tuple[Busy, ...] = ()

    def __str__(self) -> str:
        """Return the share as text; if all kernels have one verdict, without the percentage of that verdict."""
        alone = self.what == KERNELS and len(self.why) == 1
        shown = self.why[0].resource if alone else ", ".join(map(str, self.why))
        return f"{self.what} {self.share:.0%}" + (f" ({shown})" if shown else "")


@value(kw_only=True)
class RunVerdict:
    """The shares of a run's critical path, the largest first."""

    time_ps: int
    spent: tuple[Spending, ...] = ()

    @derived_after(None)
    def sentence(self) -> str:
        """The verdict as a sentence."""
        first, *further = (str(spending) for spending in self.spent) if self.spent else ("",)
        opening = first.replace("%", f"% of {time_text(self.time_ps)}", 1)
        return ", ".join((opening, *further)) or "nothing was computed or moved"

    @derived_after(None)
    def label(self) -> str:
        """The largest share in a few words, for a table: the verdict on kernels, or the main resource of other time."""
        if not self.spent:
            return "nothing"
        most = self.spent[0]
        why = [reason.resource.removeprefix(BOUND_BY) for reason in most.why[:1]]
        return ": ".join(why if why and most.what == KERNELS else (most.what, *why))


def judge_run(
    path: CriticalPath,
    divider: PathDivider,
    names: Mapping[int, str],
    verdicts: Mapping[str, Verdict],
    copies: Collection[int],
) -> RunVerdict:
    """Return the verdict on a run.

    ``names`` are the names of launches by request, ``verdicts`` the verdicts by name. ``copies`` are the requests that
    copy or fill memory.
    """
    spent: dict[str, list[PathStep]] = {}
    for step, rank in _divide_steps(path, names):
        purpose = _purpose(step, names, copies) if rank is None else f"waits for rank {rank}"
        spent.setdefault(purpose, []).append(step)
    spendings = []
    for purpose, steps in spent.items():
        why = _by_verdict(steps, names, verdicts) if purpose == KERNELS else _by_resource(steps, divider)
        shares = tuple(Busy(name, ps / path.ps) for name, ps in why if is_reported(ps / path.ps))
        spendings.append(Spending(purpose, sum(step.ps for step in steps) / path.ps, shares))
    ordered = sorted(
        (spending for spending in spendings if is_reported(spending.share)), key=lambda spending: -spending.share
    )
    return RunVerdict(time_ps=path.ps, spent=tuple(ordered))


def _by_verdict(
    steps: Iterable[PathStep], names: Mapping[int, str], verdicts: Mapping[str, Verdict]
) -> list[tuple[str, int]]:
    """Return the time of kernels by verdict, the longest first."""
    ps_by_phrase: dict[str, int] = {}
    for step in steps:
        verdict = verdicts.get(names[step.request_id])
        if verdict is not None:
            ps_by_phrase[verdict.phrase] = ps_by_phrase.get(verdict.phrase, 0) + step.ps
    return sorted(ps_by_phrase.items(), key=lambda item: -item[1])


def _by_resource(steps: Sequence[PathStep], divider: PathDivider) -> list[tuple[str, int]]:
    """Return the resource with at least half of the time of ``steps``, and its time; empty without such a resource."""
    most = sum_resources(divider.share(steps))[:1]
    total_ps = sum(step.ps for step in steps)
    return [(share.resource, share.ps) for share in most if 2 * share.ps >= total_ps]


def say_waits(path: CriticalPath, names: Mapping[int, str]) -> Iterator[str]:
    """Yield in words the longer waits of a launch's path: for other ranks, for slots of queues."""
    waited: dict[str, int] = {}
    for step, rank in _divide_steps(path, names):
        if rank is not None:
            waited[f"rank {rank}"] = waited.get(f"rank {rank}", 0) + step.ps
    for hop in path.hops:
        if hop.waited_for == "slot":
            waited["slots of queues"] = waited.get("slots of queues", 0) + hop.ps
    for subject, ps in waited.items():
        if ps >= MENTIONED * path.ps:
            yield f"{min(1.0, ps / path.ps):.0%} of the time waits for {subject}"


def _purpose(step: PathStep, names: Mapping[int, str], copies: Collection[int]) -> str:
    if step.request_id in names:
        return KERNELS
    if step.part is PathPart.HOST_WAIT:
        return HOST
    return COPIES if step.request_id < 0 or step.request_id in copies else SETUP


def _divide_steps(path: CriticalPath, names: Mapping[int, str]) -> Iterator[tuple[PathStep, int | None]]:
    """Yield the steps of a path in order, each with the rank whose message a kernel of another rank awaited meanwhile.

    The wait lasts while that rank does something other than its own kernel of the same name. Steps are cut where a wait
    begins or ends.
    """
    hops = sorted((hop for hop in path.hops if _between_ranks(hop)), key=lambda hop: hop.start_ps)
    at = 0
    for step in path.steps:
        while at < len(hops) and hops[at].end_ps <= step.start_ps:
            at += 1
        hop = hops[at] if at < len(hops) else None
        if hop is None or hop.start_ps >= step.end_ps or not _is_other(step, hop, names):
            yield step, None
            continue
        begin, end = max(step.start_ps, hop.start_ps), min(step.end_ps, hop.end_ps)
        if step.start_ps < begin:
            yield replace(step, end_ps=begin), None
        yield replace(step, start_ps=begin, end_ps=end), hop.cause.pe[0]
        if end < step.end_ps:
            yield replace(step, start_ps=end), None


def _between_ranks(hop: PathHop) -> bool:
    return hop.waited_for == "message" and hop.waiting.pe[0] != hop.cause.pe[0]


def _is_other(step: PathStep, hop: PathHop, names: Mapping[int, str]) -> bool:
    """Return True unless a step belongs to the kernel that the waiting kernel exchanges messages with."""
    return step.part is PathPart.EARLIER_KERNEL or names.get(step.request_id) != names.get(hop.waiting.launch_id)
