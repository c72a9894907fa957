"""Options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import rich_click as click

from kernbench.cli.completion import complete_bench, complete_machine, complete_override
from kernbench.cli.session import Session
from kernbench.common.data_policy import DataOptions
from kernbench.common.values import value


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


SCRIPT_WALL_S = 600.0
"""A program that was written for a GPU may have sizes that take days here: unless the user says so, it does not try."""


@value
class ProgramOptions:
    """The program of a command line: a bench, or a script; ``arguments``, those after ``--``, are for the script.

    ``own``: the arguments before ``--``, which are the command's.
    """

    bench: str | None = None
    script: str | None = None
    arguments: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def refuse_arguments(self) -> None:
        """Raise UsageError for arguments that neither a script nor the command takes."""
        given = " ".join(self.own or (self.arguments if self.script is None else ()))
        if given and self.script is not None:
            raise click.UsageError(f"Got unexpected extra arguments ({given}): what the script takes comes after --.")
        if given:
            raise click.UsageError(
                f"Got unexpected extra arguments ({given}): name the program with --bench or --script; "
                f"only a script takes arguments, after --."
            )

    def wall_s(self, limit: float | None) -> float | None:
        """Return the seconds that it may take when the user said ``limit``; None: as many as it takes."""
        return finite(SCRIPT_WALL_S if self.script is not None and limit is None else limit)


class ProgramCommand(click.RichCommand):
    """A command that runs a program: it gives what follows ``--`` to the program as it is."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse what comes before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            if not any(each.startswith("--script") for each in args):
                raise
            raise click.UsageError(f"{error.format_message()} What the script takes comes after --.", ctx) from error
        ctx.params["arguments"] = tuple(args[end + 1 :])
        return rest


_PROGRAM_OPTIONS = (
    click.option("--bench", metavar="NAME|FILE.py[:FUNCTION]", shell_complete=complete_bench, help="What to run."),
    click.option("--script", metavar="FILE.py", help="Or a whole file as the program; what follows -- is for it."),
    click.option("--as-cuda", is_flag=True, help='In a script the device "cuda" of PyTorch is the machine.'),
)


def program_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a ProgramCommand; it is called with ``program``, ProgramOptions.

    It takes ``own``, its arguments, and ``overrides``, too: what --as-cuda says is one of the overrides.
    """

    @wraps(command)
    def with_program(
        *args: Any,
        bench: str | None,
        script: str | None,
        arguments: tuple[str, ...],
        own: tuple[str, ...],
        as_cuda: bool,
        overrides: tuple[str, ...],
        **options: Any,
    ) -> int:
        if as_cuda and script is None:
            raise click.UsageError("--as-cuda is for --script.")
        if bench is not None and script is not None:
            raise click.UsageError("--bench and --script: one program is run.")
        given = (*overrides, *["torch.as_cuda=true"] * as_cuda)
        return command(*args, program=ProgramOptions(bench, script, arguments, own), overrides=given, **options)

    for option in reversed(_PROGRAM_OPTIONS):
        with_program = option(with_program)
    return with_program


_FRONTEND_OPTIONS = (
    click.option("--strict", is_flag=True, help="An operator of PyTorch that the host would compute is an error."),
    click.option(
        "--from-load", is_flag=True, help="Count the time that a program of PyTorch loads before it computes."
    ),
    click.option(
        "--points", type=click.IntRange(min=1), metavar="N", help="Of a benchmark of Triton the first N values."
    ),
)


def frontend_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with what is short for settings of front ends: it has them among its ``overrides``."""

    @wraps(command)
    def with_settings(
        *args: Any, strict: bool, from_load: bool, points: int | None, overrides: tuple[str, ...], **options: Any
    ) -> int:
        flags = ["torch.strict=true"] * strict + ["torch.from_load=true"] * from_load
        flags += [] if points is None else [f"triton.points={points}"]
        return command(*args, overrides=(*overrides, *flags), **options)

    for option in reversed(_FRONTEND_OPTIONS):
        with_settings = option(with_settings)
    return with_settings


class Limit(click.FloatRange):
    """A limit of a run: a number from 0, or inf for no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        limit = super().convert(value, param, ctx)
        if math.isnan(limit):
            self.fail(f"{value!r} is no number.", param, ctx)
        return limit


def finite(limit: float | None) -> float | None:
    """Return a limit; None for one that limits nothing."""
    return None if limit is None or math.isinf(limit) else limit


_SIM_LIMIT = click.option("--max-sim-ns", type=Limit(min=0), metavar="NS", help="Stop beyond this simulated time.")
_WALL_LIMIT = click.option(
    "--max-wall-s",
    type=Limit(min=0),
    metavar="S",
    help=f"Stop after this many seconds.  [default: {SCRIPT_WALL_S:.0f} of a script]",
)


def limit_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with when a run is to be stopped: ``max_sim_ns`` and ``max_wall_s``."""
    return _SIM_LIMIT(_WALL_LIMIT(command))


EVERY_SIP = "all"
device_option = click.option(
    "--device", default=EVERY_SIP, show_default=True, metavar="sip:N|all", help="The SIPs it may use."
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
