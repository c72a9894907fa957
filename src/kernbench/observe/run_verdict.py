"""Say where the time of a whole run went: kernels, by what binds them, copies, waits for other ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kernbench.common.values import value
from kernbench.observe.critical_path_model import CriticalPath, PathHop, PathPart, PathStep
from kernbench.observe.path_resources import PathDivider, sum_resources
from kernbench.observe.verdict import BOUND_BY, Busy, Verdict, time_text

MENTIONED = 0.25
"""The share of a launch's time from which its waits for others are told of"""
SMALLEST = 0.005
"""The smallest share that is told of"""
KERNELS, COPIES, SETUP, HOST = "kernels", "copies", "maps and queues", "host program"


@value
class Spending:
    """A share of a run's critical path, and ``why``: its verdicts, or the resource that has most of it."""

    what: str
    share: float
    why: tuple[Busy, ...] = ()

    def __str__(self) -> str:
        """Say it; a verdict that all of it has needs no share of its own."""
        alone = self.what == KERNELS and len(self.why) == 1
        shown = self.why[0].resource if alone else ", ".join(map(str, self.why))
        return f"{self.what} {self.share:.0%}" + (f" ({shown})" if shown else "")


@value(kw_only=True)
class RunVerdict:
    """The shares of a run's critical path, the largest first."""

    time_ps: int
    spent: tuple[Spending, ...] = ()

    @property
    def label(self) -> str:
        """The largest share in a few words, for a table: the verdict on kernels, or the resource of anything else."""
        if not self.spent:
            return "nothing"
        most = self.spent[0]
        why = [each.resource.removeprefix(BOUND_BY) for each in most.why[:1]]
        return ": ".join(why if why and most.what == KERNELS else (most.what, *why))

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        first, *rest = (str(each) for each in self.spent) if self.spent else ("",)
        whole = first.replace("%", f"% of {time_text(self.time_ps)}", 1)
        return ", ".join((whole, *rest)) or "nothing was computed or moved"


def judge_run(
    path: CriticalPath,
    divider: PathDivider,
    names: Mapping[int, str],
    verdicts: Mapping[str, Verdict],
    copies: Collection[int],
) -> RunVerdict:
    """Return the verdict on a run.

    ``names``: those of launches, by request; ``verdicts``: that on the launches of each name; ``copies``: the requests
    that copy or fill memory.
    """
    spent: dict[str, list[PathStep]] = {}
    for step, rank in _divide_steps(path, names):
        what = _purpose(step, names, copies) if rank is None else f"waits for rank {rank}"
        spent.setdefault(what, []).append(step)
    found = []
    for what, steps in spent.items():
        why = _by_verdict(steps, names, verdicts) if what == KERNELS else _by_resource(steps, divider)
        shares = tuple(Busy(name, ps / path.ps) for name, ps in why if ps >= SMALLEST * path.ps)
        found.append(Spending(what, sum(step.ps for step in steps) / path.ps, shares))
    ordered = sorted((each for each in found if each.share >= SMALLEST), key=lambda each: -each.share)
    return RunVerdict(time_ps=path.ps, spent=tuple(ordered))


def _by_verdict(
    steps: Iterable[PathStep], names: Mapping[int, str], verdicts: Mapping[str, Verdict]
) -> list[tuple[str, int]]:
    """Return the time of kernels by what binds them, the longest first."""
    found: dict[str, int] = {}
    for step in steps:
        verdict = verdicts.get(names[step.request_id])
        if verdict is not None:
            found[verdict.phrase] = found.get(verdict.phrase, 0) + step.ps
    return sorted(found.items(), key=lambda each: -each[1])


def _by_resource(steps: Sequence[PathStep], divider: PathDivider) -> list[tuple[str, int]]:
    """Return the resource that has at least half of the time of some steps, with that time."""
    most = sum_resources(divider.share(steps))[:1]
    whole = sum(step.ps for step in steps)
    return [(each.resource, each.ps) for each in most if 2 * each.ps >= whole]


def say_waits(path: CriticalPath, names: Mapping[int, str]) -> Iterator[str]:
    """Yield what a launch's path waited for, in words, where that is much of it: other ranks, slots of queues."""
    waited: dict[str, int] = {}
    for step, rank in _divide_steps(path, names):
        if rank is not None:
            waited[f"rank {rank}"] = waited.get(f"rank {rank}", 0) + step.ps
    for hop in path.hops:
        if hop.waited_for == "slot":
            waited["slots of queues"] = waited.get("slots of queues", 0) + hop.ps
    for what, ps in waited.items():
        if ps >= MENTIONED * path.ps:
            yield f"{min(1.0, ps / path.ps):.0%} of the time waits for {what}"


def _purpose(step: PathStep, names: Mapping[int, str], copies: Collection[int]) -> str:
    if step.request_id in names:
        return KERNELS
    if step.part is PathPart.HOST_WAIT:
        return HOST
    return COPIES if step.request_id < 0 or step.request_id in copies else SETUP


def _divide_steps(path: CriticalPath, names: Mapping[int, str]) -> Iterator[tuple[PathStep, int | None]]:
    """Yield the steps of a path in order, and the rank that a kernel of another rank waited for meanwhile.

    It waits for that rank as long as the rank does something else than its own kernel of that name. Steps in which such
    a wait begins or ends are cut there.
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
    """Tell whether a step is no part of the kernel that the waiting one exchanges messages with."""
    return step.part is PathPart.EARLIER_KERNEL or names.get(step.request_id) != names.get(hop.waiting.launch_id)
