"""Say what binds a launch or a run, in one sentence: a resource, latency, or resources that tie.

A resource binds if the work given to it takes at least half of the time at its rate. Else the time is latency: that of
the resource, or of the cause, which has most of the critical path. Where stages of a pipeline take as long as each
other, neither gains alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.observe.path_resources import PathShare, join_words, sum_causes, sum_resources
from kernbench.observe.roofline import Bound, Roofline

BINDS = 0.5
"""The share of the time from which a bound is what binds"""
BOUND_BY = "bound by "
ON_PATH = 0.5
"""The share of a bound that the path has to have of its resource"""


class VerdictKind(StrEnum):
    """The kinds of verdict."""

    BOUND = "bound"
    LATENCY = "latency"
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

    ``resources``: the one that is bound by, those that tie, or the one with most of the critical path; ``share``: its
    share of the time, of its work or of the path; ``where``: its busiest instance. ``next``: the resource that is
    busiest beside those; ``tile_ns``: what each of a tie takes a tile, 0 where there are none; ``waits``: what the path
    waited for, in words, if that is much of it.
    """

    kind: VerdictKind
    time_ps: int
    resources: tuple[str, ...] = ()
    share: float = 0.0
    where: str = ""
    next: Busy | None = None
    tile_ns: float = 0.0
    waits: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return "; ".join((self._says(), *self.waits))

    @property
    def label(self) -> str:
        """The verdict in a few words, for a table."""
        match self.kind:
            case VerdictKind.BOUND:
                return self.resources[0]
            case VerdictKind.TIE:
                return f"a tie of {join_words(self.resources)}"
            case VerdictKind.LATENCY:
                return f"latency: {self.resources[0]}"
            case VerdictKind.NOTHING:
                return "nothing"

    @property
    def phrase(self) -> str:
        """The label as a part of a sentence."""
        return f"{BOUND_BY}{self.label}" if self.kind in (VerdictKind.BOUND, VerdictKind.TIE) else self.label

    def _says(self) -> str:
        following = f"; next: {self.next}" if self.next else ""
        busy = f"busy {self.share:.0%} of {time_text(self.time_ps)}"
        match self.kind:
            case VerdictKind.BOUND:
                return f"bound by {self.resources[0]} at {self.where}: {busy}{following}"
            case VerdictKind.TIE:
                on_path = f"on {self.share:.0%} of the critical path"
                each = f"each {f'{self.tile_ns:g} ns a tile' if self.tile_ns else busy}" if self.where else on_path
                alone = "neither gains" if len(self.resources) == 2 else "none gains"
                return f"bound by a tie: {join_words(self.resources)}, {each}; alone {alone}{following}"
            case VerdictKind.LATENCY:
                most = f"no resource is busy more than {self.next.share:.0%}" if self.next else "no resource is busy"
                return f"bound by latency: {self.resources[0]} is {self.share:.0%} of the critical path; {most}"
            case VerdictKind.NOTHING:
                return "nothing was computed or moved"


def judge(found: Roofline, shares: Sequence[PathShare], waits: Iterable[str] = ()) -> Verdict:
    """Return the verdict on a launch, or on anything that has a path, from its bounds and the shares of its path.

    A bound binds if its resource, with those that tie with it, also has much of the path: else its work was done while
    others held the launch up.
    """
    time_ps, said = found.measured_ps, tuple(waits)
    if not time_ps:
        return Verdict(kind=VerdictKind.NOTHING, time_ps=0)
    spent = sum_resources(shares)
    for bound in found.bounds:
        group = found.tied_with(bound.resource)
        on_path = sum(each.ps for each in spent if not set(group).isdisjoint(each.resources))
        if bound.ps >= BINDS * time_ps and on_path >= ON_PATH * bound.ps:
            return _bind(found, bound, said)
    longest = next(iter(sum_causes(shares)), None)
    if longest is None:
        return Verdict(kind=VerdictKind.NOTHING, time_ps=time_ps, waits=said)
    if len(found.tied_with(longest.resource)) > 1:
        return _bind(found, next(each for each in found.bounds if each.resource == longest.resource), said)
    busiest = found.bounds[0] if found.bounds else None
    return Verdict(
        kind=VerdictKind.LATENCY if len(longest.resources) == 1 else VerdictKind.TIE,
        time_ps=time_ps,
        resources=longest.resources,
        share=longest.ps / time_ps,
        next=None if busiest is None else Busy(busiest.resource, busiest.ps / time_ps),
        waits=said,
    )


def _bind(found: Roofline, bound: Bound, waits: tuple[str, ...]) -> Verdict:
    group = found.tied_with(bound.resource)
    other = next((each for each in found.bounds if each.resource not in group), None)
    return Verdict(
        kind=VerdictKind.TIE if len(group) > 1 else VerdictKind.BOUND,
        time_ps=found.measured_ps,
        resources=group,
        share=bound.ps / found.measured_ps,
        where=bound.where,
        next=None if other is None else Busy(other.resource, other.ps / found.measured_ps),
        tile_ns=ps_to_ns(bound.tile_ps),
        waits=waits,
    )


def time_text(ps: int) -> str:
    """Return a time as a reader says it: ``107.1 µs``."""
    for unit, size in (("s", 10**12), ("ms", 10**9), ("µs", 10**6)):
        if ps >= size:
            return f"{ps / size:.4g} {unit}"
    return f"{ps / 1000:.4g} ns"
