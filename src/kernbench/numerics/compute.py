"""The computation of op-log records: from operands in memory to the array that a record commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from kernbench.common.dtypes import F32, I64, Array, DType
from kernbench.common.errors import RunError
from kernbench.common.operators import (
    ATOMICS,
    EPILOGUE,
    EpilogueStep,
    Operator,
    compute,
    gemm,
    narrow,
    operator,
    single,
)
from kernbench.core.op_log import COPIES, ReplayWork
from kernbench.messages.commands import NO_PARAMS, NOWHERE, Epilogue, MemoryRef, Operand
from kernbench.messages.requests import HostBytes
from kernbench.numerics.memory import as_bytes, repeat_pattern
from kernbench.numerics.operands import OperandMemory

ComputeRule: TypeAlias = Callable[[ReplayWork, OperandMemory, DType, bool], Array]


def result(work: ReplayWork, memory: OperandMemory, acc: DType, private: bool) -> Array:
    """Compute the result of ``work`` from the current memory, in the type and shape of its output.

    With ``private``, the result is no view of memory, so later writes do not change it. Call the function inside
    ``np.errstate(all="ignore")``.
    """
    return RULES[work.kind](work, memory, acc, private)


def combine(
    work: ReplayWork, args: Sequence[Array | float], steps: Sequence[EpilogueStep], shape: tuple[int, ...], acc: DType
) -> Array:
    """Compute a part of ``shape`` of a composite's output from ``args``, its operands or windows of them.

    ``steps`` is its epilogue with arrays. Call it inside ``np.errstate(all="ignore")``.
    """
    out = _output(work).dtype
    if work.kind == "gemm":
        return gemm(args, out, steps, work.params, acc)
    op = operator(work.name)
    if not steps:
        return compute(op, args, out, shape, work.params, acc)
    return narrow(_finish(compute(op, args, _wide(op, args), shape, work.params, acc), steps), out)


def _wide(op: Operator, args: Sequence[Array | float]) -> DType:
    """Return the type in which ``op`` computes, so the epilogue receives unrounded values."""
    integers = all(x.dtype.kind in "iu" for x in args if isinstance(x, np.ndarray))
    return I64 if integers and op.integer is not None else F32


def _finish(value: Array, steps: Sequence[EpilogueStep]) -> Array:
    """Apply an epilogue to unrounded results, by the rules of ``operators.gemm``: f32, or f64 after integers."""
    if value.dtype.kind in "iu":
        value = value.astype(np.float64)
    for name, *operands in steps:
        value = EPILOGUE[name].fn(value, *(x.astype(value.dtype) if isinstance(x, np.ndarray) else x for x in operands))
    return value


def _copy(work: ReplayWork, memory: OperandMemory, acc: DType, private: bool) -> Array:  # noqa: ARG001
    source, out = work.inputs[0], work.output
    if out is None or not isinstance(source, Operand):
        source, out = _operand(source), _output(work)
    if source.dtype is not out.dtype:
        raise RunError(f"a copy does not convert: {source.dtype} to {out.dtype}")
    array = memory.load(source, private=private)
    return array if source.shape == out.shape else array.reshape(out.shape)


def _calculate(work: ReplayWork, memory: OperandMemory, acc: DType, private: bool) -> Array:
    params, out = work.params, work.output or _output(work)
    if params is NO_PARAMS and out.dtype is F32 and out.shape:  # the usual case: no widening or rounding
        arrays: list[Array] = []
        for x in work.inputs:
            if not isinstance(x, Operand) or x.dtype is not F32:
                break
            arrays.append(memory.load(x, private=False))
        else:
            fn = single(work.name, len(arrays))
            if fn is not None:
                array: Array = fn(*arrays)
                return array
    if params.epilogue:
        return _combine(work, memory, acc, private)
    op = operator(work.name)
    # Only an operator that moves elements may return its operand; every other operator creates a new array.
    private = private and op.kind == "move"
    args = [memory.load(x, private=private) if isinstance(x, Operand) else x for x in work.inputs]
    value = compute(op, args, out.dtype, out.shape, params, acc)
    return value.reshape(out.shape) if op.kind == "reduce" else value


def _combine(work: ReplayWork, memory: OperandMemory, acc: DType, private: bool) -> Array:  # noqa: ARG001
    args = [memory.load(x, private=False) if isinstance(x, Operand) else x for x in work.inputs]
    steps = [_step(e, memory) for e in work.params.epilogue]
    return combine(work, args, steps, _output(work).shape, acc)


def _step(step: Epilogue, memory: OperandMemory) -> EpilogueStep:
    if step.operand is None:
        return (step.name,)
    if isinstance(step.operand, Operand):
        return step.name, memory.load(step.operand, private=False)
    assert not isinstance(step.operand, MemoryRef), "a record has operands instead"
    return step.name, step.operand


def _change(work: ReplayWork, memory: OperandMemory, acc: DType, private: bool) -> Array:  # noqa: ARG001
    """Return the new memory contents of an atomic, and store the old contents if the kernel asks for them."""
    target, op = _operand(work.inputs[0]), ATOMICS[work.name]
    operands = [memory.load(_operand(x), private=False) for x in work.inputs[1:]]
    old = memory.load(target, private=True)
    new = (
        _one_after_another(op, old, operands, target)
        if _repeats(target)
        else compute(op, [old, *operands], target.dtype)
    )
    if work.params.old is not None:
        memory.deposit(work.params.old, old)
    return new


def _repeats(target: Operand) -> bool:
    """Return True if runs of a list overlap, so the atomic changes an element more than once."""
    runs = sorted(run for run in target.segments if run[0] != NOWHERE)
    return any(pa + nbytes > later for (pa, nbytes), (later, _) in pairwise(runs))


def _one_after_another(op: Operator, old: Array, operands: Sequence[Array], target: Operand) -> Array:
    """Compute an atomic element by element and return the new values; set ``old`` to the values before each change."""
    size, new, current = target.dtype.itemsize, np.empty_like(old), old.reshape(-1)
    latest: dict[int, Array] = {}
    at = 0
    for pa, nbytes in target.segments:
        for i in range(nbytes // size):
            address = (pa + i * size) if pa != NOWHERE else -1 - at
            element = slice(at, at + 1)
            current[element] = latest.get(address, current[element])
            result_element = compute(op, [current[element], *(x.reshape(-1)[element] for x in operands)], target.dtype)
            latest[address] = new.reshape(-1)[element] = result_element
            at += 1
    return new


def _apply_host_write(work: ReplayWork, memory: OperandMemory, acc: DType, private: bool) -> Array:  # noqa: ARG001
    out = _output(work)
    data = work.data
    if data is not None:
        raw = data.array() if isinstance(data, HostBytes) else as_bytes(data).reshape(-1)
    elif work.params.pattern:
        raw = repeat_pattern(work.params.pattern, out.nbytes)
    else:
        raise RunError("a memory write has neither data nor a pattern (a replay takes the data)")
    if raw.nbytes != out.nbytes:
        raise RunError(f"{raw.nbytes} bytes do not fill an output of {out.nbytes}")
    return raw.view(out.dtype.numpy).reshape(out.shape)


def _read_by_host(work: ReplayWork, memory: OperandMemory, acc: DType, private: bool) -> Array:  # noqa: ARG001
    return memory.load(_operand(work.inputs[0]), private=True)


def _operand(x: Operand | float) -> Operand:
    if not isinstance(x, Operand):
        raise RunError(f"found the number {x}, must be an operand in memory")
    return x


def _output(work: ReplayWork) -> Operand:
    if work.output is None:
        raise RunError("no output")
    return work.output


RULES: Mapping[str, ComputeRule] = dict.fromkeys(sorted(COPIES), _copy) | {
    "math": _calculate,
    "gemm": _combine,
    "atomic": _change,
    "memory_write": _apply_host_write,
    "memory_read": _read_by_host,
}
"""The function that computes the array of a record, by kind; the interface is that of ``result``."""
