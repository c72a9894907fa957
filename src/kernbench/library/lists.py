"""Lists of registered names (benches, machines, parts, algorithms, probe cases), and descriptions of entries."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import kernbench.benches
from kernbench.ccl.loading import algorithms, load_ccl_config
from kernbench.common.config_keys import ConfigKey, describe_key
from kernbench.common.values import value
from kernbench.di.registry import REGISTRY, known_kinds
from kernbench.probe import memory_case
from kernbench.probe.cases import CASES
from kernbench.result.table import LINE, Table, TableColumn
from kernbench.runtime_api.bench_registry import Bench, known_benches, load_bench
from kernbench.topology.builder import list_machines as packaged
from kernbench.topology.hbm_export import TimingRow, preset_document, preset_facts, preset_named, timing_rows
from kernbench.topology.hbm_spec import TimingPreset, mark_assumed

R = TypeVar("R")
# Importing the package registers its benches.
BENCHES = kernbench.benches.__name__


@value
class Named:
    """A name with its description."""

    name: str
    description: str


@value
class PartEntry:
    """An implementation of a kind of part."""

    kind: str
    impl: str
    description: str


@value(repr=False, eq=False)
class Catalogue:
    """Lists of all registered names."""

    benches: Table[Bench]
    machines: Table[Named]
    algorithms: Table[Named]
    parts: Table[PartEntry]
    probe_cases: Table[Named]

    @property
    def verdict(self) -> str:
        """The number of entries of each list, as text."""
        tables = (self.benches, self.machines, self.algorithms, self.parts, self.probe_cases)
        return ", ".join(f"{len(table)} {table.kind}" for table in tables)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench list --json`` prints."""
        return {
            "benches": self.benches.to_dicts(),
            "machines": self.machines.to_dicts(),
            "algorithms": self.algorithms.to_dicts(),
            "components": self.parts.to_dicts(),
            "probe_cases": self.probe_cases.to_dicts(),
        }

    def __repr__(self) -> str:
        lines = (self.verdict, f"  benches  {', '.join(bench.name for bench in self.benches)}")
        return "\n".join(line[:LINE] for line in lines)


def list_all(ccl: str | os.PathLike[str] | None = None) -> Catalogue:
    """List all registered names.

    ``ccl``: the file of collective algorithms; None: ./ccl.yaml, else the packaged file.
    """
    return Catalogue(list_benches(), list_machines(), list_algorithms(ccl), list_parts(), list_probe_cases())


def list_benches() -> Table[Bench]:
    """List the registered benches."""
    return _tabulate("benches", known_benches(), "Benches  (kernbench run --bench NAME)", "bench")


def list_machines() -> Table[Named]:
    """List the packaged machines."""
    machines = [Named(*entry) for entry in packaged()]
    return _tabulate("machines", machines, "Machines  (--topology NAME)", "machine")


def list_parts() -> Table[PartEntry]:
    """List the parts of a machine by kind, in the order of the machine, with their implementations."""
    columns = (
        TableColumn[PartEntry]("kind", "the place it has").words("kind"),
        TableColumn[PartEntry]("impl", "the name in topology.yaml").words("implementation"),
        TableColumn[PartEntry]("description", "what it is").words("what it is"),
    )
    return Table("parts", tuple(_parts()), columns, "Parts of a machine  (topology.yaml: kind, impl)")


def list_algorithms(ccl: str | os.PathLike[str] | None = None) -> Table[Named]:
    """List the collective algorithms of a ``ccl.yaml``. None: ./ccl.yaml, else the packaged file."""
    found = algorithms(load_ccl_config(ccl))
    rows = [Named(name, line.removesuffix(".")) for name, line in found]
    return _tabulate("algorithms", rows, "Collective algorithms  (ccl.yaml: defaults.algorithm)", "algorithm")


def list_probe_cases() -> Table[Named]:
    """List the cases of ``probe_case``."""
    cases = [Named(case.name, case.description) for case in CASES]
    cases.append(Named(memory_case.NAME, memory_case.DESCRIPTION))
    return _tabulate("probe cases", cases, "Probe cases  (kernbench probe --case NAME)", "case")


def _tabulate(kind: str, rows: Sequence[R], title: str, heading: str) -> Table[R]:
    """Return a table of names; ``heading``: the heading of the names on the terminal."""
    name = TableColumn[R]("name", "the name").words(heading)
    return Table(kind, tuple(rows), (name, TableColumn[R]("description", "what it is").words("what it is")), title)


def _parts() -> Iterator[PartEntry]:
    classes = [(impl, REGISTRY.lookup(impl)) for impl in REGISTRY.known_impls()]
    for kind in known_kinds():
        for impl, cls in classes:
            if kind in REGISTRY.kinds_of(cls):
                yield PartEntry(kind, impl, _first_sentence(cls))


def _first_sentence(cls: type) -> str:
    """Return the first sentence of a class docstring without code marks."""
    line = (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "")
    return line.partition(". ")[0].removesuffix(".")


@value(repr=False, eq=False)
class BenchDescription:
    """A bench and its parameters. ``params`` has one key per parameter."""

    bench: Bench
    params: ConfigKey

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench list BENCH --json`` prints."""
        params = [key.to_dict() | {"path": f"bench.{key.path}"} for key in self.params.entries]
        about = {"bench": self.bench.name, "description": self.bench.description, "file": self.bench.file}
        return {**about, "params": params}

    def __repr__(self) -> str:
        params = ", ".join(f"{key.name}={key.default_text}" for key in self.params.entries)
        lines = (f"{self.bench.name}: {self.bench.description}", f"  {params}" if params else "  no parameters")
        return "\n".join(line[:LINE] for line in lines)


def describe_bench(bench: str) -> BenchDescription:
    """Describe a bench, given by its name or its file.

    Raises UnknownNameError, with the nearest name, if no bench has this name.
    """
    registered = load_bench(bench)
    return BenchDescription(registered, describe_key(registered.params))


@value(repr=False, eq=False)
class TimingDescription:
    """A named HBM timing."""

    name: str
    preset: TimingPreset

    @property
    def title(self) -> str:
        """The name, with a mark if some values of the timing are assumed."""
        return mark_assumed(self.name, assumed=self.preset.assumed)

    @property
    def facts(self) -> Mapping[str, str]:
        """The source, the peak bandwidth and the refresh share, as text."""
        return dict(preset_facts(self.preset))

    @property
    def table(self) -> Table[TimingRow]:
        """The values of the timing."""
        columns = (
            TableColumn[TimingRow]("key", "below cube.hbm.timing").words("key"),
            TableColumn[TimingRow]("value", "the value with its unit").number("value"),
            TableColumn[TimingRow]("about", "the JEDEC name, or a description").words("is"),
        )
        return Table("values", tuple(timing_rows(self.preset.timing)), columns, "Values  (keys of cube.hbm.timing)")

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench topology --timing NAME --json`` prints."""
        return preset_document(self.name, self.preset)

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {name:<14} {said}"[:LINE] for name, said in self.facts.items())])


def describe_timing(name: str) -> TimingDescription:
    """Describe a named HBM timing, such as ``hbm3``. Raises UnknownNameError for an unknown name."""
    return TimingDescription(name, preset_named(name))
