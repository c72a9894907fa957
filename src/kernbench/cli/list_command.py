"""``kernbench list``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TypeAlias

import rich_click as click

import kernbench.benches
from kernbench.ccl.loading import algorithms, load_ccl_config
from kernbench.cli.console import Json, print_json, show, stdout, table, text
from kernbench.cli.options import debug_option, json_option
from kernbench.di.registry import REGISTRY, known_kinds
from kernbench.probe import memory_case
from kernbench.probe.cases import CASES
from kernbench.runtime_api.bench_registry import known_benches
from kernbench.topology.builder import list_machines

__all__ = ["command"]
# Importing the package is what makes its benches known.
BENCHES = kernbench.benches.__name__
ListRow: TypeAlias = tuple[str, ...]


@click.command(name="list")
@click.option("--ccl", metavar="FILE", help="Whose algorithms.  [default: ./ccl.yaml, else the packaged file]")
@json_option
@debug_option
def command(ccl: str | None, as_json: bool) -> int:
    """Benches, machines, algorithms, parts and probe cases, one line each."""
    sections: dict[str, list[ListRow]] = {
        "benches": [(each.name, each.description) for each in known_benches()],
        "machines": list(list_machines()),
        "algorithms": [(name, line.removesuffix(".")) for name, line in algorithms(load_ccl_config(ccl))],
        "components": list(_components()),
        "probe_cases": [
            *((case.name, case.description) for case in CASES),
            (memory_case.NAME, memory_case.DESCRIPTION),
        ],
    }
    if as_json:
        print_json({title: [_entry(row) for row in rows] for title, rows in sections.items()})
    else:
        _print(sections)
    return 0


def _entry(row: ListRow) -> Json:
    names = ("name", "description") if len(row) == 2 else ("kind", "impl", "description")
    return dict(zip(names, row, strict=True))


def _components() -> Iterator[ListRow]:
    """Kind, implementation and its line, by kind in the order of the machine."""
    classes = [(impl, REGISTRY.lookup(impl)) for impl in REGISTRY.known_impls()]
    for kind in known_kinds():
        for impl, cls in classes:
            if kind in REGISTRY.kinds_of(cls):
                yield kind, impl, _first_sentence(cls)


def _first_sentence(cls: type) -> str:
    """Return the first sentence of a class's docstring, without the marks of code."""
    line = (inspect.getdoc(cls) or "").partition("\n")[0].replace("``", "")
    return line.partition(". ")[0].removesuffix(".")


def _print(sections: dict[str, list[ListRow]]) -> None:
    benches = table("Benches  (kernbench run --bench NAME)", text("bench"), text("what it is"))
    machines = table("Machines  (--topology NAME)", text("machine"), text("what it is"))
    parts = table(
        "Parts of a machine  (topology.yaml: kind, impl)", text("kind"), text("implementation"), text("what it is")
    )
    collectives = table("Collective algorithms  (ccl.yaml: defaults.algorithm)", text("algorithm"), text("what it is"))
    cases = table("Probe cases  (kernbench probe --case NAME)", text("case"), text("what it is"))
    for made, rows in zip((benches, machines, collectives, parts, cases), sections.values(), strict=True):
        for row in rows:
            made.add_row(*row)
    show(stdout(), benches, machines, collectives, parts, cases)
