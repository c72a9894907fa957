"""The dynamic energy of an observed run by event: each transfer, grant of a memory, tile and command has its energy.

An event belongs to a row of the log, so the energy can be divided by launch. It has an interval, so the energy can be
divided by time. The sum over events, with the energy that no event has, is the dynamic energy of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log10
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.components.hbm_ctrl import HBM_READ, HBM_ROWS, HBM_WRITTEN
from kernbench.components.pe_math import name_elements
from kernbench.components.pe_tcm import TCM_BYTES
from kernbench.components.sram import SRAM_BYTES
from kernbench.core.log import Kind
from kernbench.core.observed import Carries
from kernbench.engine.machine import CONTROL_MESSAGES
from kernbench.engine.recorder import MathSize, TileAmounts, size_of
from kernbench.engine.requests import RequestHandle
from kernbench.messages.commands import MATH, Command
from kernbench.observe.energy import PASSED_KINDS, EnergyCounts, EnergySplit, LaunchEnergy, die_of
from kernbench.observe.trace_log import LogView
from kernbench.topology.area import DieId
from kernbench.transport import Route

EventNumbers: TypeAlias = NDArray[np.int64]
Energies: TypeAlias = NDArray[np.float64]
_PJ_PER_W_NS = 1e3
WINDOWS = 100
"""The least number of windows of a run that is long enough"""
_DATA = (Carries.REPLY, Carries.WRITE, Carries.MESSAGE)
"""Transfers whose bytes the memories at their ends read or write"""
_COPIES = (Kind.MEMORY_WRITE, Kind.MEMORY_READ)
_STAGES = (Kind.FETCH, Kind.GEMM, Kind.MATH, Kind.STORE)


class EnergyEvents(NamedTuple):
    """Events as columns: the row of each in the log (NONE: no row), the number of its part, interval in ps, and pJ."""

    row: EventNumbers
    part: EventNumbers
    start: EventNumbers
    end: EventNumbers
    pj: Energies

    @property
    def sum_pj(self) -> float:
        """The energy of all events."""
        return float(self.pj.sum())


def list_events(counts: EnergyCounts, view: LogView) -> EnergyEvents:
    """Return the events of a run."""
    groups = [_commands(counts, view), *_tiles(counts, view), _math(counts, view), *_transfers(counts, view)]
    groups.append(_turns(counts, view))
    return EnergyEvents(*(np.concatenate(columns) for columns in zip(*groups, strict=True)))


def _of_rows(view: LogView, rows: EventNumbers, pj: Energies) -> EnergyEvents:
    """Return events that last as long as their rows."""
    columns = view.columns
    ends = np.maximum(columns.end[rows], columns.start[rows])
    return EnergyEvents(rows, columns.part[rows], columns.start[rows], ends, pj)


def _commands(counts: EnergyCounts, view: LogView) -> EnergyEvents:
    """Return the issues of commands and tiles, and the descriptors."""
    prices = np.zeros(len(Kind))
    for kind in Kind:
        priced = counts.prices.row(kind)
        prices[kind] = 0.0 if priced is None else priced[1].pj
    pj = prices[view.columns.kind]
    rows = np.flatnonzero(pj)
    return _of_rows(view, rows, pj[rows])


def _tiles(counts: EnergyCounts, view: LogView) -> Iterator[EnergyEvents]:
    """Yield the work of tiles by stage: fetch, products, MATH and store."""
    columns, works, whats = view.columns, view.works, view.log.whats
    energies = {kind: np.zeros(len(whats)) for kind in _STAGES}
    for what in np.unique(columns.what[columns.kind == Kind.TILE_ISSUE]).tolist():
        amounts = whats[what]
        assert isinstance(amounts, TileAmounts)
        for kind, pj in _stage_energies(counts, amounts).items():
            energies[kind][what] = pj
    for kind, of_what in energies.items():
        staged = (columns.kind[works.rows] == kind) & (columns.tile[works.rows] >= 0)
        yield _of_rows(view, works.rows[staged], of_what[works.about[staged]])


def _stage_energies(counts: EnergyCounts, tile: TileAmounts) -> dict[Kind, float]:
    """Return the energy of a tile in each of its stages."""
    tcm_pj = counts.prices.of_count[TCM_BYTES].pj
    element = tile.element
    math = ((size.elements, counts.prices.element(size.name, size.dtype).pj) for size in tile.math)
    return {
        Kind.FETCH: tile.fetch_bytes * tcm_pj,
        Kind.GEMM: 0.0 if element is None else tile.macs * counts.prices.mac(element.name).pj,
        Kind.MATH: sum(elements * pj for elements, pj in math),
        Kind.STORE: tile.store_bytes * tcm_pj,
    }


def _math(counts: EnergyCounts, view: LogView) -> EnergyEvents:
    """Return the single MATH commands."""
    columns, whats, prices = view.columns, view.log.whats, counts.prices
    rows = np.flatnonzero((columns.kind == Kind.MATH) & (columns.tile < 0))
    energies: dict[MathSize, float] = {}
    pj = np.zeros(len(rows))
    for at, what in enumerate(columns.what[rows].tolist()):
        subject = whats[what]
        size = size_of(subject) if isinstance(subject, Command) and subject.op is MATH else subject
        if isinstance(size, MathSize):
            if size not in energies:
                elements = prices.count(name_elements(size.name, size.dtype))
                element_pj = 0.0 if elements is None else elements.pj
                energies[size] = size.elements * element_pj + size.tcm_bytes * prices.of_count[TCM_BYTES].pj
            pj[at] = energies[size]
    return _of_rows(view, rows, pj)


def _transfers(counts: EnergyCounts, view: LogView) -> Iterator[EnergyEvents]:
    """Yield the bytes over links and routers, those in SRAM and TCM at the ends, and the control messages."""
    transfers, prices = view.transfers, counts.prices
    routes = view.machine.network.watch.routes
    per_byte = np.array([_route_pj(counts, route) for route in routes] or [0.0])
    pj = transfers.nbytes * per_byte[transfers.route]
    kinds = [view.machine.graph.node(name).kind for name in view.columns.parts]
    sram_pj, tcm_pj = (prices.of_count[name].pj for name in (SRAM_BYTES, TCM_BYTES))
    of_end = np.array([tcm_pj if kind == "pe_dma" else sram_pj if kind == "sram" else 0.0 for kind in kinds] or [0.0])
    data = np.isin(transfers.what, _DATA)
    pj = pj + data * transfers.nbytes * (of_end[transfers.src] + of_end[transfers.dst])
    pj = pj + (transfers.what == Carries.CONTROL) * prices.of_count[CONTROL_MESSAGES].pj
    ends = np.where(transfers.end < 0, transfers.start, transfers.end)
    yield EnergyEvents(transfers.of, transfers.dst, transfers.start, ends, pj)


def _route_pj(counts: EnergyCounts, route: Route) -> float:
    """Return the energy of a byte along a route."""
    graph, prices, total = counts.machine.graph, counts.prices, 0.0
    for link in route.links:
        edge = graph.edge(link.src, link.dst)
        total += prices.link(edge.link_class, edge.length_mm)[1].pj
        kind = graph.nodes[link.dst].kind
        total += prices.passing(kind).pj if kind in PASSED_KINDS and link.dst not in counts.ledger.stating else 0.0
    return total


def _turns(counts: EnergyCounts, view: LogView) -> EnergyEvents:
    """Return the bursts and rows of slices, by grant. Without banks, grants share the bytes of their slices."""
    turns, transfers, prices = view.turns, view.transfers, counts.prices.of_count
    reading = transfers.what[turns.of] == Carries.REQUEST
    byte_pj = np.where(reading, prices[HBM_READ].pj, prices[HBM_WRITTEN].pj)
    banks = view.machine.spec.cube.hbm.banks
    if banks is not None:
        pj = turns.bursts * banks.burst_bytes * byte_pj + (turns.bursts - turns.hits) * prices[HBM_ROWS].pj
    else:
        pj = _ideal_turns_pj(counts, view, byte_pj)
    return EnergyEvents(transfers.of[turns.of], turns.memory, turns.start, turns.end, pj)


def _ideal_turns_pj(counts: EnergyCounts, view: LogView, byte_pj: Energies) -> Energies:
    """Return the energy of the grants of slices without banks, in proportion to their time."""
    turns, parts = view.turns, view.columns.parts
    is_slice = np.array([view.machine.graph.node(name).kind == "hbm_ctrl" for name in parts] or [False])
    weights = np.where(is_slice[turns.memory], (turns.end - turns.start) * byte_pj, 0.0)
    total = sum(pj for (place, _), (_, pj) in counts.ledger.works.items() if place == "hbm_ctrl")
    return weights * (total / weights.sum() if weights.any() else 0.0)


@value
class PowerCurve:
    """The dynamic power of a run in W, in windows of ``window_ns``, by die; None stands for host and switch.

    ``unplaced_pj``: the dynamic energy without an interval, such as that of writes that HBM holds back.
    """

    window_ns: float
    watts: Mapping[DieId | None, Energies]
    unplaced_pj: float

    @property
    def total(self) -> Energies:
        """The power of all dies in each window."""
        total: Energies = np.sum(list(self.watts.values()), axis=0)
        return total

    @property
    def pj(self) -> float:
        """The energy of all windows, and that without an interval."""
        return float(self.total.sum()) * self.window_ns * _PJ_PER_W_NS + self.unplaced_pj


def choose_window_ns(view: LogView) -> float:
    """Return the duration of a window in ns, a round number of which about 100 to 1,000 fit into the run."""
    return float(max(1.0, 10.0 ** int(log10(max(1.0, ps_to_ns(view.machine.clock.time) / WINDOWS)))))


def measure_power(counts: EnergyCounts, view: LogView, window_ns: float) -> PowerCurve:
    """Return the dynamic power of an observed run over time: each event spreads its energy over its interval."""
    return _measure_power(list_events(counts, view), counts, view, window_ns)


def _measure_power(events: EnergyEvents, counts: EnergyCounts, view: LogView, window_ns: float) -> PowerCurve:
    window, nodes = ns_to_ps(window_ns), view.machine.graph.nodes
    windows = int(max(events.end.max(initial=0), view.machine.clock.time) // window) + 1
    dies = [die_of(nodes[name]) for name in view.columns.parts]
    numbers = {die: number for number, die in enumerate(dict.fromkeys(dies))}
    die = np.array([numbers[die] for die in dies] or [0])[events.part]
    watts = {
        where: spread_energy(EnergyEvents(*(column[die == number] for column in events)), window, windows)
        / (window_ns * _PJ_PER_W_NS)
        for where, number in numbers.items()
    }
    return PowerCurve(window_ns, watts, counts.ledger.pj - events.sum_pj)


def spread_energy(events: EnergyEvents, window: int, windows: int) -> Energies:
    """Return the energy in each of ``windows`` windows of ``window`` ps. An event spreads evenly over its interval."""
    energies, changes = np.zeros(windows), np.zeros(windows + 1)
    start, end = events.start, np.maximum(events.end, events.start + 1)
    first, last = start // window, (end - 1) // window
    rate = events.pj / (end - start)
    within = first == last
    np.add.at(energies, first[within], events.pj[within])
    across = ~within
    first, last, start, end, rate = (column[across] for column in (first, last, start, end, rate))
    np.add.at(energies, first, rate * ((first + 1) * window - start))
    np.add.at(energies, last, rate * (end - last * window))
    np.add.at(changes, first + 1, rate * window)
    np.add.at(changes, last, -rate * window)
    spread: Energies = energies + np.cumsum(changes)[:-1]
    return spread


def split_by_launch(counts: EnergyCounts, view: LogView, handles: Sequence[RequestHandle]) -> EnergySplit:
    """Divide the dynamic energy of an observed run: launches by name, copies, and everything else."""
    columns, kernels, events = view.columns, view.log.kernels, list_events(counts, view)
    by_row = np.zeros(len(columns.kind))
    rows = events.row >= 0
    np.add.at(by_row, events.row[rows], events.pj[rows])
    copies_pj = float(by_row[np.isin(columns.kind, _COPIES)].sum())
    titles = {handle.request_id: handle.msg.title for handle in handles}
    energies: dict[str, list[float]] = {}
    launched, numbers = np.unique(columns.launch, return_inverse=True)
    by_launch = dict(zip(launched.tolist(), np.bincount(numbers, by_row).tolist(), strict=True))
    passed = view.machine.passed
    for launch in by_launch:
        sample = passed.sample_of(launch)
        if sample in kernels:
            entry = energies.setdefault(titles.get(launch) or kernels[sample], [0, 0.0])
            more = passed.extended[launch].more if launch in passed.extended else 0.0
            entry[0] += 1
            entry[1] += by_launch[sample] * (1 + more)
    launches = sorted(energies.items(), key=lambda entry: -entry[1][1])
    launches_pj = sum(pj for _, (_, pj) in launches)
    curve = _measure_power(events, counts, view, choose_window_ns(view))
    return EnergySplit(
        launches_pj=launches_pj,
        copies_pj=copies_pj,
        rest_pj=max(0.0, counts.ledger.pj - launches_pj - copies_pj),  # of launches without rows, one is an estimate
        peak_watts=float(curve.total.max(initial=0.0)),
        window_ns=curve.window_ns,
        launches=tuple(LaunchEnergy(name, int(count), pj) for name, (count, pj) in launches),
    )
