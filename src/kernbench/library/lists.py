"""Lists of registered names (benches, machines, parts, algorithms, probe cases), and descriptions of entries."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Any

import kernbench.benches
from kernbench.ccl.loading import algorithms, load_ccl_config
from kernbench.common.config_keys import ConfigKey, describe_key
from kernbench.common.values import value
from kernbench.di.registry import REGISTRY, known_kinds
from kernbench.probe import memory_case
from kernbench.probe.cases import CASES
from kernbench.result.table import LINE, Table, make_table
from kernbench.runtime_api.bench_registry import Bench, known_benches, load_bench
from kernbench.topology.builder import list_machines as packaged
from kernbench.topology.hbm_export import TimingRow, preset_document, preset_facts, preset_named, timing_rows
from kernbench.topology.hbm_spec import TimingPreset, mark_assumed

# Importing the package registers its benches.
BENCHES = kernbench.benches.__name__
_NAMED = {"name": "the name", "description": "what it is"}


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
    return make_table("benches", known_benches(), _NAMED)


def list_machines() -> Table[Named]:
    """List the packaged machines."""
    return make_table("machines", [Named(*entry) for entry in packaged()], _NAMED)


def list_parts() -> Table[PartEntry]:
    """List the parts of a machine by kind, in the order of the machine, with their implementations."""
    about = {"kind": "the place it has", "impl": "the name in topology.yaml", "description": "what it is"}
    return make_table("parts", tuple(_parts()), about)


def list_algorithms(ccl: str | os.PathLike[str] | None = None) -> Table[Named]:
    """List the collective algorithms of a ``ccl.yaml``. None: ./ccl.yaml, else the packaged file."""
    described = algorithms(load_ccl_config(ccl))
    return make_table("algorithms", [Named(name, line.removesuffix(".")) for name, line in described], _NAMED)


def list_probe_cases() -> Table[Named]:
    """List the cases of ``probe_case``."""
    cases = [Named(case.name, case.description) for case in CASES]
    return make_table("probe cases", [*cases, Named(memory_case.NAME, memory_case.DESCRIPTION)], _NAMED)


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
        about = {
            "key": "below cube.hbm.timing",
            "value": "the value with its unit",
            "about": "the JEDEC name, or a description",
        }
        return make_table("values", timing_rows(self.preset.timing), about)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench topology --timing NAME --json`` prints."""
        return preset_document(self.name, self.preset)

    def __repr__(self) -> str:
        return "\n".join([self.title, *(f"  {name:<14} {said}"[:LINE] for name, said in self.facts.items())])


def describe_timing(name: str) -> TimingDescription:
    """Describe a named HBM timing, such as ``hbm3``. Raises UnknownNameError for an unknown name."""
    return TimingDescription(name, preset_named(name))
