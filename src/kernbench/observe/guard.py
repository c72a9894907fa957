"""Guard around explanations, pictures and reports of a run: a fault there never costs the run."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernbench.common.errors import ExplanationError, InputError, LimitReached, text_of
from kernbench.common.program_line import program_line

STRICT = "KERNBENCH_STRICT"
"""The environment variable that lets faults pass the guard, as in the tests of kernbench"""
_PASS = (InputError, LimitReached, ExplanationError, MemoryError, OSError)


@contextmanager
def guarded(subject: str) -> Iterator[None]:
    """Raise ExplanationError for a fault inside the block: ``subject`` failed, with the fault and its line.

    Errors of the user pass unchanged: wrong input, errors raised in the user's code, Ctrl-C. So do limits, lack of
    memory and files that cannot be written.
    """
    try:
        yield
    except _PASS:
        raise
    except Exception as fault:
        if os.environ.get(STRICT) or program_line(fault) is not None:
            raise
        frame = traceback.extract_tb(fault.__traceback__)[-1]
        text = f"{type(fault).__name__}: {text_of(fault)} ({Path(frame.filename).name}:{frame.lineno})"
        raise ExplanationError(f"{subject} failed: {text}") from fault
