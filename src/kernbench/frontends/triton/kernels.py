"""Results of ``triton.jit``: functions for the machine, and the results of their launches.

Both have the attributes of compiled kernels. The interpreter's copy of a kernel is changed to behave as compiled code.
Loop variables are tensors, and ``and``, ``or`` and ``not`` of blocks work element by element.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any, Literal, NoReturn

import numpy as np
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime import interpreter
from triton.runtime.jit import JITCallable, JITFunction

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.gpu import REGISTERS, WARP_SIZE
from kernbench.frontends.triton.extra_functions import WRITTEN_IN_TRITON
from kernbench.frontends.triton.launch import Launchable, context_of, launch
from kernbench.frontends.triton.values import TensorHandle
from kernbench.runtime_api.launch_kinds import FunctionStandIn

FunctionStandIn.register(JITCallable)

_LOOP, _OPERAND, _NOT = "_kernbench_loop", "_kernbench_operand", "_kernbench_not"


class TritonKernel(JITFunction):
    """A kernel in place of ``InterpretedFunction``. It is a ``JITFunction``, for programs that inspect it."""

    def __init__(self, fn: FunctionType, **options: object) -> None:
        super().__init__(fn, **options)
        self.rewriter = interpreter.FunctionRewriter(fn, **options)
        self._rewritten: Callable[..., object] | None = WRITTEN_IN_TRITON.get(f"{fn.__module__}.{fn.__qualname__}")

    @property
    def cache_key(self) -> str:
        """Return a digest of the kernel's name and source."""
        return hashlib.sha256(f"{self.__module__}.{self.__qualname__}\n{self.src}".encode()).hexdigest()

    def rewrite(self) -> Callable[..., object]:
        """Return the function that the interpreter runs."""
        if self._rewritten is None:
            _resolve_libdevice(self.fn.__globals__)
            self._rewritten = self.rewriter.rewrite_ast()
        return self._rewritten

    def run(self, *args: object, grid: object, warmup: bool, **kwargs: object) -> CompiledKernel:
        """Launch the kernel unless ``warmup``, and return a CompiledKernel with its figures."""
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the kernel within another kernel. Errors pass unchanged."""
        return self.rewrite()(*args, **kwargs)


def call_kernel(kernel: Launchable, *args: object, **kwargs: object) -> object:
    """Call a kernel from a kernel. Errors pass unchanged. Replaces ``InterpretedFunction.__call__``."""
    return kernel.rewrite()(*args, **kwargs)


def _resolve_libdevice(names: dict[str, object]) -> None:
    """Replace functions in ``names`` that come from Triton's libdevice module, or from a copy of that name."""
    for name, member in names.items():
        if isinstance(member, FunctionType) and member.__module__ == libdevice.__name__:
            names[name] = vars(libdevice).get(member.__name__, member)


@value
class CompiledKernel:
    """The result of a launch and of ``kernel.warmup``. ``compiled[grid](...)`` launches the kernel."""

    kernel: Launchable
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Return the name of the kernel."""
        return self.kernel.__name__

    @property
    def n_regs(self) -> int:
        """Return the registers per thread: all registers of a PE, divided by the threads that the launch requests."""
        return REGISTERS // (WARP_SIZE * int(self.options.get("num_warps", 4)))

    @property
    def n_spills(self) -> int:
        """Return 0: no register is spilled."""
        return 0

    @property
    def metadata(self) -> SimpleNamespace:
        """Return ``shared``, the bytes of TCM of a PE, and ``num_warps``, as requested."""
        spec = context_of("metadata").topology
        return SimpleNamespace(shared=spec.pe.tcm.bytes, num_warps=int(self.options.get("num_warps", 4)))

    @property
    def asm(self) -> NoReturn:
        """Refuse: a kernel is not compiled."""
        raise InputError(f"the code of kernel {self.name!r}: there is none, a PE takes its commands as they come")

    def _init_handles(self) -> None:
        """Do nothing. Programs call it before they read ``n_regs`` and ``n_spills``."""

    def __getitem__(self, grid: object) -> Callable[..., None]:
        """Return a launcher: ``compiled[grid](*args)`` repeats the launch. Missing arguments keep their last values."""

        def run(*args: object, **kwargs: object) -> None:
            positional = self.kernel.arg_names[: len(args)]
            options = {name: value for name, value in self.options.items() if name not in positional}
            launch(self.kernel, grid, args, {**options, **kwargs})

        return run


def run(kernel: Launchable, *args: object, grid: object, warmup: bool, **kwargs: object) -> CompiledKernel:
    """Launch ``kernel`` unless ``warmup``. Replaces ``InterpretedFunction.run``."""
    if not warmup:
        launch(kernel, grid, args, kwargs)
    return CompiledKernel(kernel, kwargs)


# -- The language of kernels, as compiled code has it -----------------------------------------------------------------


def _loop(steps: Iterable[object]) -> Iterator[object]:
    """Yield the numbers of a range as tensors without axes, as compiled kernels see them."""
    if not isinstance(steps, range):
        yield from steps
        return
    wide = max(abs(steps.start), abs(steps.stop)) >= 2**31
    item, ty = (np.int64, tl.int64) if wide else (np.int32, tl.int32)
    for step in steps:
        yield tl.core.tensor(TensorHandle(np.array([step], item), ty), ty)


def _visit_for(self: interpreter.ASTTransformer, node: ast.For) -> ast.AST:
    """Route loops over ``range`` and ``tl.range`` through `_loop`; ``tl.static_range`` yields plain numbers."""
    self.generic_visit(node)
    if isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func).rpartition(".")[2] == "range":
        node.iter = ast.Call(func=ast.Name(id=_LOOP, ctx=ast.Load()), args=[node.iter], keywords=[])
    return node


def _is_block(x: object) -> bool:
    return isinstance(x, tl.tensor) and bool(x.type.is_block())


class _BooleanOperand:
    """An operand of ``and`` or ``or``, and the result so far: ``a and b`` becomes ``(start < a < b).value``.

    Blocks are combined element by element, as in compiled code. Python would only test that the object exists. Other
    values follow Python's rules: ``b`` is not evaluated if ``a`` decides.
    """

    def __init__(self, combine: Literal["logical_and", "logical_or"], value: object) -> None:
        self.combine, self.value = combine, value

    def __bool__(self) -> bool:
        """Return whether the next operand matters."""
        return _is_block(self.value) or bool(self.value) is (self.combine == "logical_and")

    def __lt__(self, behind: _BooleanOperand) -> _BooleanOperand:
        """Combine with ``behind``, the next operand, and return it."""
        if _is_block(self.value):
            if isinstance(behind.value, tl.tensor):
                behind.value = getattr(self.value, self.combine)(behind.value)
            elif behind:
                behind.value = self.value
        return behind


def _visit_bool_op(self: interpreter.ASTTransformer, node: ast.BoolOp) -> ast.AST:
    """Turn ``and`` and ``or`` into chains of operands."""
    self.generic_visit(node)
    is_and = isinstance(node.op, ast.And)
    name = ast.Constant("logical_and" if is_and else "logical_or")
    operands: list[ast.expr] = [
        ast.Call(func=ast.Name(id=_OPERAND, ctx=ast.Load()), args=[name, term], keywords=[])
        for term in (ast.Constant(is_and), *node.values)
    ]
    compared = ast.Compare(left=operands[0], ops=[ast.Lt() for _ in node.values], comparators=operands[1:])
    return ast.copy_location(ast.Attribute(value=compared, attr="value", ctx=ast.Load()), node)


def _not(x: object) -> tl.tensor | bool:
    """Return ``not x``; for a block, element by element."""
    return x.__not__() if isinstance(x, tl.tensor) and x.type.is_block() else not x


def _visit_unary_op(self: interpreter.ASTTransformer, node: ast.UnaryOp) -> ast.AST:
    """Turn ``not`` into a call."""
    self.generic_visit(node)
    if not isinstance(node.op, ast.Not):
        return node
    call = ast.Call(func=ast.Name(id=_NOT, ctx=ast.Load()), args=[node.operand], keywords=[])
    return ast.copy_location(call, node)


def _visit_call(self: interpreter.ASTTransformer, node: ast.Call) -> ast.AST:
    """Give a ``tl.static_assert`` without a message the text of its condition as message."""
    name = ast.unparse(node.func)
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    conditions = [*node.args, *([named["cond"]] if "cond" in named else [])]
    is_mute = name.rpartition(".")[2] == "static_assert" and len(conditions) == 1 and "msg" not in named
    message = ast.Constant(f"{name}: {ast.unparse(conditions[0])} is false") if is_mute else None
    self.generic_visit(node)
    if message is not None:
        node.keywords.append(ast.keyword("msg", message))
    return node


def _visit_assert(self: interpreter.ASTTransformer, node: ast.Assert) -> ast.AST:
    """Give an ``assert`` without a message the text of its condition as message."""
    node.msg = node.msg or ast.Constant(f"assert: {ast.unparse(node.test)} is false")
    self.generic_visit(node)
    return node


def _same(function: Callable[..., object]) -> Callable[..., object]:
    return function


def install() -> None:
    """Make ``triton.jit`` return a `TritonKernel`, and the interpreter behave as compiled code does."""
    interpreter.InterpretedFunction = TritonKernel
    for name, function in WRITTEN_IN_TRITON.items():
        module, _, function_name = name.rpartition(".")
        if module == tl.standard.__name__:
            vars(tl.standard)[function_name].rewrite = partial(_same, function)
    transformer = interpreter.ASTTransformer
    transformer.visit_For, transformer.visit_Call, transformer.visit_Assert = _visit_for, _visit_call, _visit_assert
    transformer.visit_BoolOp, transformer.visit_UnaryOp = _visit_bool_op, _visit_unary_op
    for name, function in ((_LOOP, _loop), (_OPERAND, _BooleanOperand), (_NOT, _not)):
        setattr(interpreter, name, function)
    tl.dtype.value = property(lambda ty: ty)  # compiled code passes a constexpr of the dtype, which has ``value``
