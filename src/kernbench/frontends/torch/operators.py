"""Carry out PyTorch's operators on ``ahbm``: views rename, transfers move; everything else the host computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._pytree import tree_map

from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, fetch, from_host, new, sip_of, to_host, write

aten = torch.ops.aten
TorchOperator = Any
_NO_ALIAS_BUT_VIEW = (aten._unsafe_view.default,)  # noqa: SLF001 - an operator's name
# They make numbers of nothing: the host does, and sends them, which is what a program asks for.
_SOURCES = frozenset(
    [
        "arange",
        "uniform_",
        "normal_",
        "random_",
        "bernoulli_",
        "rand_like",
        "randn_like",
        "randint_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "fill_",
        "zero_",
        "eye",
        "linspace",
        "scalar_tensor",
    ]
)
_COPIES = frozenset(["clone", "lift_fresh_copy"])
_NARROW = (torch.float16, torch.bfloat16)
"""The host would keep sums in these; GPUs keep them in f32, and round once."""
_OF_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
"""Tags of operators whose result has a shape, or is a number, that depends on values."""
_UNWRITTEN = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])


def run(operator: TorchOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry ``operator`` out, one of whose arguments is on the machine, or whose result is to be."""
    own = _OWN.get(operator)
    if own is not None:
        return own(*args, **kwargs)
    if operator.namespace != "aten" and (defined := OPDEFS.get(operator._schema.name)) is not None:  # noqa: SLF001
        return defined._init_fn(*args, **kwargs)  # noqa: SLF001 - a program's own, which gets tensors of the machine
    # Within an operator of a program composites come undivided, whose schemas call what may be a copy a view.
    parts = operator.decompose(*args, **kwargs)
    if parts is not NotImplemented:
        return parts
    if _is_view(operator):
        return _view(operator, args, kwargs)
    if operator.overloadpacket.__name__ in _UNWRITTEN:
        return _unwritten(operator, args, kwargs)
    return _on_host(operator, args, kwargs)


def _is_view(operator: TorchOperator) -> bool:
    returned = [each.alias_info for each in operator._schema.returns]  # noqa: SLF001 - what subclasses look at
    viewed = bool(returned) and all(alias is not None and not alias.is_write for alias in returned)
    return viewed or operator in _NO_ALIAS_BUT_VIEW


def _view(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """The same storage in the shape that the operator gives a tensor without elements."""
    base = next(each for each in args if isinstance(each, AhbmTensor))
    found = operator(*tree_map(_without_elements, args), **tree_map(_without_elements, kwargs))
    return tree_map(lambda each: _seen_as(base, each) if isinstance(each, torch.Tensor) else each, found)


def _seen_as(base: AhbmTensor, form: Any) -> AhbmTensor:
    return AhbmTensor(base.storage, tuple(form.shape), form.stride(), form.storage_offset(), form.dtype)


def _without_elements(x: Any) -> Any:
    if isinstance(x, AhbmTensor):
        whole = torch.empty((x.storage.n,), dtype=x.dtype, device="meta")
        return torch.as_strided(whole, x.shape, x.stride(), x.storage_offset())
    return torch.device("meta") if isinstance(x, torch.device) else x


def _unwritten(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """A new tensor; where the program says, else where the one it is made like lies."""
    like = next((each for each in args if isinstance(each, AhbmTensor)), None)
    device = torch.device(kwargs.get("device") or (DEVICE if like is None else like.on_machine))
    if device.type != DEVICE:
        return operator(*tree_map(_without_elements, args), **{**kwargs, "device": torch.device("meta")}).to_empty(
            device=device
        )
    options = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
    form = operator(*tree_map(_without_elements, args), **options)
    return new(tuple(form.shape), form.dtype, sip_of(device), form.stride())


def _on_host(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """Copy what it reads to the host, compute there, copy results and what it writes back; it is listed."""
    name = operator.overloadpacket.__name__
    here = [each for each in _leaves(args, kwargs) if isinstance(each, AhbmTensor)]
    device = kwargs.get("device")
    sip = here[0].storage.tensor.sip if here else sip_of(device or DEVICE)
    types = None
    if name not in _SOURCES | _COPIES:
        current().unmodelled[name] += 1
        types = _result_types(operator, args, kwargs) if any(each.dtype in _NARROW for each in here) else None
    blank, results = name in _SOURCES and len(here) == 1, _results(operator, args, kwargs)
    copies, known = _fetched(operator, here, results, blank=blank)
    if types is not None:
        copies = {key: each.float() if each.dtype in _NARROW else each for key, each in copies.items()}
    host = lambda x: copies[id(x)] if isinstance(x, AhbmTensor) else _host_device(x)  # noqa: E731
    found = operator(*tree_map(host, args), **tree_map(host, kwargs))
    written = {id(copies[id(x)]): x for x in _written(operator, args, kwargs) if isinstance(x, AhbmTensor)}
    for key, target in written.items():
        write(target, next(each for each in copies.values() if id(each) == key), known=known)
    stays = device is not None and torch.device(device).type != DEVICE

    def back(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or stays:
            return x
        return written[id(x)] if id(x) in written else from_host(x, sip, known=known)

    if types is not None:
        found = _rounded(found, types, set(written))
    return tree_map(back, found)


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
        form = operator(*tree_map(_without_elements, args), **tree_map(_without_elements, kwargs))
    except (NotImplementedError, RuntimeError):
        return None
    return [each.dtype if isinstance(each, torch.Tensor) else None for each in _leaves(form, {})]


def _rounded(found: Any, types: list[Any], written: set[int]) -> Any:
    """Results that were computed in f32, as GPUs do, in the types that they should have."""
    wanted = iter(types)

    def rounded(x: Any) -> Any:
        ty = next(wanted)
        return x.to(ty) if isinstance(x, torch.Tensor) and ty is not None and id(x) not in written else x

    return tree_map(rounded, found)


def _leaves(args: Any, kwargs: Any) -> list[Any]:
    found: list[Any] = []
    tree_map(found.append, (args, kwargs))
    return found


def _host_device(x: Any) -> Any:
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == DEVICE else x


def _written(operator: TorchOperator, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator changes."""
    found = []
    for i, each in enumerate(operator._schema.arguments):  # noqa: SLF001 - what subclasses look at
        if each.alias_info is not None and each.alias_info.is_write:
            found.append(kwargs.get(each.name) if each.name in kwargs else args[i] if i < len(args) else None)
    return found


def _results(operator: TorchOperator, args: Any, kwargs: Any) -> set[int]:
    """Find the objects that are only there for results (``out=``): the operator does not read them."""
    names = {each.name for each in operator._schema.arguments if each.is_out}  # noqa: SLF001 - what subclasses look at
    operands = {id(each) for each in _leaves(args, {name: x for name, x in kwargs.items() if name not in names})}
    return {id(each) for each in _leaves((), {name: x for name, x in kwargs.items() if name in names})} - operands


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:  # noqa: ARG001 - it is over when it returns
    """``target.copy_(source)``, from and to anywhere."""
    if not isinstance(target, AhbmTensor):
        target.copy_(to_host(source))
        return target
    elements, known = fetch(source) if isinstance(source, AhbmTensor) else (source, True)
    write(target, elements, known=known)
    return target


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    return _copy(target, source, non_blocking)


def _to_copy(x: AhbmTensor, *, device: Any = None, dtype: Any = None, **options: Any) -> Any:  # noqa: ARG001 - layouts
    """``x.to(...)``; another type is what the host makes, and listed, unless it stays there."""
    there = x.on_machine if device is None else torch.device(device)
    wanted = dtype or x.dtype
    if there.type != DEVICE:
        return to_host(x).to(wanted, copy=True).to(there)
    elements, known = fetch(x)
    if dtype is not None and dtype is not x.dtype:
        current().unmodelled["to"] += 1
    return from_host(elements.to(wanted, copy=True), sip_of(there), known=known)


def _item(x: AhbmTensor) -> Any:
    return to_host(x).item()


_OWN: dict[TorchOperator, Callable[..., Any]] = {
    aten.copy_.default: _copy,
    aten._copy_from.default: _copy_from,  # noqa: SLF001 - an operator's name
    aten._to_copy.default: _to_copy,  # noqa: SLF001
    aten._local_scalar_dense.default: _item,  # noqa: SLF001
}
