"""What ``triton.jit`` makes: functions for the machine, which programs may ask what they ask of compiled ones."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from kernbench.frontends.triton.driver import Warmed, run
from kernbench.frontends.triton.values import TensorHandle

_LOOP = "_kernbench_loop"


class Kernel(JITFunction):
    """In place of ``InterpretedFunction``: a ``JITFunction`` in all that a program looks at."""

    def __init__(self, fn: Any, **options: Any) -> None:
        super().__init__(fn, **options)
        self.rewriter = interpreter.FunctionRewriter(fn, **options)
        self._rewritten: Callable[..., Any] | None = None

    @property
    def cache_key(self) -> str:
        """A digest of its name and source."""
        return hashlib.sha256(f"{self.__module__}.{self.__qualname__}\n{self.src}".encode()).hexdigest()

    def rewrite(self) -> Callable[..., Any]:
        """Return the function that the interpreter runs."""
        if self._rewritten is None:
            self._rewritten = self.rewriter.rewrite_ast()
        return self._rewritten

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Warmed | None:
        """Launch it, or say what it would take."""
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it within a kernel, whose errors come out as they are."""
        return self.rewrite()(*args, **kwargs)


def _loop(steps: Any) -> Iterator[Any]:
    """Yield the numbers of a range as a kernel has them: tensors without axes."""
    if not isinstance(steps, range):
        yield from steps
        return
    wide = max(abs(steps.start), abs(steps.stop)) >= 2**31
    item, ty = (np.int64, tl.int64) if wide else (np.int32, tl.int32)
    for step in steps:
        yield tl.core.tensor(TensorHandle(np.array([step], item), ty), ty)


def _visit_for(self: Any, node: ast.For) -> ast.AST:
    """Have a loop over ``range`` or ``tl.range`` go through `_loop`; ``tl.static_range`` has plain numbers."""
    self.generic_visit(node)
    if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func).rpartition(".")[2] == "range":
        node.iter = ast.Call(func=ast.Name(id=_LOOP, ctx=ast.Load()), args=[node.iter], keywords=[])
    return node


def install() -> None:
    """Have ``triton.jit`` make these, and kernels see what they would see compiled."""
    interpreter.InterpretedFunction = Kernel
    interpreter.ASTTransformer.visit_For = _visit_for
    setattr(interpreter, _LOOP, _loop)
    tl.dtype.value = property(lambda ty: ty)  # a compiler gives functions of constants a constexpr of it
