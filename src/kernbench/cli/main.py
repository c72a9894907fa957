"""``kernbench`` as a process: how every way a command can end becomes an exit code.

Nothing heavy is imported here, for what comes later is imported with Python's garbage collector held back.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from kernbench.cli.session import FAILED, INTERRUPTED, INVALID, UNREAD, Session
from kernbench.cli.streams import end_streams
from kernbench.common.collector import patient_collector
from kernbench.common.late import late

COMMANDS = "kernbench.cli.commands"
FAILURES = "kernbench.cli.failures"
COMPLETION, SHELL_ASKS = "kernbench.cli.completion", "_KERNBENCH_COMPLETE"


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
    # Imports make objects by the hundred thousand, a run by the million: what they make is still there at the end.
    session.at_end.enter_context(patient_collector())
    with session.output as output, warnings.catch_warnings():
        warnings.showwarning = _show_warning  # type: ignore[assignment]
        try:
            code = _run(arguments, session)
            output.flush()
        except KeyboardInterrupt:
            code = INTERRUPTED
        if output.lost is None:
            return code
        if output.broken:
            return UNREAD
        late(FAILURES, "report_lost_output")(output.lost)
        return FAILED


def _run(arguments: list[str], session: Session) -> int:
    if SHELL_ASKS in os.environ:
        late(COMPLETION, "FishCompletion")  # loading it is what makes it known
    try:
        os.getcwd()
    except OSError:
        sys.stderr.write("error: the current folder is no more; change to one that is there\n")
        return INVALID
    try:
        code = late(COMMANDS, "cli").main(arguments, prog_name="kernbench", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else 0
    except (Exception, SystemExit) as error:
        exit_code: int = late(FAILURES, "report_failure")(error, session)
        return exit_code


def _show_warning(*about: Any) -> None:
    """Show a warning; Python calls this, with the arguments of ``warnings.showwarning``."""
    late(FAILURES, "report_warning")(*about)


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
