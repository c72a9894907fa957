"""``kernbench``: the group of all commands, and how every way a command can end becomes an exit code.

Nothing heavy is imported here: a command's module is loaded when the command is used.
"""

from __future__ import annotations

import gc
import importlib
import io
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import rich_click as click

from kernbench import __version__
from kernbench.cli.console import say
from kernbench.cli.failures import (
    FAILED,
    INTERRUPTED,
    INVALID,
    UNREAD,
    explain_unexpected,
    print_failure,
    report_program_error,
    report_usage,
    report_warning,
)
from kernbench.cli.options import Session
from kernbench.cli.streams import end_streams
from kernbench.common.errors import KernbenchError, exit_error, there_are
from kernbench.common.program_line import program_line


class LazyGroup(click.RichGroup):
    """``commands_at`` gives for each command its module, which has it as ``command``, and its line in the help.

    Listing commands needs their lines only, so it imports none of them.
    """

    def __init__(self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order given."""
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A stand-in with the name and the line of help; None for a name that is no command."""
        found = self._commands_at.get(cmd_name)
        return None if found is None else click.RichCommand(name=cmd_name, help=found[1])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command to run: here its module is imported. UsageError, with the nearest name, for none."""
        if args[0] not in self._commands_at and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r}; {there_are(args[0], tuple(self._commands_at))}", ctx)
        name, stand_in, rest = super().resolve_command(ctx, args)
        return name, stand_in if name is None else self._load(name), rest

    def _load(self, name: str) -> click.Command:
        module = importlib.import_module(self._commands_at[name][0])
        command = vars(module)["command"]
        assert isinstance(command, click.Command), f"{module.__name__}.command is the command {name}"
        return command


@click.group(
    name="kernbench",
    cls=LazyGroup,
    commands_at={
        "run": ("kernbench.cli.run_command", "Run a bench and say what it took."),
        "list": ("kernbench.cli.list_command", "Benches, parts and probe cases, one line each."),
        "probe": ("kernbench.cli.probe_command", "Predefined traffic: latency, its parts, bandwidth."),
        "check-part": ("kernbench.cli.check_part_command", "What a part of yours owes the machine, a line a check."),
        "topology": ("kernbench.cli.topology_command", "The machine: counts, links, a drawing to scale."),
        "web": ("kernbench.cli.web_command", "The machine and a run as a page for the browser."),
        "sweep": ("kernbench.cli.sweep_command", "A grid of machine and bench parameters, in parallel."),
        "compare": ("kernbench.cli.compare_command", "Two results side by side, and what explains the difference."),
    },
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="kernbench")
def cli() -> None:
    """Numerics and contended timing of torch-like programs on a multi-die AI accelerator."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: that of the process) and return its exit code.

    0 ok, 1 the run failed, 2 bad input, 130 interrupted, 141 nobody reads the output. Never raises SystemExit.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    session = Session()
    with session.at_end:
        return run_command_line(arguments, session)


def run_command_line(arguments: list[str], session: Session) -> int:
    """``main`` with what the call is to know."""
    with session.output as output, warnings.catch_warnings():
        warnings.showwarning = report_warning
        try:
            code = _run(arguments, session)
            output.flush()
        except KeyboardInterrupt:
            code = INTERRUPTED
        if output.lost is None:
            return code
        if output.broken:
            return UNREAD
        say(f"error: stdout: {output.lost.strerror}; not everything was printed")
        return FAILED


def _run(arguments: list[str], session: Session) -> int:
    try:
        code = cli.main(arguments, prog_name="kernbench", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return report_usage(error)
    except click.Abort:
        return INTERRUPTED
    except SystemExit as stop:
        return _left(stop, session)
    except Exception as error:
        return _report(error, session)


def _left(stop: SystemExit, session: Session) -> int:
    """Click leaves when it shows help for nothing; a user's part of the machine may leave at any time."""
    if program_line(stop) is None:
        return stop.code if isinstance(stop.code, int) else INVALID
    return _report(exit_error(stop), session)


def _report(error: Exception, session: Session) -> int:
    tell = report_program_error if isinstance(error, KernbenchError) else explain_unexpected
    code = tell(error, session)
    if code == FAILED:
        print_failure(error, session)
    return code


def entry() -> None:
    """The console script."""
    # Phase 2 multiplies many small matrices: a thread for each core makes that slower, not faster. Before NumPy comes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        # A terminal without the letters of a table shows others in their place.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    session = Session()
    code = run_command_line(sys.argv[1:], session)
    end_streams(reserved=session.as_json)
    # The process ends, and its memory goes as a whole: nobody searches for what could go, now or ``at_end``.
    gc.freeze()
    sys.exit(code)
