"""PyTorch operators that the host computes at the cost of copies: those without a kernel of the machine.

The host also computes writes to elements that share memory, whose order matters. An expanded tensor has an axis with a
stride of 0: all elements along that axis share memory. Elements of other strides, such as those of ``unfold``, may
overlap, too. PyTorch does not check such strides, and writes the shared elements one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError, UnmodelledError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import CallArguments, CallOptions, TorchOperator, current
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
_SAME_EVERYWHERE = frozenset(("fill_", "zero_"))
"""Operators that write one number everywhere, so the order of writes has no effect."""
_ONE_AFTER_ANOTHER = frozenset(("masked_fill_", "index_put_", "_index_put_impl_", "index_fill_"))
"""Other operators that PyTorch lets write to expanded tensors: the last write wins."""
_REFUSAL = (
    "unsupported operation: more than one element of the written-to tensor refers to a single memory location. Please "
    "clone() the tensor before performing the operation."
)


def _note(name: str) -> None:
    """List ``name`` as unmodelled. Raises UnmodelledError if the run is strict."""
    context = current()
    if context.frontends.torch.strict:
        raise UnmodelledError(
            f"{program_place()}: operator {name} has no kernel, and --strict allows none that the host computes"
        )
    context.unmodelled[name] += 1
    context.operators.note_unmodelled()


def on_host(operator: TorchOperator, args: CallArguments, kwargs: CallOptions, *, in_order: bool = False) -> Any:
    """Copy an operator's operands to the host, compute there, and copy the results back. Note it as unmodelled.

    ``in_order``: the operator writes to elements that share memory, so operands keep their layout and dtypes. Raises
    InputError if the operator writes an operand that its schema does not declare as written.
    """
    name = operator.overloadpacket.__name__
    operands = [x for x in leaves(args, kwargs) if isinstance(x, AhbmTensor)]
    device = kwargs.get("device")
    sip = sip_of(operands[0]) if operands else sip_of(device or DEVICE)
    types = None
    if name not in SOURCES:
        _note(name)
        widens = not in_order and name not in _IN_OWN_TYPE and any(x.dtype in _NARROW for x in operands)
        types = _result_types(operator, args, kwargs) if widens else None
    if name in SOURCES and len(operands) == 1:
        copies, is_known = {id(x): _make_blank(x) for x in operands}, True
    else:
        copies, is_known = _fetch(operator, operands, _output_ids(operator, args, kwargs))
    if types is not None:
        copies = {key: x.float() if x.dtype in _NARROW else x for key, x in copies.items()}

    def move(x: object) -> object:
        return copies[id(x)] if isinstance(x, AhbmTensor) else _on_host_device(x)

    unwritten = _UnwrittenOperands.of(operator, args, kwargs, copies)
    try:
        results = operator(*tree_map(move, args), **tree_map(move, kwargs))
    except NotImplementedError as error:
        raise InputError(f"operator {name}: neither the machine nor PyTorch's CPU has it for these tensors") from error
    unwritten.check(operator)
    written = {id(copies[id(x)]): x for x in written_by(operator, args, kwargs)}
    for target in written.values():
        elements = copies[id(target)]
        write(resize(target, tuple(elements.shape)), elements, is_known=is_known)
    stays = device is not None and torch.device(device).type != DEVICE

    def move_back(x: object) -> object:
        if not isinstance(x, Tensor) or stays:
            return x
        return written[id(x)] if id(x) in written else from_host(x, sip, is_known=is_known)

    if types is not None:
        results = _round(results, types, set(written))
    return tree_map(move_back, results)


@value
class _UnwrittenOperands:
    """Operands that an operator does not write according to its schema, with their values before the call.

    PyTorch's own schemas are correct. Schemas of other libraries often omit a written operand.
    """

    pairs: tuple[tuple[Tensor, Tensor], ...] = ()

    @staticmethod
    def of(
        operator: TorchOperator, args: CallArguments, kwargs: CallOptions, copies: Mapping[int, Tensor]
    ) -> _UnwrittenOperands:
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


def _fetch(operator: TorchOperator, operands: Sequence[Tensor], outputs: set[int]) -> tuple[dict[int, Tensor], bool]:
    """Return host copies of operands by ``id``, and whether all their values are real. Unknown values become zeros.

    ``outputs``: ids of operands that only receive results. Raises NoDataError if the shape of the result, or a number
    for the program, depends on values that the run lacks.
    """
    copies, is_known = {}, True
    for x in operands:
        if _needs_values(operator, x):
            copies[id(x)] = read(x)
        else:
            overwritten = id(x) in outputs
            is_known = is_known and (overwritten or has_values(x))
            copies[id(x)] = read(x, "zeros", overwritten=overwritten)
    return copies, is_known


def _needs_values(operator: TorchOperator, x: Tensor) -> bool:
    """Return whether the values of an operand determine the shape of the result, or a number for the program."""
    if not _OF_VALUES & set(operator.tags):
        return False
    is_mask = x.dtype in (torch.bool, torch.uint8)
    return is_mask or operator is not aten.index.Tensor  # whose mask determines the number of results


def _make_blank(x: Tensor) -> Tensor:
    """Return an uninitialised host tensor with the layout of ``x``, whose values are not read."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


def _result_types(operator: TorchOperator, args: CallArguments, kwargs: CallOptions) -> list[torch.dtype | None] | None:
    """Return the types of an operator's results; None if PyTorch must compute the results to find out."""
    try:
        form = operator(*tree_map(without_elements, args), **tree_map(without_elements, kwargs))
    except (NotImplementedError, RuntimeError):
        return None
    return [x.dtype if isinstance(x, Tensor) else None for x in leaves((form,), {})]


def _round(results: Any, types: Sequence[torch.dtype | None], written: set[int]) -> Any:
    """Convert results, which were computed in f32 as on GPUs, to the operator's result ``types``."""
    remaining = iter(types)

    def convert(x: object) -> object:
        dtype = next(remaining)
        return x.to(dtype) if isinstance(x, Tensor) and dtype is not None and id(x) not in written else x

    return tree_map(convert, results)


def leaves(args: CallArguments, kwargs: CallOptions) -> list[Any]:
    """Return all arguments of an operator, with lists and tuples flattened."""
    arguments: list[Any] = []
    tree_map(arguments.append, (args, kwargs))
    return arguments


def _on_host_device(x: object) -> object:
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == DEVICE else x


def written_by(operator: TorchOperator, args: CallArguments, kwargs: CallOptions) -> list[AhbmTensor]:
    """Return the tensors of the machine that an operator writes."""
    targets: list[Any] = []
    for place, argument in enumerate(operator._schema.arguments):  # noqa: SLF001 - as subclasses use it
        if argument.alias_info is not None and argument.alias_info.is_write:
            default = args[place] if place < len(args) else None
            targets.append(kwargs.get(argument.name, default))
    return [x for x in leaves((targets,), {}) if isinstance(x, AhbmTensor)]


def _output_ids(operator: TorchOperator, args: CallArguments, kwargs: CallOptions) -> set[int]:
    """Return the ids of operands that the operator only writes (``out=``)."""
    arguments = operator._schema.arguments  # noqa: SLF001 - as subclasses use it
    names = {argument.name for argument in arguments if argument.is_out}
    operands = {id(x) for x in leaves(args, {name: x for name, x in kwargs.items() if name not in names})}
    return {id(x) for x in leaves((), {name: x for name, x in kwargs.items() if name in names})} - operands


# elements that share memory


def writes_in_order(operator: TorchOperator, args: CallArguments, kwargs: CallOptions) -> bool:
    """Return whether an operator writes to elements that share memory. The order of writes then matters.

    Raises RuntimeError, with PyTorch's message, if PyTorch refuses the write.
    """
    written = written_by(operator, args, kwargs)
    if not written or torch.Tag.inplace_view in operator.tags:
        return False
    shared = [x for x in written if not is_nested(x)]
    if not shared:
        return False
    name = operator.overloadpacket.__name__
    if name in _SAME_EVERYWHERE:
        return False
    if name not in _ONE_AFTER_ANOTHER and any(repeated_axes(x) for x in shared):
        raise RuntimeError(_REFUSAL)
    return True


def repeated_axes(x: Tensor) -> list[int]:
    """Return the axes along which all elements share memory."""
    return [axis for axis, (n, step) in enumerate(zip(x.shape, x.stride(), strict=True)) if n > 1 and step == 0]


def without_repeats(x: Tensor) -> Tensor:
    """Return ``x`` with one element along each axis whose elements all share memory."""
    for axis in repeated_axes(x):
        x = x.narrow(axis, 0, 1)
    return x


def is_nested(x: Tensor) -> bool:
    """Return whether the stride of each axis exceeds the span of all faster axes, so no two elements share memory."""
    if not x.numel():
        return True
    reach = 0
    for step, n in sorted((step, n) for n, step in zip(x.shape, x.stride(), strict=True) if n != 1):
        if step <= reach:
            return False
        reach += (n - 1) * step
    return True
