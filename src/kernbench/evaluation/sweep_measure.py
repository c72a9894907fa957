"""Columns of a sweep: those of the sections of a run, and the changes of each point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from kernbench.evaluation.sweep_spec import LARGEST
from kernbench.result.columns import CellRow
from kernbench.result.run_sections import BUILT_IN
from kernbench.result.sections import Section, sections

PointRow = CellRow
STATUSES = OK, FAILED, INVALID, LOST = "ok", "failed", "invalid", "lost"
"""Status of a point: success, failed run, invalid machine or parameters, dead worker"""
_LAST = {"traffic.host_utilisation": float, "machine": str, "changed": str, "params": str}
"""Columns after those of all built-in sections"""


def list_columns() -> Mapping[str, type]:
    """Return all columns except the axes of a grid, in order, with the type of their values."""
    return _merge_columns(sections())


@cache
def _merge_columns(kinds: tuple[Section[Any], ...]) -> Mapping[str, type]:
    built_in = {name: kind for name, kind in _columns_of(BUILT_IN).items() if name not in _LAST}
    return {**built_in, **_LAST, **_columns_of(section for section in kinds if section not in BUILT_IN)}


def _columns_of(kinds: Iterable[Section[Any]]) -> dict[str, type]:
    return {name: column.kind for section in kinds for name, column in section.all_columns.items()}


def is_whole(value: object) -> bool:
    """Return True for a whole number of 64 bits, and False for booleans."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST


def fits(cell: object, kind: type) -> bool:
    """Return True if a cell fits a column of type ``kind`` in ``list_columns``; None fits everywhere."""
    if kind is float:
        return cell is None or isinstance(cell, float) or is_whole(cell)
    return cell is None or (is_whole(cell) if kind is int else isinstance(cell, kind))


def flat_configuration(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested configuration by path: ``{"cube.hbm.slices": 8}``. Lists are not split."""
    flat: dict[str, Any] = {}
    for key, value in configuration.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{path}": each for path, each in flat_configuration(value).items()}
        else:
            flat[key] = value
    return flat
