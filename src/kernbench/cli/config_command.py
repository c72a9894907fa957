"""``kernbench config``."""

from __future__ import annotations

import rich_click as click

from kernbench.cli.completion import complete_key
from kernbench.cli.console import key_tables, print_json, show, stdout
from kernbench.cli.options import output_options, set_option, topology_option
from kernbench.common.config_keys import describe_key
from kernbench.topology.builder import name_of, read_spec, topology_file
from kernbench.topology.spec import TopologySpec


@click.command(name="config")
@click.argument("path", default="", shell_complete=complete_key)
@topology_option
@set_option
@output_options
def command(path: str, topology: str | None, overrides: tuple[str, ...], as_json: bool) -> int:
    """Describe a key of the machine's YAML file: meaning, unit, default, allowed values, and the keys below it.

    PATH is a path as in --set, for example cube.hbm.refresh. Without PATH, the sections of the file are listed.
    """
    key = describe_key(TopologySpec, path, read_spec(topology, overrides))
    machine = name_of(topology_file(topology))
    if as_json:
        print_json({"machine": machine, **key.to_dict()})
    else:
        show(stdout(), *key_tables(key, machine))
    return 0
