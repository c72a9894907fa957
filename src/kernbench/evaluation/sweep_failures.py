"""Which points of a sweep failed, by what went wrong: one mistake often takes many points with it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernbench.evaluation.sweep_measure import OK, Row


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The rows of all points that ended in the same way, in the order of the grid."""

    status: str
    error: str
    rows: tuple[Row, ...]


def failure_groups(rows: Iterable[Row]) -> tuple[FailureGroup, ...]:
    """The failures among ``rows``, those of most points first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["status"] != OK:
            found.setdefault((str(row["status"]), str(row.get("error") or "")), []).append(row)
    groups = (FailureGroup(status, error, tuple(own)) for (status, error), own in found.items())
    return tuple(sorted(groups, key=lambda group: -len(group.rows)))
