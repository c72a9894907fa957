"""JSON that comes from a file: what nobody here writes, and what would break who reads it, is an error at once."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

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
