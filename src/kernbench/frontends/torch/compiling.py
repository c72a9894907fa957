"""PyTorch's compilers on the machine: functions run operator by operator, and the report has a remark about this."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import (
    flex_attention,
    flex_attention_backward,
    sdpa_dense,
    sdpa_dense_backward,
)
from torch.jit import _trace
from torch.nn.attention import flex_attention as flex
from torch.utils._pytree import tree_leaves

from kernbench.common.errors import UnmodelledError
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, replace
from kernbench.runtime_api.context import current_context

NOTE = "torch.compile: ran eagerly, operator by operator"
TRACE_NOTE = "torch.jit.trace: the trace is not checked: PyTorch does that in float64, which the machine does not have"
FLEX_NOTE = "flex_attention: ran operator by operator, with all scores in memory"


def install() -> None:
    """Replace PyTorch's compiling functions while a program runs on the machine."""
    _install_compile()
    _install_trace()
    _install_flex_attention()


def _install_compile() -> None:
    """Make ``torch.compile`` return its argument."""
    compile_it = torch.compile

    @wraps(compile_it)
    def compile_here(model: Any = None, **options: Any) -> Any:
        context = current_context()
        if context is None:
            return compile_it(model, **options)
        if context.frontends.torch.strict:
            raise UnmodelledError(f"{program_place()}: torch.compile: the machine runs eagerly, which --strict refuses")
        context.remarks.append(NOTE)
        return (lambda function: function) if model is None else model

    replace(torch, "compile", compile_here)


def _install_trace() -> None:
    """Skip the comparison in float64 that ``torch.jit.trace`` makes on the machine."""
    check = _trace._check_trace  # noqa: SLF001

    @wraps(check)
    def check_elsewhere(inputs: Any, *args: Any, **options: Any) -> None:
        if any(isinstance(each, AhbmTensor) for each in tree_leaves(inputs)):
            current().remarks.append(TRACE_NOTE)
        else:
            check(inputs, *args, **options)

    replace(_trace, "_check_trace", check_elsewhere)


def _install_flex_attention() -> None:
    """Run ``flex_attention`` and its backward by the operators that PyTorch uses for devices without a fused kernel."""
    flex_attention.py_impl(AhbmTensor)(_note_flex(sdpa_dense))
    flex_attention_backward.py_impl(AhbmTensor)(sdpa_dense_backward)
    validate, warn = flex._validate_device, flex._warn_once  # noqa: SLF001

    def validate_elsewhere(query: Any, *others: Any) -> None:
        if not isinstance(query, AhbmTensor):
            validate(query, *others)

    def warn_elsewhere(warning_id: str, *args: Any, **options: Any) -> None:
        if warning_id != "flex_attention_performance" or current_context() is None:  # the remark replaces the warning
            warn(warning_id, *args, **options)

    replace(flex, "_validate_device", validate_elsewhere)
    replace(flex, "_warn_once", warn_elsewhere)


def _note_flex(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def run_here(*args: Any, **options: Any) -> Any:
        current().remarks.append(FLEX_NOTE)
        return run(*args, **options)

    return run_here
