"""Options that several commands share."""

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
    """Return the session of the running command, or None outside of a command."""
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
        help="Record what is needed to compute values.  [default: record, unless the bench sets data = False]",
    ),
    click.option("--keep", metavar="SIZE", help="Keep at most SIZE of unread values.  [default: 1GiB]"),
    click.option("--zeros", is_flag=True, help="Return zeros for values that the program reads (with --no-data)."),
)


def data_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with the options about values. The command receives ``values``, a DataOptions."""

    @wraps(command)
    def with_values(*args: Any, data: bool | None, keep: str | None, zeros: bool, **options: Any) -> int:
        return command(*args, values=DataOptions(data, zeros, keep), **options)

    for option in reversed(_DATA_OPTIONS):
        with_values = option(with_values)
    return with_values


SCRIPT_WALL_S = 600.0
"""Default limit of a script in seconds: a program with GPU-sized tensors could take days"""


@value
class ProgramOptions:
    """The program of a command line: a bench or a script.

    ``arguments``: the arguments after ``--``, for the script. ``positional``: the arguments before ``--``, for the
    command.
    """

    bench: str | None = None
    script: str | None = None
    arguments: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()

    def refuse_arguments(self) -> None:
        """Raise UsageError for arguments that neither the script nor the command accepts."""
        given = " ".join(self.positional or (self.arguments if self.script is None else ()))
        if given and self.script is not None:
            raise click.UsageError(f"Got unexpected extra arguments ({given}): write arguments of the script after --.")
        if given:
            raise click.UsageError(
                f"Got unexpected extra arguments ({given}): name the program with --bench or --script; "
                f"only a script takes arguments, after --."
            )

    def wall_s(self, limit: float | None) -> float | None:
        """Return the wall-clock limit in seconds for the user's ``limit``, or None for no limit."""
        return finite(SCRIPT_WALL_S if self.script is not None and limit is None else limit)


class ProgramCommand(click.RichCommand):
    """A command that runs a program and passes it the arguments after ``--`` unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        try:
            rest = super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            if not any(each.startswith("--script") for each in args):
                raise
            raise click.UsageError(f"{error.format_message()} Write arguments of the script after --.", ctx) from error
        ctx.params["arguments"] = tuple(args[end + 1 :])
        return rest


_PROGRAM_OPTIONS = (
    click.option(
        "--bench",
        metavar="NAME|FILE.py[:FUNCTION]",
        shell_complete=complete_bench,
        help="Run this bench: a name of 'kernbench list', or a function of a file.",
    ),
    click.option("--script", metavar="FILE.py", help="Run a whole file as the program, with the arguments after --."),
    click.option("--as-cuda", is_flag=True, help='Map the PyTorch device "cuda" to the machine (with --script).'),
)


def program_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a ProgramCommand with the options of its program. The command receives ``program``, a ProgramOptions.

    The command also takes the arguments before ``--`` and ``overrides``, which ``--as-cuda`` extends.
    """

    @wraps(command)
    def with_program(
        *args: Any,
        bench: str | None,
        script: str | None,
        arguments: tuple[str, ...],
        positional: tuple[str, ...],
        as_cuda: bool,
        overrides: tuple[str, ...],
        **options: Any,
    ) -> int:
        if as_cuda and script is None:
            raise click.UsageError("--as-cuda needs --script.")
        if bench is not None and script is not None:
            raise click.UsageError("--bench and --script: give one of them.")
        given = (*overrides, *["torch.as_cuda=true"] * as_cuda)
        return command(*args, program=ProgramOptions(bench, script, arguments, positional), overrides=given, **options)

    for option in reversed(_PROGRAM_OPTIONS):
        with_program = option(with_program)
    return with_program


_FRONTEND_OPTIONS = (
    click.option("--strict", is_flag=True, help="Fail at a PyTorch operator that the host would compute."),
    click.option("--from-load", is_flag=True, help="Count the initialisation of a PyTorch program in its time."),
    click.option(
        "--points", type=click.IntRange(min=1), metavar="N", help="Run only the first N x values of a Triton benchmark."
    ),
)


def frontend_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with shortcuts for frontend settings, which extend its ``overrides``."""

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
    """A limit of a run: a number of at least 0, or inf for no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        limit = super().convert(value, param, ctx)
        if math.isnan(limit):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return limit


def finite(limit: float | None) -> float | None:
    """Return a limit, or None for an infinite limit."""
    return None if limit is None or math.isinf(limit) else limit


_SIM_LIMIT = click.option("--max-sim-ns", type=Limit(min=0), metavar="NS", help="Stop the run at this simulated time.")
_WALL_LIMIT = click.option(
    "--max-wall-s",
    type=Limit(min=0),
    metavar="S",
    help=f"Stop the run after S seconds of real time.  [default: {SCRIPT_WALL_S:.0f} for a script]",
)


def limit_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with the limits of a run: ``max_sim_ns`` and ``max_wall_s``."""
    return _SIM_LIMIT(_WALL_LIMIT(command))


EVERY_SIP = "all"
device_option = click.option(
    "--device", default=EVERY_SIP, show_default=True, metavar="sip:N|all", help="Run on one device (SIP) or on all."
)
observe_option = click.option(
    "--observe/--no-observe",
    default=True,
    help="Record causes for the verdict; without them the run is a sixth faster.  [default: observe]",
)
verify_option = click.option(
    "--verify-data",
    "verify",
    is_flag=True,
    help="Compute values and evaluate the comparisons of the bench; a mismatch exits with 1.",
)
topology_option = click.option(
    "--topology",
    metavar="NAME|FILE",
    shell_complete=complete_machine,
    help="Use this machine: a name of 'kernbench list', or a YAML file.  [default: ./topology.yaml, else 'default']",
)
set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Change one value of the machine, for example cube.hbm.slices=16 (repeatable).",
)
bench_set_option = click.option(
    "--set",
    "overrides",
    metavar="PATH=VALUE",
    multiple=True,
    shell_complete=complete_override,
    help="Change machine or bench values, such as cube.hbm.slices=16 or bench.m=512 (repeatable).",
)
ccl_option = click.option(
    "--ccl", metavar="FILE", help="Read collective algorithms from FILE.  [default: ./ccl.yaml, else the packaged file]"
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
    help="Print all tables and the full report of a deadlock.",
)
_debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_note_debug,
    is_eager=True,
    help="Print the Python traceback of an error.",
)


def output_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with the options of every command: ``--json`` and ``--debug``."""
    return _json_option(_debug_option(command))
