"""Functions that a generated program of the compiler calls while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch._C._dynamo import guards

from kernbench.frontends.torch.modules import ProgramPlace, set_traced_call
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, new

_REINTERPRET: Callable[..., Tensor] = vars(guards)["_reinterpret_tensor"]  # PyTorch's types do not have it


def at(module: str, operators: str, file: str, line: int, covers: Sequence[str] = ()) -> None:
    """State the calls of the program that the next launches carry out; modules are relative to the graph's module."""
    set_traced_call(module, operators, ProgramPlace(file, line) if file else None, covers)


def reinterpret_tensor(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
    """Return a view of the storage of ``x``, ``offset`` elements behind its first element."""
    if not isinstance(x, AhbmTensor):
        view: Tensor = _REINTERPRET(x, size, stride, offset)
        return view
    return AhbmTensor(x.backing, tuple(size), tuple(stride), int(x.storage_offset()) + offset, x.dtype)


def empty_strided(size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype, device: str) -> Tensor:
    """Return an uninitialised tensor on the current SIP, or on the host."""
    if torch.device(device).type == "cpu":
        return torch.empty_strided(size, stride, dtype=dtype)
    return new(size, dtype, current().devices.current, stride)
