"""Tell what a kernel does with the result of the call that it is in, from its next instruction."""

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
    """Tell whether the call is a statement by itself, so that nobody wants its result."""
    return _next_instruction() == ("POP_TOP", "")


def result_is_added() -> bool:
    """Tell whether the kernel adds the result to something before it does anything else: ``x += call(...)``."""
    return _next_instruction() in (("BINARY_OP", "+="), ("BINARY_OP", "+"))


def _next_instruction() -> tuple[str, str] | None:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - documented, public in all but name
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return None if frame is None else _followers(frame.f_code).get(frame.f_lasti)


@cache
def _followers(code: CodeType) -> dict[int, tuple[str, str]]:
    """Name and argument of the instruction that follows the one at each offset of ``code``.

    A frame that calls a function of Python stands in the cache behind its call, one that calls C at the call.
    """
    return {
        offset: (then.opname, then.argrepr)
        for one, then in pairwise(dis.get_instructions(code))
        for offset in range(one.offset, then.offset, 2)
    }
