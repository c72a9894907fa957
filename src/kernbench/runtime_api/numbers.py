"""Whole numbers that programs give: of Python or NumPy."""

from __future__ import annotations

from operator import index

import numpy as np


def whole_number(given: object) -> int | None:
    """The number; None for what is none. ``True`` and ``1.0`` are none: they were meant as something else."""
    if isinstance(given, bool | np.bool_):
        return None
    try:
        return index(given)  # type: ignore[arg-type]
    except TypeError:
        return None
