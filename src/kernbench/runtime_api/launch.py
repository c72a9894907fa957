"""What a launch asks of the machine: the kernel, its arguments, and the PEs that run it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import TypeAlias

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.kernels import builtin_kernel
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, LaunchArg, PeCoord, TensorArg
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.tensor import Tensor

Kernel: TypeAlias = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch message, and the tensors that are its arguments."""

    message: KernelLaunchMsg
    tensors: tuple[TensorLayout, ...]


def prepare_launch(
    name: str,
    kernel: Kernel | str,
    args: Iterable[object],
    kwargs: Mapping[str, object],
) -> Launch:
    """Check a launch and make its message. A text names a kernel that ships with the package.

    InputError for arguments that do not fit the kernel or that no kernel can have, for tensors that were freed or lie
    on several SIPs, and when there is no tensor to say which PEs run it.
    """
    args = tuple(args)
    function = builtin_kernel(kernel) if isinstance(kernel, str) else kernel
    _check_call(name, function, args, kwargs)
    tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    targets = _targets(name, tensors)
    message = KernelLaunchMsg(
        name=name,
        kernel=KernelRef(name=_name(kernel, name), function=function),
        args=tuple(_argument(name, f"argument {at}", value) for at, value in enumerate(args)),
        kwargs=tuple((key, _argument(name, key, value)) for key, value in kwargs.items()),
        targets=targets,
    )
    return Launch(message, tuple(dict.fromkeys(tensor.layout for tensor in tensors)))


def _name(kernel: Kernel | str, launch: str) -> str:
    if isinstance(kernel, str):
        return kernel
    # A partial or a callable object has no name of its own.
    return kernel.__name__ if isinstance(kernel, FunctionType) else launch


def _check_call(name: str, function: Kernel, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
    if "tl" in kwargs:
        raise InputError(f"launch {name!r}: the machine gives a kernel its tl; leave it out")
    try:
        inspect.signature(function).bind(*args, **kwargs, tl=None)
    except TypeError as error:
        raise InputError(f"launch {name!r}: the arguments do not fit {_name(function, name)!r}: {error}") from error


def _targets(name: str, tensors: list[Tensor]) -> tuple[PeCoord, ...]:
    if not tensors:
        raise InputError(
            f"launch {name!r}: no argument is a tensor. A kernel runs on the PEs that own a shard of a tensor "
            f"argument, so there is no PE to run it"
        )
    gone = [tensor.name for tensor in tensors if not tensor.is_live]
    if gone:
        raise InputError(f"launch {name!r}: {', '.join(gone)} has been freed")
    if len({tensor.sip for tensor in tensors}) > 1:
        where = ", ".join(f"{tensor.name} on sip{tensor.sip}" for tensor in tensors)
        raise InputError(
            f"launch {name!r}: its tensors lie on several SIPs ({where}), and a PE reaches those of its own only; "
            f"launch once on each SIP"
        )
    targets = tuple(sorted({owner for tensor in tensors for owner in tensor.layout.owners}))
    _warn_of_gaps(name, targets)
    return targets


def _warn_of_gaps(name: str, targets: tuple[PeCoord, ...]) -> None:
    """Kernels that share work out by program_id and num_programs count on a full grid."""
    cubes, pes = ({target[axis] for target in targets} for axis in (1, 2))
    if len(targets) < len(cubes) * len(pes):
        warnings.warn(
            f"launch {name!r}: {len(targets)} PEs run it, num_programs says {len(pes)} PEs × {len(cubes)} cubes: "
            f"a kernel that shares work by program_id leaves some undone. Place its tensors on the same PEs",
            RuntimeWarning,
            stacklevel=4,
        )


def _argument(launch: str, which: str, value: object) -> LaunchArg:
    if isinstance(value, Tensor):
        layout = value.layout
        return TensorArg(name=layout.name, va=layout.va, shape=layout.shape, dtype=layout.dtype, owners=layout.owners)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, DType):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and all(isinstance(each, int) for each in value):
        return value
    raise InputError(
        f"launch {launch!r}: {which} is a {type(value).__name__}; a kernel takes tensors of the machine, numbers, "
        f"tuples of whole numbers, texts, dtypes and None. Host data gets there with torch.tensor(...) or t.copy_(...)"
    )
