"""Execution of PyTorch operators on ``ahbm``: the checks before an operator, its way, and what a run knows after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import _impls
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError, KernelError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import collectives, complexes
from kernbench.frontends.torch.dispatch import CREATES, way_of
from kernbench.frontends.torch.hosted import SOURCES, WINDOWS, leaves, on_host, writes_in_order, written_by
from kernbench.frontends.torch.launches import measure
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.refusals import check_operands
from kernbench.frontends.torch.storage import KNOWN_BYTES, TorchOperator, UnknownTypeError, current
from kernbench.frontends.torch.tensor import AhbmTensor, HostOperandError, bits_as, is_whole, put_known, storage_of
from kernbench.frontends.torch.ways import OperatorWay, WayKind

aten = torch.ops.aten
_OVERWRITING = (aten.zero_.default, aten.fill_.Scalar, aten.copy_.default)
_UNCHECKED: frozenset[WayKind] = frozenset(["view", "memory", "host", "refused"])
"""Kinds that need no check: PyTorch computes the shape of a view at each call, and the host is PyTorch itself."""


def run(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run ``operator``. It has an argument on the machine, or creates its result there."""
    context = current()
    is_part = context.operators.is_inside
    with measure(operator.overloadpacket.__name__, loads=_is_loading(operator)):
        if context.has_data:
            return _run(operator, args, kwargs, is_part=is_part)
        known = _KnownOperands.of(operator, args, kwargs)
        result = _run(operator, args, kwargs, is_part=is_part)
        if known is not None:
            known.note(operator, args, kwargs, result)
        return result


@cache
def _is_loading(operator: TorchOperator) -> bool:
    """Return whether an operator only creates, fills, draws, copies or views tensors, as initialisation does."""
    name = operator.overloadpacket.__name__
    return name in SOURCES | CREATES or way_of(operator).kind in ("view", "memory")


def _run(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_part: bool) -> Any:
    """Run an operator if PyTorch accepts its operands. ``is_part``: skip the check, which its parent passed."""
    try:
        if _has_function_of_program(operator):
            return operator.redispatch(_MACHINE, *args, **kwargs)
        way = way_of(operator)
        if not is_part and way.kind not in _UNCHECKED:
            check_operands(operator, args, kwargs)
        in_order = writes_in_order(operator, args, kwargs)
        result = NotImplemented if in_order else _run_way(way, operator, args, kwargs)
    except (AttributeError, RuntimeError, KernelError, HostOperandError) as error:
        _refuse_two_devices(operator, args, kwargs, error)
        raise
    return on_host(operator, args, kwargs, in_order=in_order) if result is NotImplemented else result


def _run_way(way: OperatorWay, operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator by its way, and on complex tensors by their rules."""
    try:
        return way.run(operator, args, kwargs)
    except UnknownTypeError:
        result = complexes.run(operator, args, kwargs)
        if result is NotImplemented:
            raise
        return result


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


def _refuse_two_devices(
    operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> None:
    """Raise InputError if ``error`` occurred because only some operands are on the machine."""
    tensors = [x for x in leaves(args, kwargs) if isinstance(x, Tensor)]
    machine = next((x for x in tensors if isinstance(x, AhbmTensor)), None)
    host = next((x for x in tensors if x.dim() and not isinstance(x, AhbmTensor)), None)
    if machine is not None and host is not None:
        raise InputError(
            f"{program_place()}: {operator.overloadpacket.__name__} of a tensor on {machine.device} and one on "
            f"{host.device}, must be on one device; move the other there with .to({str(machine.device)!r})"
        ) from error


@value
class _KnownOperands:
    """Operands whose values a run without data knows. Integer results that follow from them become known, too.

    Both mappings are keyed by the ``id`` of an operand. ``flats``: all elements of its storage. ``views``: the operand
    as a view of these elements.
    """

    flats: Mapping[int, Tensor]
    views: Mapping[int, Tensor]

    @staticmethod
    def of(operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _KnownOperands | None:
        """Return a call's operands; None if an operand is unknown, or if no integers follow from known operands."""
        name, is_random = operator.overloadpacket.__name__, torch.Tag.nondeterministic_seeded in operator.tags
        if name == "_copy_from" or is_random or way_of(operator).kind in ("view", "memory"):
            return None
        if operator.namespace in collectives.NAMESPACES:  # its copies record known values themselves
            return None
        targets = {id(x) for x in written_by(operator, args, kwargs)}
        flats, views = {}, {}
        for x in leaves(args, kwargs):
            if not isinstance(x, AhbmTensor):
                continue
            storage = storage_of(x)
            flat = None if x.dtype.is_floating_point else storage.known()
            if flat is None and id(x) in targets and operator in _OVERWRITING and is_whole(x) and _is_small(x):
                flat = torch.empty(storage.n, dtype=storage.dtype)
            if flat is None:
                return None
            flats[id(x)] = flat
            views[id(x)] = torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), x.storage_offset())
        return _KnownOperands(flats, views)

    def note(self, operator: TorchOperator, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Any) -> None:
        """Compute the results on the host, and store small integer tensors among them as known."""
        written = written_by(operator, args, kwargs)
        results = [x for x in leaves((outputs,), {}) if isinstance(x, AhbmTensor)]
        if not (results or written) or any(x.dtype.is_floating_point or not _is_small(x) for x in results):
            return

        def host(x: Any) -> Any:
            if isinstance(x, torch.device) and x.type == DEVICE:
                return torch.device("cpu")
            return self.views[id(x)] if isinstance(x, AhbmTensor) else x

        values = operator(*tree_map(host, args), **tree_map(host, kwargs))
        for x in written:
            storage_of(x).put_known(self.flats[id(x)])
        host_results = [x for x in leaves((values,), {}) if isinstance(x, Tensor)]
        for x, elements in zip(results, host_results, strict=True):
            if id(x) not in self.flats:
                put_known(x, elements)


def _is_small(x: Tensor) -> bool:
    return x.numel() * x.element_size() <= KNOWN_BYTES
