"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import rich_click as click

from kernbench.cli.completion import complete_machine, complete_override
from kernbench.cli.session import Session
from kernbench.common.data_policy import DataOptions


def current_session() -> Session | None:
    """The session of the command that runs; None outside of one."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Session)


def _note_debug(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    session = ctx.find_object(Session)
    if session is not None and wanted:
        session.debug = True


def _note_verbose(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    session = ctx.find_object(Session)
    if session is not None and wanted:
        session.verbose = True


def _note_json(ctx: click.Context, _: click.Parameter, wanted: bool) -> bool:
    session = ctx.find_object(Session)
    if session is not None and wanted:
        session.as_json = True
        session.output.reserve()
    return wanted


_DATA_OPTIONS = (
    click.option(
        "--data/--no-data",
        default=None,
        help="Keep what it takes to compute values, or nothing.  [default: keep, unless the bench says data = False]",
    ),
    click.option("--keep", metavar="SIZE", help="Stop keeping past so much that nobody has read.  [default: 1GiB]"),
    click.option("--zeros", is_flag=True, help="With --no-data: values that the program reads are zeros."),
)


def data_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with what the user can say about values; it is called with ``values``, DataOptions."""

    @wraps(command)
    def with_values(*args: Any, data: bool | None, keep: str | None, zeros: bool, **options: Any) -> int:
        return command(*args, values=DataOptions(data, zeros, keep), **options)

    for option in reversed(_DATA_OPTIONS):
        with_values = option(with_values)
    return with_values


device_option = click.option(
    "--device", default="all", show_default=True, metavar="sip:N|all", help="The SIPs it may use."
)
observe_option = click.option(
    "--observe/--no-observe",
    default=True,
    help="Keep what explains the time, or nothing: a sixth faster, and no verdict.  [default: keep]",
)
verify_option = click.option("--verify-data", "verify", is_flag=True, help="Compute numbers too, and check them.")
topology_option = click.option(
    "--topology",
    metavar="NAME|FILE",
    shell_complete=complete_machine,
    help="The machine: a name of 'kernbench list', or a YAML file.  [default: ./topology.yaml, else 'default']",
)
set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Change one value of the machine, for example cube.hbm.slices=16. May be given several times.",
)
bench_set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Change a value of the machine (cube.hbm.slices=16) or a parameter of the bench (bench.m=512).",
)
ccl_option = click.option(
    "--ccl", metavar="FILE", help="How collectives work.  [default: ./ccl.yaml, else the packaged file]"
)
_json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_note_json, help="Print one JSON document instead of tables."
)
verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_note_verbose,
    help="Print everything: all tables, and a deadlock in full.",
)
_debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_note_debug,
    is_eager=True,
    help="Show where an error comes from.",
)


def output_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with what every command has: ``--json`` and ``--debug``."""
    return _json_option(_debug_option(command))
