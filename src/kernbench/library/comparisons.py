"""Comparison of two results: runs, sweeps, or files of either."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any, TypeAlias

from kernbench.common.complaints import show
from kernbench.common.errors import InputError
from kernbench.common.files import plain_document
from kernbench.common.values import value
from kernbench.evaluation.compare_inputs import ResultFile, read_compared, take_run, take_table
from kernbench.evaluation.compare_machines import Differing, values_text
from kernbench.evaluation.compare_results import Change, Pair, ResultComparison, compare_results, verdict
from kernbench.library.runs import Run
from kernbench.library.sweeps import Sweep
from kernbench.library.tables import LINE, Table, make_table, text_html

Comparable: TypeAlias = "Run | Sweep | str | os.PathLike[str]"
"""A run, a sweep, or a path. A path names the JSON of a run, or the folder, the Parquet file or a point of a sweep."""
MOST_LINES = 8


@value(repr=False, eq=False)
class SideBySide:
    """Two compared results: the differences of their inputs, and the changes of their times with causes."""

    a: ResultFile
    b: ResultFile
    found: ResultComparison

    @property
    def sentences(self) -> tuple[str, ...]:
        """The changes and their causes, in sentences."""
        return verdict(self.found)

    @property
    def verdict(self) -> str:
        """A sentence about the main change."""
        return self.sentences[0]

    @property
    def pairs(self) -> Table[Pair]:
        """The pairs of results at the same points."""
        return make_table("pairs", self.found.pairs, _PAIRS)

    @property
    def stages(self) -> Table[Change]:
        """The stages of the critical path, the largest change first; empty if one side has no critical path."""
        return make_table("stages", self.found.stages, _CHANGES)

    @property
    def differing(self) -> Table[Differing]:
        """The parameters that differ."""
        return make_table("differing parameters", self.found.differing, _DIFFERING)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench compare --json`` prints."""
        document = asdict(self.found)
        document["pairs"] = [pair | {"where": dict(pair["where"])} for pair in document["pairs"]]
        return plain_document({"verdict": list(self.sentences), "a": self.a.name, "b": self.b.name, **document})

    def __repr__(self) -> str:
        sentences = self.sentences
        more = [f"… {len(sentences) - MOST_LINES} more"] if len(sentences) > MOST_LINES else []
        return "\n".join(line[:LINE] for line in (*sentences[:MOST_LINES], *more))

    def _repr_html_(self) -> str:
        tables = (each for each in (self.pairs, self.stages, self.differing) if len(each))
        return text_html(repr(self), *(each.to_html() for each in tables))


_PAIRS: dict[str, Any] = {
    "where": ("the values of the axes", lambda row: ", ".join(f"{path}={each}" for path, each in row.where)),
    "a_ns": ("time of A", lambda row: row.time.a_ns),
    "b_ns": ("time of B", lambda row: row.time.b_ns),
    "share": ("the change, as a share of A", lambda row: row.time.share),
    "columns": ("the derived columns, from A to B", lambda row: "; ".join(map(str, row.columns))),
    "bound": ("the bottleneck of the launch, on both sides", lambda row: " → ".join(dict.fromkeys(row.bounds))),
}
_CHANGES: dict[str, Any] = {
    "name": "the stage",
    "a_ns": "time of A",
    "b_ns": "time of B",
    "ns": "the change",
    "share": "the change, as a share of A",
}
_DIFFERING: dict[str, Any] = {
    "path": "the parameter",
    "a": ("its values in A", lambda row: values_text(row.a)),
    "b": ("its values in B", lambda row: values_text(row.b)),
}


def compare(a: Comparable, b: Comparable) -> SideBySide:
    """Compare two results: runs, sweeps, or files that commands wrote.

    Raises InputError for an input that is no result, for a failed run, and if the results have no points in common.
    """
    one, other = _file_of(a, "a"), _file_of(b, "b")
    return SideBySide(one, other, compare_results(one, other))


def _file_of(given: Comparable, name: str) -> ResultFile:
    if isinstance(given, Run):
        return take_run(given.bench, given.to_dict())
    if isinstance(given, Sweep):
        return take_table(given.name, given.results)
    if isinstance(given, str | os.PathLike):
        return read_compared(os.fspath(given))
    raise InputError(f"{name}: found {show(given)}, must be a run, a sweep, or the file of one")
