"""PyTorch operators without a kernel of the machine: the host computes them, at the cost of copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError, UnmodelledError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import TorchOperator, current
from kernbench.frontends.torch.tensor import (
    AhbmTensor,
    from_host,
    has_values,
    read,
    resize,
    sip_of,
    without_elements,
    write,
)

aten = torch.ops.aten
WINDOWS: Sequence[TorchOperator] = tuple(
    [
        getattr(packet, overload)
        for packet in (
            aten.bartlett_window,
            aten.blackman_window,
            aten.hamming_window,
            aten.hann_window,
            aten.kaiser_window,
        )
        for overload in packet.overloads()
        if not overload.endswith("out")
    ]
)
"""Window functions. The host computes them; PyTorch would compose them, in part from operators of the host."""
SOURCES = frozenset(
    ["randperm", "random_", "normal_", "uniform_", "rand_like", "randint_like", "tril_indices", "triu_indices"]
) | {operator.overloadpacket.__name__ for operator in WINDOWS}
"""Operators that create numbers. The host computes and transfers the numbers, as a program expects."""
_NARROW = (torch.float16, torch.bfloat16)
"""Types in which the host accumulates sums, unlike GPUs, which accumulate in f32 and round once."""
_IN_OWN_TYPE = frozenset(["nextafter"])
"""Operators that the host must not compute in f32, because the result would differ."""
_OF_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
"""Tags of operators whose result is a number for the program, or has a shape that depends on values."""


def _note(name: str) -> None:
    """List ``name`` as unmodelled. Raises UnmodelledError if the run is strict."""
    context = current()
    if context.frontends.torch.strict:
        raise UnmodelledError(
            f"{program_place()}: operator {name} has no kernel, and --strict allows none that the host computes"
        )
    context.unmodelled[name] += 1
    context.operators.note_unmodelled()


def on_host(operator: TorchOperator, args: Any, kwargs: Any, *, in_order: bool = False) -> Any:
    """Copy an operator's operands to the host, compute there, and copy the results back. Note it as unmodelled.

    ``in_order``: the operator writes to elements that share memory, so operands keep their layout and dtypes. Raises
    InputError if the operator writes an operand that its schema does not declare as written.
    """
    name = operator.overloadpacket.__name__
    here = [each for each in leaves(args, kwargs) if isinstance(each, AhbmTensor)]
    device = kwargs.get("device")
    sip = sip_of(here[0]) if here else sip_of(device or DEVICE)
    types = None
    if name not in SOURCES:
        _note(name)
        widens = not in_order and name not in _IN_OWN_TYPE and any(each.dtype in _NARROW for each in here)
        types = _result_types(operator, args, kwargs) if widens else None
    blank, results = name in SOURCES and len(here) == 1, _results(operator, args, kwargs)
    copies, known = _fetched(operator, here, results, blank=blank)
    if types is not None:
        copies = {key: each.float() if each.dtype in _NARROW else each for key, each in copies.items()}
    host = lambda x: copies[id(x)] if isinstance(x, AhbmTensor) else _host_device(x)  # noqa: E731
    unwritten = _UnwrittenOperands.of(operator, args, kwargs, copies)
    try:
        found = operator(*tree_map(host, args), **tree_map(host, kwargs))
    except NotImplementedError as error:
        raise InputError(f"operator {name}: neither the machine nor PyTorch's CPU has it for these tensors") from error
    unwritten.check(operator)
    written = {id(copies[id(x)]): x for x in written_by(operator, args, kwargs)}
    for target in written.values():
        elements = copies[id(target)]
        write(resize(target, tuple(elements.shape)), elements, is_known=known)
    stays = device is not None and torch.device(device).type != DEVICE

    def back(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or stays:
            return x
        return written[id(x)] if id(x) in written else from_host(x, sip, is_known=known)

    if types is not None:
        found = _rounded(found, types, set(written))
    return tree_map(back, found)


@value
class _UnwrittenOperands:
    """Operands that an operator does not write according to its schema, with their values before the call.

    PyTorch's own schemas are correct. Schemas of other libraries often omit a written operand.
    """

    pairs: tuple[tuple[Tensor, Tensor], ...] = ()

    @staticmethod
    def of(operator: TorchOperator, args: Any, kwargs: Any, copies: Mapping[int, Tensor]) -> _UnwrittenOperands:
        """Return the unwritten operands of a call; none for PyTorch's own operators."""
        if operator.namespace == "aten":
            return _UnwrittenOperands()
        targets = {id(x) for x in written_by(operator, args, kwargs)}
        return _UnwrittenOperands(tuple([(x, x.clone()) for key, x in copies.items() if key not in targets]))

    def check(self, operator: TorchOperator) -> None:
        """Raise InputError if the operator has written one of these operands."""
        if not all(x.shape == before.shape and torch.equal(_bits(x), _bits(before)) for x, before in self.pairs):
            raise InputError(
                f"{program_place()}: operator {operator.name()}, which the host computes, writes an operand that its "
                f"schema does not name as written; it is {operator._schema}, write Tensor(a!) there"  # noqa: SLF001
            )


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def _fetched(
    operator: TorchOperator, operands: Sequence[Tensor], results: set[int], *, blank: bool
) -> tuple[dict[int, Any], bool]:
    """Return host copies of operands by ``id``, and whether all their values are real. Unknown values become zeros.

    ``results``: ids of operands that only receive results. ``blank``: no operand is read. Raises NoDataError if the
    shape of the result, or a number for the program, depends on values that the run lacks.
    """
    if blank:
        return {id(each): _blank(each) for each in operands}, True
    asks = _asks_for_values(operator)
    copies, known = {}, True
    for each in operands:
        if asks(each):
            copies[id(each)] = read(each)
        else:
            overwritten = id(each) in results
            known = known and (overwritten or has_values(each))
            copies[id(each)] = read(each, "zeros", overwritten=overwritten)
    return copies, known


def _asks_for_values(operator: TorchOperator) -> Callable[[Tensor], bool]:
    """Return a function that tells if an operand's values determine the shape of the result, or a number."""
    if not _OF_VALUES & set(operator.tags):
        return lambda _: False
    if operator is aten.index.Tensor:  # the mask determines the number of results
        return lambda x: x.dtype in (torch.bool, torch.uint8)
    return lambda _: True


def _blank(x: Tensor) -> Any:
    """Return an uninitialised host tensor with the layout of ``x``, whose values are not read."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


def _result_types(operator: TorchOperator, args: Any, kwargs: Any) -> list[Any] | None:
    """Return the types of an operator's results; None if PyTorch must compute the results to find out."""
    try:
        form = operator(*tree_map(without_elements, args), **tree_map(without_elements, kwargs))
    except (NotImplementedError, RuntimeError):
        return None
    return [each.dtype if isinstance(each, torch.Tensor) else None for each in leaves(form, {})]


def _rounded(found: Any, types: list[Any], written: set[int]) -> Any:
    """Convert results, which were computed in f32 as on GPUs, to the operator's result ``types``."""
    wanted = iter(types)

    def rounded(x: Any) -> Any:
        ty = next(wanted)
        return x.to(ty) if isinstance(x, torch.Tensor) and ty is not None and id(x) not in written else x

    return tree_map(rounded, found)


def leaves(args: Any, kwargs: Any) -> list[Any]:
    """Return all arguments of an operator, with lists and tuples flattened."""
    found: list[Any] = []
    tree_map(found.append, (args, kwargs))
    return found


def _host_device(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == DEVICE else x


def written_by(operator: TorchOperator, args: Any, kwargs: Any) -> list[Any]:
    """Return the tensors of the machine that an operator writes."""
    found: list[Any] = []
    for i, each in enumerate(operator._schema.arguments):  # noqa: SLF001 - as subclasses use it
        if each.alias_info is not None and each.alias_info.is_write:
            found.append(kwargs.get(each.name) if each.name in kwargs else args[i] if i < len(args) else None)
    return [x for x in leaves((found,), {}) if isinstance(x, AhbmTensor)]


def _results(operator: TorchOperator, args: Any, kwargs: Any) -> set[int]:
    """Return the ids of operands that the operator only writes (``out=``)."""
    names = {each.name for each in operator._schema.arguments if each.is_out}  # noqa: SLF001 - as subclasses use it
    operands = {id(each) for each in leaves(args, {name: x for name, x in kwargs.items() if name not in names})}
    return {id(each) for each in leaves((), {name: x for name, x in kwargs.items() if name in names})} - operands
