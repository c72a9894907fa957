"""Programs that name the device "cuda": inside ``as_cuda`` that means ``ahbm``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from kernbench.frontends.torch.device import synchronize
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import DEVICE

_CUDA = "cuda"


class _AsCuda(TorchFunctionMode):
    """Every function of PyTorch, and every method of a tensor, comes by here."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` with the machine where a GPU is named."""
        if func is torch.Tensor.cuda:
            return args[0].to(DEVICE)
        return func(*tree_map(_meant, args), **tree_map(_meant, kwargs or {}))


def _meant(x: Any) -> Any:
    if isinstance(x, str) and (x == _CUDA or x.startswith(f"{_CUDA}:")):
        return x.replace(_CUDA, DEVICE, 1)
    return torch.device(DEVICE, x.index) if isinstance(x, torch.device) and x.type == _CUDA else x


def _properties(device: object = None) -> SimpleNamespace:  # noqa: ARG001 - all SIPs are alike
    context = current()
    spec = context.topology
    pes = spec.pes_per_cube * context.frontends.torch.cubes
    return SimpleNamespace(name=DEVICE, multi_processor_count=pes, total_memory=spec.hbm_bytes_per_sip)


@contextmanager
def as_cuda() -> Iterator[None]:
    """Inside, "cuda" is ``ahbm``; ``torch.cuda.is_available()`` stays False."""
    before = torch.cuda.get_device_properties, torch.cuda.synchronize
    torch.cuda.get_device_properties, torch.cuda.synchronize = _properties, synchronize
    try:
        with _AsCuda():
            yield
    finally:
        torch.cuda.get_device_properties, torch.cuda.synchronize = before
