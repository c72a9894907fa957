"""Ways to run an operator of PyTorch: by a kernel, as a view, by PyTorch's decomposition, by another form of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import optimizers
from kernbench.frontends.torch.hosted import leaves, on_host
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.pointwise import Rule, carry_out
from kernbench.frontends.torch.storage import TorchOperator, UnknownTypeError
from kernbench.frontends.torch.tensor import (
    AhbmTensor,
    device_of,
    new,
    resize,
    sip_of,
    storage_of,
    without_elements,
)

aten = torch.ops.aten
OperatorFunction: TypeAlias = Callable[[TorchOperator, Sequence[Any], Mapping[str, Any]], Any]
"""A function that runs an operator with its arguments. It returns NotImplemented for operands that it does not take."""
WayKind: TypeAlias = Literal[
    "kernel", "expression", "list", "view", "memory", "decomposition", "another form", "host", "refused"
]


@value
class OperatorWay:
    """The way in which an operator runs.

    Kinds on the machine are a kernel, an elementwise ``expression``, one launch for a list, a view, and uninitialised
    ``memory``. The other kinds are PyTorch's decomposition, another form of the operator, the host, and a refusal.
    """

    kind: WayKind
    run: OperatorFunction


def kernel(function: Callable[..., Any]) -> OperatorWay:
    """Return the way of an operator that ``function`` runs, which has the operator's parameters."""
    return OperatorWay("kernel", lambda _, args, kwargs: function(*args, **kwargs))


def factory(function: Callable[..., Any]) -> OperatorWay:
    """Return the way of operators that ``function`` runs, which has the operator as an additional first parameter."""
    return OperatorWay("kernel", lambda operator, args, kwargs: function(operator, *args, **kwargs))


def expression(rule: Rule) -> OperatorWay:
    """Return the way of an elementwise operator, and of its in-place form."""
    return OperatorWay("expression", lambda operator, args, kwargs: carry_out(operator, rule, args, kwargs))


HOST = OperatorWay("host", on_host)


def _refuse_layout(operator: TorchOperator, *_: Any, **__: Any) -> Any:
    """Raise InputError for tensors that are not strided."""
    raise InputError(
        f"{program_place()}: operator {operator.overloadpacket.__name__}: sparse and nested tensors are not on the "
        "machine; use dense ones (Embedding with sparse=False, sequences that are padded or packed)"
    )


REFUSED_LAYOUT = OperatorWay("refused", _refuse_layout)

# views


def _view(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a view of the same storage, with the shape and strides that the operator gives on a meta tensor."""
    if is_composite(operator):  # such an operator copies if the layout does not allow a view
        return operator.decompose(*args, **kwargs)
    storage = storage_of(next(x for x in args if isinstance(x, AhbmTensor)))

    def view(form: Any) -> Any:
        if not isinstance(form, Tensor):
            return form
        return AhbmTensor(storage, tuple(form.shape), form.stride(), int(form.storage_offset()), form.dtype)

    return tree_map(view, operator(*tree_map(without_elements, args), **tree_map(without_elements, kwargs)))


def _view_in_place(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Change the shape of the tensor itself in PyTorch's metadata, as ``squeeze_`` does, and return the tensor."""
    with no_dispatch():
        operator(*args, **kwargs)
    return args[0]


def is_view(operator: TorchOperator) -> bool:
    """Return whether an operator returns views of its operands, according to its schema."""
    aliases = [result.alias_info for result in operator._schema.returns]  # noqa: SLF001 - as subclasses use it
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


VIEW = OperatorWay("view", _view)
VIEW_IN_PLACE = OperatorWay("view", _view_in_place)


def _allocate(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return an uninitialised tensor on the device that the program names, else on that of the operator's operand."""
    like = next((x for x in args if isinstance(x, AhbmTensor)), None)
    device = torch.device(kwargs.get("device") or (DEVICE if like is None else device_of(like)))
    if device.type != DEVICE:
        form = operator(*tree_map(without_elements, args), **{**kwargs, "device": torch.device("meta")})
        return torch.empty_strided(form.shape, form.stride(), dtype=form.dtype, device=device)
    options = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
    form = operator(*tree_map(without_elements, args), **options)
    return new(tuple(form.shape), form.dtype, sip_of(device), form.stride())


MEMORY = OperatorWay("memory", _allocate)

# other operators in place of an operator


def is_composite(operator: TorchOperator) -> bool:
    """Return whether PyTorch composes an operator of others for all devices."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))  # noqa: SLF001
    except RuntimeError:  # an overload that exists only in Python
        return False


COMPOSITE = OperatorWay("decomposition", lambda operator, args, kwargs: operator.decompose(*args, **kwargs))


class _Decomposition:
    """A replacement of an operator by other operators. It does not apply if its own parts call the operator."""

    def __init__(self, parts: Callable[..., Any]) -> None:
        self._parts = parts
        # Each rank has its own value: a rank may run the parts while another waits inside them.
        self._is_running = ContextVar("is_running", default=False)

    def __call__(self, operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the parts. Return NotImplemented for a nested call, or if a part needs a type that the machine lacks."""
        if self._is_running.get():
            return NotImplemented
        token = self._is_running.set(True)
        try:
            return self._parts(*args, **kwargs)
        except UnknownTypeError:
            return NotImplemented
        finally:
            self._is_running.reset(token)


def decomposition(parts: Callable[..., Any]) -> OperatorWay:
    """Return the way of an operator that ``parts``, PyTorch's decomposition, replaces by others."""
    return OperatorWay("decomposition", _Decomposition(parts))


def in_place_of(functional: TorchOperator) -> OperatorWay:
    """Return the way of an in-place operator: its out-of-place form, whose result is copied to the first operand."""
    return OperatorWay("another form", lambda _, args, kwargs: args[0].copy_(functional(*args, **kwargs)))


def with_out(operator: TorchOperator) -> OperatorWay | None:
    """Return the way of an ``out=`` operator: the form that returns its results, which are copied to ``out``.

    Return None for an operator without ``out=``, or without such a form.
    """
    arguments = operator._schema.arguments  # noqa: SLF001 - as subclasses use it
    if not any(argument.is_out for argument in arguments):
        return None
    names = [argument.name for argument in arguments if not argument.is_out]
    for overload in operator.overloadpacket.overloads():
        form = getattr(operator.overloadpacket, overload)
        parameters = form._schema.arguments  # noqa: SLF001
        if any(parameter.is_out or parameter.alias_info for parameter in parameters):
            continue
        if [parameter.name for parameter in parameters][: len(names)] == names:
            parts = _Decomposition(lambda *args, form=form, **kwargs: _write_out(operator, form, args, kwargs))
            return OperatorWay("another form", parts)
    return None


def _write_out(operator: TorchOperator, form: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run the form that returns results, resize the ``out=`` tensors to fit, and copy the results into them."""
    outs = {argument.name: kwargs[argument.name] for argument in operator._schema.arguments if argument.is_out}  # noqa: SLF001
    options = {name: x for name, x in kwargs.items() if name not in outs}
    targets = leaves(tuple(outs.values()), {})
    if any(argument.name == "device" for argument in form._schema.arguments):  # noqa: SLF001 - a factory
        options["device"] = device_of(targets[0])
    results = leaves((form(*args, **options),), {})
    for target, result in zip(targets, results, strict=True):
        resize(target, tuple(result.shape)).copy_(result)
    if not operator._schema.returns:  # noqa: SLF001 - variants with lists
        return None
    return targets[0] if len(targets) == 1 else tuple(outs.values())


# lists


def on_list(rule: Rule | None) -> OperatorWay:
    """Return the way of a ``_foreach_`` operator: one launch by ``rule``, else tensor by tensor, as PyTorch's CPU."""

    def run(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        results = optimizers.foreach(operator, rule, args, kwargs)
        return _run_each(operator, args, kwargs) if results is NotImplemented else results

    return OperatorWay("list", run)


def _run_each(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    name = operator.overloadpacket.__name__.removeprefix("_foreach_")
    single = getattr(aten, name)
    calls = [[x[i] if isinstance(x, list | tuple) else x for x in args] for i in range(len(args[0]))]
    results = [single(*call, **kwargs) for call in calls]
    return None if name.endswith("_") else results
