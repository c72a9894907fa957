"""Refuse operands as PyTorch does, before an operator runs: PyTorch's own kernels check each signature once.

For small operands, the CPU kernel runs on stand-ins of the same shapes. For larger operands, the meta kernel checks
shapes, result dtypes and casts. The CPU kernel then checks dtypes on tensors of one element, because meta kernels
accept dtypes that no device supports. Refusals that depend on elements, such as an index out of range, are not checked
here.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache, partial
from itertools import product
from math import prod
from typing import Any, NamedTuple, TypeAlias, final

import torch
from torch.utils._pytree import tree_leaves

from kernbench.common.values import value
from kernbench.frontends.torch.storage import CallArguments, CallOptions, TorchOperator

_SIGNATURES = 16384
"""Maximum number of cached signatures: a program whose sizes change with each call must not fill the memory."""
_SMALL = 4096
"""Largest number of elements, operands and results together, for which the CPU kernel runs at full size."""
_BY_VALUE = frozenset(["floor_divide", "remainder", "fmod", "div.Tensor_mode", "div.Scalar_mode", "histc"])
"""Operators or overloads that may accept one number and refuse another number of the same type and size."""
_BY_META = frozenset(["_scaled_mm", "_weight_int8pack_mm", "_weight_int4pack_mm"])
"""Operators that only the meta kernel checks, for GPUs: the CPU kernel takes other sizes, or crashes for some."""
_AXES = frozenset(["dim", "dims", "axis", "dim0", "dim1", "start_dim", "end_dim", "axes"])
"""Names of integer arguments that are axes; other integers are sizes."""
_NARROW = (torch.float16, torch.bfloat16)
_KINDS = (torch.float32, torch.int64, torch.bool)


@final
class TensorForm(NamedTuple):
    """The properties of a tensor by which PyTorch accepts or refuses it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def one_element(self) -> TensorForm:
        """The form with one element along each axis."""
        return TensorForm(self.dtype, (1,) * len(self.shape), (1,) * len(self.shape))


@final
class NumberForm(NamedTuple):
    """The type of a number, and its rank among the limits of PyTorch's dtypes.

    ``below``: number of limits below the number. ``not_above``: number of limits below or equal. ``exact``: the
    number itself, for an operator whose refusal depends on it.
    """

    kind: type
    below: int
    not_above: int
    exact: float | None = None

    @staticmethod
    def of(x: float, *, exact: bool) -> NumberForm:
        """Return the form of a number. For NaN, ``below`` is 0, and ``not_above`` is the number of limits."""
        below, not_above = bisect_left(_LIMITS, x), bisect_right(_LIMITS, x)
        return NumberForm(type(x), below, not_above, x if exact and not_above - below < 2 else None)

    @property
    def example(self) -> float:
        """A number of this form."""
        if self.exact is not None:
            return self.exact
        if self.not_above - self.below > 1:
            return float("nan")
        if self.not_above > self.below:
            limit: float = self.kind(_LIMITS[self.below])
            return limit
        low, high = _LIMITS[self.below - 1 : self.below + 1]
        if self.kind is int:
            return int(low) + 1
        return max(low, _WIDEST[0]) / 2 + min(high, _WIDEST[1]) / 2


@final
class Option(NamedTuple):
    """An argument that is compared by type and value: 1 differs from True."""

    kind: type
    content: object


Item: TypeAlias = TensorForm | NumberForm | Option


@final
class ListForm(NamedTuple):
    """The forms of the elements of a list."""

    elements: tuple[ArgumentForm, ...]


ArgumentForm: TypeAlias = Item | ListForm


class Operands(NamedTuple):
    """The forms of all arguments of a call."""

    args: tuple[ArgumentForm, ...]
    named: tuple[tuple[str, ArgumentForm], ...]

    def items(self) -> Iterator[Item]:
        """Yield the forms of all arguments, elements instead of lists."""
        for form in (*self.args, *[form for _, form in self.named]):
            yield from _items_of(form)

    def tensors(self) -> list[TensorForm]:
        """Return the forms of tensors."""
        return [form for form in self.items() if type(form) is TensorForm]

    def replace(self, change: Callable[[Item], Item]) -> Operands:
        """Return a copy with ``change`` applied to each form, elements of lists included."""
        args = tuple([_change_items(change, form) for form in self.args])
        return Operands(args, tuple([(name, _change_items(change, form)) for name, form in self.named]))


def _items_of(form: ArgumentForm) -> Iterator[Item]:
    if type(form) is not ListForm:
        yield form
        return
    for element in form.elements:
        yield from _items_of(element)


def _change_items(change: Callable[[Item], Item], form: ArgumentForm) -> ArgumentForm:
    if type(form) is ListForm:
        return ListForm(tuple([_change_items(change, element) for element in form.elements]))
    return change(form)


def _limits() -> list[float]:
    ints = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64]
    floats = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32]
    infos: list[torch.iinfo | torch.finfo] = [*map(torch.iinfo, ints), *map(torch.finfo, floats)]
    return sorted({*[x for info in infos for x in (info.min, info.max)], 0, 1, -1, float("inf"), float("-inf")})


_LIMITS = _limits()
_WIDEST = (torch.finfo(torch.float64).min, torch.finfo(torch.float64).max)


# signatures


def check_operands(operator: TorchOperator, args: CallArguments, kwargs: CallOptions) -> None:
    """Raise PyTorch's own error if PyTorch refuses these operands."""
    slots = _number_slots(operator)
    if slots is None:
        return
    if _is_refused(operator, _operands(args, kwargs, slots)):
        refusal = _refusal_of(operator, _operands(args, kwargs, slots.exactly))
        if refusal is not None:
            raise type(refusal)(*refusal.args)  # a raised error keeps its frames alive


@value
class _Slots:
    """The arguments of an operator, by position and by name, that are numbers for its computation, not sizes.

    ``exact``: each number is compared by value.
    """

    places: frozenset[int]
    names: frozenset[str]
    exact: bool

    @property
    def exactly(self) -> _Slots:
        """The same slots, with numbers compared by value."""
        return _Slots(self.places, self.names, exact=True)


@cache
def _number_slots(operator: TorchOperator) -> _Slots | None:
    """Return the number slots of an operator, or None for an operator that is not checked.

    Operators of backward are not checked: their operands are results of checked forward operators. Some operands have
    dtypes as on GPUs.
    """
    name = operator.overloadpacket.__name__
    if operator.namespace != "aten" or "backward" in name:
        return None
    numbers = [
        (place, argument.name)
        for place, argument in enumerate(operator._schema.arguments)  # noqa: SLF001 - what subclasses look at
        if any(kind in str(argument.type) for kind in ("Tensor", "number", "float"))
    ]
    exact = name in _BY_VALUE or f"{name}.{operator._overloadname}" in _BY_VALUE  # noqa: SLF001
    return _Slots(frozenset([place for place, _ in numbers]), frozenset([label for _, label in numbers]), exact)


def _operands(args: CallArguments, kwargs: CallOptions, slots: _Slots) -> Operands:
    return Operands(
        tuple([_form_of(x, place in slots.places, slots.exact) for place, x in enumerate(args)]),
        tuple([(name, _form_of(x, name in slots.names, slots.exact)) for name, x in kwargs.items()]) if kwargs else (),
    )


def _form_of(x: Any, is_number: bool, exact: bool) -> ArgumentForm:
    if isinstance(x, torch.Tensor):
        return TensorForm(x.dtype, x.shape, x.stride())
    if isinstance(x, list | tuple):
        return ListForm(tuple([_form_of(element, is_number, exact) for element in x]))
    kind = type(x)
    if is_number and (kind is float or kind is int or kind is bool):
        return NumberForm.of(x, exact=exact)
    if isinstance(x, _GENERATOR):
        return _NOTHING
    return _NOWHERE if kind is torch.device else Option(kind, x)


_NOWHERE = Option(torch.device, None)
"""The one form of all devices, which are not distinguished because stand-ins are on another device."""
_NOTHING = Option(type(None), None)
_GENERATOR = type(torch.default_generator)
"""PyTorch's own class; under ``--as-cuda`` the name in ``torch`` is another class."""


# calls of PyTorch's kernels


@lru_cache(_SIGNATURES)
def _is_refused(operator: TorchOperator, operands: Operands) -> bool:
    return _refusal_of(operator, operands) is not None


def count_signatures() -> int:
    """Count the cached signatures."""
    return _is_refused.cache_info().currsize


def _refusal_of(operator: TorchOperator, operands: Operands) -> Exception | None:
    """Return PyTorch's error for operands, or None if PyTorch accepts them or lacks a kernel that decides."""
    tensors = operands.tensors()
    if not tensors:
        return None
    meta = _ask(operator, operands, "meta", 0)
    if operator.overloadpacket.__name__ in _BY_META:
        return None if isinstance(meta.refusal, NotImplementedError) else meta.refusal
    if _has_kernel(operator, "CPU") and sum(prod(x.shape) for x in tensors) + meta.elements <= _SMALL:
        refusal = _ask_cpu(operator, operands)
        return None if refusal is None or _is_narrow_alone(operator, operands, refusal) else refusal
    refusal = _kind_refusal(operator, operands.replace(_with_one_element))
    if refusal is None and not isinstance(meta.refusal, NotImplementedError):  # there is a meta kernel
        return meta.refusal
    return refusal


def _has_kernel(operator: TorchOperator, key: str) -> bool:
    has: bool = torch._C._dispatch_has_computed_kernel_for_dispatch_key(operator.name(), key)  # noqa: SLF001
    return has


@lru_cache(_SIGNATURES)
def _kind_refusal(operator: TorchOperator, operands: Operands) -> Exception | None:
    """Return the error of the CPU kernel on tensors of one element, if the reason is their dtypes.

    If the kernel refuses all other dtypes, too, the reason is the sizes.
    """
    if not _has_kernel(operator, "CPU"):
        return None
    small = _with_small_sizes(operator, operands)
    refusal = _ask_cpu(operator, small)
    if refusal is None or _ask_cpu(operator, operands) is None or _is_narrow_alone(operator, small, refusal):
        return None
    is_for_kinds = _takes_other_kinds(operator, small) or _takes_other_kinds(operator, operands)
    return refusal if is_for_kinds else None


def _is_narrow_alone(operator: TorchOperator, operands: Operands, refusal: Exception) -> bool:
    """Return whether the only reason is that the CPU lacks a kernel for a 16-bit float."""
    if not isinstance(refusal, NotImplementedError) or not any(x.dtype in _NARROW for x in operands.tensors()):
        return False
    return _ask_cpu(operator, operands.replace(_widened)) is None


def _takes_other_kinds(operator: TorchOperator, operands: Operands) -> bool:
    present = list(dict.fromkeys(tensor.dtype for tensor in operands.tensors()))[:4]
    for dtypes in product(_KINDS, repeat=len(present)):
        changed = operands.replace(partial(_of_kinds, dict(zip(present, dtypes, strict=True))))
        if _ask_cpu(operator, changed) is None or _ask_cpu(operator, changed.replace(_as_one)) is None:
            return True
    return False


def _ask_cpu(operator: TorchOperator, operands: Operands) -> Exception | None:
    """Return the error of the CPU kernel if the kernel accepts neither operands of ones nor operands of zeros."""
    refusal = _ask(operator, operands, "cpu", 1).refusal
    return None if refusal is None or _ask(operator, operands, "cpu", 0).refusal is None else refusal


@value
class _Answer:
    """The outcome of an operator on stand-ins: its error, or the total number of elements of its results."""

    refusal: Exception | None = None
    elements: int = 0


def _ask(operator: TorchOperator, operands: Operands, device: str, element: int) -> _Answer:
    """Call an operator on stand-ins, without effect on the program's random numbers and warnings."""
    random_state = torch.default_generator.get_state()
    with warnings.catch_warnings(), torch.autocast("cpu", enabled=False):
        warnings.simplefilter("ignore")
        try:
            results = tree_leaves(_call(operator, operands, device, element))
        except Exception as error:  # any error is the answer, but a fault of a meta kernel, which is none
            return _Answer(None if device == "meta" and isinstance(error, AttributeError) else _without_frames(error))
        finally:
            torch.default_generator.set_state(random_state)
    return _Answer(elements=sum(x.numel() for x in results if isinstance(x, torch.Tensor)))


def _without_frames(error: Exception) -> Exception:
    """Return an error without its traceback and the errors before it.

    A traceback that a variable of one of its frames refers to is a cycle. It keeps the tensors of all running frames
    alive until a garbage collection. A run that finds the error cached would reuse their memory earlier.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _call(operator: TorchOperator, operands: Operands, device: str, element: int) -> Any:
    """Call an operator on stand-ins of its operands, filled with ``element``."""
    return operator(
        *[_stand_in(form, device, element) for form in operands.args],
        **{name: _stand_in(form, device, element) for name, form in operands.named},
    )


def _stand_in(form: ArgumentForm, device: str, element: int) -> object:
    if type(form) is ListForm:
        return [_stand_in(part, device, element) for part in form.elements]
    if type(form) is TensorForm:
        tensor = torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=device)
        return tensor if device == "meta" else tensor.fill_(element)
    if type(form) is NumberForm:
        return form.example
    return torch.device(device) if form == _NOWHERE else form.content


# changed operands


def _with_one_element(form: Item) -> Item:
    return form.one_element if type(form) is TensorForm else form


def _widened(form: Item) -> Item:
    if type(form) is TensorForm and form.dtype in _NARROW:
        return form._replace(dtype=torch.float32)
    return form


def _of_kinds(dtypes: Mapping[torch.dtype, torch.dtype], form: Item) -> Item:
    return form._replace(dtype=dtypes[form.dtype]) if type(form) is TensorForm and form.dtype in dtypes else form


def _as_one(form: Item) -> Item:
    return _ONE if type(form) is NumberForm else form


_ONE = NumberForm.of(1, exact=False)
_ZERO = NumberForm.of(0, exact=False)


def _with_small_sizes(operator: TorchOperator, operands: Operands) -> Operands:
    """Return operands with sizes of 1, padding of 0 and a correction of 0.

    Tensors for results are empty, because PyTorch warns when it resizes other tensors.
    """
    arguments = operator._schema.arguments  # noqa: SLF001 - what subclasses look at
    outs = [argument.name for argument in arguments if argument.is_out]

    def small(name: str, form: Item) -> Item:
        if type(form) is TensorForm and name in outs:
            return TensorForm(form.dtype, (0,), (1,))
        if name == "correction":
            return _ZERO
        if type(form) is not Option or type(form.content) is not int or name in _AXES:
            return form
        return Option(int, 0 if "pad" in name else min(form.content, 1))

    def smaller(name: str, form: ArgumentForm) -> ArgumentForm:
        return _change_items(lambda item: small(name, item), form)

    names = [argument.name for argument in arguments]
    args = [smaller(name, form) for name, form in zip(names, operands.args, strict=False)]
    return Operands(tuple(args), tuple([(name, smaller(name, form)) for name, form in operands.named]))


# operators in place


def type_in_place(operator: TorchOperator, args: CallArguments, kwargs: CallOptions) -> torch.dtype:
    """Return the dtype in which an in-place operator computes, before it writes to its first operand."""
    slots = _number_slots(operator) or _Slots(frozenset(), frozenset(), exact=False)
    return _computed_type(operator, _operands(args, kwargs, slots).replace(_with_one_element))


@lru_cache(_SIGNATURES)
def _computed_type(operator: TorchOperator, operands: Operands) -> torch.dtype:
    makes_result = getattr(torch.ops.aten, operator.overloadpacket.__name__.rstrip("_"))
    return _call(makes_result, operands, "meta", 0).dtype
