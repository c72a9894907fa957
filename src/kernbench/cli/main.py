"""``kernbench``: the group of all commands, and how every way a command can end becomes an exit code.

Nothing heavy is imported here: a command's module is loaded when the command is used.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import warnings
from collections.abc import Sequence

import rich_click as click

from kernbench import __version__
from kernbench.cli.failures import (
    INTERRUPTED,
    INVALID,
    Session,
    explain_unexpected,
    report_error,
    report_usage,
    report_warning,
)
from kernbench.cli.lazy import LazyGroup
from kernbench.common.errors import KernbenchError


@click.group(
    name="kernbench",
    cls=LazyGroup,
    commands_at={
        "run": ("kernbench.cli.run_command", "Run a bench and say what it took."),
        "list": ("kernbench.cli.list_command", "Benches, parts and probe cases, one line each."),
        "probe": ("kernbench.cli.probe_command", "Predefined traffic: latency, its parts, bandwidth."),
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

    0 ok, 1 the run failed, 2 bad input, 130 interrupted. Never raises SystemExit.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    with warnings.catch_warnings():
        warnings.showwarning = report_warning
        return _exit_code(arguments, Session())


def _exit_code(arguments: list[str], session: Session) -> int:
    """What a command line ends with, once every error has been told."""
    try:
        code = cli.main(arguments, prog_name="kernbench", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        return report_usage(error)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except KernbenchError as error:
        return report_error(error, session)
    except SystemExit as stop:  # click's own way out when nobody reads its output, or when it shows help for nothing
        return stop.code if isinstance(stop.code, int) else INVALID
    except Exception as error:
        return explain_unexpected(error, session)


def entry() -> None:
    """The console script."""
    # Phase 2 multiplies many small matrices: a thread for each core makes that slower, not faster. Before NumPy comes.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        # A terminal without the letters of a table shows others in their place.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    code = main()
    # The process ends: its memory goes as a whole, without a search for what could go.
    gc.freeze()
    sys.exit(code)
