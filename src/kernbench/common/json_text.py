"""JSON documents as text: times are whole picoseconds, without the noise of sums of floats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

TIMES: Mapping[str, int] = {"ns": 3}
"""Decimals by the last word of a name"""
FIGURES: Mapping[str, int] = {**TIMES, "gbs": 3} | dict.fromkeys(
    ("utilisation", "occupancy", "fairness", "efficiency", "beyond", "macs"), 6
)
"""Those of bandwidths and shares too, for a reader; data that are read again have them in full"""
# What a user has given is shown as it was given.
_GIVEN = frozenset(("configuration", "config", "attrs", "params", "parameters"))


def json_text(document: object, indent: int, decimals: Mapping[str, int] = TIMES) -> str:
    """``document`` as JSON, its figures rounded by their names. ValueError for NaN and infinities."""
    return json.dumps(rounded(document, decimals), indent=indent, ensure_ascii=False, allow_nan=False)


def rounded(value: Any, decimals: Mapping[str, int] = TIMES, digits: int | None = None) -> Any:
    """``value`` with every figure of a name in ``decimals`` rounded; ``digits``: for those that have no such name."""
    if isinstance(value, dict):
        return {
            name: each if name in _GIVEN else rounded(each, decimals, decimals.get(_last_word(name), digits))
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [rounded(each, decimals, digits) for each in value]
    return value if digits is None or not isinstance(value, float) else round(value, digits)


def _last_word(name: object) -> str:
    """Such as ``ns`` of ``launch.kernel_ns``."""
    return str(name).replace(".", "_").rpartition("_")[2]
