"""Print errors for a user: a few lines, no traceback unless asked for; with --json a document."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TextIO

import rich_click as click

from kernbench.cli.console import Json, document_text, say
from kernbench.cli.options import current_session
from kernbench.cli.session import FAILED, INTERRUPTED, INVALID, Session
from kernbench.common.errors import ConfigError, KernbenchError, SimulationDeadlock, exit_error, notes_of, text_of
from kernbench.common.program_line import is_program, place_document, place_of, program_line


def report_failure(error: Exception | SystemExit, session: Session) -> int:
    """Report what has ended a command; return its exit code."""
    if isinstance(error, click.ClickException):
        return report_usage(error)
    if isinstance(error, click.Abort):
        return INTERRUPTED
    if not isinstance(error, SystemExit):
        return _report(error, session)
    # Click leaves when it shows help for nothing; a user's part of the machine may leave at any time.
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
    """A command line that does not parse."""
    say(f"error: {error.format_message()}")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        say(f"help: {error.ctx.command_path} --help")
    return INVALID if isinstance(error, click.UsageError) else error.exit_code


def report_error(error: KernbenchError, session: Session) -> int:
    """An error that kernbench raised on purpose; a configuration shows every problem on its line."""
    lines = error.problems if isinstance(error, ConfigError) else (failure_text(error, session),)
    for line in lines:
        say(f"error: {line}")
    _say_more(error, session)
    return error.exit_code


def report_program_error(error: Exception, session: Session) -> int:
    """An error of a bench or a kernel: what it is, and the line of the user's file that it came from."""
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
    """An error that nobody foresaw: a fault of kernbench or of its installation."""
    say(f"error: {type(error).__name__}: {text_of(error)}")
    if not session.debug:
        say("this is not meant to happen; --debug shows where it comes from")
    _say_more(error, session)
    return FAILED


def report_lost_output(error: OSError) -> None:
    """An output that took not everything."""
    say(f"error: stdout: {error.strerror}; not everything was printed")


def report_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 - what Python calls to show a warning
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Something that a user has to know and that stops nothing, and the line of the user's file that it is about."""
    say(f"warning: {message}")
    if is_program(Path(filename)):
        say(f"  at {filename}:{lineno}")


def failure_text(error: BaseException, session: Session | None = None) -> str:
    """The text of an error; of a deadlock all of it when that was asked for."""
    session = session or current_session()
    in_full = session is not None and session.verbose
    return error.full if in_full and isinstance(error, SimulationDeadlock) else text_of(error)


def print_failure(error: Exception, session: Session) -> None:
    """The document of a command that failed before it could print its own."""
    if session.as_json and not session.output.printed:
        found: Json = {
            "status": "FAILED",
            "error": f"{type(error).__name__}: {failure_text(error, session)}",
            "place": place_document(place_of(error)),
        }
        session.output.print_document(document_text(found))


def _say_more(error: BaseException, session: Session) -> None:
    for note in notes_of(error):
        say(f"  {note}")
    if session.debug:
        say("".join(traceback.format_exception(error)), newline=False)
