"""Scaling by a factor: the rates and latencies at some entries of a machine's file.

The key defines the quantity: ``_gbs`` and ``_per_ns`` are rates, ``_ns`` and ``ns_per_mm`` are latencies. All other
numbers are counts, sizes or shares and never scale. The rule therefore also covers the attributes of users' components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from kernbench.common.config import Path, path_of
from kernbench.common.values import value

M = TypeVar("M", bound=BaseModel)

RATES = ("_gbs", "_per_ns")
LATENCY = "_ns"
_LATENCIES = (LATENCY, "ns_per_mm")


@value
class ScaledEntry:
    """The number at ``path`` in the file: its unit, its configured value, and its scaled value."""

    path: Path
    unit: str
    configured: float
    scaled: float


def scale_number(unit: str, number: float, factor: float) -> float:
    """Return a rate multiplied by ``factor``, or a latency divided by it."""
    return number * factor if unit in RATES else number / factor


def list_paced_entries(spec: BaseModel, places: Iterable[str], factor: float) -> Iterator[ScaledEntry]:
    """Yield every rate and latency at some places of a machine, without duplicates, in order."""
    visited: set[Path] = set()
    entries: list[ScaledEntry] = []

    def note(path: Path, unit: str, number: float) -> float:
        if path not in visited:
            visited.add(path)
            entries.append(ScaledEntry(path, unit, number, scale_number(unit, number, factor)))
        return number

    for path, entry in _entries(spec, places):
        _map_units(entry, path, _unit_of(path[-1]), note)
    return iter(entries)


def scale_machine(spec: M, places: Iterable[str], factor: float) -> M:
    """Return a machine whose rates and latencies at some places are ``factor`` times as fast."""

    def scale(_: Path, unit: str, number: float) -> float:
        return scale_number(unit, number, factor)

    return replace_entries(
        spec, {path: _map_units(entry, path, _unit_of(path[-1]), scale) for path, entry in _entries(spec, places)}
    )


def replace_entries(model: M, updates: Mapping[Path, Any]) -> M:
    """Return ``model`` with the entries at some paths replaced."""
    updated: dict[str, Any] = {}
    for path, entry in updates.items():
        name = str(path[0])
        part = updated.get(name, dict(model)[name])
        if len(path) == 1:
            updated[name] = entry
        elif isinstance(part, BaseModel):
            updated[name] = replace_entries(part, {path[1:]: entry})
        else:
            inner = entry if len(path) == 2 else replace_entries(part[path[1]], {path[2:]: entry})
            updated[name] = {**part, path[1]: inner}
    return model.model_copy(update=updated)


def _entries(spec: BaseModel, places: Iterable[str]) -> Iterator[tuple[Path, Any]]:
    """Yield the entries at some places, with their paths; skip entries that the machine omits."""
    for place in places:
        path = path_of(place)
        entry: Any = spec
        for name in path:
            entry = dict(entry).get(name) if isinstance(entry, BaseModel | Mapping) else None
        if entry is not None:
            yield path, entry


def _map_units(entry: Any, path: Path, unit: str, change: Callable[[Path, str, float], float]) -> Any:
    """Return an entry with each rate and latency replaced by ``change(path, unit, number)``.

    ``unit`` is the unit of the entry's key. Numbers in a list or mapping have the unit of its key.
    """
    match entry:
        case BaseModel():
            updated = {name: _map_units(inner, (*path, name), _unit_of(name), change) for name, inner in entry}
            return entry.model_copy(update=updated)
        case Mapping():
            return {
                name: _map_units(inner, (*path, name), _unit_of(name) or unit, change) for name, inner in entry.items()
            }
        case tuple() | list():
            return type(entry)(_map_units(inner, (*path, at), unit, change) for at, inner in enumerate(entry))
        case bool():
            return entry
        case int() | float() if unit:
            return change(path, unit, entry)
        case _:
            return entry


def _unit_of(key: object) -> str:
    """Return the unit at the end of a key; empty for a count, a size or a share."""
    return next((unit for unit in (*RATES, *_LATENCIES) if str(key).endswith(unit)), "")
