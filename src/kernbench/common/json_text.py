"""JSON documents: as text, times in whole picoseconds; and from files, where what nobody here writes is an error."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

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


# Results are a few levels deep; far deeper ones exhaust the stack of whoever walks through them.
DEEPEST = 100
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(text: str | bytes) -> Any:
    """The value that ``text``, UTF-8 when it is bytes, holds.

    ValueError, one line long, for what is no JSON, for NaN and infinities, for halves of characters, and for values
    nested too deeply.
    """
    try:
        plain = text.decode() if isinstance(text, bytes) else text
        value = json.loads(plain, **_STRICT)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _is_deeper(value, DEEPEST):
        raise ValueError("nested too deeply")
    if _HALF.search(plain):
        _must_be_text(value)
    return value


def _must_be_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a character (an escape from \\ud800 to \\udfff) stands alone") from error


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and mappings stand in each other over more than so many levels."""
    level = [value]
    while level and levels:
        level = [inside for each in level for inside in _inside(each)]
        levels -= 1
    return bool(level)


def _inside(value: Any) -> list[Any]:
    found = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [each for each in found if isinstance(each, dict | list)]


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"found {text[:20]}, which no number is large enough for")
    return number


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"found {text}, which JSON does not have")


_STRICT: dict[str, Any] = {"parse_float": _finite, "parse_constant": _refuse}
