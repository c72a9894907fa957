"""Names of devices in a program: a name without an index means the current SIP, and "cuda" may mean the machine.

PyTorch's C++ code asks a device's guard for a missing index, as in ``x.to("ahbm")``. A guard in Python cannot answer,
so PyTorch uses 0. The functions that ask the guard are therefore called with an explicit index. Within ``as_cuda``,
"cuda" means ``ahbm``, which ``torch.cuda`` then describes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from inspect import getattr_static
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn, ParamSpec, TypeVar

import torch
import torch.cuda.nvtx
from torch import Tensor
from torch.jit import _builtins
from torch.library import fallthrough_kernel
from torch.types import Device
from torch.utils import _device
from torch.utils._pytree import tree_map

from kernbench.common.errors import InputError, there_are
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch import device as ahbm
from kernbench.frontends.torch.generators import DEFAULT, Generator
from kernbench.frontends.torch.graphs import graph_pool_handle
from kernbench.frontends.torch.storage import CallArguments, CallOptions, TorchOperator, current
from kernbench.frontends.torch.tensor import AhbmTensor, SaysCuda, device_of, is_called_cuda, replace
from kernbench.runtime_api.context import current_context

_P = ParamSpec("_P")
_R = TypeVar("_R")


# devices without an index


def with_number(x: object) -> object:
    """Return the device of the current SIP if ``x`` is the machine's device or name without an index, else ``x``.

    In a program that calls the machine "cuda", PyTorch's own code may use that name where it does not mean the machine
    otherwise: a mesh of devices has it.
    """
    if not isinstance(x, torch.device | str):
        return x
    context = current_context()
    if context is None:
        return x
    device = translate(x) if context.frontends.torch.as_cuda else x
    is_device = isinstance(device, torch.device) and device.type == DEVICE and device.index is None
    return torch.device(DEVICE, context.devices.current) if is_device or device == DEVICE else device


def _number_devices(function: Callable[..., _R]) -> Callable[..., _R]:
    """Return ``function`` with an index added to every device of the machine among its arguments."""

    @wraps(function)
    def call(*args: object, **named: object) -> _R:
        return function(*map(with_number, args), **{name: with_number(x) for name, x in named.items()})

    return call


def _number_devices_like(function: Callable[..., _R]) -> Callable[..., _R]:
    """Return a tensor method like `_number_devices`. Without a device argument, it uses the tensor's device."""
    call_numbered = _number_devices(function)

    @wraps(function)
    def call(x: object, *args: object, **named: object) -> _R:
        if isinstance(x, AhbmTensor) and named.get("device") is None:
            named["device"] = device_of(x)
        return call_numbered(x, *args, **named)

    return call


_CONSTRUCTORS = _device._device_constructors()  # noqa: SLF001 - what a default device is for
_NUMBERED: Mapping[Callable[..., Tensor], Callable[..., Tensor]] = MappingProxyType(
    {function: _number_devices(function) for function in (torch.tensor, torch.as_tensor, torch.asarray)}
)
"""Replacements of the functions of ``torch`` that ask the guard."""
_NUMBERED_METHODS: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "to": _number_devices(Tensor.to),
        "new": _number_devices_like(Tensor.new),
        "new_tensor": _number_devices_like(Tensor.new_tensor),
    }
)


def _index() -> int:
    """Return the current SIP; 0 without a machine, as PyTorch does."""
    return 0 if current_context() is None else ahbm.current_device()


def _set_index(index: Device) -> None:
    """Make a SIP the current one; do nothing in a thread without a machine, such as one that pins memory."""
    if current_context() is not None:
        ahbm.set_device(index)


_ACCELERATOR: Mapping[str, object] = MappingProxyType(
    {
        "current_device_idx": _index,
        "current_device_index": _index,
        "current_stream": ahbm.current_stream,
        "device_index": ahbm.device,
        "empty_cache": ahbm.empty_cache,
        "get_memory_info": ahbm.mem_get_info,
        "max_memory_allocated": ahbm.max_memory_allocated,
        "max_memory_reserved": ahbm.max_memory_reserved,
        "memory_allocated": ahbm.memory_allocated,
        "memory_reserved": ahbm.memory_reserved,
        "reset_peak_memory_stats": ahbm.reset_peak_memory_stats,
        "set_device_idx": _set_index,
        "set_device_index": _set_index,
        "set_stream": ahbm.set_stream,
        "synchronize": ahbm.synchronize,
    }
)
"""Replacements of the functions of ``torch.accelerator`` that ask the guard."""


def is_factory(function: Callable[..., Any]) -> bool:
    """Return whether a default device holds for a function of PyTorch."""
    return function in _CONSTRUCTORS


class _NumberingContext(_device.DeviceContext):
    """``with torch.device("ahbm"):`` and ``torch.set_default_device``. Each call uses the SIP that is current then."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: CallArguments = (),
        kwargs: CallOptions | None = None,
    ) -> Any:
        """Call ``func``; a factory without a device argument gets this device."""
        named = dict(kwargs or {})
        if is_factory(func) and named.get("device") is None:
            named["device"] = with_number(self.device)
        return func(*args, **named)


def _copy(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return another function that does the same. PyTorch's compiler takes an object for one of its names only."""

    @wraps(function)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        return function(*args, **named)

    return call


def install() -> None:
    """Replace the functions that would use SIP 0 instead of the current SIP."""
    for function, numbered in _NUMBERED.items():
        replace(torch, function.__name__, numbered)
        _builtins._register_builtin(numbered, f"aten::{function.__name__}")  # noqa: SLF001 - so TorchScript accepts it
    for name, method in _NUMBERED_METHODS.items():
        replace(Tensor, name, method)
    for name, replacement in _ACCELERATOR.items():
        replace(torch.accelerator, name, _copy(replacement) if inspect.isfunction(replacement) else replacement)
    replace(_device, "DeviceContext", _NumberingContext)


# the name "cuda"


_CUDA = "cuda"
_TOOLKIT = "13.0"
"""The version in ``torch.version.cuda``, by which programs choose their configurations."""
_DEVICE, _IS_CUDA = getattr_static(Tensor, "device"), getattr_static(Tensor, "is_cuda")
"""PyTorch's own properties, for tensors of any other class; those of ``AhbmTensor`` report "cuda"."""


class _AsCuda(SaysCuda):
    """A mode that intercepts every function of PyTorch and every method of a tensor."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: CallArguments = (),
        kwargs: CallOptions | None = None,
    ) -> Any:
        """Call ``func`` with the machine in place of each GPU among its arguments."""
        named = kwargs or {}
        replacement = _GPU_METHODS.get(func)
        if replacement is not None:
            return replacement(*args, **named)
        if "pin_memory" in named:
            named = {name: x for name, x in named.items() if name != "pin_memory"}
        args, named = tree_map(translate, (args, named), is_leaf=_is_size)
        return _NUMBERED.get(func, func)(*args, **named)


def see_as_program() -> AbstractContextManager[object]:
    """Let "cuda" mean the machine while PyTorch calls a function of the program. In PyTorch's own code it does not."""
    context = current_context()
    is_cuda = context is not None and context.frontends.torch.as_cuda
    return _AsCuda() if is_cuda and not is_called_cuda() else nullcontext()


def _of_program(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return the program's ``function``, changed so that in it "cuda" means the machine, even if PyTorch calls it."""

    @wraps(function)
    def call(*args: _P.args, **named: _P.kwargs) -> _R:
        with see_as_program():
            return function(*args, **named)

    return call


def translate(x: object) -> object:
    """Return the machine's device, name or generator for those of a GPU, and other values unchanged."""
    if isinstance(x, str) and (x == _CUDA or x.startswith(f"{_CUDA}:")):
        return x.replace(_CUDA, DEVICE, 1)
    if isinstance(x, Generator):
        return x.host
    return torch.device(DEVICE, x.index) if isinstance(x, torch.device) and x.type == _CUDA else x


def _is_size(x: object) -> bool:
    """Return whether ``x`` is a size. It must stay a size: ``x.new`` would treat a plain tuple as elements."""
    return isinstance(x, torch.Size)


def _to_machine(x: Tensor, device: Device = None, non_blocking: bool = False, **_: object) -> Tensor:  # noqa: ARG001
    index = device if device is None or isinstance(device, int) else torch.device(device).index
    return x.to(DEVICE if index is None else torch.device(DEVICE, index))


def _return_same(x: Tensor, *_: object, **__: object) -> Tensor:
    return x


def _do_nothing(*_: object, **__: object) -> None: ...


def _device_of_any(x: Tensor) -> torch.device:
    """Return the device of a tensor of any class, under the name that the program uses."""
    device: torch.device = _DEVICE.__get__(x)
    return torch.device(_CUDA, device.index) if device.type == DEVICE else device


def _is_cuda(x: Tensor) -> bool:
    return bool(_IS_CUDA.__get__(x) or _DEVICE.__get__(x).type == DEVICE)


_GPU_METHODS: Mapping[object, Callable[..., object]] = MappingProxyType(
    {
        torch.device: torch.device,  # the program gets the device under its own name
        Tensor.cuda: _to_machine,
        _DEVICE.__get__: _device_of_any,
        _IS_CUDA.__get__: _is_cuda,
    }
)


class _DeviceContext(_NumberingContext):
    """``with torch.device("cuda"):`` and ``torch.set_default_device``."""

    def __init__(self, device: Device) -> None:
        super().__init__(translate(device))


class _Library(torch.library.Library):
    """A library of operators. Functions that a program registers for GPUs are registered for the machine."""

    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        super().__init__(ns, kind, _key(ns, dispatch_key))

    def impl(
        self, op_name: str | TorchOperator, fn: Callable[..., object], dispatch_key: str = "", **options: bool
    ) -> None:
        """Register ``fn`` for an operator, under the machine's dispatch key if the key is one of a GPU."""
        function = fn if fn is fallthrough_kernel else _of_program(fn)
        super().impl(op_name, function, _key(self.ns, dispatch_key), **options)


def _key(namespace: str, name: str) -> str:
    """Return the machine's dispatch key in place of a GPU's: ``AutogradCUDA`` is ``AutogradPrivateUse1``.

    Keys of PyTorch's FSDP operators stay unchanged, because PyTorch registers functions for both keys.
    """
    return name if namespace == "fsdp" else name.replace("CUDA", "PrivateUse1")


@contextmanager
def _range(msg: str, *_: object, **__: object) -> Iterator[None]:  # noqa: ARG001 - of nvtx
    yield


_NVTX = MappingProxyType({"range_push": _do_nothing, "range_pop": _do_nothing, "mark": _do_nothing, "range": _range})


def _raw_stream(index: int) -> int:  # noqa: ARG001
    """Return the number of a SIP's only stream, for code that launches kernels without PyTorch."""
    return ahbm.Stream.cuda_stream


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor, for code of PyTorch's compiler."""
    return torch.empty_strided(size, stride, dtype=dtype, device=DEVICE)


def _accelerator(check_available: bool = False) -> torch.device:  # noqa: ARG001 - it is available
    """Return the machine as the current accelerator."""
    return torch.device(_CUDA)


def _make_wrapper(cls: type[Tensor], *args: object, **named: object) -> Tensor:
    """Create a tensor of a wrapper class of the program, so that PyTorch's backward treats it as one of the machine."""
    return _MAKE_WRAPPER(cls, *map(translate, args), **{name: translate(x) for name, x in named.items()})


_MAKE_WRAPPER: Callable[..., Tensor] = Tensor._make_wrapper_subclass  # noqa: SLF001 - the documented way


def _push_saving(pack: Callable[[Tensor], object], unpack: Callable[..., Tensor]) -> None:
    """Let functions of the program pack and unpack the tensors saved for backward; "cuda" means the machine in them."""
    _PUSH_SAVING(_of_program(pack), _of_program(unpack))


_PUSH_SAVING = torch._C._autograd._push_saved_tensors_default_hooks  # noqa: SLF001


def _refusing(name: str) -> Callable[..., NoReturn]:
    """Return a function that refuses. It replaces a ``torch.cuda`` function that the machine does not support."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise InputError(
            f"torch.cuda.{name}: this machine does not have it; in torch.cuda {there_are(name, tuple(_supported()))}"
        )

    return refuse


def _refusing_class(name: str) -> type:
    return type(name, (), {"__init__": _refusing(name), "__module__": "torch.cuda"})


def _supported() -> dict[str, object]:
    """Return the names of ``torch.cuda`` that the machine's module defines, with their values."""
    return {name: content for name, content in vars(ahbm).items() if name in torch.cuda.__all__}


def _replacements() -> dict[str, object]:
    """Return a replacement for every function and class of ``torch.cuda``: the machine's, or one that refuses.

    Tensor types and submodules are not replaced.
    """
    replacements = _supported()
    for name in torch.cuda.__all__:
        content = vars(torch.cuda).get(name)
        if name in replacements or name.endswith(("Tensor", "Storage", "Error")):
            continue
        if inspect.isfunction(content):
            replacements[name] = _refusing(name)
        elif isinstance(content, type):
            replacements[name] = _refusing_class(name)
    return replacements


@contextmanager
def _replace_names(owner: ModuleType | type, names: Mapping[str, object]) -> Iterator[None]:
    before = {name: vars(owner)[name] for name in names if name in vars(owner)}
    for name, replacement in names.items():
        replace(owner, name, replacement)
    try:
        yield
    finally:
        for name in names:
            if name in before:
                replace(owner, name, before[name])
            else:
                delattr(owner, name)


def _names_as_cuda() -> Sequence[tuple[ModuleType | type, Mapping[str, object]]]:
    """Return the names that ``as_cuda`` replaces, by the module or class that has them."""
    guards: Mapping[str, object] = {
        "_DeviceGuard": ahbm.device,
        "default_generators": (DEFAULT,) * ahbm.device_count(),
    }
    return (
        (torch.cuda, {**_replacements(), **guards}),
        (torch.cuda.nvtx, _NVTX),
        (torch.cuda.graphs, {"graph_pool_handle": graph_pool_handle}),
        (torch.version, {"cuda": _TOOLKIT}),
        (torch._C, {"_cuda_getCurrentRawStream": _raw_stream}),  # noqa: SLF001
        (torch.backends.cudnn, {"is_acceptable": lambda _: False}),
        (torch._C._dynamo.guards, {"_empty_strided_cuda": _empty_strided}),  # noqa: SLF001
        (_device, {"DeviceContext": _DeviceContext}),
        (torch, {"Generator": Generator}),
        (torch.library, {"Library": _Library}),
        (torch._C._autograd, {"_push_saved_tensors_default_hooks": _push_saving}),  # noqa: SLF001
        # All host memory is pinned. Threads that load data call this function, too.
        (Tensor, {"pin_memory": _return_same, "_make_wrapper_subclass": staticmethod(_make_wrapper)}),
        (torch.accelerator, {"current_accelerator": _accelerator}),
    )


@contextmanager
def as_cuda() -> Iterator[None]:
    """Make "cuda" mean ``ahbm`` inside the ``with`` block; ``torch.cuda`` then describes the machine."""
    context = current()
    settings = context.frontends
    context.frontends = settings.with_cuda
    try:
        with ExitStack() as stack:
            for owner, names in _names_as_cuda():
                stack.enter_context(_replace_names(owner, names))
            stack.callback(torch.set_default_device, None)
            stack.enter_context(_AsCuda())
            yield
    finally:
        context.frontends = settings
