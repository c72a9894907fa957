"""Use of a call's result by the kernel, read from the bytecode that follows the call."""

from __future__ import annotations

import dis
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import triton

_PACKAGE = Path(__file__).parents[2]
_LIBRARIES = (*map(str, triton.__path__), str(_PACKAGE))


def result_is_dropped() -> bool:
    """Return whether the call is a complete statement, so the kernel does not use its result."""
    return _next_instruction() == ("POP_TOP", "")


def result_is_added() -> bool:
    """Return whether the kernel's next instruction adds the result to an earlier value: ``x += call(...)``."""
    return _next_instruction() in (("BINARY_OP", "+="), ("BINARY_OP", "+"))


def _next_instruction() -> tuple[str, str] | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return None if frame is None else _followers(frame.f_code).get(frame.f_lasti)


@cache
def _followers(code: CodeType) -> dict[int, tuple[str, str]]:
    """Return the name and argument of the instruction that follows each offset of ``code``.

    While a frame calls a Python function, its offset is at the cache entries after the call. While it calls a C
    function, its offset is at the call.
    """
    return {
        offset: (then.opname, then.argrepr)
        for one, then in pairwise(dis.get_instructions(code))
        for offset in range(one.offset, then.offset, 2)
    }
