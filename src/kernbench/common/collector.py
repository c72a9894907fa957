"""Python's garbage collector during a run, while it is explained, and at the end of the process."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A run makes objects by the million that live to its end, and next to no cycles: looking through them again and again
# is a third of the time of a large one.
PATIENT = (1_000_000, 50, 1000)


@contextmanager
def patient_collector() -> Iterator[None]:
    """Collect rarely inside, as before outside."""
    before = gc.get_threshold()
    gc.set_threshold(*PATIENT)
    try:
        yield
    finally:
        if before != PATIENT:  # else somebody around this, or another thread, restores it
            gc.set_threshold(*before)


def collect_at_exit() -> None:
    """Collect at exit, once however often asked: Triton's library complains of what is left, frozen or in cycles."""
    atexit.unregister(_collect_all)
    atexit.register(_collect_all)


def _collect_all() -> None:
    gc.unfreeze()
    gc.collect()
