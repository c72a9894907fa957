"""Options that several commands have."""

from __future__ import annotations

import rich_click as click

from kernbench.cli.failures import Session


def _note_debug(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    session = ctx.find_object(Session)
    if session is not None and wanted:
        session.debug = True


topology_option = click.option(
    "--topology",
    metavar="FILE",
    help="The machine: a YAML file, or 'default'.  [default: ./topology.yaml, else the packaged one]",
)
set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    help="Change one value of the machine, for example cube.hbm.slices=16. May be given several times.",
)
ccl_option = click.option(
    "--ccl", metavar="FILE", help="How collectives work.  [default: ./ccl.yaml, else the packaged file]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_note_debug,
    is_eager=True,
    help="Show where an error comes from.",
)
