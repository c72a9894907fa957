"""Two results side by side: which parameters differ, which stage of the critical path changed, and how the bound did.

The critical path adds up to the time, so the changes of its stages add up to the change. ``verdict`` says it in words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.evaluation.compare_inputs import CCL_PREFIX, ResultFigures, ResultFile
from kernbench.evaluation.compare_machines import MOST_NAMED, say_machines
from kernbench.evaluation.sweep_measure import part_column, slug
from kernbench.evaluation.sweep_plan import BENCH_PREFIX
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.works import PE_ENGINES
from kernbench.runtime_api.requests import PHASES

_NAMED: Mapping[str, tuple[PathPart, ...]] = {
    "host": (PathPart.HOST_TRANSFER, PathPart.HOST_WAIT),
    "control path": (
        PathPart.DOWN,
        PathPart.CONTROL_QUEUE,
        PathPart.CONTROL_CPU,
        PathPart.UP,
        PathPart.COMMON_START,
        PathPart.EARLIER_KERNEL,
        PathPart.LAUNCH,
        PathPart.BARRIER,
    ),
    "command issue": (PathPart.ISSUE, PathPart.TILE_ISSUE, PathPart.WAIT),
    "device fill": (PathPart.FILL,),
    "DMA set-up": (PathPart.DMA_SETUP,),
    "network": (PathPart.REQUEST, PathPart.RESPONSE, PathPart.NETWORK_QUEUE, PathPart.RAW),
    "memory": (
        PathPart.ACCESS,
        PathPart.MEMORY_QUEUE,
        PathPart.TURNAROUND,
        PathPart.ROWS,
        PathPart.REFRESH,
        PathPart.SERVICE,
    ),
    "fetch": (PathPart.FETCH,),
    "GEMM": (PathPart.GEMM,),
    "MATH": (PathPart.MATH,),
    "store": (PathPart.STORE,),
}
_ELSEWHERE = frozenset(part for parts in _NAMED.values() for part in parts)
STAGES: Mapping[str, tuple[PathPart, ...]] = {
    **_NAMED,
    "queues": tuple(part for part in PathPart if part not in _ELSEWHERE),
}
"""The parts of a critical path, by what an architect would change to shorten them."""
UNKNOWN = "unknown"
"""The stage of parts that this version does not know."""
_PATH = part_column("run", "")[: -len("_ns")]
_PATH_COLUMNS = frozenset(part_column("run", part) for part in PathPart)
_SAID: Mapping[str, str] = {
    _PATH: "a critical path",
    "launch.bound": "a roofline",
    "launch.ns": "how long launches took",
    "phase.": "how long phases were under way",
    "engine.": "how long engines were busy",
}
"""What results say, by how its columns begin."""
NOTHING = "nothing"
"""What binds where nobody kept a roofline."""


@value
class Differing:
    """A parameter that is not the same: its values on both sides, of all pairs; none where a side does not have it."""

    path: str
    a: tuple[Any, ...]
    b: tuple[Any, ...]


@value
class Change:
    """Something in ns on both sides; a stage also by its ``parts``."""

    name: str
    a_ns: float
    b_ns: float
    parts: tuple[Change, ...] = ()

    @property
    def ns(self) -> float:
        """The increase from A to B."""
        return self.b_ns - self.a_ns

    @property
    def share(self) -> float:
        """The increase from A to B, as a share of A."""
        return self.ns / self.a_ns if self.a_ns else float("inf") if self.b_ns else 0.0


@value
class Pair:
    """A result of each side. ``stages``: of its critical path, the largest change first; empty when nobody kept it."""

    where: tuple[tuple[str, Any], ...]
    time: Change
    launch: Change
    bounds: tuple[str, str]
    bound: Change
    stages: tuple[Change, ...]


@value
class BoundGroup:
    """All pairs that the same resources bind: the sums of their main launches and of their bounds."""

    bounds: tuple[str, str]
    pairs: int
    launch: Change
    bound: Change


@value
class ResultComparison:
    """Everything about two results. ``stages`` are sums over all pairs; without critical paths ``busy`` are, of phases
    and engines, which overlap. ``unmatched``: results of each side without a partner or without figures. ``unsaid``:
    what one side does not say, such as one of an earlier version, so that it is not compared; in sentences.
    ``machines``: what the machines differ in, where that is much.
    """

    differing: tuple[Differing, ...]
    pairs: tuple[Pair, ...]
    unmatched: tuple[int, int]
    time: Change
    launch: Change
    groups: tuple[BoundGroup, ...]
    stages: tuple[Change, ...]
    busy: tuple[Change, ...]
    unsaid: tuple[str, ...]
    machines: str


def compare_results(a: ResultFile, b: ResultFile) -> ResultComparison:
    """Compare what the files have at the same points. InputError when nothing fits together."""
    axes, matched = _match(a, b)
    good = [(one, other) for one, other in matched if one.ok and other.ok]
    if not good:
        raise InputError(f"{a.name} and {b.name}: every point that both have failed on one side")
    pairs = tuple(_pair(axes, one, other) for one, other in good)
    differing = tuple(_differing(matched))
    return ResultComparison(
        differing=differing,
        pairs=pairs,
        unmatched=(len(a.results) - len(good), len(b.results) - len(good)),
        time=_sum("all", (pair.time for pair in pairs)),
        launch=_sum("main launch", (pair.launch for pair in pairs)),
        groups=_groups(pairs),
        stages=_stages(good) if _both_say(good, _PATH) else (),
        busy=_busy(good),
        unsaid=tuple(_unsaid(good)),
        machines=say_machines(*zip(*matched, strict=True)) if len(_of_machines(differing)) > MOST_NAMED else "",
    )


def _says(result: ResultFigures, begin: str) -> bool:
    return any(column.startswith(begin) and cell is not None for column, cell in result.row.items())


def _both_say(pairs: Sequence[tuple[ResultFigures, ResultFigures]], begin: str) -> bool:
    return all(_says(each, begin) for pair in pairs for each in pair)


def _unsaid(pairs: Sequence[tuple[ResultFigures, ResultFigures]]) -> Iterator[str]:
    """Name what only one side says, or says in words that are not known."""
    for begin, what in _SAID.items():
        said = [all(_says(each, begin) for each in side) for side in zip(*pairs, strict=True)]
        if said in ([True, False], [False, True]):
            lacking, having = ("B", "A") if said[0] else ("A", "B")
            yield f"{lacking} does not say {what}, {having} does: not compared"
    for name, side in zip("AB", zip(*pairs, strict=True), strict=True):
        unknown = _unknown_parts(side)
        if unknown:
            yield f"{name} has parts of the critical path that this version does not know: {', '.join(unknown)}"


def _unknown_parts(results: Iterable[ResultFigures]) -> list[str]:
    """The parts of critical paths, as columns call them, that this version does not have."""
    columns = dict.fromkeys(column for each in results for column in each.row if column.startswith(_PATH))
    return [column.removeprefix(_PATH).removesuffix("_ns") for column in columns if column not in _PATH_COLUMNS]


def _match(a: ResultFile, b: ResultFile) -> tuple[tuple[str, ...], list[tuple[ResultFigures, ResultFigures]]]:
    """Results at the same values of all axes; if there are none, of the axes that both have."""
    every = tuple(dict.fromkeys([*a.axes, *b.axes]))
    common = tuple(axis for axis in a.axes if axis in b.axes)
    for axes in (every, common):
        ours, theirs = _by_key(a, axes), _by_key(b, axes)
        found = [(ours[key], theirs[key]) for key in ours if key in theirs]
        if found and len(ours) == len(a.results) and len(theirs) == len(b.results):
            return axes, found
    has = [f"{file.name} has {len(file.results)} over {_names(file.axes)}" for file in (a, b)]
    raise InputError(f"no points fit together: {'; '.join(has)}; choose one point of a sweep with FILE.parquet:POINT")


def _by_key(file: ResultFile, axes: Iterable[str]) -> dict[str, ResultFigures]:
    wanted = tuple(axes)
    return {json.dumps([each.configuration.get(axis) for axis in wanted]): each for each in file.results}


def _names(axes: Sequence[str]) -> str:
    return ", ".join(axes) or "no axis"


def _differing(matched: Sequence[tuple[ResultFigures, ResultFigures]]) -> Iterator[Differing]:
    paths = dict.fromkeys(path for pair in matched for each in pair for path in each.configuration)
    if not all(each.says_collectives for pair in matched for each in pair):
        paths = dict.fromkeys(path for path in paths if not path.startswith(CCL_PREFIX))
    for path in paths:
        if any(_value(one, path) != _value(other, path) for one, other in matched):
            ours, theirs = (_values(side, path) for side in zip(*matched, strict=True))
            yield Differing(path, ours, theirs)


def _of_machines(differing: Iterable[Differing]) -> list[Differing]:
    return [each for each in differing if not f"{each.path}.".startswith((BENCH_PREFIX, CCL_PREFIX))]


def _value(result: ResultFigures, path: str) -> str:
    return json.dumps(result.configuration.get(path))


def _values(results: Sequence[ResultFigures], path: str) -> tuple[Any, ...]:
    """The values of a parameter, each once; none where no result has it, as with those of another version."""
    if not any(path in each.configuration for each in results):
        return ()
    return tuple(json.loads(value) for value in dict.fromkeys(_value(each, path) for each in results))


def _pair(axes: Sequence[str], a: ResultFigures, b: ResultFigures) -> Pair:
    return Pair(
        where=tuple((axis, a.configuration.get(axis)) for axis in axes),
        time=_change("all", a, b, "sim_ns"),
        launch=_change(str(a.row.get("launch.name") or ""), a, b, "launch.ns"),
        bounds=(str(a.row.get("launch.bound") or NOTHING), str(b.row.get("launch.bound") or NOTHING)),
        bound=_change("bound", a, b, "launch.bound_ns"),
        stages=_stages([(a, b)]),
    )


def _change(name: str, a: ResultFigures, b: ResultFigures, column: str) -> Change:
    return Change(name, a.number(column), b.number(column))


def _sum(name: str, changes: Iterable[Change]) -> Change:
    given = list(changes)
    return Change(name, sum(each.a_ns for each in given), sum(each.b_ns for each in given))


def _stages(pairs: Sequence[tuple[ResultFigures, ResultFigures]]) -> tuple[Change, ...]:
    """The stages of the critical path of the whole run, summed over pairs, the largest change first."""
    found = []
    unknown = _unknown_parts(each for pair in pairs for each in pair)
    for stage, parts in {**STAGES, UNKNOWN: unknown}.items():
        changes = _sort_changes(
            _sum(part, (_change(part, a, b, part_column("run", part)) for a, b in pairs)) for part in parts
        )
        whole = _sum(stage, changes)
        found.append(Change(stage, whole.a_ns, whole.b_ns, changes))
    return _sort_changes(found)


def _busy(pairs: Sequence[tuple[ResultFigures, ResultFigures]]) -> tuple[Change, ...]:
    from_names = {f"phase {name}": f"phase.{name}.busy_ns" for name in PHASES}
    from_names |= {f"engine {name}": f"engine.{slug(name)}.busy_ns" for name in PE_ENGINES}
    for begin in ("phase.", "engine."):
        if not _both_say(pairs, begin):
            from_names = {name: column for name, column in from_names.items() if not column.startswith(begin)}
    return _sort_changes(
        _sum(name, (_change(name, a, b, column) for a, b in pairs)) for name, column in from_names.items()
    )


def _sort_changes(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Sort the changes that are not nothing, the largest first."""
    return tuple(sorted((each for each in changes if each.a_ns or each.b_ns), key=lambda each: -abs(each.ns)))


def _groups(pairs: Sequence[Pair]) -> tuple[BoundGroup, ...]:
    kinds = dict.fromkeys(pair.bounds for pair in pairs)
    made = []
    for kind in kinds:
        own = [pair for pair in pairs if pair.bounds == kind]
        launch, bound = _sum("launch", (pair.launch for pair in own)), _sum("bound", (pair.bound for pair in own))
        made.append(BoundGroup(kind, len(own), launch, bound))
    return tuple(sorted(made, key=lambda group: -group.pairs))


def verdict(found: ResultComparison) -> tuple[str, ...]:
    """Say in sentences what changed and why."""
    return tuple(_sentences(found))


def _sentences(found: ResultComparison) -> Iterator[str]:
    count = f" over {len(found.pairs)} points" if len(found.pairs) > 1 else ""
    yield f"B takes {found.time.ns:+,.3f} ns ({found.time.share:+.1%}){count}"
    if found.machines:
        of_machines = _of_machines(found.differing)
        others = [_say(each) for each in found.differing if each not in of_machines]
        yield "what differs: " + "; ".join([*others, found.machines, f"{len(of_machines)} of the machines' parameters"])
    elif found.differing:
        yield "what differs: " + "; ".join(_say(each) for each in found.differing)
    else:
        yield "no parameter differs"
    yield from found.unsaid
    if found.stages and found.time.ns:
        most = found.stages[0]
        part = most.parts[0]
        own = f", most of it {part.name} ({part.ns:+,.3f} ns)" if len(most.parts) > 1 else ""
        yield f"the stage that changed most: {most.name}, {most.ns:+,.3f} ns of {found.time.ns:+,.3f}{own}"
    for group in found.groups:
        if NOTHING not in group.bounds:
            yield _roofline(group)


def _say(each: Differing) -> str:
    return f"{each.path} {_few(each.a)} → {_few(each.b)}"


def _few(values: Sequence[Any]) -> str:
    return values_text(values) if len(values) <= 3 else f"{values_text(values[:2])}, …, {values_text(values[-1:])}"


def values_text(values: Sequence[Any]) -> str:
    """The values of a parameter on one side, as a file has them; ``absent`` where that side does not have it."""
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return ", ".join(texts) or "absent"


def _roofline(group: BoundGroup) -> str:
    a, b = group.bounds
    who = f"{group.pairs} point{'s' if group.pairs > 1 else ''}"
    what = f"bound by {a} in both" if a == b else f"bound by {a} in A and {b} in B"
    moved = f"the bound of the main launch moves by {group.bound.share:+.1%}, the launch by {group.launch.share:+.1%}"
    return f"{who} {what}: {moved}"
