"""Devices without an index mean the current SIP, as in ``x.to("ahbm")``, ``torch.tensor(1, device="ahbm")``.

PyTorch's C++ code asks a device's guard for the index. A guard in Python cannot answer, so PyTorch uses 0. The
functions that ask the guard are therefore called with an explicit index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType
from typing import Any

import torch
from torch.jit import _builtins
from torch.utils import _device

from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import device
from kernbench.frontends.torch.tensor import AhbmTensor, device_of, replace
from kernbench.runtime_api.context import current_context


def with_number(x: Any) -> Any:
    """Return the device of the current SIP if ``x`` is the machine's device or name without an index, else ``x``."""
    is_device = isinstance(x, torch.device) and x.type == DEVICE and x.index is None
    if not is_device and not (isinstance(x, str) and x == DEVICE):
        return x
    context = current_context()
    return x if context is None else torch.device(DEVICE, context.devices.current)


def _numbered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with an index added to every device of the machine among its arguments."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        return function(*map(with_number, args), **{name: with_number(x) for name, x in named.items()})

    return call


def _numbered_like(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tensor method like `_numbered`; without a device among its arguments, it uses the tensor's device."""
    call_numbered = _numbered(function)

    @wraps(function)
    def call(x: Any, *args: Any, **named: Any) -> Any:
        if isinstance(x, AhbmTensor) and named.get("device") is None:
            named["device"] = device_of(x)
        return call_numbered(x, *args, **named)

    return call


_CONSTRUCTORS = _device._device_constructors()  # noqa: SLF001 - what a default device is for
NUMBERED: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {make: _numbered(make) for make in (torch.tensor, torch.as_tensor, torch.asarray)}
)
"""Replacements of the functions of ``torch`` that ask the guard."""
_METHODS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "to": _numbered(torch.Tensor.to),
        "new": _numbered_like(torch.Tensor.new),
        "new_tensor": _numbered_like(torch.Tensor.new_tensor),
    }
)


def _index() -> int:
    """Return the current SIP; 0 without a machine, as PyTorch does."""
    return 0 if current_context() is None else device.current_device()


def _set_index(index: Any) -> None:
    """Make a SIP the current one; do nothing in a thread without a machine, such as one that pins memory."""
    if current_context() is not None:
        device.set_device(index)


_ACCELERATOR: Mapping[str, Any] = MappingProxyType(
    {
        "current_device_idx": _index,
        "current_device_index": _index,
        "current_stream": device.current_stream,
        "device_index": device.device,
        "empty_cache": device.empty_cache,
        "get_memory_info": device.mem_get_info,
        "max_memory_allocated": device.max_memory_allocated,
        "max_memory_reserved": device.max_memory_reserved,
        "memory_allocated": device.memory_allocated,
        "memory_reserved": device.memory_reserved,
        "reset_peak_memory_stats": device.reset_peak_memory_stats,
        "set_device_idx": _set_index,
        "set_device_index": _set_index,
        "set_stream": device.set_stream,
        "synchronize": device.synchronize,
    }
)
"""Replacements of the functions of ``torch.accelerator`` that ask the guard."""


class NumberingContext(_device.DeviceContext):
    """``with torch.device("ahbm"):`` and ``torch.set_default_device``. Each call uses the SIP that is current then."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; a factory without a device argument gets this device."""
        named = dict(kwargs or {})
        if func in _CONSTRUCTORS and named.get("device") is None:
            named["device"] = with_number(self.device)
        return func(*args, **named)


def install() -> None:
    """Replace the functions that would use SIP 0 instead of the current SIP."""
    for make, numbered in NUMBERED.items():
        replace(torch, make.__name__, numbered)
        _builtins._register_builtin(numbered, f"aten::{make.__name__}")  # noqa: SLF001 - so TorchScript accepts it
    for name, method in _METHODS.items():
        replace(torch.Tensor, name, method)
    for name, function in _ACCELERATOR.items():
        replace(torch.accelerator, name, function)
    replace(_device, "DeviceContext", NumberingContext)
