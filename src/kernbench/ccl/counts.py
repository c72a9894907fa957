"""Whole numbers that programs give: of Python or NumPy."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from kernbench.common.errors import InputError


def checked_count(name: str, given: object, least: int) -> int:
    """The number; InputError for what is none, and for less than ``least``."""
    if isinstance(given, bool) or not isinstance(given, SupportsIndex) or index(given) < least:
        raise InputError(f"{name}={given!r}: must be a whole number, at least {least}")
    return index(given)
