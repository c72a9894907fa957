"""Comparison of two results: differences, whether they are used, and changes of latency, verdict and stages.

The parts of a critical path add up to the time, so the changes of its stages add up to the change of the time. A stage
is a resource on the path, or a part of the path without a resource. For a result without resources, a stage is a part.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.evaluation.compare_inputs import ResultFigures, ResultFile, ResultPair
from kernbench.evaluation.compare_machines import MOST_NAMED, Differing, find_differing, say_machines
from kernbench.observe.critical_path_model import PathPart
from kernbench.observe.energy import EnergyGroups
from kernbench.observe.path_resources import join_words
from kernbench.observe.works import PE_ENGINES
from kernbench.result.run_columns import CAUSES, slug
from kernbench.result.sections import sections
from kernbench.runtime_api.requests import PHASES
from kernbench.topology import resources as of

_PATH, _CAUSES, _QUEUES = "run.path.", "run.resources.", "run.queues."
_NAMES: Mapping[str, str] = {slug(name): str(name) for name in CAUSES}
_SAID: Mapping[str, str] = {
    _PATH: "a critical path",
    _CAUSES: "the resources on its path",
    "launch.bound": "the bottlenecks of launches",
    "launch.ns": "the times of launches",
    "phase.": "the times of phases",
    "engine.": "the busy times of engines",
    "used.": "its use of the machine",
    "energy.": "the energy",
}
"""Contents of results by column prefix"""
_COMPARED = ("sim_ns",)
"""Figures that the comparison has already"""
_ENERGY = "energy.pj"
RUN, MAIN = "run", "main launch"
NOTHING = "nothing"
"""The bottleneck of a result without a roofline"""
SAME_WAIT = 0.1
"""Opposite changes of stages are treated as one moved wait if their sum is at most this share of the largest change"""
SEEN = 0.03
"""Smallest reported change, as a share of the largest"""
_ONCE = frozenset(
    (of.CONTROL, of.LAUNCH, of.IO_LINKS, of.HOST_LINK, "switch overhead", "PCIe overhead", "IO router overhead")
) | {str(part) for part in (PathPart.HOST_TRANSFER, PathPart.HOST_WAIT, PathPart.DOWN, PathPart.UP, PathPart.FILL)}
"""Stages that overlap with no other stage, so no wait moves to or from them"""


@value
class Change:
    """A time in ns on both sides. A stage also has its ``parts``."""

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

    @property
    def share_text(self) -> str:
        """The increase as text: a factor, a percentage or words."""
        if not self.ns or not self.a_ns:
            return "new" if self.ns else "as before"
        size = abs(self.share)
        if size >= 10:
            return f"×{self.b_ns / self.a_ns:,.0f}"
        return f"{self.share:+.1%}" if size >= 0.001 else f"{self.share:+.2%}" if size >= 0.0001 else "under 0.01%"

    def __str__(self) -> str:
        return f"{self.name} {ns_text(self.ns, '+')}"


@value
class ModuleChange:
    """The work of a module on both sides: its own launches and their time, without those of its parts.

    ``inside``: the time with that of all its parts. ``covers``: modules whose operators a compiler fused into these
    launches, on either side.
    """

    name: str
    launches: tuple[int, int]
    time: Change
    inside: Change
    covers: tuple[str, ...]

    @property
    def has_parts(self) -> bool:
        """True if parts of the module have launches."""
        return (self.time.a_ns, self.time.b_ns) != (self.inside.a_ns, self.inside.b_ns)


@value
class Move:
    """A changed stage, or several stages whose changes cancel out, the largest first."""

    stages: tuple[Change, ...]

    @property
    def ns(self) -> float:
        """The increase from A to B."""
        return self.change.ns

    @property
    def change(self) -> Change:
        """The sum of the changes of the stages."""
        return _sum(join_words([stage.name for stage in self.stages]) + self._same, self.stages)

    @property
    def _same(self) -> str:
        return ": the same wait" if len(self.stages) > 1 else ""

    def __str__(self) -> str:
        return join_words([str(stage) for stage in self.stages]) + self._same


@value
class ColumnPair:
    """The numbers of a derived column on both sides of a pair; None if a side has no number."""

    name: str
    a: float | None
    b: float | None

    @property
    def share(self) -> float | None:
        """The increase from A to B, as a share of A; None without two numbers, or if A is 0."""
        return None if self.a is None or self.b is None or not self.a else (self.b - self.a) / abs(self.a)

    def __str__(self) -> str:
        return f"{self.name} {_say_number(self.a)} → {_say_number(self.b)}"


@value
class Pair:
    """The results of both sides at a point: times, main launches, bottlenecks and verdicts.

    ``of``: the subject of the bounds, which is the main launch, or the run if the main launches differ. ``moves``:
    changed stages of the critical path; empty without critical paths. ``columns``: derived columns of both sides.
    """

    where: tuple[tuple[str, Any], ...]
    time: Change
    launches: tuple[str, str]
    launch: Change
    of: str
    bounds: tuple[str, str]
    bound: Change
    verdicts: tuple[str, str]
    run_verdicts: tuple[str, str]
    moves: tuple[Move, ...]
    columns: tuple[ColumnPair, ...]

    @property
    def same_launch(self) -> bool:
        """True if both sides have the same main launch by name, or none."""
        return len({*self.launches} - {""}) < 2


@value
class BoundGroup:
    """The pairs with the same bottlenecks, with the sums of their times and of their bounds."""

    of: str
    bounds: tuple[str, str]
    pairs: int
    time: Change
    bound: Change

    def __str__(self) -> str:
        a, b = self.bounds
        if self.of == RUN:
            return f"most of both goes to {a}" if a == b else f"most of A goes to {a}, of B to {b}"
        return f"bound by {a} in both" if a == b else f"bound by {a} in A and by {b} in B"


@value
class ResultComparison:
    """The complete comparison of two results.

    ``stages``: changes of stages, summed over all pairs. ``moves``: the same changes, where stages that cancel out
    are one move. ``busy``: without critical paths, busy times of phases and engines, which overlap. ``figures``:
    changes of other figures of sections, as averages over the pairs. ``modules``: the work of each module, if all
    results have modules. ``unmatched``: number of results of each side without a partner or without figures.
    ``left_out``: the reasons. ``unsaid``: sentences about contents that are not compared, because one side lacks them.
    ``machines``: a summary of the differences of the machines, if there are many. ``unused``: differences that affect
    no result.
    """

    differing: tuple[Differing, ...]
    unused: tuple[str, ...]
    pairs: tuple[Pair, ...]
    unmatched: tuple[int, int]
    left_out: tuple[str, ...]
    time: Change
    launch: Change
    groups: tuple[BoundGroup, ...]
    stages: tuple[Change, ...]
    moves: tuple[Move, ...]
    busy: tuple[Change, ...]
    figures: tuple[Change, ...]
    energy: tuple[Change, ...]
    modules: tuple[ModuleChange, ...]
    unsaid: tuple[str, ...]
    machines: str


def compare_results(a: ResultFile, b: ResultFile) -> ResultComparison:
    """Compare the results of two files at the same points. Raises InputError if they have no points in common."""
    axes, matched = _match(a, b)
    good = [(one, other) for one, other in matched if one.ok and other.ok]
    if not good:
        raise InputError(f"{a.name} and {b.name}: every point that both have failed on one side")
    columns = _common_columns(a.columns, b.columns)
    pairs = tuple(_pair(axes, columns, one, other) for one, other in good)
    differing = find_differing(good)
    stages = _stages(good)
    return ResultComparison(
        differing=differing,
        unused=tuple(dict.fromkeys(difference.unused for difference in differing if difference.unused)),
        pairs=pairs,
        unmatched=(len(a.results) - len(good), len(b.results) - len(good)),
        left_out=tuple(_say_left_out(a, b, len(good))),
        time=_sum(RUN, (pair.time for pair in pairs)),
        launch=_sum(MAIN, (pair.launch for pair in pairs)),
        groups=_groups(pairs),
        stages=stages,
        moves=_find_moves(stages),
        busy=_busy(good),
        figures=_compare_figures(good),
        energy=_compare_energy(good),
        modules=_compare_modules(good),
        unsaid=(*_unsaid(good), *_say_other_columns(a.columns, b.columns)),
        machines=say_machines(*zip(*good, strict=True)) if sum(d.of_machine for d in differing) > MOST_NAMED else "",
    )


def _say_left_out(a: ResultFile, b: ResultFile, compared: int) -> Iterator[str]:
    """Yield texts, each with a number of results of a side that are not compared, and the reason."""
    for name, file in (("A", a), ("B", b)):
        failed = [result for result in file.results if not result.ok]
        why = "the other side has none there, or it failed there"
        if failed:
            why = f"{len(failed)} failed, first with: {failed[0].text('error').partition(chr(10))[0]}"
        if compared < len(file.results):
            yield f"left out of {name}: {len(file.results) - compared} of {len(file.results)} points: {why}"


def _both_say(pairs: Sequence[ResultPair], begin: str) -> bool:
    return all(result.says(begin) for pair in pairs for result in pair)


def _unsaid(pairs: Sequence[ResultPair]) -> Iterator[str]:
    """Yield a sentence for contents that only one side has, or that this version does not know."""
    has: dict[str, Callable[[ResultFigures], bool]] = {
        text: partial(ResultFigures.says, begin=begin) for begin, text in _SAID.items()
    }
    for text, has_content in {**has, "the modules of its program": ResultFigures.has_modules}.items():
        present = [all(map(has_content, side)) for side in zip(*pairs, strict=True)]
        if present in ([True, False], [False, True]):
            lacking, having = ("B", "A") if present[0] else ("A", "B")
            yield f"{lacking} lacks {text}, which {having} has: not compared"
    for name, side in zip("AB", zip(*pairs, strict=True), strict=True):
        unknown = [part for part in _names_in(side, _PATH) if part not in map(slug, PathPart)]
        if unknown:
            yield f"{name} has parts of the critical path that this version does not know: {', '.join(unknown)}"


def _names_in(results: Iterable[ResultFigures], begin: str) -> list[str]:
    """Return the names of the times in columns with this prefix."""
    columns = dict.fromkeys(column for result in results for column in result.row if column.startswith(begin))
    return [column.removeprefix(begin).removesuffix("_ns") for column in columns]


def _match(a: ResultFile, b: ResultFile) -> tuple[tuple[str, ...], list[ResultPair]]:
    """Pair results with the same values on all axes. If the axes differ, pair results by the common axes."""
    every = tuple(dict.fromkeys([*a.axes, *b.axes]))
    common = tuple(axis for axis in a.axes if axis in b.axes)
    for axes in (every, common):
        ours, theirs = _by_key(a, axes), _by_key(b, axes)
        matched = [(ours[key], theirs[key]) for key in ours if key in theirs]
        if matched and len(ours) == len(a.results) and len(theirs) == len(b.results):
            return axes, matched
    has = [f"{file.name} has {len(file.results)} over {', '.join(file.axes) or 'no axis'}" for file in (a, b)]
    raise InputError(f"no points match: {'; '.join(has)}; choose one point of a sweep with FILE.parquet:POINT")


def _by_key(file: ResultFile, axes: Sequence[str]) -> dict[str, ResultFigures]:
    return {json.dumps([result.configuration.get(axis) for axis in axes]): result for result in file.results}


def _pair(axes: Sequence[str], columns: Sequence[str], a: ResultFigures, b: ResultFigures) -> Pair:
    def texts(column: str, missing: str = "") -> tuple[str, str]:
        return a.text(column) or missing, b.text(column) or missing

    launches = texts("launch.name")
    group = "launch" if len({*launches} - {""}) < 2 and all(texts("launch.bound")) else "run"
    return Pair(
        where=tuple((axis, a.configuration.get(axis)) for axis in axes),
        time=_change(RUN, a, b, "sim_ns"),
        launches=launches,
        launch=_change(MAIN, a, b, "launch.ns"),
        of=MAIN if group == "launch" else RUN,
        bounds=texts(f"{group}.bound", NOTHING),
        bound=_change("bound", a, b, f"{group}.bound_ns"),
        verdicts=texts("launch.verdict"),
        run_verdicts=texts("run.verdict"),
        moves=_find_moves(_stages([(a, b)])),
        columns=_pair_columns(columns, a, b),
    )


def _common_columns(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[str, ...]:
    """Return the derived columns with the same expression on both sides. ``a``, ``b``: the expressions by name."""
    return tuple(name for name, expression in a.items() if b.get(name) == expression)


def _say_other_columns(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each derived column that only one side has, or that has two expressions."""
    for name in dict.fromkeys([*a, *b]):
        if name not in a or name not in b:
            lacking, having = ("B", "A") if name in a else ("A", "B")
            yield f"{lacking} lacks column {name}, which {having} has: not compared"
        elif a[name] != b[name]:
            yield f"column {name} is {a[name]} in A and {b[name]} in B: not compared"


def _pair_columns(names: Iterable[str], a: ResultFigures, b: ResultFigures) -> tuple[ColumnPair, ...]:
    """Return the numbers of the columns ``names`` on both sides."""
    return tuple(ColumnPair(name, _number_in(a, name), _number_in(b, name)) for name in names)


def _number_in(figures: ResultFigures, name: str) -> float | None:
    cell = figures.row.get(name)
    return float(cell) if isinstance(cell, int | float) else None


def _change(name: str, a: ResultFigures, b: ResultFigures, column: str) -> Change:
    return Change(name, a.number(column), b.number(column))


def _sum(name: str, changes: Iterable[Change], parts: tuple[Change, ...] = ()) -> Change:
    summands = list(changes)
    return Change(name, sum(change.a_ns for change in summands), sum(change.b_ns for change in summands), parts)


def _sum_column(name: str, pairs: Sequence[ResultPair], column: str, parts: tuple[Change, ...] = ()) -> Change:
    return _sum(name, (_change(name, a, b, column) for a, b in pairs), parts)


def _stages(pairs: Sequence[ResultPair]) -> tuple[Change, ...]:
    """Return the stages of the critical path of the run, summed over pairs, the largest change first."""
    begin = next((prefix for prefix in (_CAUSES, _PATH) if _both_say(pairs, prefix)), None)
    if begin is None:
        return ()
    stages = []
    for name in _names_in((result for pair in pairs for result in pair), begin):
        queued = _sum_column("in its queues", pairs, f"{_QUEUES}{name}_ns")
        parts = (queued,) if begin == _CAUSES and (queued.a_ns or queued.b_ns) else ()
        stages.append(_sum_column(_NAMES.get(name, name), pairs, f"{begin}{name}_ns", parts))
    return _sort_changes(stages)


def _busy(pairs: Sequence[ResultPair]) -> tuple[Change, ...]:
    names = {"phase": PHASES, "engine": PE_ENGINES}
    return _sort_changes(
        _sum_column(f"{what} {name}", pairs, f"{what}.{slug(name)}.busy_ns")
        for what in names
        if _both_say(pairs, f"{what}.")
        for name in names[what]
    )


def _compare_figures(pairs: Sequence[ResultPair]) -> tuple[Change, ...]:
    """Return the changed figures of the sections whose columns are derived, as averages over pairs."""
    columns = [
        name
        for section in sections()
        if section.columns is None
        for name, column in section.all_columns.items()
        if column.kind in (int, float) and name not in _COMPARED and _both_say(pairs, name)
    ]
    averages = (
        Change(name, *(sum(side.number(name) for side in results) / len(pairs) for results in zip(*pairs, strict=True)))
        for name in columns
    )
    return tuple(change for change in averages if math.isfinite(change.ns) and change.ns)


def _compare_energy(pairs: Sequence[ResultPair]) -> tuple[Change, ...]:
    """Return the change of the dynamic energy in pJ, then those of its groups, the largest first.

    Return nothing if a result has no energy, or if no energy changes.
    """
    if not _both_say(pairs, _ENERGY):
        return ()
    names = [entry.name for entry in fields(EnergyGroups)]
    total, *groups = (
        Change(name, *(sum(side.number(column) for side in results) for results in zip(*pairs, strict=True)))
        for name, column in [("dynamic energy", _ENERGY), *((name, f"energy.by.{name}") for name in names)]
    )
    moved = [change for change in _sort_changes(groups) if change.ns]
    return (total, *moved) if moved else ()


def _compare_modules(pairs: Sequence[ResultPair]) -> tuple[ModuleChange, ...]:
    """Return the work of each module, summed over pairs, in the order of calls.

    The work of a fused launch counts for the nearest module that contains all its operators. Return nothing if a result
    has no modules, or if no work changes.
    """
    if not all(result.modules for pair in pairs for result in pair):
        return ()
    sides = [[use for result in side for use in result.modules] for side in zip(*pairs, strict=True)]
    names = list(dict.fromkeys(use.name for side in sides for use in side))

    def count(is_counted: Callable[[str], bool]) -> tuple[float, float]:
        a, b = (sum(use.ns for use in side if is_counted(use.name)) for side in sides)
        return a, b

    changes = []
    for name in names:
        uses = [[use for use in side if use.name == name] for side in sides]
        a, b = (sum(use.launches for use in of_side) for of_side in uses)
        covers = dict.fromkeys(inner for of_side in uses for use in of_side for inner in use.covers)
        own = Change(name, *count(partial(operator.eq, name)))
        inside = Change(name, *count(partial(_is_inside, name)))
        changes.append(ModuleChange(name, (a, b), own, inside, tuple(covers)))
    has_changed = any(change.time.ns or change.launches[0] != change.launches[1] for change in changes)
    return tuple(changes) if has_changed else ()


def _is_inside(module: str, part: str) -> bool:
    """Return whether ``part`` is ``module`` or a part of it. All modules are parts of the program, ""."""
    return not module or part == module or part.startswith(f"{module}.")


def _sort_changes(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Return the non-zero changes, the largest first."""
    return tuple(
        sorted((change for change in changes if change.a_ns or change.b_ns), key=lambda change: -abs(change.ns))
    )


def _find_moves(stages: Sequence[Change]) -> tuple[Move, ...]:
    """Return the changed stages, the largest first. Stages whose changes cancel out are one move."""
    left, moves = [stage for stage in stages if stage.ns], []
    least = SEEN * abs(stages[0].ns) if stages else 0.0
    while left:
        first, *left = left
        traded, net, room = [first], first.ns, SAME_WAIT * abs(first.ns)
        for other in left if abs(first.ns) >= least else ():
            opposite = other.ns * net < 0 and abs(other.ns) <= abs(net) + room
            if abs(net) > room and opposite and not {first.name, other.name} & _ONCE:
                traded.append(other)
                net += other.ns
        traded = traded if abs(net) <= room else [first]
        left = [stage for stage in left if stage not in traded]
        moves.append(Move(tuple(traded)))
    return tuple(moves)


def _groups(pairs: Sequence[Pair]) -> tuple[BoundGroup, ...]:
    groups = []
    for of_what, bounds in dict.fromkeys((pair.of, pair.bounds) for pair in pairs):
        members = [pair for pair in pairs if (pair.of, pair.bounds) == (of_what, bounds)]
        time = _sum(of_what, (pair.launch if of_what == MAIN else pair.time for pair in members))
        groups.append(BoundGroup(of_what, bounds, len(members), time, _sum("bound", (pair.bound for pair in members))))
    return tuple(sorted(groups, key=lambda group: -group.pairs))


def ns_text(ns: float, plus: str = "") -> str:
    """Return a time in ns with three digits, or as a whole number of ns; ``plus`` precedes an increase."""
    size = f"{abs(ns):,.0f}" if abs(ns) >= 100 else f"{abs(ns):.3g}"
    return f"{'−' if ns < 0 else plus}{size}"


def _say_number(number: float | None) -> str:
    if number is None:
        return "nothing"
    return f"{number:,.0f}" if abs(number) >= 1e5 else f"{number:,.5g}"
