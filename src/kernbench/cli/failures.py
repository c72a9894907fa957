"""Report errors to the user: a few lines, a traceback only with ``--debug``, a document with ``--json``."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TextIO

import rich_click as click

from kernbench.cli.console import Json, document_text, say
from kernbench.cli.options import current_session
from kernbench.cli.session import FAILED, INTERRUPTED, INVALID, Session
from kernbench.common.errors import ConfigError, KernbenchError, SimulationDeadlock, exit_error, notes_of, text_of
from kernbench.common.figures import to_plain
from kernbench.common.program_line import is_program, place_of, program_line


def report_failure(error: Exception | SystemExit, session: Session) -> int:
    """Report the error that ended a command and return its exit code."""
    if isinstance(error, click.ClickException):
        return report_usage(error)
    if isinstance(error, click.Abort):
        return INTERRUPTED
    if not isinstance(error, SystemExit):
        return _report(error, session)
    # Click exits after it shows help; a user's part may call sys.exit at any time.
    if program_line(error) is None:
        return error.code if isinstance(error.code, int) else INVALID
    return _report(exit_error(error), session)


def _report(error: Exception, session: Session) -> int:
    tell = report_program_error if isinstance(error, KernbenchError) else explain_unexpected
    code = tell(error, session)
    if code == FAILED:
        print_failure(error, session)
    return code


def report_usage(error: click.ClickException) -> int:
    """Report an invalid command line."""
    say(f"error: {error.format_message()}")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        say(f"help: {error.ctx.command_path} --help")
    return INVALID if isinstance(error, click.UsageError) else error.exit_code


def report_error(error: KernbenchError, session: Session) -> int:
    """Report an error that kernbench raised on purpose; a configuration error prints one line per problem."""
    lines = error.problems if isinstance(error, ConfigError) else (failure_text(error, session),)
    for line in lines:
        say(f"error: {line}")
    _say_more(error, session)
    return error.exit_code


def report_program_error(error: Exception, session: Session) -> int:
    """Report an error of a bench or a kernel, with the line in the user's file."""
    where = str(program_line(error) or "")
    if isinstance(error, KernbenchError):
        if where not in text_of(error):
            error.add_note(f"at {where}")
        return report_error(error, session)
    say(": ".join(filter(None, ["error", type(error).__name__, text_of(error)])))
    if where:
        say(f"  at {where}")
    _say_more(error, session)
    return FAILED


def explain_unexpected(error: Exception, session: Session) -> int:
    """Report an unexpected error: a fault of kernbench or of its installation."""
    say(f"error: {type(error).__name__}: {text_of(error)}")
    if not session.debug:
        say("this is a fault of kernbench or its installation; --debug prints the traceback")
    _say_more(error, session)
    return FAILED


def report_lost_output(error: OSError) -> None:
    """Report that stdout did not accept all output."""
    say(f"error: stdout: {error.strerror}; not everything was printed")


def report_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 - what Python calls to show a warning
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Print a warning and the line in the user's file that caused it. The command continues."""
    say(f"warning: {message}")
    if is_program(Path(filename)):
        say(f"  at {filename}:{lineno}")


def failure_text(error: BaseException, session: Session | None = None) -> str:
    """Return the text of an error. The report of a deadlock is complete with ``-v`` only."""
    session = session or current_session()
    in_full = session is not None and session.verbose
    return error.full if in_full and isinstance(error, SimulationDeadlock) else text_of(error)


def print_failure(error: Exception, session: Session) -> None:
    """Print a document for a command that failed before it could print its own."""
    if session.as_json and not session.output.printed:
        document: Json = {
            "status": "FAILED",
            "error": f"{type(error).__name__}: {failure_text(error, session)}",
            "place": to_plain(place_of(error)),
        }
        session.output.print_document(document_text(document))


def _say_more(error: BaseException, session: Session) -> None:
    for note in notes_of(error):
        say(f"  {note}")
    if session.debug:
        say("".join(traceback.format_exception(error)), newline=False)
