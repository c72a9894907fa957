"""``torch.compile`` on the machine: programs run operator by operator, and the report says so."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from kernbench.common.errors import UnmodelledError
from kernbench.frontends.torch.modules import program_place
from kernbench.runtime_api.context import current_context

NOTE = "torch.compile: ran eagerly, operator by operator"


def install() -> None:
    """Let ``torch.compile`` give back what it gets while a program runs on the machine."""
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

    torch.compile = compile_here
