"""Options that several commands share. Those of a run are made from the fields of ``RunRequest``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import rich_click as click

from kernbench.cli.completion import Completer, complete_bench, complete_machine, complete_override
from kernbench.cli.session import Session
from kernbench.runtime_api.run_request import SCRIPT_WALL_S, CommandName, RunOption, RunRequest, list_options


def current_session() -> Session | None:
    """Return the session of the running command, or None outside of a command."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.find_object(Session)


def _note(name: str) -> Callable[[click.Context, click.Parameter, bool], bool]:
    """Return a callback that sets a switch of the session."""

    def note(ctx: click.Context, _: click.Parameter, is_on: bool) -> bool:
        session = ctx.find_object(Session)
        if session is not None and is_on:
            setattr(session, name, True)
            if name == "as_json":
                session.output.reserve()
        return is_on

    return note


class ProgramCommand(click.RichCommand):
    """A command that runs a program and passes it the arguments after ``--`` unchanged."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        try:
            remaining = super().parse_args(ctx, args[:end])
        except click.NoSuchOption as error:
            if not any(text.startswith("--script") for text in args):
                raise
            raise click.UsageError(f"{error.format_message()} Write arguments of the script after --.", ctx) from error
        ctx.params["args"] = tuple(args[end + 1 :])
        return remaining


def refuse_arguments(request: RunRequest, positional: tuple[str, ...]) -> None:
    """Raise UsageError for arguments that neither the script nor the command accepts.

    ``positional``: the arguments before ``--``.
    """
    program = request.program
    refused = " ".join(positional or (program.args if program.script is None else ()))
    if refused and program.script is not None:
        raise click.UsageError(f"Got unexpected extra arguments ({refused}): write arguments of the script after --.")
    if refused:
        raise click.UsageError(
            f"Got unexpected extra arguments ({refused}): name the program with --bench or --script; "
            f"only a script takes arguments, after --."
        )


class Limit(click.FloatRange):
    """A limit of a run: a number of at least 0, or inf for no limit."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        limit = super().convert(value, param, ctx)
        if math.isnan(limit):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return limit


class RankNumber(click.IntRange):
    """A number of ranks, or ``all``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number or ``all``."""
        return value if value == "all" else super().convert(value, param, ctx)


_TYPES: Mapping[str, Mapping[str, Any]] = {
    "bool": {"is_flag": True},
    "int | None": {"type": click.IntRange(min=1)},
    "float | None": {"type": Limit(min=0)},
    "tuple[str, ...]": {"multiple": True},
    "RankCount | None": {"type": RankNumber(min=1)},
}
"""The properties of options by the types of their fields; all other options are texts"""
_COMPLETERS: Mapping[str, Completer] = {
    "bench": complete_bench,
    "topology": complete_machine,
    "overrides": complete_override,
}
"""The words that a shell suggests, by the names of choices"""
_MORE_OPTIONS = {"Outputs": ("--out", "--port", "--json", "--verbose")}
"""Options of single commands by the heading in ``--help`` under which they stand"""
Decorator = Callable[[Callable[..., int]], Callable[..., int]]


def make_option(entry: RunOption, *, help_text: str | None = None) -> Decorator:
    """Return the click option of a choice."""
    properties = dict(_TYPES.get(entry.type, {})) if entry.opposite is None else {}
    if entry.alone is not None:
        properties |= {"is_flag": False, "flag_value": entry.alone}
    return click.option(
        entry.spelling if entry.opposite is None else f"{entry.spelling}/{entry.opposite}",
        entry.name,
        default=entry.default,
        metavar=entry.metavar,
        help=help_text or entry.help,
        shell_complete=_COMPLETERS.get(entry.name),
        **properties,
    )


def options_of(command: CommandName, kind: type[RunRequest] = RunRequest) -> Decorator:
    """Decorate a command with its options of a run, in groups. The command receives ``request``, a RunRequest."""
    entries = [entry for entry in list_options(kind) if command in entry.commands]
    names = {entry.name for entry in entries}

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def with_request(*args: Any, **values: Any) -> int:
            request = kind.of(**{name: values.pop(name) for name in names & values.keys()})
            return function(*args, request=_check_program(request), **values)

        decorators = [make_option(entry) for entry in entries if entry.help]
        for title in dict.fromkeys([*(entry.title for entry in entries), *_MORE_OPTIONS]):
            spellings = [entry.spelling for entry in entries if entry.title == title and entry.help]
            spellings += [spelling for spelling in _MORE_OPTIONS.get(title, ()) if spelling not in spellings]
            decorators.append(click.option_panel(title, options=spellings))
        decorated: Callable[..., int] = with_request
        for decorator in reversed(decorators):
            decorated = decorator(decorated)
        return decorated

    return decorate


def _check_program(request: RunRequest) -> RunRequest:
    """Return the request with the default limit of a script. Raises UsageError for a program that is not clear."""
    program, limits = request.program, request.limits
    for name in ("--as-cuda" * program.as_cuda, "--ranks" * (program.ranks is not None)):
        if name and program.script is None:
            raise click.UsageError(f"{name} needs --script.")
    if program.bench is not None and program.script is not None:
        raise click.UsageError("--bench and --script: give one of them.")
    if program.script is None or limits.max_wall_s is not None:
        return request
    return replace(request, limits=replace(limits, max_wall_s=SCRIPT_WALL_S))


_ENTRIES = {entry.name: entry for entry in list_options(RunRequest)}
topology_option = make_option(_ENTRIES["topology"])
set_option = make_option(
    _ENTRIES["overrides"], help_text="Change one value of the machine, for example cube.hbm.slices=16 (repeatable)."
)
_json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_note("as_json"), help="Print one JSON document instead of tables."
)
verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_note("verbose"),
    help="Print all tables and the full report of a deadlock.",
)
_debug_option = click.option(
    "--debug",
    is_flag=True,
    expose_value=False,
    callback=_note("debug"),
    is_eager=True,
    help="Print the Python traceback of an error.",
)


def output_options(command: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command with the options of every command: ``--json`` and ``--debug``."""
    return _json_option(_debug_option(command))
