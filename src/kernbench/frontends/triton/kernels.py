"""Results of ``triton.jit``: functions for the machine, with the attributes of compiled kernels."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from kernbench.frontends.triton.driver import CompiledKernel, run
from kernbench.frontends.triton.values import TensorHandle

_LOOP, _OPERAND, _NOT = "_kernbench_loop", "_kernbench_operand", "_kernbench_not"


class Kernel(JITFunction):
    """A kernel. Kernel replaces ``InterpretedFunction``. It is a ``JITFunction``, for programs that inspect it."""

    def __init__(self, fn: Any, **options: Any) -> None:
        super().__init__(fn, **options)
        self.rewriter = interpreter.FunctionRewriter(fn, **options)
        self._rewritten: Callable[..., Any] | None = None

    @property
    def cache_key(self) -> str:
        """Return a digest of the kernel's name and source."""
        return hashlib.sha256(f"{self.__module__}.{self.__qualname__}\n{self.src}".encode()).hexdigest()

    def rewrite(self) -> Callable[..., Any]:
        """Return the function that the interpreter runs."""
        if self._rewritten is None:
            _resolve_libdevice(self.fn.__globals__)
            self._rewritten = self.rewriter.rewrite_ast()
        return self._rewritten

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> CompiledKernel:
        """Launch the kernel unless ``warmup``, and return a CompiledKernel with its figures."""
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the kernel within another kernel. Errors pass unchanged."""
        return self.rewrite()(*args, **kwargs)


def _resolve_libdevice(names: dict[str, Any]) -> None:
    """Replace functions in ``names`` that come from Triton's libdevice module, or from a copy of that name."""
    for name, there in names.items():
        if isinstance(there, FunctionType) and there.__module__ == libdevice.__name__:
            names[name] = vars(libdevice).get(there.__name__, there)


def _loop(steps: Any) -> Iterator[Any]:
    """Yield the numbers of a range as tensors without axes, as compiled kernels see them."""
    if not isinstance(steps, range):
        yield from steps
        return
    wide = max(abs(steps.start), abs(steps.stop)) >= 2**31
    item, ty = (np.int64, tl.int64) if wide else (np.int32, tl.int32)
    for step in steps:
        yield tl.core.tensor(TensorHandle(np.array([step], item), ty), ty)


def _visit_for(self: Any, node: ast.For) -> ast.AST:
    """Route loops over ``range`` and ``tl.range`` through `_loop`; ``tl.static_range`` yields plain numbers."""
    self.generic_visit(node)
    if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func).rpartition(".")[2] == "range":
        node.iter = ast.Call(func=ast.Name(id=_LOOP, ctx=ast.Load()), args=[node.iter], keywords=[])
    return node


def _is_block(x: Any) -> bool:
    return isinstance(x, tl.tensor) and bool(x.type.is_block())


class _Operand:
    """An operand of ``and`` or ``or``, and the result so far: ``a and b`` becomes ``(start < a < b).value``.

    Blocks are combined element by element, as in compiled code. Python would only test that the object exists. Other
    values follow Python's rules: ``b`` is not evaluated if ``a`` decides.
    """

    def __init__(self, combine: str, value: Any) -> None:
        self.combine, self.value = combine, value

    def __bool__(self) -> bool:
        """Return whether the next operand matters."""
        return _is_block(self.value) or bool(self.value) is (self.combine == "logical_and")

    def __lt__(self, behind: _Operand) -> _Operand:
        """Combine with ``behind``, the next operand, and return it."""
        if _is_block(self.value):
            if isinstance(behind.value, tl.tensor):
                behind.value = getattr(self.value, self.combine)(behind.value)
            elif behind:
                behind.value = self.value
        return behind


def _visit_bool_op(self: Any, node: ast.BoolOp) -> ast.AST:
    """Turn ``and`` and ``or`` into chains of operands."""
    self.generic_visit(node)
    is_and = isinstance(node.op, ast.And)
    name = ast.Constant("logical_and" if is_and else "logical_or")
    operands: list[ast.expr] = [
        ast.Call(func=ast.Name(id=_OPERAND, ctx=ast.Load()), args=[name, each], keywords=[])
        for each in (ast.Constant(is_and), *node.values)
    ]
    compared = ast.Compare(left=operands[0], ops=[ast.Lt() for _ in node.values], comparators=operands[1:])
    return ast.copy_location(ast.Attribute(value=compared, attr="value", ctx=ast.Load()), node)


def _not(x: Any) -> Any:
    """Return ``not x``; for a block, element by element."""
    return x.__not__() if _is_block(x) else not x


def _visit_unary_op(self: Any, node: ast.UnaryOp) -> ast.AST:
    """Turn ``not`` into a call."""
    self.generic_visit(node)
    if not isinstance(node.op, ast.Not):
        return node
    call = ast.Call(func=ast.Name(id=_NOT, ctx=ast.Load()), args=[node.operand], keywords=[])
    return ast.copy_location(call, node)


def _visit_call(self: Any, node: ast.Call) -> ast.AST:
    """Give a ``tl.static_assert`` without a message the text of its condition as message."""
    name = ast.unparse(node.func)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    conditions = [*node.args, *([given["cond"]] if "cond" in given else [])]
    is_mute = name.rpartition(".")[2] == "static_assert" and len(conditions) == 1 and "msg" not in given
    message = ast.Constant(f"{name}: {ast.unparse(conditions[0])} is false") if is_mute else None
    self.generic_visit(node)
    if message is not None:
        node.keywords.append(ast.keyword("msg", message))
    return node


def _visit_assert(self: Any, node: ast.Assert) -> ast.AST:
    """Give an ``assert`` without a message the text of its condition as message."""
    node.msg = node.msg or ast.Constant(f"assert: {ast.unparse(node.test)} is false")
    self.generic_visit(node)
    return node


def install() -> None:
    """Make ``triton.jit`` return a Kernel, and change the interpreter so that kernels behave as compiled code does."""
    interpreter.InterpretedFunction = Kernel
    transformer = interpreter.ASTTransformer
    transformer.visit_For, transformer.visit_BoolOp, transformer.visit_UnaryOp = (
        _visit_for,
        _visit_bool_op,
        _visit_unary_op,
    )
    transformer.visit_Call, transformer.visit_Assert = _visit_call, _visit_assert
    for name, function in ((_LOOP, _loop), (_OPERAND, _Operand), (_NOT, _not)):
        setattr(interpreter, name, function)
    tl.dtype.value = property(lambda ty: ty)  # compiled code passes a constexpr of the dtype, which has ``value``
