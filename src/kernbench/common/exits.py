"""Programs that are left by ``sys.exit``: a failure like any other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernbench.common.errors import ProgramExitError


def exit_error(leaving: SystemExit) -> ProgramExitError:
    """The error that leaving a program is, with the traceback of the ``sys.exit``."""
    return ProgramExitError(leaving.code).with_traceback(leaving.__traceback__)


@contextmanager
def exit_is_failure() -> Iterator[None]:
    """For code of users: inside, ``sys.exit`` raises ProgramExitError."""
    try:
        yield
    except SystemExit as leaving:
        raise exit_error(leaving) from None
