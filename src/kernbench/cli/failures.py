"""What a user reads when something goes wrong: a line or a few, no traceback unless asked for."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import rich_click as click

from kernbench.common.errors import ConfigError, KernbenchError
from kernbench.runtime_api.program_line import is_program, program_line

INTERRUPTED = 130
INVALID = 2
FAILED = 1


@dataclass(slots=True)
class Session:
    """What one call of the command line knows: whether a traceback is wanted."""

    debug: bool = False


def report_usage(error: click.ClickException) -> int:
    """A command line that does not parse."""
    _say(f"error: {error.format_message()}")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        _say(f"help: {error.ctx.command_path} --help")
    return INVALID if isinstance(error, click.UsageError) else error.exit_code


def report_error(error: KernbenchError, session: Session) -> int:
    """An error that kernbench raised on purpose; a configuration shows every problem on its line."""
    lines = error.problems if isinstance(error, ConfigError) else (error,)
    for line in lines:
        _say(f"error: {line}")
    _say_more(error, session)
    return error.exit_code


def report_program_error(error: Exception, session: Session) -> int:
    """An error of a bench or a kernel: what it is, and the line of the user's file that it came from."""
    if isinstance(error, KernbenchError):
        where = program_line(error)
        if where and where not in str(error):
            error.add_note(f"at {where}")
        return report_error(error, session)
    _say(f"error: {type(error).__name__}: {error}" if str(error) else f"error: {type(error).__name__}")
    where = program_line(error)
    if where:
        _say(f"  at {where}")
    _say_more(error, session)
    return FAILED


def explain_unexpected(error: Exception, session: Session) -> int:
    """An error that nobody foresaw: a fault of kernbench or of its installation."""
    _say(f"error: {type(error).__name__}: {error}")
    if not session.debug:
        _say("this is not meant to happen; --debug shows where it comes from")
    _say_more(error, session)
    return FAILED


def report_warning(
    message: Warning | str,
    category: type[Warning],  # noqa: ARG001 - what Python calls to show a warning
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Something that a user has to know and that stops nothing, and the line of the user's file that it is about."""
    _say(f"warning: {message}")
    if is_program(Path(filename)):
        _say(f"  at {filename}:{lineno}")


def _say_more(error: BaseException, session: Session) -> None:
    for note in _notes(error):
        _say(f"  {note}")
    if session.debug:
        traceback.print_exception(error, file=sys.stderr)


def _notes(error: BaseException) -> Iterator[str]:
    """The notes that were added to an error on its way up."""
    yield from vars(error).get("__notes__", ())


def _say(text: str) -> None:
    click.echo(text, err=True)
