"""Importing this module makes the device ``ahbm`` known to PyTorch, after it has found there what that takes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch._library import triton as triton_operators
from torch.utils import backend_registration

from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import device, operators
from kernbench.frontends.torch.tensor import dispatch_by

MADE_FOR = "2.13"
_NAMES = (
    (backend_registration, "_setup_privateuseone_for_python_backend"),
    (torch.Tensor, "_make_wrapper_subclass"),
    (triton_operators, "wrap_triton_enabled_default"),
)
# Factories have no tensor that PyTorch could find the device by; ``torch.tensor`` copies past the subclass.
_BY_DEVICE = ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "_copy_from")


def _check() -> None:
    """ImportError, which names the version this is made for, when PyTorch is another than expected."""
    found = version("torch")
    made_for = f"kernbench.torch is made for torch {MADE_FOR}"
    if not found.startswith(f"{MADE_FOR}."):
        raise ImportError(f"{made_for}, and this is {found}: pip install 'kernbench[torch]'")
    for owner, name in _NAMES:
        if name not in vars(owner) and name not in dir(owner):
            raise ImportError(f"{made_for}: {owner.__name__} of {found} has no {name}")


def _operator(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    chosen = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return lambda *args, **kwargs: operators.run(chosen, args, kwargs)


_check()
backend_registration._setup_privateuseone_for_python_backend(DEVICE, backend_module=device)  # noqa: SLF001
dispatch_by(operators.run)
_library = torch.library.Library("aten", "IMPL")
for _name in _BY_DEVICE:
    _library.impl(_name, _operator(_name), "PrivateUse1")
# ``wrap_triton`` is for who traces, and nobody does: the kernel itself is launched.
triton_operators.wrap_triton_enabled_default = False
# A backward pass of its own thread would be outside the simulation, which is one thread.
torch.autograd.set_multithreading_enabled(False)
