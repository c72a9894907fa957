"""What placements an operation can work with, and which of them it takes.

For each dim of the mesh a rule names the placements of the operands and that of the result. A choice is one rule for
each dim: the one for which the operands are the cheapest to bring there; of these the one whose result is the cheapest
to complete; of these the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

from kernbench.dtensor.chunks import empty_place
from kernbench.dtensor.part import DTensorSpec
from kernbench.dtensor.placements import Partial, Placement, Placements, Replicate, Shard
from kernbench.dtensor.plan import replaced

FULL, SUM = Replicate(), Partial("sum")


class Rule(NamedTuple):
    """Placements along one dim of a mesh."""

    operands: tuple[Placement, ...]
    result: Placement


@dataclass(frozen=True, slots=True)
class Choice:
    """Placements along all dims."""

    operands: tuple[Placements, ...]
    result: Placements


MATMUL = (
    Rule((FULL, FULL), FULL),
    Rule((Shard(0), FULL), Shard(0)),
    Rule((FULL, Shard(1)), Shard(1)),
    Rule((Shard(1), Shard(0)), SUM),
)

SCALED = (Rule((SUM,), SUM),)
ADDED = (Rule((SUM, SUM), SUM),)
LINEAR_IN_FIRST = Rule((SUM, FULL), SUM)
LINEAR = {
    "neg": SCALED,
    "add": ADDED,
    "sub": ADDED,
    "mul": (LINEAR_IN_FIRST, Rule((FULL, SUM), SUM)),
    "div": (LINEAR_IN_FIRST,),
}
"""Operators that may be applied to the contributions to a sum in place of the sum itself."""


def matmul_choice(a: DTensorSpec, b: DTensorSpec) -> Choice:
    """How to multiply matrices."""
    result = replace(a, shape=(a.shape[0], b.shape[1]))
    return _cheapest((a, b), result, [MATMUL] * a.mesh.ndim)


def elementwise_choice(op: str, *operands: DTensorSpec) -> Choice:
    """How to apply an operator to tensors of one shape and type."""
    # Quotients of integers are cut off: those of contributions do not add up.
    linear = op != "div" or operands[0].dtype.is_float
    return _elementwise(LINEAR.get(op, ()) if linear else (), operands)


def with_number_choice(op: str, x: DTensorSpec, *, number_first: bool) -> Choice:
    """How to apply an operator to a tensor and a number."""
    scales = op == "mul" or (op == "div" and not number_first and x.dtype.is_float)
    return _elementwise(SCALED if scales else (), (x,))


def _elementwise(linear: Sequence[Rule], operands: Sequence[DTensorSpec]) -> Choice:
    rules = [_elementwise_rules(linear, given) for given in zip(*(each.placements for each in operands), strict=True)]
    return _cheapest(operands, operands[0], rules)


def _elementwise_rules(linear: Sequence[Rule], given: Sequence[Placement]) -> tuple[Rule, ...]:
    """Those for operands that lie so along a dim: where one is cut, all are; contributions stay such where they may.

    Copies always do, where nothing else is possible.
    """
    copies = Rule((FULL,) * len(given), FULL)
    cuts = [each for each in dict.fromkeys(given) if isinstance(each, Shard)]
    if cuts:
        return (*(Rule((cut,) * len(given), cut) for cut in cuts), copies)
    # What all ranks have becomes a contribution for nothing: where one operand is one, the others may be.
    fits = [
        rule
        for rule in linear
        if SUM in given and all(x in (y, FULL) for x, y in zip(given, rule.operands, strict=True))
    ]
    return (*fits, copies)


def _cheapest(operands: Sequence[DTensorSpec], result: DTensorSpec, rules: Iterable[Sequence[Rule]]) -> Choice:
    choices = [_choice(combined) for combined in product(*rules)]
    possible = [each for each in choices if _is_possible(each, operands, result)]
    return min(possible, key=lambda choice: _cost(choice, operands, result))


def _choice(rules: Sequence[Rule]) -> Choice:
    operands = tuple(zip(*(rule.operands for rule in rules), strict=True))
    return Choice(operands, tuple(rule.result for rule in rules))


def _is_possible(choice: Choice, operands: Sequence[DTensorSpec], result: DTensorSpec) -> bool:
    """Whether every rank has something of every tensor."""
    placed = [*zip(operands, choice.operands, strict=True), (result, choice.result)]
    return all(empty_place(spec.shape, placements, spec.mesh.shape) is None for spec, placements in placed)


def _cost(choice: Choice, operands: Sequence[DTensorSpec], result: DTensorSpec) -> tuple[float, float]:
    before = sum(spec.cost_of(placements) for spec, placements in zip(operands, choice.operands, strict=True))
    complete = choice.result
    for dim, placement in enumerate(complete):
        if isinstance(placement, Partial):
            complete = replaced(complete, dim, FULL)
    return before, replace(result, placements=choice.result).cost_of(complete)
