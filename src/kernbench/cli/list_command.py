"""``kernbench list``: what there is, or the parameters of a bench."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TypeAlias

import rich_click as click

import kernbench.benches
from kernbench.ccl.loading import algorithms, load_ccl_config
from kernbench.cli.completion import complete_bench
from kernbench.cli.console import Json, facts, print_json, say, show, stdout, table, text
from kernbench.cli.key_output import key_document, key_table
from kernbench.cli.options import debug_option, json_option
from kernbench.common.config_keys import describe_key
from kernbench.common.errors import InputError
from kernbench.di.registry import REGISTRY, known_kinds
from kernbench.probe import memory_case
from kernbench.probe.cases import CASES
from kernbench.runtime_api.bench_registry import Bench, known_benches, load_bench
from kernbench.topology.builder import list_machines

__all__ = ["command"]
# Importing the package is what makes its benches known.
BENCHES = kernbench.benches.__name__
ListRow: TypeAlias = tuple[str, ...]


@click.command(name="list")
@click.argument("bench", required=False, metavar="[BENCH]", shell_complete=complete_bench)
@click.option("--ccl", metavar="FILE", help="Whose algorithms.  [default: ./ccl.yaml, else the packaged file]")
@json_option
@debug_option
def command(bench: str | None, ccl: str | None, as_json: bool) -> int:
    """Benches, machines, algorithms, parts and probe cases, one line each.

    With the name of a bench, or a file: its parameters, which --set bench.NAME=VALUE changes.
    """
    if bench is not None and ccl is not None:
        raise InputError("--ccl says whose algorithms are listed; it has no effect on the parameters of a bench")
    if bench is not None:
        _print_bench(load_bench(bench), as_json)
        return 0
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


def _print_bench(bench: Bench, as_json: bool) -> None:
    about = describe_key(bench.params)
    if as_json:
        params: list[Json] = [key_document(each) | {"path": f"bench.{each.path}"} for each in about.entries]
        print_json({"bench": bench.name, "description": bench.description, "file": bench.file, "params": params})
        return
    made = key_table("Parameters  (--set bench.NAME=VALUE)", about)
    show(stdout(), facts(bench.name, [("is", bench.description), ("in", bench.file)]), made)
    if not about.entries:
        say(f"{bench.name} has no parameters")


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
