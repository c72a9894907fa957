"""Operations on distributed tensors: bring operands to placements that fit each other, then work on local tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.dtensor.part import Part
from kernbench.dtensor.redistribute import redistributed
from kernbench.dtensor.rules import Choice, elementwise_choice, matmul_choice, with_number_choice
from kernbench.runtime_api.tensor import Tensor


def matmul(a: Part, b: Part) -> Part:
    """``a @ b``, of matrices; of integers in i32.

    InputError for other shapes or meshes and for two types, UnsupportedError for a type that the machine does not
    multiply.
    """
    _check_alike("@", a, b)
    if len(a.spec.shape) != 2 or len(b.spec.shape) != 2 or a.spec.shape[1] != b.spec.shape[0]:
        raise InputError(f"@: shapes {a.spec.shape} and {b.spec.shape}; two matrices, (m, k) and (k, n)")
    a.tensors.torch.topology.pe.gemm.rate(a.spec.dtype)
    shape = (a.spec.shape[0], b.spec.shape[1])
    return _applied((a, b), matmul_choice(a.spec, b.spec), shape, a.tensors.matmul)


def binary(op: str, x: Part, y: Part) -> Part:
    """An operator on two tensors of one shape. InputError for other shapes, types or meshes."""
    _check_alike(op, x, y)
    if x.spec.shape != y.spec.shape:
        raise InputError(f"{op}: shapes {x.spec.shape} and {y.spec.shape}; they have to be one, nothing is broadcast")
    choice = elementwise_choice(op, x.spec, y.spec)
    return _applied((x, y), choice, x.spec.shape, lambda a, b: x.tensors.elementwise(op, a, b))


def unary(op: str, x: Part) -> Part:
    """An operator on each element."""
    return _applied((x,), elementwise_choice(op, x.spec), x.spec.shape, lambda a: x.tensors.elementwise(op, a))


def with_number(op: str, x: Part, number: float, *, number_first: bool = False) -> Part:
    """An operator on each element and a number, or on the number and each element.

    InputError for a number that the type of the elements does not have.
    """
    _check_number(op, number, x.spec.dtype)
    choice = with_number_choice(op, x.spec, number_first=number_first)
    return _applied(
        (x,),
        choice,
        x.spec.shape,
        lambda a: x.tensors.elementwise(op, a, number=number, number_first=number_first),
    )


def _applied(operands: Sequence[Part], choice: Choice, shape: tuple[int, ...], work: Callable[..., Tensor]) -> Part:
    """The result of local work on the operands, each where the choice wants it."""
    for each in operands:
        each.check_live()
    placed = [redistributed(each, wanted) for each, wanted in zip(operands, choice.operands, strict=True)]
    local = work(*(each.local for each in placed))
    for given, used in zip(operands, placed, strict=True):
        used.free_unless(given)
    spec = replace(operands[0].spec, placements=choice.result, shape=shape, dtype=local.dtype)
    return Part(spec, local)


def _check_number(op: str, number: float, kind: DType) -> None:
    """Elements and results are of one type: what it cannot hold is not rounded to it unasked, but for floats."""
    if kind.is_float:
        return
    limits = np.iinfo(kind.numpy)
    if not limits.min <= number <= limits.max or number != int(number):
        raise InputError(
            f"{op}: {number!r} is none of the whole numbers {limits.min} to {limits.max} of {kind}, which the result "
            f"has; distribute_tensor(..., dtype=) makes tensors of a wider type"
        )


def _check_alike(op: str, x: Part, y: Part) -> None:
    if x.spec.mesh != y.spec.mesh:
        raise InputError(f"{op}: operands on two meshes, {x.spec.mesh} and {y.spec.mesh}")
    if x.spec.dtype != y.spec.dtype:
        raise InputError(f"{op}: operands of {x.spec.dtype} and {y.spec.dtype}; they have to be of one type")
