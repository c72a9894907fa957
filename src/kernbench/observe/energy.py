"""The energy of a run, worked out from counts after the run: no simulated time depends on it.

Dynamic energy is a sum of counts times the energy of one: bytes, rows, multiply-accumulates, elements, commands and
messages. Parts count what they do (``Component.counts``), links count their bytes, and the log has a row for each
command. Static energy is the power of dies that do nothing, times the time of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from functools import cache
from itertools import chain
from typing import NamedTuple, get_args

import numpy as np

from kernbench.common.dtypes import ALL
from kernbench.common.figures import figure
from kernbench.common.operators import OPERATORS
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.components.hbm_ctrl import HBM_READ, HBM_ROWS, HBM_WRITTEN, HbmCtrl
from kernbench.components.pe_math import name_elements
from kernbench.components.pe_tcm import TCM_BYTES
from kernbench.components.sram import SRAM_BYTES
from kernbench.core.log import Columns, Kind
from kernbench.di.part import PartUse, is_builtin
from kernbench.engine.machine import CONTROL_MESSAGES, Component, Machine
from kernbench.engine.part_check import ask_energy
from kernbench.engine.passed_launches import LINK_BYTES
from kernbench.engine.recorder import TileAmounts
from kernbench.observe.works import distinct
from kernbench.topology.area import DieId, MachineArea, row_bytes_of
from kernbench.topology.energy_spec import ESTIMATES, ROW_BYTES, EnergySpec, PassedKind
from kernbench.topology.graph import Node

PASSED_KINDS = get_args(PassedKind)
"""Kinds whose energy is that of the bytes that enter them"""
DIE_LINKS, SIP_LINKS, HOST_LINKS = (
    ("cube_to_cube", "io_to_cube"),
    ("sip_to_sip",),
    ("host_to_switch", "switch_to_sip"),
)
"""Classes of links that are no wires of a die"""
BYTES, BYTE_MM, COMMANDS, TILES, DESCRIPTORS, STATED = (
    *("bytes", "byte mm", "commands", "tiles", "descriptors"),
    "stated by its class",
)
"""Names of works"""
DESCRIPTOR_KINDS = (Kind.DMA_READ, Kind.DMA_WRITE, Kind.ATOMIC, Kind.RAW, Kind.SEND)
"""Rows of the log that stand for a descriptor of a DMA"""
IDEAL_HBM = "bytes and rows of HBM with timing: ideal"
MOST_SHOWN = 3
NOT_MODELLED = (
    "voltage and frequency (clocks change times only), temperature, switching that depends on data, clock gating",
    "voltage regulators, host, PCIe switch, cooling, the logic of the DRAM",
)
WITH_LOAD = "dynamic energy includes the initialisation, which the run's time leaves out"
PJ = 1e-12


@value
class EnergyShare:
    """The dynamic energy of a kind of part or of a class of links, and its share of all dynamic energy."""

    place: str = figure("kind of part, or class of links")
    pj: float = figure("dynamic energy in pJ")
    share: float = figure("share of the dynamic energy")


@value
class EnergyWork:
    """Work of one kind at one kind of place: how much was done, and its energy in pJ."""

    place: str = figure("kind of part, or class of links")
    work: str = figure("what was done")
    count: float = figure("how often, how many bytes, or bytes times mm")
    pj: float = figure("its energy in pJ")


@value
class LaunchEnergy:
    """The dynamic energy of all launches of a name."""

    name: str = figure("as the program calls it")
    launches: int = figure("launches of this name")
    pj: float = figure("their dynamic energy in pJ")


@value(kw_only=True)
class EnergySplit:
    """The dynamic energy of an observed run: that of launches, of copies, and of everything else, in pJ."""

    launches_pj: float = figure("dynamic energy of launches")
    copies_pj: float = figure("dynamic energy of copies between host and machine")
    rest_pj: float = figure("dynamic energy of everything else, such as set-up")
    peak_watts: float = figure("dynamic power in the busiest window in W", default=0.0)
    window_ns: float = figure("duration of a window in ns", default=0.0)
    launches: tuple[LaunchEnergy, ...] = ()


@value(kw_only=True)
class EnergyGroups:
    """The dynamic energy of a run in pJ by group of parts and links, for columns of sweeps and for comparisons."""

    hbm: float = figure("slices of HBM, in pJ", default=0.0)
    sram: float = figure("SRAMs, in pJ", default=0.0)
    tcm: float = figure("TCMs, in pJ", default=0.0)
    macs: float = figure("matrix units, in pJ", default=0.0)
    math: float = figure("MATH, in pJ", default=0.0)
    wires: float = figure("wires on dies, in pJ", default=0.0)
    routers: float = figure("routers and crossbars, in pJ", default=0.0)
    die_links: float = figure("links between dies, in pJ", default=0.0)
    sip_links: float = figure("links between SIPs, in pJ", default=0.0)
    host_links: float = figure("links to the host, in pJ", default=0.0)
    control: float = figure("CPUs, schedulers, DMAs, in pJ", default=0.0)
    others: float = figure("parts of users, in pJ", default=0.0)


@value(kw_only=True)
class RunEnergy:
    """The energy of a run in pJ, its average power in W, and the area of the machine.

    Dies count as used if a part of them worked or a link of them carried something.
    """

    pj: float = figure("dynamic energy in pJ")
    static_pj: float = figure("static energy of used dies in pJ")
    static_all_pj: float = figure("static energy of all dies in pJ")
    total_pj: float = figure("dynamic and static energy (used dies) in pJ")
    watts: float = figure("average power of the total in W")
    dynamic_watts: float = figure("average dynamic power in W")
    static_watts: float = figure("static power of used dies in W")
    static_all_watts: float = figure("static power of all dies in W")
    macs: int = figure("useful multiply-accumulates")
    tile_macs: int = figure("multiply-accumulates of complete tiles")
    pj_per_mac: float | None = figure("all dynamic energy by useful MACs, in pJ")
    hbm_bytes: int = figure("bytes of HBM in bursts")
    held_bytes: int = figure("bytes of writes that HBM holds back")
    pj_per_hbm_byte: float | None = figure("all dynamic energy by bytes of HBM, in pJ")
    edp: float = figure("total energy times time in J s")
    area_mm2: float = figure("area of parts on all dies in mm²", column="area.mm2")
    by: EnergyGroups = EnergyGroups()
    largest: tuple[EnergyShare, ...] = ()
    parts: tuple[EnergyShare, ...] = ()
    links: tuple[EnergyShare, ...] = ()
    work: tuple[EnergyWork, ...] = ()
    split: EnergySplit | None = figure(column=False, optional=True, default=None)
    estimates: tuple[str, ...] = figure(optional=True, default=())
    not_modelled: tuple[str, ...] = ()
    faults: tuple[str, ...] = figure(optional=True, default=())


class Price(NamedTuple):
    """The energy of one unit of a count, at a kind of part, and its key in section ``energy``."""

    place: str
    pj: float
    key: str = ""


class Prices:
    """The energies of counts by name, of links and of rows of the log."""

    def __init__(self, machine: Machine, energy: EnergySpec) -> None:
        self.energy = energy
        self.is_ideal = machine.spec.cube.hbm.banks is None
        row_pj = energy.row_pj(row_bytes_of(machine.spec))
        self.of_count: dict[str, Price] = {
            HBM_READ: Price("hbm_ctrl", energy.hbm_read_pj_per_byte + energy.hbm_io_pj_per_byte),
            HBM_WRITTEN: Price("hbm_ctrl", energy.hbm_write_pj_per_byte + energy.hbm_io_pj_per_byte),
            HBM_ROWS: Price("hbm_ctrl", row_pj),
            SRAM_BYTES: Price("", energy.sram_pj_per_byte),
            TCM_BYTES: Price("pe_tcm", energy.tcm_pj_per_byte),
            CONTROL_MESSAGES: Price("", energy.control_pj, "control_pj"),
        }
        self._passing: Mapping[str, float] = dict[str, float](energy.pass_pj_per_byte.items())

    def count(self, name: str) -> Price | None:
        """Return the price of a count, or None if it costs no energy. An empty place is the kind of the part."""
        price = self.of_count.get(name)
        if price is None and name in (elements := _list_elements()):
            price = self.of_count[name] = self.element(*elements[name])
        return price

    def element(self, operator: str, dtype: str) -> Price:
        """Return the price of an element that an operator computes."""
        energy_class = OPERATORS[operator].energy_class
        return Price("pe_math", self.energy.element_pj(energy_class, dtype), f"math_pj.{energy_class}")

    def mac(self, dtype: str) -> Price:
        """Return the price of a multiply-accumulate."""
        return Price("pe_gemm", self.energy.mac_pj[dtype], f"mac_pj.{dtype}")

    def link(self, link_class: str, length_mm: float) -> tuple[str, Price]:
        """Return the name of the work of a link, and its price per byte."""
        energy = self.energy
        if link_class in DIE_LINKS:
            return BYTES, Price(link_class, energy.ucie_pj_per_byte)
        if link_class in SIP_LINKS:
            return BYTES, Price(link_class, energy.sip_link_pj_per_byte)
        if link_class in HOST_LINKS:
            return BYTES, Price(link_class, energy.pcie_pj_per_byte, "pcie_pj_per_byte")
        return BYTE_MM, Price(link_class, energy.wire_pj_per_byte_mm * length_mm)

    def passing(self, kind: str) -> Price:
        """Return the price of a byte that enters a part of one of ``PASSED_KINDS``."""
        return Price(kind, self._passing[kind], f"pass_pj_per_byte.{kind}")

    def row(self, kind: Kind) -> tuple[str, Price] | None:
        """Return the name and the price of the work of a log row; None for kinds that cost nothing by themselves."""
        energy = self.energy
        if kind == Kind.ISSUE:
            return COMMANDS, Price("pe_cpu", energy.issue_pj, "issue_pj")
        if kind == Kind.TILE_ISSUE:
            return TILES, Price("pe_scheduler", energy.tile_issue_pj, "tile_issue_pj")
        if kind in DESCRIPTOR_KINDS:
            return DESCRIPTORS, Price("pe_dma", energy.descriptor_pj, "descriptor_pj")
        return None


@cache
def _list_elements() -> Mapping[str, tuple[str, str]]:
    """Return operator and type of each count of elements, by name."""
    return {name_elements(operator, dtype.name): (operator, dtype.name) for operator in OPERATORS for dtype in ALL}


@state
class Ledger:
    """The dynamic energy of a run: count and energy by place and work.

    ``stating``: the parts of users' classes that state their energy, so that no key of their kind applies.
    """

    works: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    estimates: dict[str, None] = field(default_factory=dict)
    stating: frozenset[str] = frozenset()

    def add(self, work: str, count: float, price: Price, amount: float | None = None) -> None:
        """Add ``count`` units of ``work`` at the price of each; ``amount``: the number to show, if it is another."""
        if not count:
            return
        entry = self.works.setdefault((price.place, work), [0.0, 0.0])
        entry[0] += count if amount is None else amount
        entry[1] += count * price.pj
        if price.key in ESTIMATES:
            self.estimates[price.key] = None

    @property
    def pj(self) -> float:
        """The dynamic energy of the run."""
        return sum(pj for _, pj in self.works.values())

    def by_place(self) -> dict[str, float]:
        """Return the energy by kind of part and class of links, the largest first."""
        totals: dict[str, float] = {}
        for (place, _), (_, pj) in self.works.items():
            totals[place] = totals.get(place, 0.0) + pj
        return dict(sorted(totals.items(), key=lambda entry: -entry[1]))


class CarriedBytes(NamedTuple):
    """The bytes that a link has carried."""

    src: str
    dst: str
    nbytes: int


class EnergyCounts:
    """The counts of a machine up to now, and the energy that they cost by ``prices``.

    Launches that passed add the counts of their samples.
    ``faults``: the errors of users' classes. ``unstated``: users' parts without an energy.
    """

    def __init__(self, machine: Machine, energy: EnergySpec, columns: Columns) -> None:
        self.machine, self.columns = machine, columns
        self.prices = Prices(machine, energy)
        passed = machine.passed.counts(LINK_BYTES, len(machine.graph.edges))
        uses = ((link, link.nbytes + int(passed[link.index])) for link in machine.network.links.values())
        self.links = [CarriedBytes(link.src, link.dst, nbytes) for link, nbytes in uses if nbytes]
        self.passed = machine.passed.part_counts()
        self.weights = machine.passed.weights(columns.launch)  # of rows: those of samples count for passed launches
        self.faults: list[str] = []
        self.unstated: dict[str, None] = {}
        self.macs = self.tile_macs = 0
        stating = {part.node.id for part in machine.components if part.states_energy}
        self.ledger = Ledger(stating=frozenset(stating))
        self._add_links()
        self._add_parts()
        self._add_rows()

    def _add_links(self) -> None:
        ledger, prices, graph = self.ledger, self.prices, self.machine.graph
        carried: dict[tuple[str, float], int] = {}
        passed: dict[str, int] = {}
        for src, dst, nbytes in self.links:
            edge, kind = graph.edge(src, dst), graph.nodes[dst].kind
            group = edge.link_class, edge.length_mm
            carried[group] = carried.get(group, 0) + nbytes
            if kind in PASSED_KINDS and dst not in ledger.stating:
                passed[kind] = passed.get(kind, 0) + nbytes
        for (link_class, length_mm), nbytes in carried.items():
            work, price = prices.link(link_class, length_mm)
            ledger.add(work, nbytes, price, nbytes * length_mm if work == BYTE_MM else None)
        for kind, nbytes in passed.items():
            ledger.add(BYTES, nbytes, prices.passing(kind))

    def _add_parts(self) -> None:
        totals: dict[tuple[str, str], int] = {}
        for part in self.machine.components:
            if not is_builtin(type(part)):
                self._add_users_part(part)
            kind = part.node.kind
            for name, count in self._counts_of(part).items():
                if count:
                    totals[kind, name] = totals.get((kind, name), 0) + count
        for (kind, name), count in self.passed.items():
            totals[kind, name] = totals.get((kind, name), 0) + count
        for (kind, name), count in totals.items():
            price = self.prices.count(name)
            if price is not None:
                self.ledger.add(name, count, price if price.place else price._replace(place=kind))

    def _counts_of(self, part: Component) -> Mapping[str, int]:
        """Return the counts of a part that keys apply to; rows of ``ideal`` HBM are estimated."""
        counts = part.counts()
        if self.prices.is_ideal and isinstance(part, HbmCtrl):
            counts = {**counts, HBM_ROWS: -(-(counts[HBM_READ] + counts[HBM_WRITTEN]) // ROW_BYTES)}
        if part.node.id not in self.ledger.stating:
            return counts
        elsewhere = {}
        for name, count in counts.items():
            price = self.prices.count(name)
            if price is not None and price.place not in ("", part.node.kind):
                elsewhere[name] = count
        return elsewhere

    def _add_users_part(self, part: Component) -> None:
        node = part.node
        if node.id in self.ledger.stating:
            energy = ask_energy(part, self._use_of(part))
            if isinstance(energy, str):
                self.faults.append(energy)
            else:
                self.ledger.add(STATED, energy, Price(node.kind, 1.0))
        elif node.is_extra or (node.kind in ("hbm_ctrl", "sram") and not any(part.counts().values())):
            self.unstated[f"{node.impl} ({node.kind}): its class states no energy_pj, so it counts 0"] = None

    def _use_of(self, part: Component) -> PartUse:
        entering = sum(link.nbytes for link in self.links if link.dst == part.node.id)
        leaving = sum(link.nbytes for link in self.links if link.src == part.node.id)
        return PartUse(entering, leaving, part.n_accesses, ps_to_ns(part.busy_ps))

    def _add_rows(self) -> None:
        """Add commands, tiles and descriptors, and the products and MATH operations of tiles."""
        columns = self.columns
        for kind in Kind:
            priced = self.prices.row(kind)
            if priced is not None:
                self.ledger.add(priced[0], round(self.weights[columns.kind == kind].sum()), priced[1])
        tiles = columns.kind == Kind.TILE_ISSUE
        whats, places = np.unique(columns.what[tiles], return_inverse=True)
        counts = np.rint(np.bincount(places, self.weights[tiles], minlength=len(whats))).astype(np.int64)
        tile_macs = int(np.prod(self.machine.spec.pe.gemm.tile_sizes))
        for what, count in zip(whats.tolist(), counts.tolist(), strict=True):
            amounts = self.machine.log.whats[what]
            assert isinstance(amounts, TileAmounts)
            self.macs += amounts.macs * count
            self.tile_macs += tile_macs * count if amounts.macs else 0
            for work, amount, price in self.list_tile_work(amounts):
                self.ledger.add(work, amount * count, price)

    def by_part(self) -> dict[str, float]:
        """Return the dynamic energy by part and by link. A part has the energy of what it counts and issues."""
        totals: dict[str, float] = {}
        for part, pj in chain(self._list_links(), self._list_parts(), self._list_rows()):
            totals[part] = totals.get(part, 0.0) + pj
        return totals

    def _list_links(self) -> Iterator[tuple[str, float]]:
        graph, prices = self.machine.graph, self.prices
        for src, dst, nbytes in self.links:
            edge, kind = graph.edge(src, dst), graph.nodes[dst].kind
            yield f"{src} → {dst}", nbytes * prices.link(edge.link_class, edge.length_mm)[1].pj
            if kind in PASSED_KINDS and dst not in self.ledger.stating:
                yield dst, nbytes * prices.passing(kind).pj

    def _list_parts(self) -> Iterator[tuple[str, float]]:
        for (kind, name), count in self.passed.items():
            price = self.prices.count(name)
            yield f"{kind} of launches that passed", 0.0 if price is None else count * price.pj
        for part in self.machine.components:
            for name, count in self._counts_of(part).items():
                price = self.prices.count(name)
                yield part.node.id, 0.0 if price is None else count * price.pj
            if part.node.id in self.ledger.stating:
                energy = ask_energy(part, self._use_of(part))
                yield part.node.id, 0.0 if isinstance(energy, str) else energy

    def _list_rows(self) -> Iterator[tuple[str, float]]:
        columns, whats = self.columns, self.machine.log.whats
        prices = [0.0 if (priced := self.prices.row(kind)) is None else priced[1].pj for kind in Kind]
        pj = np.array(prices)[columns.kind]
        tiles = np.flatnonzero(columns.kind == Kind.TILE_ISSUE)
        energies = np.zeros(len(whats))
        for what in np.unique(columns.what[tiles]).tolist():
            amounts = whats[what]
            assert isinstance(amounts, TileAmounts)
            energies[what] = sum(count * price.pj for _, count, price in self.list_tile_work(amounts))
        pj[tiles] += energies[columns.what[tiles]]
        sums = np.bincount(columns.part, pj * self.weights, minlength=len(columns.parts))
        yield from zip(columns.parts, sums.tolist(), strict=True)

    def list_tile_work(self, tile: TileAmounts) -> Iterator[tuple[str, int, Price]]:
        """Yield the work of a tile beside its issue: bytes in TCM, multiply-accumulates, and MATH operations."""
        yield TCM_BYTES, tile.fetch_bytes + tile.store_bytes, self.prices.of_count[TCM_BYTES]
        if tile.element is not None:
            yield f"MACs of {tile.element}", tile.macs, self.prices.mac(tile.element.name)
        for size in tile.math:
            yield name_elements(size.name, size.dtype), size.elements, self.prices.element(size.name, size.dtype)

    def used_dies(self) -> set[DieId]:
        """Return the dies of parts that worked, and of links that carried something."""
        nodes, parts = self.machine.graph.nodes, self.columns.parts
        ends = chain.from_iterable((link.src, link.dst) for link in self.links)
        worked = (parts[number] for number in distinct(self.columns.part, len(parts)))
        return {die for die in map(die_of, (nodes[name] for name in {*ends, *worked})) if die is not None}

    def held_bytes(self) -> int:
        """Return the bytes of writes that slices still hold back."""
        return sum(part.work.held for part in self.machine.components if isinstance(part, HbmCtrl))


_GROUPS: Mapping[str, str] = {
    "hbm_ctrl": "hbm",
    "sram": "sram",
    "pe_tcm": "tcm",
    "pe_gemm": "macs",
    "pe_math": "math",
    **dict.fromkeys(PASSED_KINDS, "routers"),
    **dict.fromkeys(DIE_LINKS, "die_links"),
    **dict.fromkeys(SIP_LINKS, "sip_links"),
    **dict.fromkeys(HOST_LINKS, "host_links"),
    **dict.fromkeys(("host", "io_cpu", "m_cpu", "pe_cpu", "pe_scheduler", "pe_dma", "pe_ipcq"), "control"),
}
"""The group of each kind and class of links; other classes are wires, other kinds are parts of users"""


def _group(by_place: Mapping[str, float], classes: Collection[str]) -> EnergyGroups:
    """Return the energy by group. ``classes``: the classes of links."""
    sums: dict[str, float] = {}
    for place, pj in by_place.items():
        group = _GROUPS.get(place, "wires" if place in classes else "others")
        sums[group] = sums.get(group, 0.0) + pj
    return EnergyGroups(**sums)


def die_of(node: Node) -> DieId | None:
    """Return the die of a node; None for the host and the switch."""
    return None if node.sip is None else (node.sip, node.cube)


def name_die(die: DieId) -> str:
    """Return the name of a die: ``sip0.cube3``, or ``sip0.io`` for the IO chiplet."""
    sip, cube = die
    return f"sip{sip}.io" if cube is None else f"sip{sip}.cube{cube}"


def measure_energy(
    counts: EnergyCounts,
    area: MachineArea,
    sim_ns: float,
    *,
    split: EnergySplit | None = None,
    leaves_out_load: bool = False,
) -> RunEnergy:
    """Return the energy of a run that took ``sim_ns``, from its counts.

    ``split``: that of an observed run. ``leaves_out_load``: the time does not include the initialisation.
    """
    ledger, time_s = counts.ledger, sim_ns * 1e-9
    pj, used = ledger.pj, counts.used_dies()
    static_w = sum(area.die_of[die].static_w for die in used)
    static_pj, static_all_pj = static_w * time_s / PJ, area.static_w * time_s / PJ
    hbm_bytes = sum(int(count) for (_, work), (count, _) in ledger.works.items() if work in (HBM_READ, HBM_WRITTEN))
    by_place, classes = ledger.by_place(), {edge.link_class for edge in counts.machine.graph.edges}
    shares = [EnergyShare(place, energy, energy / pj if pj else 0.0) for place, energy in by_place.items()]
    return RunEnergy(
        pj=pj,
        static_pj=static_pj,
        static_all_pj=static_all_pj,
        total_pj=pj + static_pj,
        watts=(pj + static_pj) * PJ / time_s if time_s else 0.0,
        dynamic_watts=pj * PJ / time_s if time_s else 0.0,
        static_watts=static_w,
        static_all_watts=area.static_w,
        macs=counts.macs,
        tile_macs=counts.tile_macs,
        pj_per_mac=pj / counts.macs if counts.macs else None,
        hbm_bytes=hbm_bytes,
        held_bytes=counts.held_bytes(),
        pj_per_hbm_byte=pj / hbm_bytes if hbm_bytes else None,
        edp=(pj + static_pj) * PJ * time_s,
        area_mm2=area.mm2,
        by=_group(by_place, classes),
        largest=tuple(shares[:MOST_SHOWN]),
        parts=tuple(share for share in shares if share.place not in classes),
        links=tuple(share for share in shares if share.place in classes),
        work=tuple(
            EnergyWork(place, work, count, energy)
            for (place, work), (count, energy) in sorted(ledger.works.items(), key=lambda entry: -entry[1][1])
        ),
        split=split,
        estimates=(*sorted(ledger.estimates), *((IDEAL_HBM,) if counts.prices.is_ideal and hbm_bytes else ())),
        not_modelled=(*NOT_MODELLED, *((WITH_LOAD,) if leaves_out_load else ()), *counts.unstated),
        faults=(*area.faults, *counts.faults),
    )
