"""Python's garbage collector during a run, during its explanation, and at the end of the process."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A run creates millions of objects that live to its end, and almost no cycles. Collections at Python's default
# thresholds take a third of the time of a large run.
PATIENT = (1_000_000, 50, 1000)


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
