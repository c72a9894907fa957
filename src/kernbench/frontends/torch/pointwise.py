"""Elementwise operators, with PyTorch's type promotion, broadcasting and strides: one launch each.

A rule maps an operator to an expression of `kernbench.kernels.elementwise`. Tensors of the operator become inputs of
the expression; its other arguments become constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernbench.common.dtypes import F32, DType
from kernbench.common.values import value
from kernbench.frontends.torch.launches import launch, merged_views
from kernbench.frontends.torch.refusals import type_in_place
from kernbench.frontends.torch.storage import TorchOperator, current, machine_type
from kernbench.frontends.torch.tensor import AhbmTensor, new, on_machine, sip_of, without_elements
from kernbench.kernels import functions
from kernbench.kernels.elementwise import Constant, Expression, Input, Intermediate, Operation, Task, Term
from kernbench.kernels.functions import ElementFunction, call
from kernbench.kernels.tiling import MemoryRates
from kernbench.triton_emu.tl_context import TLContext

ComputeIn = Literal["result", "f32", "operands"]
Body: TypeAlias = ElementFunction | Expression
"""The computation of an operator: a function of elements, or an expression of several operations"""
ElementwiseWork: TypeAlias = tuple[Body, Tensor | Sequence[Tensor], Sequence[Tensor], Sequence[DType]]
"""A body, its result or results, its inputs, and the types to which the inputs are cast"""
Argument: TypeAlias = Tensor | Constant


@value
class Rule:
    """The computation of an operator on an element.

    An expression has an input for each argument of the operator, and a result for each result.

    ``compute_in`` names the dtype to compute in. ``result``: the dtype of the result, for a single operation. ``f32``:
    for several operations, rounded once at the end. ``operands``: the common dtype of the operands, for comparisons.
    ``conditions`` are the positions of tensors that are not cast, if the body is a function.
    """

    body: Body
    compute_in: ComputeIn = "f32"
    conditions: tuple[int, ...] = ()


def task(body: Body, out: Tensor | Sequence[Tensor], inputs: Sequence[Tensor], compute: Sequence[DType] = ()) -> Task:
    """Return the task of ``out = body(tl, *inputs)``, for one result or several of one shape.

    Inputs are broadcast, and cast to their ``compute`` type; without it, they keep their types.
    """
    results = _as_list(out)
    shape = results[0].shape
    expanded = [x if x.shape == shape else x.expand(shape) for x in inputs]
    views = merged_views([*results, *expanded])
    expression = body if isinstance(body, Expression) else _expression_of(body, len(inputs), compute)
    rates = MemoryRates.of(current().topology)
    return Task(expression, tuple(views[: len(results)]), tuple(views[len(results) :]), rates)


def _as_list(out: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [*out]


def _expression_of(function: ElementFunction, count: int, compute: Sequence[DType]) -> Expression:
    """Return the expression of a function of ``count`` inputs, each cast to its type in ``compute``."""
    casts = [Operation(functions.cast, (Input(index), dtype)) for index, dtype in enumerate(compute)]
    operands = [Intermediate(index) if casts else Input(index) for index in range(count)]
    return Expression((*casts, Operation(function, tuple(operands))), (Intermediate(len(casts)),))


def apply(name: str, body: Body, out: Tensor, inputs: Sequence[Tensor], compute: Sequence[DType] = ()) -> Tensor:
    """Launch ``out = body(tl, *inputs)`` as operator ``name``; without ``compute``, inputs keep their dtypes."""
    apply_all(name, [(body, out, inputs, compute)])
    return out


def apply_all(name: str, work: Sequence[ElementwiseWork]) -> None:
    """Launch several operators as one, for a list of tensors; each PE computes them one after another."""
    tasks: list[Task] = []
    outs: list[Tensor] = []
    operands: list[Tensor] = []
    for body, out, inputs, compute in work:
        results = _as_list(out)
        if results[0].numel():
            tasks.append(task(body, results, inputs, compute))
            outs += results
            operands += inputs
    if not tasks:
        return

    n_outs = len(outs)  # a launch in the queue must not keep tensors that the program drops

    def run_tasks(*addresses: int, tl: TLContext) -> None:
        out_addresses, operand_addresses = iter(addresses[:n_outs]), iter(addresses[n_outs:])
        for part in tasks:
            results, inputs = islice(out_addresses, len(part.results)), islice(operand_addresses, len(part.inputs))
            part.run((*results, *inputs), tl)

    work_bytes = sum(x.numel() * x.element_size() for x in outs)
    largest = max(x.numel() * x.element_size() for x in (*outs, *operands))
    launch(name, run_tasks, outs, operands, max(work_bytes, largest))


_SHIFTS = {"__lshift__": torch.ops.aten.bitwise_left_shift, "__rshift__": torch.ops.aten.bitwise_right_shift}
"""Operators that stand in to infer a shift's result: the meta kernels of ``<<`` and ``>>`` refuse bool."""


def carry_out(
    operator: TorchOperator, rule: Rule, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Tensor | tuple[Tensor, ...]:
    """Run an operator that has a rule; in-place operators such as ``x.add_(y)`` write to their first operand."""
    name = operator.overloadpacket.__name__
    options = {key: plain(x) for key, x in kwargs.items()}
    values = [plain(x) for x in args]
    if name.endswith("_") and not name.endswith("__"):
        outs, computed = [args[0]], type_in_place(operator, args, kwargs)
    else:
        inferred_by = _SHIFTS.get(name, operator)
        inferred = inferred_by(*[_form_of(x) for x in args], **{key: _form_of(x) for key, x in kwargs.items()})
        forms = _as_list(inferred)
        like = next(x for x in (*values, *options.values()) if isinstance(x, AhbmTensor))
        outs = [new(tuple(form.shape), form.dtype, sip_of(like), form.stride()) for form in forms]
        computed = forms[0].dtype
    single = name if name.endswith("__") else name.rstrip("_")
    if outs[0].numel():
        apply_all(single, [work_of(single, rule, values, options, outs, computed)])
    return outs[0] if len(outs) == 1 else tuple(outs)


def work_of(
    name: str,
    rule: Rule,
    args: Sequence[Any],
    options: Mapping[str, Any],
    out: Tensor | Sequence[Tensor],
    computed: torch.dtype,
) -> ElementwiseWork:
    """Return an item of ``apply_all`` for a rule. Tensors of the machine stay inputs, and numbers become constants.

    ``computed`` is PyTorch's dtype of the (first) result, before it is cast to that of ``out``.
    """
    values = [plain(x) for x in args]
    if name in _ROUNDING:
        values = [_nearest(x, machine_type(computed)) for x in values]
    arguments = [*values, *options.values()]
    common = _common_type(values) if rule.compute_in == "operands" else None
    wide = _compute_type(rule, machine_type(computed), common, arguments)
    if computed is torch.bool and name in _CHECKED:
        arguments[: len(values)] = [bool(x) if isinstance(x, int | float) else x for x in values]
    convert = as_element if name in _CHECKED else wrapped
    tensors = [on_machine(x) for x in arguments if isinstance(x, Tensor)]
    inputs = iter(range(len(tensors)))
    operands = [Input(next(inputs)) if isinstance(x, AhbmTensor) else convert(x, wide) for x in arguments]
    body = _OF_BOOLS.get(name, rule.body) if computed is torch.bool else rule.body
    return _bind(Rule(body, rule.compute_in, rule.conditions), operands, tuple(options), wide), out, tensors, ()


def _bind(rule: Rule, operands: Sequence[Term], names: tuple[str, ...], compute: DType) -> Expression:
    """Return the expression of a rule for the operands of a call, of which the last have ``names``."""
    if isinstance(rule.body, Expression):
        return Expression((), ()).then(rule.body.computed_in(compute), operands)
    first = len(operands) - len(names)
    options = tuple(zip(names, operands[first:], strict=True))
    operation = Operation(rule.body, tuple(operands[:first]), compute, None, rule.conditions, options)
    return Expression((operation,), (Intermediate(0),))


def _form_of(x: Any) -> Any:
    """Return an argument with each tensor replaced by one without elements, host tensors included."""
    return x.to("meta") if isinstance(x, Tensor) and not isinstance(x, AhbmTensor) else without_elements(x)


def plain(x: Any) -> Any:
    """Return the number of a host tensor without axes. Return other values unchanged."""
    return x.item() if isinstance(x, Tensor) and not isinstance(x, AhbmTensor) and x.dim() == 0 else x


def _holds(item: DType, x: Argument) -> bool:
    """Return whether a dtype represents a number exactly; True for values other than numbers."""
    if not isinstance(x, int | float) or isinstance(x, bool):
        return True
    with np.errstate(all="ignore"):
        return bool(np.asarray(x, np.float64).astype(item.numpy).astype(np.float64) == x) or math.isnan(x)


def _common_type(operands: Sequence[Argument]) -> torch.dtype:
    forms = [without_elements(x) for x in operands if isinstance(x, Tensor | int | float)]
    return torch.result_type(*forms) if len(forms) == 2 else forms[0].dtype


def _compute_type(rule: Rule, out: DType, common: torch.dtype | None, arguments: Sequence[Argument]) -> DType:
    """Return the dtype that operands are cast to; ``common`` is PyTorch's common dtype of all operands.

    Narrow floats are also computed in f32 if they cannot represent a number of the program exactly.
    """
    if common is not None:
        return machine_type(common)
    return F32 if out.is_float and (rule.compute_in == "f32" or not all(_holds(out, x) for x in arguments)) else out


def _nearest(x: Argument, item: DType) -> Argument:
    """Round a float to the nearest number of a float dtype. Return other values unchanged."""
    return float(np.float32(x).astype(item.numpy)) if isinstance(x, float) and item.is_float else x


def wrapped(x: Constant, item: DType) -> Constant:
    """Wrap an integer to the range of an integer dtype, as PyTorch's arithmetic does. Return other values unchanged."""
    if item.is_float or not isinstance(x, int) or isinstance(x, bool):
        return x
    limits, numbers = np.iinfo(item.numpy), 1 << 8 * item.itemsize
    return (x - int(limits.min)) % numbers + int(limits.min)


def as_element(x: Constant, item: DType) -> Constant:
    """Convert a number to an integer dtype, for operators that require a number to fit.

    Floats are truncated. Unsigned dtypes wrap negative numbers.
    """
    if item.is_float or not isinstance(x, int | float):
        return x
    x, limits = int(x), np.iinfo(item.numpy)
    return wrapped(x, item) if limits.min == 0 and abs(x) <= limits.max else x


_OF_BOOLS: Mapping[str, ElementFunction] = MappingProxyType(
    {"add": call("or"), "mul": call("and"), "bitwise_not": functions.logical_not, "sub": call("xor")}
)
"""Computations that differ for truth values, which are stored as bytes of 0 and 1."""
_CHECKED = frozenset(("clamp", "clamp_min", "clamp_max", "hardtanh", "masked_fill", "pow", "where"))
"""Operators whose numbers must fit the dtype of their tensors; numbers of other operators wrap."""
_ROUNDING = frozenset(("fmod", "remainder"))
"""Operators whose numbers are first rounded to the dtype of their tensors; other operators use them exactly."""
