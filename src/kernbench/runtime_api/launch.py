"""Prepare launches: check the kernel and its arguments, and determine the PEs that run it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import TypeAlias, TypeGuard

import numpy as np

from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.dtypes import is_type
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.kernels import builtin_kernel
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, LaunchArg, PeCoord
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import TopologySpec

KernelFunction: TypeAlias = Callable[..., object]


@value
class Alike:
    """The program of a launch, as far as it decides the launch's work.

    ``program``: a function, or another object with all its values. ``operands``: objects that stand for the tensors of
    the launch, in the order of its arguments; where ``program`` contains one, its position stands for it.
    """

    program: object
    operands: tuple[object, ...] = ()


@value
class Launch:
    """A launch message and its tensor arguments. ``alike``: its program; None: the function of its kernel."""

    message: KernelLaunchMsg
    tensors: tuple[TensorLayout, ...]
    alike: Alike | None = None


def prepare_launches(
    name: str, kernel: KernelFunction | str, args: Iterable[object], kwargs: Mapping[str, object]
) -> tuple[Launch, ...]:
    """Check a launch and return its messages: one, or one per SIP if an argument is a list with one tensor per SIP.

    A string names a kernel of the package. Raises InputError in these cases:

    - the arguments do not fit the kernel, or no kernel can take them;
    - no argument is a tensor, so that no PE is determined;
    - a tensor was freed, or the tensors are on different SIPs;
    - lists of tensors name different SIPs.
    """
    args = tuple(args)
    count = _count_sips(name, [argument for argument in (*args, *kwargs.values()) if _is_list(argument)])
    if count is None:
        return (_prepare(name, kernel, args, kwargs),)
    launches = [
        _prepare(
            name,
            kernel,
            tuple(_pick_sip(value, at) for value in args),
            {key: _pick_sip(value, at) for key, value in kwargs.items()},
        )
        for at in range(count)
    ]
    pes = [target for launch in launches for target in launch.message.targets]
    grid = (len({pe[2] for pe in pes}), len({pe[1] for pe in pes}), count)
    return tuple(replace(launch, message=replace(launch.message, grid=grid)) for launch in launches)


def prepare_launch_on(
    name: str,
    pes: Sequence[PeCoord],
    kernel: KernelRef,
    args: Sequence[object],
    spec: TopologySpec,
    alike: Alike | None = None,
    called_at: str = "",
) -> Launch:
    """Prepare the launch of a front end's program, which lists its PEs itself and runs once on each.

    The function is called with ``args`` and ``tl``; ``tl.site`` identifies its PE. ``alike``: its program, for launches
    that are alike. ``called_at``: the line that launches it, for errors.

    Raises InputError if the list of PEs is empty, or has a PE twice or one that ``spec`` does not have. Also raises
    InputError for tensors that were freed or are on other SIPs.
    """
    exists = [0 <= s < spec.num_sips and 0 <= c < spec.cubes_per_sip and 0 <= p < spec.pes_per_cube for s, c, p in pes]
    if not pes or len(set(pes)) < len(pes) or not all(exists):
        where = f"{spec.num_sips} SIPs of {spec.cubes_per_sip} cubes of {spec.pes_per_cube} PEs"
        raise InputError(f"launch {name!r}: PEs are (sip, cube, pe), each once, of {where}; found {list(pes)}")
    tensors = [tensor for tensor in args if isinstance(tensor, Tensor)]
    _check_live(name, tensors)
    sips = {sip for sip, _, _ in pes}
    away = [f"{tensor.name} on sip{tensor.sip}" for tensor in tensors if tensor.sip not in sips]
    if len(sips) > 1 or away:
        on = ", ".join(f"sip{sip}" for sip in sorted(sips))
        more = f", and {', '.join(away)}" if away else ""
        raise InputError(f"launch {name!r}: its PEs must be of one SIP, that of the tensors; found PEs of {on}{more}")
    launch = _make_launch(name, kernel, args, {}, tensors, tuple(sorted(pes)))
    return replace(launch, message=replace(launch.message, called_at=called_at), alike=alike)


def _is_list(value: object) -> TypeGuard[Sequence[Tensor]]:
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(element, Tensor) for element in value)


def _pick_sip(value: object, at: int) -> object:
    return value[at] if _is_list(value) else value


def _count_sips(name: str, lists: Sequence[Sequence[Tensor]]) -> int | None:
    """Return the number of SIPs of a launch with lists of tensors; None if no argument is a list."""
    if not lists:
        return None
    sips = [[tensor.sip for tensor in group] for group in lists]
    if any(group != sips[0] for group in sips) or len(set(sips[0])) < len(sips[0]):
        listed = "; ".join(f"SIPs {', '.join(map(str, group))}" for group in sips)
        raise InputError(f"launch {name!r}: a list has one tensor for each SIP, all lists in one order; found {listed}")
    return len(sips[0])


def _prepare(name: str, kernel: KernelFunction | str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Launch:
    function = builtin_kernel(kernel) if isinstance(kernel, str) else kernel
    _check_call(name, function, args, kwargs)
    tensors = [argument for argument in (*args, *kwargs.values()) if isinstance(argument, Tensor)]
    targets = _find_targets(name, tensors)
    return _make_launch(name, KernelRef(name=_name(kernel, name), function=function), args, kwargs, tensors, targets)


def _make_launch(
    name: str,
    kernel: KernelRef,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    tensors: Sequence[Tensor],
    targets: tuple[PeCoord, ...],
) -> Launch:
    message = KernelLaunchMsg(
        name=name,
        kernel=kernel,
        args=tuple(_make_argument(name, f"argument {at}", value) for at, value in enumerate(args)),
        kwargs=tuple((key, _make_argument(name, key, value)) for key, value in kwargs.items()),
        targets=targets,
    )
    return Launch(message, tuple(dict.fromkeys(tensor.layout for tensor in tensors)))


def _name(kernel: KernelFunction | str, launch: str) -> str:
    if isinstance(kernel, str):
        return kernel
    # A partial or a callable object has no name.
    return kernel.__name__ if isinstance(kernel, FunctionType) else launch


def _check_call(name: str, function: KernelFunction, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    signature = inspect.signature(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    if "tl" not in signature.parameters and not takes_any:
        raise InputError(
            f"launch {name!r}: {_name(function, name)!r} has no parameter tl. A kernel gets its language by that "
            f"name: def {_name(function, name)}(x, n, *, tl)"
        )
    try:
        signature.bind(*args, **{**kwargs, "tl": None})
    except TypeError as error:
        raise InputError(f"launch {name!r}: the arguments do not fit {_name(function, name)!r}: {error}") from error


def _find_targets(name: str, tensors: list[Tensor]) -> tuple[PeCoord, ...]:
    if not tensors:
        raise InputError(
            f"launch {name!r}: no argument is a tensor. A kernel runs on the PEs that own a shard of a tensor "
            f"argument, so there is no PE to run it"
        )
    _check_live(name, tensors)
    if len({tensor.sip for tensor in tensors}) > 1:
        where = ", ".join(f"{tensor.name} on sip{tensor.sip}" for tensor in tensors)
        raise InputError(
            f"launch {name!r}: its tensors are on several SIPs ({where}), and a PE reaches only those of its SIP; "
            f"launch once on each SIP, or pass lists with a tensor for each SIP"
        )
    targets = tuple(sorted({owner for tensor in tensors for owner in tensor.layout.owners}))
    _warn_of_gaps(name, targets)
    return targets


def _check_live(name: str, tensors: Sequence[Tensor]) -> None:
    gone = [tensor.name for tensor in tensors if not tensor.is_live]
    if gone:
        raise InputError(f"launch {name!r}: {', '.join(gone)} has been freed")


def _warn_of_gaps(name: str, targets: tuple[PeCoord, ...]) -> None:
    """Warn if the PEs of a launch do not form a complete grid, which kernels that divide work by program_id expect."""
    cubes, pes = ({target[axis] for target in targets} for axis in (1, 2))
    if len(targets) < len(cubes) * len(pes):
        warnings.warn(
            f"launch {name!r}: {len(targets)} PEs run it, num_programs says {len(pes)} PEs × {len(cubes)} cubes: "
            f"a kernel that divides work by program_id leaves some undone. Place its tensors on the same PEs",
            RuntimeWarning,
            stacklevel=6,
        )


def _make_argument(launch: str, which: str, value: object) -> LaunchArg:
    if isinstance(value, Tensor):
        return value.layout.argument
    if isinstance(value, np.generic):
        value = value.item()
    if is_type(value):
        return dtype_of(value).name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and _is_plain(value):
        return value
    raise InputError(
        f"launch {launch!r}: {which} is a {type(value).__name__}; a kernel takes tensors of the machine, numbers, "
        f"strings, tuples of whole numbers and strings, dtypes and None. Copy host data to the machine with "
        f"torch.tensor(...) or t.copy_(...)"
    )


def _is_plain(value: object) -> bool:
    """Return True for a whole number, a string, or a tuple of those."""
    return isinstance(value, int | str) or (isinstance(value, tuple) and all(map(_is_plain, value)))
