"""The clocks of a machine: factors on the rates, and divisors of the latencies, of the parts that they drive.

They are applied once, between the file and the graph: every other pass, and every closed form, sees a machine at its
clocks. What a number is, its key says: one in ``_ns`` is a latency, one in ``_gbs`` or ``_per_ns`` a rate, and all
others are counts, sizes or shares, which no clock changes. So the attributes of users' parts follow, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from kernbench.common.config import LEAST_RATE, Complaint, ConfigModel, Factor, Path, path_of
from kernbench.common.values import value

M = TypeVar("M", bound=BaseModel)

DRIVEN: dict[str, tuple[str, ...]] = {
    "pe": ("pe",),
    "noc": (
        "cube.noc",
        "cube.links.xbar_to_router",
        "cube.links.pe_to_xbar",
        "cube.links.router_to_ucie",
        "cube.links.router_to_sram",
        "cube.links.router_to_m_cpu",
        "cube.components.noc_router",
        "cube.components.xbar",
        "cube.components.m_cpu",
        "cube.components.sram",
        "cube.extra",
    ),
    "io": (
        "sip.links.io_internal",
        "sip.components.pcie_ep",
        "sip.components.io_cpu",
        "sip.components.io_noc",
        "sip.components.sip_port",
    ),
}
"""By clock, the entries of the file that it drives. HBM, UCIe, wires, and what is outside the SIPs have no clock."""

RATES = ("_gbs", "_per_ns")
LATENCY = "_ns"
MOST_RATE = MOST_NS = 1e12
"""Of every rate and duration in the file: they keep simulated time far from the end of the clock"""


class ClocksSpec(ConfigModel):
    """The clocks of PEs, of the NoCs of cubes, and of the parts of SIPs, relative to the figures of the file.

    A clock of 1 looks as if there were no such key.
    """

    pe: Factor = 1.0
    noc: Factor = 1.0
    io: Factor = 1.0

    @model_serializer(mode="wrap")
    def _without_ones(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: factor for name, factor in plain(self).items() if factor != 1.0}

    def __str__(self) -> str:
        return ", ".join(f"{name} {factor:g}" for name, factor in self)

    @property
    def changed(self) -> dict[str, float]:
        """The clocks that are not 1."""
        return {name: factor for name, factor in self if factor != 1.0}


@value
class ClockedEntry:
    """A number of the file at ``path``, as it is there and as ``clock`` makes it."""

    path: Path
    clock: str
    given: float
    clocked: float


def apply_clocks(spec: M, clocks: ClocksSpec) -> M:
    """Return a machine with what each clock drives at that clock, and with no clocks: all of them are 1."""
    updates: dict[Path, Any] = {("clocks",): ClocksSpec()}
    for name, factor in clocks.changed.items():
        for place in DRIVEN[name]:
            path = path_of(place)
            updates[path] = _clock(_entry_at(spec, path), factor, path)
    return spec if len(updates) == 1 else _replaced(spec, updates)


def clocked_entries(spec: BaseModel, clocks: ClocksSpec) -> Iterator[ClockedEntry]:
    """Yield every number of a machine that its clocks change, in the order of the file."""
    for name, factor in clocks.changed.items():
        for place in DRIVEN[name]:
            path = path_of(place)
            for at, given in _numbers(_entry_at(spec, path), path):
                yield ClockedEntry(at, name, given, _clocked(given, at, factor))


def check_clocks(spec: BaseModel, clocks: ClocksSpec) -> Iterator[Complaint]:
    """Complain about clocks that make a rate or a latency larger or smaller than the file could say it."""
    for entry in clocked_entries(spec, clocks):
        least, most = (0.0, MOST_NS) if _is_latency(entry.path) else (LEAST_RATE, MOST_RATE)
        if not least <= entry.clocked <= most:
            what = ".".join(map(str, entry.path))
            limit = f"must be {least:g} to {most:g}"
            message = f"found {clocks.changed[entry.clock]:g}: {what} would be {entry.clocked:g}, which {limit}"
            yield Complaint(("clocks", entry.clock), message)
            return


def _entry_at(spec: BaseModel, path: Path) -> Any:
    entry: Any = spec
    for name in path:
        entry = dict(entry)[name]
    return entry


def _replaced(model: M, updates: Mapping[Path, Any]) -> M:
    """Return ``model`` with other entries at some paths."""
    own: dict[str, Any] = {}
    for path, entry in updates.items():
        name = str(path[0])
        if len(path) == 1:
            own[name] = entry
        else:
            own[name] = _replaced(own.get(name, dict(model)[name]), {path[1:]: entry})
    return model.model_copy(update=own)


def _clock(entry: Any, factor: float, path: Path) -> Any:
    """Return an entry with all its rates and latencies at a clock."""
    match entry:
        case BaseModel():
            return entry.model_copy(update={name: _clock(each, factor, (*path, name)) for name, each in entry})
        case Mapping():
            return {name: _clock(each, factor, (*path, name)) for name, each in entry.items()}
        case tuple() | list():
            return type(entry)(_clock(each, factor, path) for each in entry)
        case _:
            return _clocked(entry, path, factor) if _is_clocked(entry, path) else entry


def _numbers(entry: Any, path: Path) -> Iterator[tuple[Path, float]]:
    """Yield the rates and latencies of an entry, with their paths."""
    match entry:
        case BaseModel():
            for name, each in entry:
                yield from _numbers(each, (*path, name))
        case Mapping():
            for name, each in entry.items():
                yield from _numbers(each, (*path, name))
        case tuple() | list():
            for index, each in enumerate(entry):
                yield from _numbers(each, (*path, index))
        case _:
            if _is_clocked(entry, path):
                yield path, entry


def _is_clocked(entry: Any, path: Path) -> bool:
    is_number = isinstance(entry, int | float) and not isinstance(entry, bool)
    return is_number and (_is_latency(path) or _is_rate(path))


def _is_rate(path: Path) -> bool:
    """Return True when the key nearest to the number that names a unit is a rate: entries of it are rates, too."""
    return _unit_key(path).endswith(RATES)


def _is_latency(path: Path) -> bool:
    key = _unit_key(path)
    return key.endswith(LATENCY) and not key.endswith(RATES)


def _unit_key(path: Path) -> str:
    names = (str(name) for name in reversed(path))
    return next((name for name in names if name.endswith((*RATES, LATENCY))), "")


def _clocked(number: float, path: Path, factor: float) -> float:
    return number * factor if _is_rate(path) else number / factor
