"""Lists of what there is to run, to run on and to build from."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator

import kernbench.benches
from kernbench.ccl.loading import algorithms, load_ccl_config
from kernbench.common.values import value
from kernbench.di.registry import REGISTRY, known_kinds
from kernbench.library.tables import Table, make_table
from kernbench.probe import memory_case
from kernbench.probe.cases import CASES
from kernbench.runtime_api.bench_registry import Bench, known_benches
from kernbench.topology.builder import list_machines as packaged

__all__ = ["list_algorithms", "list_benches", "list_machines", "list_parts", "list_probe_cases"]
# Importing the package is what makes its benches known.
BENCHES = kernbench.benches.__name__
_NAMED = {"name": "what it is called", "description": "what it is"}


@value
class Named:
    """Something that is called by its name."""

    name: str
    description: str


@value
class PartEntry:
    """An implementation of a kind of part."""

    kind: str
    impl: str
    description: str


def list_benches() -> Table[Bench]:
    """List the registered benches."""
    return make_table("benches", known_benches(), _NAMED)


def list_machines() -> Table[Named]:
    """List the packaged machines."""
    return make_table("machines", [Named(*each) for each in packaged()], _NAMED)


def list_parts() -> Table[PartEntry]:
    """List the parts of a machine by kind, in the order of the machine, with what implements them."""
    about = {"kind": "the place it has", "impl": "what topology.yaml calls it", "description": "what it is"}
    return make_table("parts", tuple(_parts()), about)


def list_algorithms(ccl: str | os.PathLike[str] | None = None) -> Table[Named]:
    """List the collective algorithms of a ``ccl.yaml``; None: ./ccl.yaml, else the packaged one."""
    found = algorithms(load_ccl_config(ccl))
    return make_table("algorithms", [Named(name, line.removesuffix(".")) for name, line in found], _NAMED)


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
    """Return the first sentence of a class's docstring, without the marks of code."""
    line = (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "")
    return line.partition(". ")[0].removesuffix(".")
