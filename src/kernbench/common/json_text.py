"""JSON documents as text: times to the picosecond and shares to six digits, without the noise of sums of floats."""

from __future__ import annotations

import json
from typing import Any

# Decimals by the last word of a name: 3 of a ns are a ps, 3 of a GB/s a MB/s.
_DECIMALS = {"ns": 3, "gbs": 3} | dict.fromkeys(
    ("utilisation", "occupancy", "fairness", "efficiency", "beyond", "macs"), 6
)
# What a user has given is shown as it was given.
_GIVEN = frozenset(("configuration", "config", "attrs", "params", "parameters"))


def json_text(document: object, indent: int) -> str:
    """``document`` as JSON, its measured figures rounded by their names. ValueError for NaN and infinities."""
    return json.dumps(rounded(document), indent=indent, ensure_ascii=False, allow_nan=False)


def rounded(value: Any, decimals: int | None = None) -> Any:
    """``value`` with all that it measures rounded; ``decimals``: of what has no name that says more."""
    if isinstance(value, dict):
        return {
            name: each if name in _GIVEN else rounded(each, _decimals(name, decimals)) for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [rounded(each, decimals) for each in value]
    return value if decimals is None or not isinstance(value, float) else round(value, decimals)


def _decimals(name: object, inherited: int | None) -> int | None:
    word = str(name).replace(".", "_").rpartition("_")[2]
    return _DECIMALS.get(word, inherited)
