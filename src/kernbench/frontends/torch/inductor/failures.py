"""Code that is not compiled: breaks between graphs, failures of the compiler, and what a run must not leave behind."""

from __future__ import annotations

from collections.abc import Callable
from traceback import FrameSummary
from types import FrameType
from typing import Any
from weakref import finalize

import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.utils import counters, graph_break_reasons
from torch._inductor.runtime.hints import DeviceProperties

from kernbench.common.errors import KernbenchError, UnmodelledError, text_of
from kernbench.frontends.torch.modules import ProgramPlace, is_library
from kernbench.runtime_api.context import AnyContext, current_context


def note_failure(place: str, error: Exception) -> None:
    """Note that the compiler failed at ``place``, whose code then runs eagerly. Raises UnmodelledError if strict."""
    context = current_context()
    reason = f"{type(error).__name__}: {_first_line(text_of(error))}"
    if context is None or context.frontends.torch.strict:
        raise UnmodelledError(
            f"{place}: torch.compile: {reason}; --strict refuses to run it eagerly (--set torch.compile=eager: all)"
        ) from error
    context.compiled.note_eager(place, reason)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


# breaks


def note_breaks(convert: Callable[..., ConvertFrameReturn]) -> Callable[..., ConvertFrameReturn]:
    """Return dynamo's method that compiles a frame, changed to note breaks, and to run frames eagerly if it fails."""

    def convert_here(self: Any, frame: Any, *args: Any, skip: int = 0, **options: Any) -> ConvertFrameReturn:
        context = current_context()
        if context is None:
            return convert(self, frame, *args, skip=skip + 1, **options)
        context.compiled.is_used = True
        n_reasons, n_unsupported = len(graph_break_reasons), dict(counters["graph_break"])
        try:
            result = convert(self, frame, *args, skip=skip + 1, **options)
        except KernbenchError:
            raise
        except Exception as error:
            cause = error.inner_exception if isinstance(error, BackendCompilerFailed) else error
            if isinstance(cause, KernbenchError):
                raise cause from None
            note_failure(_place_of_frame(frame), error)
            return ConvertFrameReturn(skip_reason="the compiler failed")
        for reason in graph_break_reasons[n_reasons:]:
            context.compiled.note_break(_innermost(reason.user_stack), _describe(reason.reason))
        if len(graph_break_reasons) == n_reasons and result.guarded_code is None:
            unsupported = [text for text, n in counters["graph_break"].items() if n > n_unsupported.get(text, 0)]
            for text in unsupported[:1]:
                context.compiled.note_break(_place_of_frame(frame), _describe(text))
        return result

    return convert_here


def _describe(reason: str) -> str:
    """Return the first line of a reason, and its explanation."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    more = next((line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")), "")
    return ": ".join(filter(None, (lines[0] if lines else "", more)))


def _place_of_frame(frame: FrameType) -> str:
    return str(ProgramPlace(frame.f_code.co_filename, frame.f_lineno))


def _innermost(stack: list[FrameSummary]) -> str:
    """Return the innermost line of the program in a stack."""
    for frame in reversed(stack):
        if not is_library(frame.filename):
            return str(ProgramPlace(frame.filename, frame.lineno or 0))
    return "the program"


# the end of a run


class _Cached:
    """Stands for what the compiler has cached in a run: code for its machine."""


def reset_after(context: AnyContext) -> None:
    """Drop all compiled code at the end of the run: it is code for this machine."""
    if context.rank_local.get(_Cached) is None:
        DeviceProperties.create.cache_clear()
        cached = _Cached()
        finalize(cached, torch._dynamo.reset).atexit = False  # noqa: SLF001 - the module's only name
        context.rank_local.put(cached)
