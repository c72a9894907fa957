"""The clocks of a machine: factors on the rates, and divisors of the latencies, of the parts that they drive.

They are applied once, between the file and the graph: every other pass, and every closed form, sees a machine at its
clocks. What a number is, its key says: one in ``_ns`` is a latency, one in ``_gbs`` or ``_per_ns`` a rate, and all
others are counts, sizes or shares, which no clock changes. So the attributes of users' parts follow, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from kernbench.common.config import LEAST_RATE, Complaint, ConfigModel, Factor, Path, path_of
from kernbench.common.values import value
from kernbench.common.yaml_document import path_text

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
    """Factor on the rates, and divisor of the latencies, of all that a PE has."""
    noc: Factor = 1.0
    """The same of the network of a cube, its xbars, management CPU and SRAM."""
    io: Factor = 1.0
    """The same of the IO chiplet."""

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
    """A number of the file at ``path``, in ``unit``, as it is there and as ``clock`` makes it."""

    path: Path
    clock: str
    unit: str
    given: float
    clocked: float


def apply_clocks(spec: M, clocks: ClocksSpec) -> M:
    """Return a machine with what each clock drives at that clock, and with no clocks: all of them are 1."""
    if not clocks.changed:
        return spec
    updates: dict[Path, Any] = {("clocks",): ClocksSpec()}
    for name, factor in clocks.changed.items():
        for path, entry in _driven_by(name, spec):
            updates[path] = _map_units(entry, path, "", partial(_clock, factor))
    return _replace_entries(spec, updates)


def list_clocked_entries(spec: BaseModel, clocks: ClocksSpec) -> list[ClockedEntry]:
    """Return every rate and latency of a machine that a clock other than 1 drives, in the order of the file."""
    found: list[ClockedEntry] = []
    for name, factor in clocks.changed.items():

        def note(path: Path, unit: str, given: float, name: str = name, factor: float = factor) -> float:
            found.append(ClockedEntry(path, name, unit, given, _clock(factor, path, unit, given)))
            return given

        for path, entry in _driven_by(name, spec):
            _map_units(entry, path, "", note)
    return found


def check_clocks(spec: BaseModel, clocks: ClocksSpec) -> Iterator[Complaint]:
    """Complain about a clock that makes a rate or a latency larger or smaller than the file could say it."""
    for entry in list_clocked_entries(spec, clocks):
        least, most = (LEAST_RATE, MOST_RATE) if entry.unit in RATES else (0.0, MOST_NS)
        if not least <= entry.clocked <= most:
            what = f"{path_text(entry.path)} would be {entry.clocked:g}, which must be {least:g} to {most:g}"
            yield Complaint(("clocks", entry.clock), f"found {clocks.changed[entry.clock]:g}: {what}")
            return


def _driven_by(clock: str, spec: BaseModel) -> Iterator[tuple[Path, Any]]:
    """Yield the entries that a clock drives, with their paths."""
    for place in DRIVEN[clock]:
        path = path_of(place)
        entry: Any = spec
        for name in path:
            entry = dict(entry)[name]
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


def _unit_of(name: object) -> str:
    """Return the unit that a key ends in; empty for a count, a size, a share."""
    return next((unit for unit in (*RATES, LATENCY) if str(name).endswith(unit)), "")


def _clock(factor: float, path: Path, unit: str, number: float) -> float:  # noqa: ARG001 - as ``_map_units`` calls it
    return number * factor if unit in RATES else number / factor


def _replace_entries(model: M, updates: Mapping[Path, Any]) -> M:
    """Return ``model`` with other entries at some paths."""
    own: dict[str, Any] = {}
    for path, entry in updates.items():
        name = str(path[0])
        part = own.get(name, dict(model)[name])
        own[name] = entry if len(path) == 1 else _replace_entries(part, {path[1:]: entry})
    return model.model_copy(update=own)
