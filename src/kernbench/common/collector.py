"""Python's garbage collector during a run, and while it is explained."""

from __future__ import annotations

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
        gc.set_threshold(*before)
