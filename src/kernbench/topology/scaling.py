"""Make the rates of some entries of a machine's file faster, and its latencies shorter, by a factor.

What a number is, its key says: one in ``_gbs`` or ``_per_ns`` is a rate, one in ``_ns`` a latency, and all others are
counts, sizes or shares, which nothing scales. So the attributes of users' parts follow, too.
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
    """A number of the file at ``path``, in ``unit``, as it is there and ``factor`` times as fast."""

    path: Path
    unit: str
    given: float
    scaled: float


def scale_number(unit: str, number: float, factor: float) -> float:
    """Return a rate times ``factor``, a latency divided by it."""
    return number * factor if unit in RATES else number / factor


def list_paced_entries(spec: BaseModel, places: Iterable[str], factor: float) -> Iterator[ScaledEntry]:
    """Yield every rate and latency at some places of a machine, each once, in their order."""
    seen: set[Path] = set()
    found: list[ScaledEntry] = []

    def note(path: Path, unit: str, given: float) -> float:
        if path not in seen:
            seen.add(path)
            found.append(ScaledEntry(path, unit, given, scale_number(unit, given, factor)))
        return given

    for path, entry in _entries(spec, places):
        _map_units(entry, path, _unit_of(path[-1]), note)
    return iter(found)


def scale_machine(spec: M, places: Iterable[str], factor: float) -> M:
    """Return a machine whose rates and latencies at some places are ``factor`` times as fast."""

    def scale(_: Path, unit: str, number: float) -> float:
        return scale_number(unit, number, factor)

    return replace_entries(
        spec, {path: _map_units(entry, path, _unit_of(path[-1]), scale) for path, entry in _entries(spec, places)}
    )


def replace_entries(model: M, updates: Mapping[Path, Any]) -> M:
    """Return ``model`` with other entries at some paths."""
    own: dict[str, Any] = {}
    for path, entry in updates.items():
        name = str(path[0])
        part = own.get(name, dict(model)[name])
        if len(path) == 1:
            own[name] = entry
        elif isinstance(part, BaseModel):
            own[name] = replace_entries(part, {path[1:]: entry})
        else:
            inner = entry if len(path) == 2 else replace_entries(part[path[1]], {path[2:]: entry})
            own[name] = {**part, path[1]: inner}
    return model.model_copy(update=own)


def _entries(spec: BaseModel, places: Iterable[str]) -> Iterator[tuple[Path, Any]]:
    """Yield the entries at some places, with their paths; those that the machine leaves out are passed over."""
    for place in places:
        path = path_of(place)
        entry: Any = spec
        for name in path:
            entry = dict(entry).get(name) if isinstance(entry, BaseModel | Mapping) else None
        if entry is not None:
            yield path, entry


def _map_units(entry: Any, path: Path, unit: str, change: Callable[[Path, str, float], float]) -> Any:
    """Return an entry with each of its rates and latencies as ``change(path, unit, number)`` makes it.

    ``unit``: that of the key that the entry stands at. What lies in a list or mapping at a key has the key's unit.
    """
    match entry:
        case BaseModel():
            found = {name: _map_units(each, (*path, name), _unit_of(name), change) for name, each in entry}
            return entry.model_copy(update=found)
        case Mapping():
            return {
                name: _map_units(each, (*path, name), _unit_of(name) or unit, change) for name, each in entry.items()
            }
        case tuple() | list():
            return type(entry)(_map_units(each, (*path, at), unit, change) for at, each in enumerate(entry))
        case bool():
            return entry
        case int() | float() if unit:
            return change(path, unit, entry)
        case _:
            return entry


def _unit_of(key: object) -> str:
    """Return the unit that a key ends in; empty for a count, a size, a share."""
    return next((unit for unit in (*RATES, *_LATENCIES) if str(key).endswith(unit)), "")
