"""Programs that call the device "cuda": within ``as_cuda``, the name means ``ahbm``, which ``torch.cuda`` describes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from inspect import getattr_static
from types import MappingProxyType
from typing import Any

import torch
import torch.cuda.nvtx
from torch.library import fallthrough_kernel
from torch.utils import _device
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError, there_are
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import device
from kernbench.frontends.torch.current_device import NUMBERED, NumberingContext
from kernbench.frontends.torch.generators import DEFAULT, Generator
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import SaysCuda, is_called_cuda
from kernbench.runtime_api.context import current_context

_CUDA = "cuda"
_TOOLKIT = "13.0"
"""The version in ``torch.version.cuda``, by which programs choose their configurations."""


_DEVICE, _IS_CUDA = getattr_static(torch.Tensor, "device"), getattr_static(torch.Tensor, "is_cuda")
"""PyTorch's own properties, for tensors of any other class; ``AhbmTensor`` has its own ones, which report "cuda"."""


class _AsCuda(SaysCuda):
    """A mode that intercepts every function of PyTorch and every method of a tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` with the machine in place of each GPU among its arguments."""
        named = kwargs or {}
        own = _METHODS.get(func)
        if own is not None:
            return own(*args, **named)
        if "pin_memory" in named:
            named = {name: each for name, each in named.items() if name != "pin_memory"}
        args, named = tree_map(_meant, (args, named), is_leaf=_is_size)
        return NUMBERED.get(func, func)(*args, **named)


def see_as_program() -> AbstractContextManager[Any]:
    """Let "cuda" mean the machine while PyTorch calls a function of the program. In PyTorch's own code it does not."""
    context = current_context()
    is_cuda = context is not None and context.frontends.torch.as_cuda
    return _AsCuda() if is_cuda and not is_called_cuda() else nullcontext()


def _of_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the program's ``function``, changed so that in it "cuda" means the machine, even if PyTorch calls it."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        with see_as_program():
            return function(*args, **named)

    return call


def _meant(x: Any) -> Any:
    if isinstance(x, str) and (x == _CUDA or x.startswith(f"{_CUDA}:")):
        return x.replace(_CUDA, DEVICE, 1)
    if isinstance(x, Generator):
        return x.host
    return torch.device(DEVICE, x.index) if isinstance(x, torch.device) and x.type == _CUDA else x


def _is_size(x: Any) -> bool:
    """Return whether ``x`` is a size. It must stay a size: ``x.new`` would treat a plain tuple as elements."""
    return isinstance(x, torch.Size)


def _to_machine(x: Any, device: Any = None, non_blocking: bool = False, **_: object) -> Any:  # noqa: ARG001
    index = device if device is None or isinstance(device, int) else torch.device(device).index
    return x.to(DEVICE if index is None else torch.device(DEVICE, index))


def _same(x: Any, *_: object, **__: object) -> Any:
    return x


def _nothing(*_: object, **__: object) -> None: ...


def _device_of(x: Any) -> Any:
    """Return the device of a tensor of any class, under the name that the program uses."""
    device = _DEVICE.__get__(x)
    return torch.device(_CUDA, device.index) if device.type == DEVICE else device


def _is_cuda(x: Any) -> bool:
    return bool(_IS_CUDA.__get__(x) or _DEVICE.__get__(x).type == DEVICE)


_METHODS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        torch.device: torch.device,  # the program gets the device under its own name
        torch.Tensor.cuda: _to_machine,
        _DEVICE.__get__: _device_of,
        _IS_CUDA.__get__: _is_cuda,
    }
)


class _Context(NumberingContext):
    """``with torch.device("cuda"):`` and ``torch.set_default_device``."""

    def __init__(self, device: Any) -> None:
        super().__init__(_meant(device))


class _Library(torch.library.Library):
    """A library of operators. Functions that a program registers for GPUs are registered for the machine."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        super().__init__(ns, kind, _key(ns, dispatch_key))

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> Any:
        """Register ``fn`` for an operator, under the machine's dispatch key if the key is one of a GPU."""
        mine = fn if fn is fallthrough_kernel else _of_program(fn)
        return super().impl(op_name, mine, _key(self.ns, dispatch_key), **options)


def _key(namespace: str, name: str) -> str:
    """Return the machine's dispatch key in place of a GPU's: ``AutogradCUDA`` is ``AutogradPrivateUse1``.

    Keys of PyTorch's FSDP operators stay unchanged, because PyTorch registers functions for both keys.
    """
    return name if namespace == "fsdp" else name.replace("CUDA", "PrivateUse1")


@contextmanager
def _range(msg: str, *_: object, **__: object) -> Iterator[None]:  # noqa: ARG001 - of nvtx
    yield


_NVTX = MappingProxyType({"range_push": _nothing, "range_pop": _nothing, "mark": _nothing, "range": _range})


def _raw_stream(index: int) -> int:  # noqa: ARG001
    """Return the number of a SIP's only stream, for code that launches kernels without PyTorch."""
    return device.Stream.cuda_stream


def _empty_strided(size: Any, stride: Any, dtype: Any) -> Any:
    """Return an uninitialised tensor, for code of PyTorch's compiler."""
    return torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)


def _accelerator(check_available: bool = False) -> Any:  # noqa: ARG001 - it is available
    """Return the machine as the current accelerator."""
    return torch.device(_CUDA)


def _make_wrapper(cls: Any, *args: Any, **named: Any) -> Any:
    """Create a tensor of a wrapper class of the program, so that PyTorch's backward treats it as one of the machine."""
    return _MAKE_WRAPPER(cls, *map(_meant, args), **{name: _meant(x) for name, x in named.items()})


_MAKE_WRAPPER = torch.Tensor._make_wrapper_subclass  # noqa: SLF001 - the documented way


def _push_saving(pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
    """Let functions of the program pack and unpack the tensors saved for backward; "cuda" means the machine in them."""
    _PUSH_SAVING(_of_program(pack), _of_program(unpack))


_PUSH_SAVING = torch._C._autograd._push_saved_tensors_default_hooks  # noqa: SLF001


def _refusing(name: str) -> Callable[..., Any]:
    """Return a function that refuses. It replaces a ``torch.cuda`` function that the machine does not support."""

    def refuse(*_: object, **__: object) -> Any:
        raise InputError(
            f"torch.cuda.{name}: this machine does not have it; in torch.cuda {there_are(name, tuple(_answers()))}"
        )

    return refuse


def _refusing_class(name: str) -> type:
    return type(name, (), {"__init__": _refusing(name), "__module__": "torch.cuda"})


def _answers() -> dict[str, Any]:
    """Return the names of ``torch.cuda`` that the machine's module defines, with their values."""
    return {name: found for name, found in vars(device).items() if name in torch.cuda.__all__}


def _replacements() -> dict[str, Any]:
    """Return a replacement for every function and class of ``torch.cuda``: the machine's, or one that refuses.

    Tensor types and submodules are not replaced.
    """
    found = _answers()
    for name in torch.cuda.__all__:
        there = vars(torch.cuda).get(name)
        if name in found or name.endswith(("Tensor", "Storage", "Error")):
            continue
        if inspect.isfunction(there):
            found[name] = _refusing(name)
        elif isinstance(there, type):
            found[name] = _refusing_class(name)
    return found


@contextmanager
def _replace_names(owner: Any, names: Mapping[str, Any]) -> Iterator[None]:
    before = {name: vars(owner)[name] for name in names if name in vars(owner)}
    for name, found in names.items():
        setattr(owner, name, found)
    try:
        yield
    finally:
        for name in names:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


@contextmanager
def as_cuda() -> Iterator[None]:
    """Make "cuda" mean ``ahbm`` inside the ``with`` block; ``torch.cuda`` then describes the machine."""
    context = current()
    settings = context.frontends
    context.frontends = settings.with_cuda
    try:
        with ExitStack() as around:
            around.enter_context(_replace_names(torch.cuda, _replacements()))
            around.enter_context(_replace_names(torch.cuda.nvtx, _NVTX))
            around.enter_context(_replace_names(torch.version, {"cuda": _TOOLKIT}))
            others = {"_DeviceGuard": device.device, "default_generators": (DEFAULT,) * device.device_count()}
            around.enter_context(_replace_names(torch.cuda, others))
            around.enter_context(_replace_names(torch._C, {"_cuda_getCurrentRawStream": _raw_stream}))  # noqa: SLF001
            around.enter_context(_replace_names(torch.backends.cudnn, {"is_acceptable": lambda _: False}))
            around.enter_context(_replace_names(torch._C._dynamo.guards, {"_empty_strided_cuda": _empty_strided}))  # noqa: SLF001
            around.enter_context(_replace_names(_device, {"DeviceContext": _Context}))
            around.enter_context(_replace_names(torch, {"Generator": Generator}))
            around.enter_context(_replace_names(torch.library, {"Library": _Library}))
            saving = {"_push_saved_tensors_default_hooks": _push_saving}
            around.enter_context(_replace_names(torch._C._autograd, saving))  # noqa: SLF001
            # All host memory is pinned. Threads that load data call this function, too.
            around.enter_context(_replace_names(torch.Tensor, {"pin_memory": _same}))
            wrapping = {"_make_wrapper_subclass": staticmethod(_make_wrapper)}
            around.enter_context(_replace_names(torch.Tensor, wrapping))
            around.enter_context(_replace_names(torch.accelerator, {"current_accelerator": _accelerator}))
            around.callback(torch.set_default_device, None)
            around.enter_context(_AsCuda())
            yield
    finally:
        context.frontends = settings
