"""Programs that are left by what is no error, such as ``sys.exit``: a failure like any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.common.errors import ProgramExitError, RunError, text_of


def exit_error(leaving: BaseException) -> RunError:
    """The error that leaving a program is, with the traceback of the ``sys.exit`` or ``raise``."""
    error = ProgramExitError(leaving.code) if isinstance(leaving, SystemExit) else _left_by(leaving)
    return error.with_traceback(leaving.__traceback__)


def _left_by(leaving: BaseException) -> RunError:
    return RunError(": ".join(filter(None, [f"left by {type(leaving).__name__}", text_of(leaving)])))


@contextmanager
def exit_is_failure() -> Iterator[None]:
    """For code of users: what leaves it is an error, ``sys.exit`` a ProgramExitError; only Ctrl-C stays what it is."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as leaving:  # SystemExit, a cancelled task, a test framework's own way to fail
        raise exit_error(leaving) from None
