"""Python's garbage collector during a run and during its explanation, and the end of the process."""

from __future__ import annotations

import atexit
import gc
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

# A run creates millions of objects that live to its end, and almost no cycles. Collections at Python's default
# thresholds take a third of the time of a large run.
PATIENT = (1_000_000, 50, 1000)
_STREAMS = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
"""Classes of files that hold written text or bytes until they are flushed"""


@contextmanager
def patient_collector() -> Iterator[None]:
    """Collect garbage rarely inside the block; restore the thresholds at its end."""
    before = gc.get_threshold()
    gc.set_threshold(*PATIENT)
    try:
        yield
    finally:
        if before != PATIENT:  # else an outer block, or another thread, restores it
            gc.set_threshold(*before)


def collect_at_exit() -> None:
    """Collect garbage at exit, once for any number of calls.

    Without the collection, Triton's library prints complaints about objects that are frozen or in cycles.
    """
    atexit.unregister(_collect_all)
    atexit.register(_collect_all)


def _collect_all() -> None:
    gc.unfreeze()
    gc.collect()


def leave_at_exit(code: int) -> None:
    """End the process with ``code`` at Python's exit, without freeing its objects one by one.

    Python first waits for threads. Functions that are registered with ``atexit`` are called, and open files flushed.
    """
    atexit.unregister(_collect_all)
    atexit.register(_leave, code)


def _leave(code: int) -> None:
    atexit.unregister(_leave)
    atexit._run_exitfuncs()  # noqa: SLF001 - as the processes of multiprocessing end
    gc.unfreeze()
    for stream in _find_streams():
        with suppress(Exception):  # the program has closed the file, or its reader has
            stream.flush()
    os._exit(code & 0xFF)


def _find_streams() -> list[Any]:
    """Return the files among all objects, of which there may be millions."""
    kinds = {kind for base in _STREAMS for kind in _with_subclasses(base)}
    return [stream for stream in gc.get_objects() if type(stream) in kinds]


def _with_subclasses(base: type[Any]) -> Iterator[type[Any]]:
    yield base
    for kind in base.__subclasses__():
        yield from _with_subclasses(kind)
