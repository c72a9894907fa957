"""Operations on distributed tensors: choose placements that an operation supports, and compute on local tensors.

For each dim of the mesh a rule defines the placements of the operands and of the result. A choice is one rule for each
dim. The choice with the cheapest redistribution of the operands is used. Ties are decided by the cheapest completion of
the result, then by the order of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.dtensor.local import DTensorSpec, RankPart
from kernbench.dtensor.placements import (
    Partial,
    Placement,
    Placements,
    Replicate,
    Shard,
    empty_place,
    replace_placement,
)
from kernbench.dtensor.redistribute import redistribute
from kernbench.runtime_api.tensor import Tensor

FULL, SUM = Replicate(), Partial("sum")


class PlacementRule(NamedTuple):
    """Placements of operands and result along one dim of a mesh."""

    operands: tuple[Placement, ...]
    result: Placement


@value
class PlacementChoice:
    """Placements of operands and result along all dims."""

    operands: tuple[Placements, ...]
    result: Placements


MATMUL = (
    PlacementRule((FULL, FULL), FULL),
    PlacementRule((Shard(0), FULL), Shard(0)),
    PlacementRule((FULL, Shard(1)), Shard(1)),
    PlacementRule((Shard(1), Shard(0)), SUM),
)

SCALED = (PlacementRule((SUM,), SUM),)
ADDED = (PlacementRule((SUM, SUM), SUM),)
LINEAR_IN_FIRST = PlacementRule((SUM, FULL), SUM)
LINEAR = {
    "neg": SCALED,
    "add": ADDED,
    "sub": ADDED,
    "mul": (LINEAR_IN_FIRST, PlacementRule((FULL, SUM), SUM)),
    "div": (LINEAR_IN_FIRST,),
}
"""Linear operators: applied to the contributions to a sum, they compute contributions to the result."""


def matmul_choice(a: DTensorSpec, b: DTensorSpec) -> PlacementChoice:
    """Choose the placements for a matrix product."""
    result = replace(a, shape=(a.shape[0], b.shape[1]))
    return _choose_cheapest((a, b), result, [MATMUL] * a.mesh.ndim)


def elementwise_choice(op: str, *operands: DTensorSpec) -> PlacementChoice:
    """Choose the placements for an operator on tensors of one shape and type."""
    # Integer quotients are truncated, so the quotients of contributions do not add up.
    linear = op != "div" or operands[0].dtype.is_float
    return _choose_elementwise(LINEAR.get(op, ()) if linear else (), operands)


def with_number_choice(op: str, x: DTensorSpec, *, number_first: bool) -> PlacementChoice:
    """Choose the placements for an operator on a tensor and a number."""
    scales = op == "mul" or (op == "div" and not number_first and x.dtype.is_float)
    return _choose_elementwise(SCALED if scales else (), (x,))


def _choose_elementwise(linear: Sequence[PlacementRule], operands: Sequence[DTensorSpec]) -> PlacementChoice:
    rules = [
        _find_rules(linear, placements) for placements in zip(*(spec.placements for spec in operands), strict=True)
    ]
    return _choose_cheapest(operands, operands[0], rules)


def _find_rules(linear: Sequence[PlacementRule], placements: Sequence[Placement]) -> tuple[PlacementRule, ...]:
    """Return the rules for operands with these placements along a dim.

    If one operand is sharded, all operands are sharded. Contributions to a sum stay contributions if the operator
    allows it. If no other rule applies, all operands are replicated.
    """
    copies = PlacementRule((FULL,) * len(placements), FULL)
    cuts = [placement for placement in dict.fromkeys(placements) if isinstance(placement, Shard)]
    if cuts:
        return (*(PlacementRule((cut,) * len(placements), cut) for cut in cuts), copies)
    # A replicated operand becomes a contribution at no cost, so one Partial operand allows Partial for all operands.
    fits = [
        rule
        for rule in linear
        if SUM in placements and all(x in (y, FULL) for x, y in zip(placements, rule.operands, strict=True))
    ]
    return (*fits, copies)


def _choose_cheapest(
    operands: Sequence[DTensorSpec], result: DTensorSpec, rules: Iterable[Sequence[PlacementRule]]
) -> PlacementChoice:
    choices = [_make_choice(combined) for combined in product(*rules)]
    possible = [choice for choice in choices if _is_possible(choice, operands, result)]
    return min(possible, key=lambda choice: _compute_cost(choice, operands, result))


def _make_choice(rules: Sequence[PlacementRule]) -> PlacementChoice:
    operands = tuple(zip(*(rule.operands for rule in rules), strict=True))
    return PlacementChoice(operands, tuple(rule.result for rule in rules))


def _is_possible(choice: PlacementChoice, operands: Sequence[DTensorSpec], result: DTensorSpec) -> bool:
    """Return True if every rank has elements of every tensor."""
    placed = [*zip(operands, choice.operands, strict=True), (result, choice.result)]
    return all(empty_place(spec.shape, placements, spec.mesh.shape) is None for spec, placements in placed)


def _compute_cost(choice: PlacementChoice, operands: Sequence[DTensorSpec], result: DTensorSpec) -> tuple[float, float]:
    before = sum(spec.cost_of(placements) for spec, placements in zip(operands, choice.operands, strict=True))
    complete = choice.result
    for dim, placement in enumerate(complete):
        if isinstance(placement, Partial):
            complete = replace_placement(complete, dim, FULL)
    return before, replace(result, placements=choice.result).cost_of(complete)


def matmul(a: RankPart, b: RankPart) -> RankPart:
    """Compute the matrix product ``a @ b``; integer operands give i32.

    Raises InputError for other shapes, different meshes or different types, and UnsupportedError for a type that the
    GEMM unit does not multiply.
    """
    _check_alike("@", a, b)
    if len(a.spec.shape) != 2 or len(b.spec.shape) != 2 or a.spec.shape[1] != b.spec.shape[0]:
        raise InputError(f"@: shapes {a.spec.shape} and {b.spec.shape}; two matrices, (m, k) and (k, n)")
    a.tensors.torch.topology.pe.gemm.rate(a.spec.dtype)
    shape = (a.spec.shape[0], b.spec.shape[1])
    return _apply((a, b), matmul_choice(a.spec, b.spec), shape, a.tensors.matmul)


def binary(op: str, x: RankPart, y: RankPart) -> RankPart:
    """Apply an operator to two tensors of one shape. Raises InputError for different shapes, types or meshes."""
    _check_alike(op, x, y)
    if x.spec.shape != y.spec.shape:
        raise InputError(f"{op}: shapes {x.spec.shape} and {y.spec.shape}; they must be equal, nothing is broadcast")
    choice = elementwise_choice(op, x.spec, y.spec)
    return _apply((x, y), choice, x.spec.shape, lambda a, b: x.tensors.elementwise(op, a, b))


def unary(op: str, x: RankPart) -> RankPart:
    """Apply an operator to each element."""
    return _apply((x,), elementwise_choice(op, x.spec), x.spec.shape, lambda a: x.tensors.elementwise(op, a))


def with_number(op: str, x: RankPart, number: float, *, number_first: bool = False) -> RankPart:
    """Apply an operator to each element and a number, or to the number and each element.

    Raises InputError for a number that the element type cannot represent.
    """
    _check_number(op, number, x.spec.dtype)
    choice = with_number_choice(op, x.spec, number_first=number_first)
    return _apply(
        (x,),
        choice,
        x.spec.shape,
        lambda a: x.tensors.elementwise(op, a, number=number, number_first=number_first),
    )


def _apply(
    operands: Sequence[RankPart], choice: PlacementChoice, shape: tuple[int, ...], work: Callable[..., Tensor]
) -> RankPart:
    """Redistribute the operands to the placements of the choice and return the result of local work on them."""
    for part in operands:
        part.check_live()
    placed = [redistribute(part, wanted) for part, wanted in zip(operands, choice.operands, strict=True)]
    local = work(*(part.local for part in placed))
    for operand, used in zip(operands, placed, strict=True):
        used.free_unless(operand)
    spec = replace(operands[0].spec, placements=choice.result, shape=shape, dtype=local.dtype)
    return RankPart(spec, local)


def _check_number(op: str, number: float, kind: DType) -> None:
    """Raise InputError for a number that the elements' integer type cannot hold: results have that type."""
    if kind.is_float:
        return
    limits = np.iinfo(kind.numpy)
    if not limits.min <= number <= limits.max or number != int(number):
        raise InputError(
            f"{op}: {number!r} is not an integer from {limits.min} to {limits.max}, as {kind}, the type of the result, "
            f"requires; distribute_tensor(..., dtype=) makes tensors of a wider type"
        )


def _check_alike(op: str, x: RankPart, y: RankPart) -> None:
    if x.spec.mesh != y.spec.mesh:
        raise InputError(f"{op}: operands on two meshes, {x.spec.mesh} and {y.spec.mesh}")
    if x.spec.dtype != y.spec.dtype:
        raise InputError(f"{op}: operands of {x.spec.dtype} and {y.spec.dtype}; both must have one type")
