"""Comparison of two results: runs, sweeps, or files of either."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

from kernbench.common.complaints import show
from kernbench.common.errors import InputError
from kernbench.common.files import plain_document
from kernbench.common.values import value
from kernbench.evaluation.compare_inputs import ResultFile, read_compared, take_run, take_table
from kernbench.evaluation.compare_machines import Differing, values_text
from kernbench.evaluation.compare_results import (
    Change,
    ModuleChange,
    Move,
    Pair,
    ResultComparison,
    compare_results,
)
from kernbench.evaluation.compare_sentences import verdict
from kernbench.library.runs import Run
from kernbench.library.sweeps import Sweep
from kernbench.result.table import (
    LINE,
    Table,
    TableColumn,
    TableLine,
    bars,
    fixed_text,
    number,
    row_texts,
    text_html,
    words,
)

Comparable: TypeAlias = "Run | Sweep | str | os.PathLike[str]"
"""A run, a sweep, or a path. A path names the JSON of a run, or the folder, the Parquet file or a point of a sweep."""
MOST_LINES, MOST_ROWS, MOST_COVERED = 8, 20, 3
PROGRAM = "(program)"
"""The name of what is outside of all modules"""


@value(repr=False, eq=False)
class SideBySide:
    """Two compared results: the differences of their inputs, and the changes of their times with causes."""

    a: ResultFile
    b: ResultFile
    comparison: ResultComparison

    @property
    def sentences(self) -> tuple[str, ...]:
        """The changes and their causes, in sentences."""
        return verdict(self.comparison)

    @property
    def verdict(self) -> str:
        """A sentence about the main change."""
        return self.sentences[0]

    @property
    def pairs(self) -> Table[Pair]:
        """The pairs of results at the same points. The terminal shows those that changed most."""
        rows = self.comparison.pairs
        axes = [path.rpartition(".")[2] for path, _ in rows[0].where]
        launch = (number("launch A ns", _read_launch("a_ns")), number("launch B ns", _read_launch("b_ns")))
        columns: tuple[TableColumn[Pair], ...] = (
            TableColumn("where", "the values of the axes", _say_where),
            *(number(axis, partial(_value_at, at)) for at, axis in enumerate(axes)),
            TableColumn[Pair]("a_ns", "time of A", lambda pair: pair.time.a_ns).number("A ns", fixed_text),
            TableColumn[Pair]("b_ns", "time of B", lambda pair: pair.time.b_ns).number("B ns", fixed_text),
            TableColumn("share", "the change, as a share of A", lambda pair: pair.time.share),
            number("change", lambda pair: pair.time.share_text),
            TableColumn("columns", "the derived columns, from A to B", _say_columns),
            *(() if axes else launch),
            number("launch", lambda pair: pair.launch.share_text if pair.same_launch else "another"),
            TableColumn[Pair]("bound", "the bottleneck of the launch, on both sides", _say_bounds).words("bound by"),
            words("stage", lambda pair: pair.moves[0].change.name if pair.moves else ""),
        )
        most = f", the {MOST_ROWS} of {len(rows)} that changed most" if len(rows) > MOST_ROWS else ""
        shown = sorted(rows, key=lambda pair: -abs(pair.time.ns))[:MOST_ROWS]
        return Table("pairs", rows, columns, f"Points{most}" if axes else "Time", tuple(shown))

    @property
    def stages(self) -> Table[Change]:
        """The stages of the critical path, the largest change first; empty if one side has no critical path.

        On the terminal, the stages of a sum that cancel out, or the parts of a single stage, follow it. Without a
        critical path, the terminal shows the changes of busy times.
        """
        changes = self.comparison
        title, moves = "Where the time moved  (critical path of the run, all points)", changes.moves
        if not changes.stages:
            title = "Busy time  (overlaps; observed runs have a critical path)"
            moves = tuple(Move((change,)) for change in changes.busy if change.ns)
        most = max((abs(move.change.ns) for move in moves), default=0.0)
        columns = (*_CHANGES, bars(lambda row: None if _is_part(row) else abs(row.ns) / most if most else 0.0))
        still_ns = [change.a_ns for change in changes.stages or changes.busy if not change.ns]
        still = fixed_text(sum(still_ns))
        below = [TableLine((f"{len(still_ns)} others", still, still, "", "as before", ""))] if still_ns else []
        if changes.stages:
            below.append(TableLine((*row_texts(_CHANGES, changes.time), ""), "bold"))
        shown = tuple(_list_changes(moves))
        return Table("stages", changes.stages, columns, title, shown, (), tuple(below), _style)

    @property
    def differing(self) -> Table[Differing]:
        """The parameters that differ."""
        columns: tuple[TableColumn[Differing], ...] = (
            TableColumn[Differing]("path", "the parameter").words("parameter"),
            TableColumn[Differing]("a", "its values in A", lambda row: values_text(row.a)).words("A"),
            TableColumn[Differing]("b", "its values in B", lambda row: values_text(row.b)).words("B"),
            *([words("not used by this bench", lambda row: row.unused)] if self.comparison.unused else []),
        )
        return Table("differing parameters", self.comparison.differing, columns, "Parameters that differ")

    @property
    def verdicts(self) -> Table[tuple[str, str, str]]:
        """The verdicts on the run and on its main launch, for a single pair; else empty."""
        columns = (words("of", itemgetter(0)), words("in", itemgetter(1)), words("what binds", itemgetter(2)))
        return Table("verdicts", tuple(self._list_verdicts()), columns, "Verdicts")

    def _list_verdicts(self) -> Iterator[tuple[str, str, str]]:
        pair, *further = self.comparison.pairs
        if not further:
            for subject, names, both in (
                ("run", ("", ""), pair.run_verdicts),
                ("launch", pair.launches, pair.verdicts),
            ):
                for side, name, sentence in zip("AB", names, both, strict=True):
                    if sentence:
                        yield f"{subject} {name}".rstrip(), side, sentence

    @property
    def modules(self) -> Table[ModuleChange]:
        """The work of each module of a PyTorch program, in the order of calls; empty for other programs.

        The times are those of a module's own launches, so they add up to the total. The terminal shows the modules
        whose times changed most.
        """
        rows = self.comparison.modules
        columns: tuple[TableColumn[ModuleChange], ...] = (
            TableColumn[ModuleChange]("name", "the module").words("module", lambda name: name or PROGRAM),
            TableColumn[ModuleChange]("a_launches", "launches in A", lambda row: row.launches[0]).number("A launches"),
            TableColumn[ModuleChange]("b_launches", "launches in B", lambda row: row.launches[1]).number("B launches"),
            TableColumn[ModuleChange]("a_ns", "time of A", lambda row: row.time.a_ns).number("A ns", fixed_text),
            TableColumn[ModuleChange]("b_ns", "time of B", lambda row: row.time.b_ns).number("B ns", fixed_text),
            number("change", lambda row: row.time.share_text),
            TableColumn("inside_a_ns", "time of A with all parts", lambda row: row.inside.a_ns),
            TableColumn("inside_b_ns", "time of B with all parts", lambda row: row.inside.b_ns),
            number("with its parts", lambda row: row.inside.share_text if row.has_parts else ""),
            TableColumn[ModuleChange]("covers", "modules fused into it", lambda row: ", ".join(row.covers)),
            words("fused into it", _say_covers),
        )
        shown = sorted(rows, key=lambda row: -abs(row.time.ns))[:MOST_ROWS]
        most = f", the {MOST_ROWS} of {len(rows)} that changed most" if len(rows) > MOST_ROWS else ""
        total = (
            "all",
            *(f"{sum(row.launches[side] for row in rows):,}" for side in (0, 1)),
            *(fixed_text(sum(getattr(row.time, name) for row in rows)) for name in ("a_ns", "b_ns")),
        )
        below = (TableLine((*total, "", "", ""), "bold"),) if rows else ()
        shown = [row for row in rows if row in shown]
        return Table("modules", rows, columns, f"Modules{most}", tuple(shown), (), below)

    @property
    def figures(self) -> Table[Change]:
        """The changed figures of other sections."""
        columns = (
            TableColumn[Change]("name", "the figure").words("figure"),
            TableColumn[Change]("a", "its average in A", lambda row: row.a_ns).number("A", "{:,.6g}".format),
            TableColumn[Change]("b", "its average in B", lambda row: row.b_ns).number("B", "{:,.6g}".format),
            number("change", lambda row: row.share_text),
        )
        return Table("figures", self.comparison.figures, columns, "Other figures  (averages over points)")

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench compare --json`` prints."""
        document = asdict(self.comparison)
        document["pairs"] = [pair | {"where": dict(pair["where"])} for pair in document["pairs"]]
        return plain_document({"verdict": list(self.sentences), "a": self.a.name, "b": self.b.name, **document})

    def __repr__(self) -> str:
        sentences = self.sentences
        more = [f"… {len(sentences) - MOST_LINES} more"] if len(sentences) > MOST_LINES else []
        return "\n".join(line[:LINE] for line in (*sentences[:MOST_LINES], *more))

    def _repr_html_(self) -> str:
        tables = (table for table in (self.pairs, self.stages, self.differing) if len(table))
        return text_html(repr(self), *(table.to_html() for table in tables))


_CHANGES: tuple[TableColumn[Change], ...] = (
    TableColumn[Change]("name", "the stage").words("stage"),
    TableColumn[Change]("a_ns", "time of A").number("A ns", fixed_text),
    TableColumn[Change]("b_ns", "time of B").number("B ns", fixed_text),
    TableColumn[Change]("ns", "the change").number("change ns", "{:+,.3f}".format),
    TableColumn("share", "the change, as a share of A"),
    number("change", lambda row: row.share_text),
)
_INDENT = "  "


def _list_changes(moves: Iterable[Move]) -> Iterator[Change]:
    for move in moves:
        yield move.change
        for part in move.stages if len(move.stages) > 1 else move.stages[0].parts:
            if part.ns:
                yield replace(part, name=f"{_INDENT}{part.name}")


def _is_part(row: Change) -> bool:
    return row.name.startswith(_INDENT)


def _style(row: Change) -> str:
    return "dim" if _is_part(row) else ""


def _read_launch(name: str) -> Callable[[Pair], str]:
    return lambda pair: fixed_text(getattr(pair.launch, name))


def _value_at(at: int, pair: Pair) -> str:
    return str(pair.where[at][1])


def _say_where(pair: Pair) -> str:
    return ", ".join(f"{path}={content}" for path, content in pair.where)


def _say_columns(pair: Pair) -> str:
    return "; ".join(map(str, pair.columns))


def _say_bounds(pair: Pair) -> str:
    return " → ".join(dict.fromkeys(pair.bounds))


def _say_covers(row: ModuleChange) -> str:
    """Return the modules that are fused into a module, relative to it."""
    names = [name.removeprefix(f"{row.name}.") for name in row.covers]
    more = f" and {len(names) - MOST_COVERED} more" if len(names) > MOST_COVERED else ""
    return ", ".join(names[:MOST_COVERED]) + more


def compare(a: Comparable, b: Comparable) -> SideBySide:
    """Compare two results: runs, sweeps, or files that commands wrote.

    Raises InputError for an input that is no result, for a failed run, and if the results have no points in common.
    """
    one, other = _file_of(a, "a"), _file_of(b, "b")
    return SideBySide(one, other, compare_results(one, other))


def _file_of(results: Comparable, name: str) -> ResultFile:
    if isinstance(results, Run):
        return take_run(results.bench, results.outcome)
    if isinstance(results, Sweep):
        return take_table(results.name, results.results)
    if isinstance(results, str | os.PathLike):
        return read_compared(os.fspath(results))
    raise InputError(f"{name}: found {show(results)}, must be a run, a sweep, or the file of one")
