"""Registration of device ``ahbm`` with PyTorch, on import, after a check that PyTorch has all names used here."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch._library import triton as triton_operators
from torch.jit import _trace
from torch.nn.attention import flex_attention
from torch.nn.utils import clip_grad
from torch.optim import optimizer
from torch.utils import _foreach_utils, backend_registration

from kernbench.common.collector import collect_at_exit
from kernbench.common.errors import InputError
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import (
    autocast,
    backward,
    collectives,
    compiling,
    current_device,
    device,
    moving,
    operators,
)
from kernbench.frontends.torch.attention import scaled_dot_product_attention
from kernbench.frontends.torch.modules import follow_modules
from kernbench.frontends.torch.norms import renorm, renorm_in_place, rms_norm
from kernbench.frontends.torch.refusals import check_operands
from kernbench.frontends.torch.tensor import AhbmTensor, dispatch_by, is_called_cuda, replace

aten = torch.ops.aten
MADE_FOR = "2.13"
_NAMES = (
    (backend_registration, "_setup_privateuseone_for_python_backend"),
    (torch.Tensor, "_make_wrapper_subclass"),
    (triton_operators, "wrap_triton_enabled_default"),
    (torch.library, "_impls"),
    (optimizer, "_foreach_supported_types"),
    (clip_grad, "_has_foreach_support"),
    (torch.autograd, "_engine_run_backward"),
    (_trace, "_check_trace"),
    (flex_attention, "_validate_device"),
    (flex_attention, "_warn_once"),
    (torch._C._autograd, "_push_saved_tensors_default_hooks"),  # noqa: SLF001
    (torch._C, "_swap_tensor_impl"),  # noqa: SLF001
    (torch._C._acc, "DeviceGuard"),  # noqa: SLF001
    *[(owner, name) for owner, name, _ in collectives.REPLACED],
)


def _check() -> None:
    """Raise ImportError, which names the supported version, if this PyTorch lacks a name that is used here."""
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


def _supports_lists(tensors: Any, device: Any) -> bool:
    """Return whether list operators accept these tensors. PyTorch's own check accepts only its own classes."""
    found: bool = _asks_lists(tensors, device) or all(x is None or isinstance(x, AhbmTensor) for x in tensors)
    return found


_check()
_asks_lists = _foreach_utils._has_foreach_support  # noqa: SLF001 - PyTorch's own rule
_guard = backward.AhbmGuard()
backend_registration._setup_privateuseone_for_python_backend(DEVICE, backend_module=device, device_guard=_guard)  # noqa: SLF001
dispatch_by(operators.run)
_library = torch.library.Library("aten", "IMPL")
for _name in operators.BY_DEVICE:
    _library.impl(_name, _operator(_name), "PrivateUse1")
# ``wrap_triton`` exists for tracing. Here nothing is traced, so the kernel itself is launched.
triton_operators.wrap_triton_enabled_default = False
_all_others = torch.library.Library("_", "IMPL")
_all_others.fallback(lambda operator, *args, **kwargs: operators.run(operator, args, kwargs), "PrivateUse1")
_all_others.fallback(operators.refuse_layout, "NestedTensorPrivateUse1")


def _asked(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` of a composite operator, preceded by PyTorch's check of its operands."""

    def call(*args: Any, **kwargs: Any) -> Any:
        check_operands(operator, args, kwargs)
        return function(*args, **kwargs)

    return call


def _max_pool1d(*args: Any, **kwargs: Any) -> Any:
    """Pool by PyTorch's composite operator. It accepts integers, which the CPU's kernel refuses."""
    return aten.max_pool1d.default.decompose(*args, **kwargs)


# Composite operators of PyTorch that have a kernel of their own, here or on the CPU.
for _composite, _function in (
    (aten.scaled_dot_product_attention, scaled_dot_product_attention),
    (aten.rms_norm, rms_norm),
    (aten.renorm, renorm),
    (aten.renorm_, renorm_in_place),
    (aten.max_pool1d, _max_pool1d),
):
    _library.impl(_composite.__name__, _asked(_composite.default, _function), "AutogradPrivateUse1")


def _ctc_loss(log_probs: Any, targets: Any, *lengths_and_rule: Any) -> Any:
    """Compute the loss with the lengths on the data's device, because PyTorch divides by them without moving them."""
    lengths = [each.to(log_probs.device) for each in lengths_and_rule[:2]]
    return aten.ctc_loss.Tensor.decompose(log_probs, targets, *lengths, *lengths_and_rule[2:])


_library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradPrivateUse1")


def _refuse_storage(_: Any, location: str) -> None:
    """Raise InputError for ``torch.load`` onto the machine: PyTorch would copy raw bytes there."""
    name = location.partition(":")[0]
    if name == DEVICE or (name == "cuda" and is_called_cuda()):
        raise InputError(
            f"torch.load: map_location is {location!r}, must be the host; load with map_location='cpu', "
            "then move it: load_state_dict, or .to(...)"
        )


torch.serialization.register_package(0, lambda _: None, _refuse_storage)
_autocast = autocast.install()
replace(clip_grad, "_has_foreach_support", _supports_lists)
optimizer._foreach_supported_types.append(AhbmTensor)  # noqa: SLF001 - optimisers then use operators on lists
follow_modules()
compiling.install()
# For evaluation, PyTorch's encoders use fused operators. Here only the unfused operators have kernels.
torch.backends.mha.set_fastpath_enabled(False)
moving.install()
current_device.install()
collectives.install()
backward.install(_guard)
# The simulation runs in one thread. A backward pass in another thread would be outside of it.
torch.autograd.set_multithreading_enabled(False)
collect_at_exit()  # PyTorch loads Triton's library
