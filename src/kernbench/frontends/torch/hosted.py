"""Operators of PyTorch that the machine has no kernel for: the host computes them, at the price of copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError, UnmodelledError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import TorchTensor, current
from kernbench.frontends.torch.tensor import (
    AhbmTensor,
    fetch,
    from_host,
    resize,
    sip_of,
    to_host,
    without_elements,
    write,
)

aten = torch.ops.aten
TorchOperator = Any
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
"""Tables of window functions, which PyTorch would compose, some of them by kernels of the host."""
SOURCES = frozenset(
    ["randperm", "random_", "normal_", "uniform_", "rand_like", "randint_like", "tril_indices", "triu_indices"]
) | {operator.overloadpacket.__name__ for operator in WINDOWS}
"""They make numbers of nothing: the host does, and sends them, which is what a program asks for."""
_NARROW = (torch.float16, torch.bfloat16)
"""The host would keep sums in these; GPUs keep them in f32, and round once."""
_IN_OWN_TYPE = frozenset(["nextafter"])
"""Operators whose result is another one in a wider type."""
_OF_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
"""Tags of operators whose result has a shape, or is a number, that depends on values."""


def _note(name: str) -> None:
    """List ``name`` as unmodelled; UnmodelledError where the run allows none."""
    context = current()
    if context.frontends.torch.strict:
        raise UnmodelledError(
            f"{program_place()}: operator {name} has no kernel, and --strict allows none that the host computes"
        )
    context.unmodelled[name] += 1
    context.operators.note_unmodelled()


def on_host(operator: TorchOperator, args: Any, kwargs: Any, *, in_order: bool = False) -> Any:
    """Copy what it reads to the host, compute there, copy results and what it writes back; it is listed.

    ``in_order``: it writes to elements that lie in one place, so operands stay as they lie, in their own types.
    InputError for an operator that writes what its schema does not say.
    """
    name = operator.overloadpacket.__name__
    here = [each for each in leaves(args, kwargs) if isinstance(each, AhbmTensor)]
    device = kwargs.get("device")
    sip = here[0].storage.tensor.sip if here else sip_of(device or DEVICE)
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
        write(resize(target, tuple(elements.shape)), elements, known=known)
    stays = device is not None and torch.device(device).type != DEVICE

    def back(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or stays:
            return x
        return written[id(x)] if id(x) in written else from_host(x, sip, known=known)

    if types is not None:
        found = _rounded(found, types, set(written))
    return tree_map(back, found)


@value
class _UnwrittenOperands:
    """The copies of operands that an operator does not write, as its schema says, and what was in them.

    PyTorch's own schemas are right. Those of others often leave out what is written.
    """

    pairs: tuple[tuple[TorchTensor, TorchTensor], ...] = ()

    @staticmethod
    def of(operator: TorchOperator, args: Any, kwargs: Any, copies: Mapping[int, TorchTensor]) -> _UnwrittenOperands:
        """Return those of a call; none of an operator of PyTorch."""
        if operator.namespace == "aten":
            return _UnwrittenOperands()
        targets = {id(x) for x in written_by(operator, args, kwargs)}
        return _UnwrittenOperands(tuple([(x, x.clone()) for key, x in copies.items() if key not in targets]))

    def check(self, operator: TorchOperator) -> None:
        """Raise InputError if the operator has written one of them."""
        if not all(x.shape == before.shape and torch.equal(_bits(x), _bits(before)) for x, before in self.pairs):
            raise InputError(
                f"{program_place()}: operator {operator.name()}, which the host computes, writes an operand that its "
                f"schema does not name as written; it is {operator._schema}, write Tensor(a!) there"  # noqa: SLF001
            )


def _bits(x: TorchTensor) -> TorchTensor:
    return x.contiguous().reshape(-1).view(torch.uint8)


def _fetched(
    operator: TorchOperator, operands: list[AhbmTensor], results: set[int], *, blank: bool
) -> tuple[dict[int, Any], bool]:
    """Operands on the host by their ``id``, and whether all are their values: else, in a run without data, zeros.

    ``results``: those that are only there for results; ``blank``: so are all.
    NoDataError where the shape of the result, or a number for the program, depends on values that the run lacks.
    """
    if blank:
        return {id(each): _blank(each) for each in operands}, True
    asks = _asks_for_values(operator)
    copies, known = {}, True
    for each in operands:
        if asks(each):
            copies[id(each)] = to_host(each)
        else:
            overwritten = id(each) in results
            copies[id(each)], has_values = fetch(each, overwritten=overwritten)
            known = known and (has_values or overwritten)
    return copies, known


def _asks_for_values(operator: TorchOperator) -> Callable[[AhbmTensor], bool]:
    """Select the operands that have to be known, so that an operator gives what it would with data."""
    if not _OF_VALUES & set(operator.tags):
        return lambda _: False
    if operator is aten.index.Tensor:  # the mask says how many there are
        return lambda x: x.dtype in (torch.bool, torch.uint8)
    return lambda _: True


def _blank(x: AhbmTensor) -> Any:
    """A tensor of the host in place of one that is written or looked at, and not read."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)


def _result_types(operator: TorchOperator, args: Any, kwargs: Any) -> list[Any] | None:
    """The types of what an operator returns; None when PyTorch cannot say without computing it."""
    try:
        form = operator(*tree_map(without_elements, args), **tree_map(without_elements, kwargs))
    except (NotImplementedError, RuntimeError):
        return None
    return [each.dtype if isinstance(each, torch.Tensor) else None for each in leaves(form, {})]


def _rounded(found: Any, types: list[Any], written: set[int]) -> Any:
    """Results that were computed in f32, as GPUs do, in the types that they should have."""
    wanted = iter(types)

    def rounded(x: Any) -> Any:
        ty = next(wanted)
        return x.to(ty) if isinstance(x, torch.Tensor) and ty is not None and id(x) not in written else x

    return tree_map(rounded, found)


def leaves(args: Any, kwargs: Any) -> list[Any]:
    """Return everything among the arguments of an operator, out of lists and tuples."""
    found: list[Any] = []
    tree_map(found.append, (args, kwargs))
    return found


def _host_device(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == DEVICE else x


def written_by(operator: TorchOperator, args: Any, kwargs: Any) -> list[Any]:
    """The tensors of the machine that an operator changes."""
    found: list[Any] = []
    for i, each in enumerate(operator._schema.arguments):  # noqa: SLF001 - what subclasses look at
        if each.alias_info is not None and each.alias_info.is_write:
            found.append(kwargs.get(each.name) if each.name in kwargs else args[i] if i < len(args) else None)
    return [x for x in leaves((found,), {}) if isinstance(x, AhbmTensor)]


def _results(operator: TorchOperator, args: Any, kwargs: Any) -> set[int]:
    """Find the objects that are only there for results (``out=``): the operator does not read them."""
    names = {each.name for each in operator._schema.arguments if each.is_out}  # noqa: SLF001 - what subclasses look at
    operands = {id(each) for each in leaves(args, {name: x for name, x in kwargs.items() if name not in names})}
    return {id(each) for each in leaves((), {name: x for name, x in kwargs.items() if name in names})} - operands
