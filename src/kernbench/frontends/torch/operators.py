"""Execution of PyTorch operators on ``ahbm``: by a kernel, as a view, by PyTorch's decomposition, or on the host."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._library.custom_ops import OPDEFS
from torch.library import _impls
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError, KernelError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import (
    collectives,
    convolution,
    indexing,
    making,
    norms,
    optimizers,
    order,
    products,
    randoms,
    recurrent,
    reductions,
    resampling,
)
from kernbench.frontends.torch.hosted import SOURCES, WINDOWS, leaves, on_host, writes_in_order, written_by
from kernbench.frontends.torch.launches import measure
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.pointwise import carry_out, rule_of
from kernbench.frontends.torch.refusals import check_operands
from kernbench.frontends.torch.storage import KNOWN_BYTES, TorchOperator, UnknownTypeError, current
from kernbench.frontends.torch.tensor import (
    AhbmTensor,
    bits_as,
    device_of,
    is_whole,
    new,
    put_known,
    resize,
    sip_of,
    storage_of,
    without_elements,
)

aten = torch.ops.aten
Lowering = Callable[..., Any]
_NO_ALIAS_BUT_VIEW = (aten._unsafe_view.default,)  # noqa: SLF001 - an operator's name
_OVERWRITING = (aten.zero_.default, aten.fill_.Scalar, aten.copy_.default)
_NO_STRIDES = ("nested_", "sparse_", "jagged_")
"""Prefixes of operators on tensors that are not strided."""
_LOADING = SOURCES | making.MAKING | randoms.DRAWING
_UNWRITTEN = frozenset(["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"])
_LOWERINGS: Mapping[TorchOperator, Lowering] = MappingProxyType(
    {
        **products.LOWERINGS,
        **reductions.LOWERINGS,
        **order.LOWERINGS,
        **norms.LOWERINGS,
        **recurrent.LOWERINGS,
        **resampling.LOWERINGS,
        **indexing.LOWERINGS,
        **making.LOWERINGS,
        **randoms.LOWERINGS,
        **optimizers.LOWERINGS,
        **convolution.LOWERINGS,
        **collectives.LOWERINGS,
        aten.resize_.default: lambda x, size, **_: resize(x, tuple(size)),
    }
)
_BY_NAME: Mapping[str, Lowering] = MappingProxyType({**making.BY_NAME, **randoms.BY_NAME})
_DECOMPOSITIONS: Mapping[torch._ops.OperatorBase, Lowering] = MappingProxyType(
    {**decomposition_table, **core_aten_decompositions()}
)


_COMPILER = "torch._dynamo"
"""The module of PyTorch's compiler, imported on first need. The import leaves a reference cycle of all running frames.
The cycle keeps the tensors of these frames alive until a garbage collection."""


def run(operator: TorchOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``operator``. It has an argument on the machine, or creates its result there."""
    context = current()
    is_part = context.operators.is_inside
    with measure(operator.overloadpacket.__name__, loads=_is_loading(operator)):
        if context.has_data:
            return _carry_out(operator, args, kwargs, is_part=is_part)
        known = _KnownOperands.of(operator, args, kwargs)
        found = _carry_out(operator, args, kwargs, is_part=is_part)
        if known is not None:
            known.note(operator, args, kwargs, found)
        return found


@cache
def _is_loading(operator: TorchOperator) -> bool:
    """Return whether an operator only creates, fills, draws, copies or views tensors, as initialisation does."""
    return operator.overloadpacket.__name__ in _LOADING or way_of(operator).kind in ("view", "memory")


def _carry_out(operator: TorchOperator, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_part: bool) -> Any:
    """Run an operator if PyTorch accepts its operands. ``is_part``: skip the check, which its parent passed."""
    loaded = _COMPILER in sys.modules
    try:
        if _has_function_of_program(operator):
            return operator.redispatch(_MACHINE, *args, **kwargs)
        way = way_of(operator)
        if not is_part and way.kind not in _NOT_ASKED:
            check_operands(operator, args, kwargs)
        in_order = writes_in_order(operator, args, kwargs)
        found = NotImplemented if in_order else way.carry_out(operator, args, kwargs)
    except (AttributeError, RuntimeError, KernelError) as error:
        _refuse_two_devices(operator, args, kwargs, error)
        raise
    if not loaded and _COMPILER in sys.modules:
        gc.collect()  # frees the cycle now; otherwise memory would be reused later in this run than in the next one
    return on_host(operator, args, kwargs, in_order=in_order) if found is NotImplemented else found


# PyTorch cannot find the device of a factory from a tensor operand. ``torch.tensor`` copies, and reads the scalars
# of a sequence, without calling the subclass.
BY_DEVICE = (
    "empty.memory_format",
    "empty_strided",
    "arange",
    "arange.start",
    "arange.start_step",
    "_copy_from",
    "_local_scalar_dense",
    *[operator.name().removeprefix("aten::") for operator in WINDOWS],
)
"""Operators for which PyTorch has a fallback or a composite that would take precedence over the machine's lowering."""
_MACHINE = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)  # noqa: SLF001 - as subclasses redispatch
_FOR_MACHINE = ("PrivateUse1", "CompositeExplicitAutograd")


def _has_function_of_program(operator: TorchOperator) -> bool:
    """Return whether the program has registered a function for an operator, PyTorch's or its own."""
    namespace, _, name = operator.name().partition("::")
    if namespace == "aten" and name in BY_DEVICE:
        return False
    return any(f"{namespace}/{name}/{key}" in _impls for key in _FOR_MACHINE)


def _refuse_two_devices(operator: TorchOperator, args: Any, kwargs: Any, error: Exception) -> None:
    """Raise InputError if ``error`` occurred because only some operands are on the machine."""
    tensors = [
        x for x in leaves(args, kwargs) if isinstance(x, torch.Tensor) and (x.dim() or isinstance(x, AhbmTensor))
    ]
    on_machine, others = ([x for x in tensors if isinstance(x, AhbmTensor) is here] for here in (True, False))
    if on_machine and others:
        raise InputError(
            f"{program_place()}: {operator.overloadpacket.__name__} of a tensor on {on_machine[0].device} and one on "
            f"{others[0].device}, must be on one device; move the other there with .to({str(on_machine[0].device)!r})"
        ) from error


WayKind: TypeAlias = Literal[
    "kernel", "pointwise", "list", "view", "memory", "parts", "another form", "host", "refused"
]
_NOT_ASKED: frozenset[WayKind] = frozenset(["view", "memory", "host", "refused"])
"""Kinds that need no check: PyTorch computes the shape of a view at each call, and the host is PyTorch itself."""


@value
class OperatorWay:
    """The way in which an operator is carried out.

    Kinds on the machine are a kernel, an elementwise rule (``pointwise``), one launch for a list, a view, and
    uninitialised memory. The other kinds are PyTorch's decomposition (``parts``), another form of the operator, the
    host, and a refusal.
    """

    kind: WayKind
    carry_out: Callable[[TorchOperator, Any, Any], Any]


@cache
def way_of(operator: TorchOperator) -> OperatorWay:  # noqa: PLR0911 - one return for each way
    """Return the first of the available ways to carry out an operator."""
    own = _kernel_of(operator)
    if own is not None:
        return OperatorWay("kernel", own)
    if operator.namespace in collectives.NAMESPACES:
        return OperatorWay("refused", collectives.refuse)
    name = operator.overloadpacket.__name__
    if any(name.lstrip("_").startswith(each) for each in _NO_STRIDES):
        return OperatorWay("refused", refuse_layout)
    plain_form = _form_without_out(operator)
    if plain_form is not None:
        return OperatorWay("another form", _Decomposition(partial(_write_out, operator, plain_form)))
    if torch.Tag.inplace_view in operator.tags:
        return OperatorWay("view", _view_in_place)
    if _is_view(operator):
        return OperatorWay("view", _view)
    if name in _UNWRITTEN:
        return OperatorWay("memory", _unwritten)
    rule = rule_of(name if name.endswith("__") else name.rstrip("_"), operator._overloadname)  # noqa: SLF001
    if rule is not None and operator.namespace == "aten":
        return OperatorWay("pointwise", lambda op, args, kwargs: carry_out(op, rule, args, kwargs))
    return OperatorWay("list", _carry_out_list) if name.startswith("_foreach_") else _way_by_parts(operator)


def _kernel_of(operator: TorchOperator) -> Callable[[TorchOperator, Any, Any], Any] | None:
    """Return the lowering of an operator. For an operator of the program, return the program's function."""
    own = _LOWERINGS.get(operator)
    if own is not None:
        return lambda _, args, kwargs: own(*args, **kwargs)
    if operator.namespace != "aten":
        defined = OPDEFS.get(operator._schema.name)  # noqa: SLF001 - as subclasses use it
        return None if defined is None else lambda _, args, kwargs: defined._init_fn(*args, **kwargs)  # noqa: SLF001
    by_name = _BY_NAME.get(operator.overloadpacket.__name__)
    if by_name is None or any(argument.is_out for argument in operator._schema.arguments):  # noqa: SLF001
        return None
    return lambda op, args, kwargs: by_name(op, *args, **kwargs)


def _way_by_parts(operator: TorchOperator) -> OperatorWay:
    """Return the way of an operator for which this package has no lowering."""
    if operator.overloadpacket.__name__ in SOURCES:
        return OperatorWay("host", on_host)
    if _is_composite(operator):
        return OperatorWay("parts", lambda op, args, kwargs: op.decompose(*args, **kwargs))
    decomposed, functional = _DECOMPOSITIONS.get(operator), _functional(operator)
    if decomposed is not None and (functional is None or _kernel_of(functional) is None):
        return OperatorWay("parts", _Decomposition(decomposed))
    if functional is not None:
        return OperatorWay("another form", lambda _, args, kwargs: _write_in_place(functional, args, kwargs))
    return OperatorWay("host", on_host)


def refuse_layout(operator: TorchOperator, *_: Any, **__: Any) -> Any:
    """Raise InputError for tensors that are not strided."""
    raise InputError(
        f"{program_place()}: operator {operator.overloadpacket.__name__}: sparse and nested tensors are not on the "
        "machine; use dense ones (Embedding with sparse=False, sequences that are padded or packed)"
    )


class _Decomposition:
    """A replacement of an operator by other operators. It does not apply if its own parts call the operator."""

    def __init__(self, parts: Lowering) -> None:
        self._parts, self._inside = parts, False

    def __call__(self, operator: TorchOperator, args: Any, kwargs: Any) -> Any:
        """Run the parts. Return NotImplemented for a nested call, or if a part needs a type that the machine lacks."""
        if self._inside:
            return NotImplemented
        self._inside = True
        try:
            return self._parts(*args, **kwargs)
        except UnknownTypeError:
            return NotImplemented
        finally:
            self._inside = False


def _view_in_place(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """Change the shape of the tensor itself in PyTorch's metadata, as ``squeeze_`` does, and return the tensor."""
    with no_dispatch():
        operator(*args, **kwargs)
    return args[0]


def _carry_out_list(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """Run an operator on lists in one launch if it has a rule, else tensor by tensor, as PyTorch's CPU does."""
    found = optimizers.foreach(operator, args, kwargs)
    if found is not NotImplemented:
        return found
    name = operator.overloadpacket.__name__.removeprefix("_foreach_")
    single = getattr(aten, name)
    each = [[x[i] if isinstance(x, list | tuple) else x for x in args] for i in range(len(args[0]))]
    results = [single(*one, **kwargs) for one in each]
    return None if name.endswith("_") else results


def _is_composite(operator: TorchOperator) -> bool:
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"))  # noqa: SLF001
    except RuntimeError:  # an overload that exists only in Python
        return False


def _functional(operator: TorchOperator) -> TorchOperator | None:
    """Return the out-of-place form of an in-place operator; None without one, or for any other operator."""
    name = operator.overloadpacket.__name__
    if not name.endswith("_") or name.endswith("__"):
        return None
    try:
        found = getattr(getattr(aten, name[:-1]), operator._overloadname)  # noqa: SLF001
    except AttributeError:  # there is no such form
        return None
    return found if way_of(found).kind != "host" else None


def _write_in_place(functional: TorchOperator, args: Any, kwargs: Any) -> Any:
    """Run the out-of-place form, and copy its result to the first operand."""
    return args[0].copy_(functional(*args, **kwargs))


def _form_without_out(operator: TorchOperator) -> TorchOperator | None:
    """Return the form of an ``out=`` operator that returns its results; None for an operator without ``out=``."""
    arguments = operator._schema.arguments  # noqa: SLF001 - as subclasses use it
    if not any(each.is_out for each in arguments):
        return None
    names = [each.name for each in arguments if not each.is_out]
    for overload in operator.overloadpacket.overloads():
        found = getattr(operator.overloadpacket, overload)
        its = found._schema.arguments  # noqa: SLF001
        if (
            not any(each.is_out or each.alias_info for each in its)
            and [each.name for each in its][: len(names)] == names
        ):
            return found
    return None


def _write_out(operator: TorchOperator, form: TorchOperator, *args: Any, **kwargs: Any) -> Any:
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


def _is_view(operator: TorchOperator) -> bool:
    returned = [each.alias_info for each in operator._schema.returns]  # noqa: SLF001 - as subclasses use it
    viewed = bool(returned) and all(alias is not None and not alias.is_write for alias in returned)
    return viewed or operator in _NO_ALIAS_BUT_VIEW


def _view(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """Return a view of the same storage, with the shape and strides that the operator gives on a meta tensor."""
    if _is_composite(operator):  # such an operator copies if the layout does not allow a view
        return operator.decompose(*args, **kwargs)
    base = next(each for each in args if isinstance(each, AhbmTensor))
    found = operator(*tree_map(without_elements, args), **tree_map(without_elements, kwargs))
    return tree_map(lambda each: _seen_as(base, each) if isinstance(each, torch.Tensor) else each, found)


def _seen_as(base: Tensor, form: Any) -> Tensor:
    return AhbmTensor(storage_of(base), tuple(form.shape), form.stride(), form.storage_offset(), form.dtype)


def _unwritten(operator: TorchOperator, args: Any, kwargs: Any) -> Any:
    """Return an uninitialised tensor on the device that the program names, else on that of the operator's operand."""
    like = next((each for each in args if isinstance(each, AhbmTensor)), None)
    device = torch.device(kwargs.get("device") or (DEVICE if like is None else device_of(like)))
    if device.type != DEVICE:
        return operator(*tree_map(without_elements, args), **{**kwargs, "device": torch.device("meta")}).to_empty(
            device=device
        )
    options = {**kwargs, "device": torch.device("meta"), "pin_memory": None}
    form = operator(*tree_map(without_elements, args), **options)
    return new(tuple(form.shape), form.dtype, sip_of(device), form.stride())


@value
class _KnownOperands:
    """Operands whose values a run without data knows. Integer results that follow from them become known, too.

    Both mappings are keyed by the ``id`` of an operand. ``flats``: all elements of its storage. ``seen``: the operand
    as a view of these elements.
    """

    flats: dict[int, Any]
    seen: dict[int, Any]

    @staticmethod
    def of(operator: TorchOperator, args: Any, kwargs: Any) -> _KnownOperands | None:
        """Return a call's operands; None if an operand is unknown, or if no integers follow from known operands."""
        name, drawn = operator.overloadpacket.__name__, torch.Tag.nondeterministic_seeded in operator.tags
        if name in _UNWRITTEN or name == "_copy_from" or drawn or _is_view(operator):
            return None
        if operator.namespace in collectives.NAMESPACES:  # its copies record known values themselves
            return None
        targets = {id(x) for x in written_by(operator, args, kwargs)}
        flats, seen = {}, {}
        for x in (each for each in leaves(args, kwargs) if isinstance(each, AhbmTensor)):
            flat = None if x.dtype.is_floating_point else x.backing.known()
            whole = is_whole(x) and x.numel() * x.element_size() <= KNOWN_BYTES
            if flat is None and id(x) in targets and operator in _OVERWRITING and whole:
                flat = torch.empty(x.backing.n, dtype=x.backing.dtype)
            if flat is None:
                return None
            flats[id(x)] = flat
            seen[id(x)] = torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), x.storage_offset())
        return _KnownOperands(flats, seen)

    def note(self, operator: TorchOperator, args: Any, kwargs: Any, outputs: Any) -> None:
        """Compute the results on the host, and store small integer tensors among them as known."""
        written = written_by(operator, args, kwargs)
        results = [x for x in leaves((outputs,), {}) if isinstance(x, AhbmTensor)]
        kept = [not x.dtype.is_floating_point and x.numel() * x.element_size() <= KNOWN_BYTES for x in results]
        if not (results or written) or not all(kept):
            return

        def host(x: Any) -> Any:
            if isinstance(x, torch.device) and x.type == DEVICE:
                return torch.device("cpu")
            return self.seen[id(x)] if isinstance(x, AhbmTensor) else x

        values = operator(*tree_map(host, args), **tree_map(host, kwargs))
        for x in written:
            x.backing.put_known(self.flats[id(x)])
        made = [v for v in leaves((values,), {}) if isinstance(v, torch.Tensor)]
        for x, y in zip(results, made, strict=True):
            if id(x) not in self.flats:
                put_known(x, y)
