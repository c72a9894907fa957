"""Say where the time of a whole run went: kernels, by what binds them, copies, waits for other ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from kernbench.common.values import value
from kernbench.observe.critical_path_model import CriticalPath, PathHop, PathPart, PathStep
from kernbench.observe.verdict import Busy, Verdict, time_text

MENTIONED = 0.25
"""The share of a launch's time from which its waits for others are told of"""
SMALLEST = 0.005
"""The smallest share that is told of"""
KERNELS, COPIES, SETUP, HOST = "kernels", "copies", "maps and queues", "host program"


@value(kw_only=True)
class RunVerdict:
    """The shares of a run's critical path, the largest first: ``spent``, of kernels also by what ``binds`` them."""

    time_ps: int
    spent: tuple[Busy, ...] = ()
    binds: tuple[Busy, ...] = ()

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        texts = [
            self._say(each, f" of {time_text(self.time_ps)}" if at == 0 else "") for at, each in enumerate(self.spent)
        ]
        return ", ".join(texts) or "nothing was computed or moved"

    def _say(self, each: Busy, of: str) -> str:
        shown = [str(bound) for bound in self.binds if bound.share >= SMALLEST]
        why = f" ({', '.join(shown)})" if each.resource == KERNELS and shown else ""
        return f"{each}{of}{why}"


def judge_run(
    path: CriticalPath, names: Mapping[int, str], verdicts: Mapping[str, Verdict], copies: Collection[int]
) -> RunVerdict:
    """Return the verdict on a run.

    ``names``: those of launches, by request; ``verdicts``: that on the launches of each name; ``copies``: the requests
    that copy or fill memory.
    """
    spent: dict[str, int] = {}
    binds: dict[str, int] = {}
    for step, rank in _divide_steps(path, names):
        name = names.get(step.request_id)
        what = _purpose(step, name, copies) if rank is None else f"waits for rank {rank}"
        spent[what] = spent.get(what, 0) + step.ps
        verdict = None if name is None else verdicts.get(name)
        if what == KERNELS and verdict is not None:
            phrase = verdict.phrase
            binds[phrase] = binds.get(phrase, 0) + step.ps
    return RunVerdict(time_ps=path.ps, spent=_shares(spent, path), binds=_shares(binds, path))


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


def _shares(spent: Mapping[str, int], path: CriticalPath) -> tuple[Busy, ...]:
    ordered = sorted(spent.items(), key=lambda each: -each[1])
    return tuple(Busy(what, ps / path.ps) for what, ps in ordered if ps >= SMALLEST * path.ps)


def _purpose(step: PathStep, name: str | None, copies: Collection[int]) -> str:
    if name is not None:
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
