"""``kernbench`` as a process: every end of a command becomes an exit code.

This module imports nothing heavy. Later imports run while Python's garbage collector is paused.
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
from kernbench.common.collector import leave_at_exit, patient_collector
from kernbench.common.late import late

COMMANDS = "kernbench.cli.commands"
FAILURES = "kernbench.cli.failures"
COMPLETION, SHELL_ASKS = "kernbench.cli.completion", "_KERNBENCH_COMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: the arguments of the process) and return its exit code.

    Codes: 0 ok, 1 the run failed, 2 bad input, 130 interrupted, 141 the reader of stdout has closed it. Never raises
    SystemExit.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    session = Session()
    with session.at_end:
        return run_command_line(arguments, session)


def run_command_line(arguments: list[str], session: Session) -> int:
    """Run a command line in ``session`` and return its exit code."""
    # Imports and runs create millions of objects, and almost all live until the end: collecting them is wasted time.
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
        late(COMPLETION, "FishCompletion")  # the import registers the class
    try:
        os.getcwd()
    except OSError:
        sys.stderr.write("error: the current folder no longer exists; change to an existing folder\n")
        return INVALID
    try:
        code = late(COMMANDS, "cli").main(arguments, prog_name="kernbench", standalone_mode=False, obj=session)
        return code if isinstance(code, int) else 0
    except (Exception, SystemExit) as error:
        exit_code: int = late(FAILURES, "report_failure")(error, session)
        return exit_code


def _show_warning(*about: Any) -> None:
    """Show a warning. Python calls this with the arguments of ``warnings.showwarning``."""
    late(FAILURES, "report_warning")(*about)


def entry() -> None:
    """Run ``kernbench`` as the console script."""
    # Phase 2 multiplies many small matrices, and threads make that slower. Set this before NumPy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for stream in (sys.stdout, sys.stderr):
        # A terminal that lacks a character of a table shows a replacement.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    session = Session()
    code = run_command_line(sys.argv[1:], session)
    end_streams(reserved=session.as_json)
    # The process ends and frees all memory at once, so skip the final collection and ``at_end``.
    gc.freeze()
    if _is_called_by_script():
        leave_at_exit(code)
    sys.exit(code)


def _is_called_by_script() -> bool:
    """Return True if the caller of `entry` is the process's main script, so that nothing else follows the command."""
    caller = sys._getframe(2)  # noqa: SLF001 - a documented function
    return caller.f_back is None
