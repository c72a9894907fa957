"""``kernbench config``."""

from __future__ import annotations

import rich_click as click
from rich.table import Table

from kernbench.cli.completion import complete_key
from kernbench.cli.console import facts, print_json, show, stdout, table, text
from kernbench.cli.options import output_options, set_option, topology_option
from kernbench.common.config_keys import ConfigKey, describe_key
from kernbench.topology.builder import name_of, read_spec, topology_file
from kernbench.topology.spec import TopologySpec


@click.command(name="config")
@click.argument("path", default="", shell_complete=complete_key)
@topology_option
@set_option
@output_options
def command(path: str, topology: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Say what a key of the machine's YAML means: its unit, its default, what is allowed, and the keys below it.

    PATH is that of --set, for example cube.hbm.refresh; without one, the sections of the file.
    """
    key = describe_key(TopologySpec, path, read_spec(topology, overrides))
    machine = name_of(topology_file(topology))
    if as_json:
        print_json({"machine": machine, **key.to_dict()})
    else:
        show(stdout(), *key_tables(key, machine))
    return 0


def key_tables(key: ConfigKey, machine: str) -> list[Table]:
    """Return what is known of a key, and the keys below it, as tables."""
    rows = [("type", type_text(key)), ("allowed", key.allowed), ("default", key.default_text)]
    here = [] if key.section else [(f"in {machine}", key.content_text)]
    about = facts(key.path, [("is", key.meaning), *((name, words) for name, words in rows if words), *here])
    below = key_table(f"Keys of {key.path}" if key.path else "Sections", key, f"in {machine}")
    return [about, below] if key.path else [below]


def key_table(title: str, section: ConfigKey, here: str | None = None) -> Table:
    """Return the keys of a section as a table, a row each; ``here``: the head of the column of their values."""
    made = table(title, text("key"), *([text(here)] if here else []), text("default"), text("type"), text("is"))
    for key in section.entries:
        values = [*([key.content_text] if here else []), key.default_text]
        kind = type_text(key).replace("name", ", ".join(key.choices), 1) if key.choices else type_text(key)
        made.add_row(key.name, *values, kind, "" if key.meaning == section.meaning else key.meaning)
    return made


def type_text(key: ConfigKey) -> str:
    """Return the type of a key with its unit."""
    return f"{key.type}, {key.unit}" if key.unit and key.unit != "bytes" else key.type
