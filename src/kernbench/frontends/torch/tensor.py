"""PyTorch's tensor on device ``ahbm``: sizes, strides and an offset into a storage of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import getattr_static
from math import prod
from typing import Any, NoReturn, Self, TypeVar

import torch
from numpy.typing import DTypeLike
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._utils import _rebuild_device_tensor_from_cpu_tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from kernbench.common.dtypes import Array
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.placed import Placed
from kernbench.frontends.torch.storage import (
    CallArguments,
    CallOptions,
    ElementIndex,
    Missing,
    Storage,
    TorchOperator,
    current,
)
from kernbench.runtime_api import tensor as machine


class SaysCuda(TorchFunctionMode):
    """A mode in which tensors of the machine report device "cuda"."""


def is_called_cuda() -> bool:
    """Return whether the program calls the machine "cuda" here."""
    return any(isinstance(mode, SaysCuda) for mode in _get_current_function_mode_stack())


def device_of_sip(sip: int) -> torch.device:
    """Return the device of a SIP, under the name that the program uses."""
    return torch.device("cuda" if is_called_cuda() else DEVICE, sip)


PLAIN_DATA = getattr_static(Tensor, "data")
"""PyTorch's own property ``data``, which replaces the tensor's contents when set."""
_R = TypeVar("_R")


def replace(owner: object, name: str, replacement: object) -> None:
    """Replace an attribute of a module or class of PyTorch, whose types describe only PyTorch's own attribute."""
    setattr(owner, name, replacement)


def _hook(function: Callable[..., _R]) -> Callable[..., _R]:
    """Return a class method that PyTorch calls; PyTorch's types describe a function without a class."""
    return function


def _refuse_setting(name: str) -> NoReturn:
    raise AttributeError(f"property '{name}' of 'AhbmTensor' object has no setter")


def _run_without_elements(operator: TorchOperator, args: CallArguments, kwargs: CallOptions) -> Any:
    """Run an operator on fake tensors without elements, as PyTorch does to trace functions that capture tensors.

    Raises InputError if a captured tensor requires a gradient: the trace would lose this gradient.
    """
    modes = [x.fake_mode for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)]

    def fake(x: AhbmTensor) -> Tensor:
        if x.requires_grad:
            raise InputError(
                f"flex_attention: score_mod captures a tensor of shape {tuple(x.shape)}, whose gradient "
                "would be left out; detach it, or write the attention out"
            )
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device_of(x))

    with modes[0]:
        return operator(*tree_map_only(AhbmTensor, fake, args), **tree_map_only(AhbmTensor, fake, kwargs))


class StorageBytes:
    """The bytes of a storage, as ``x.untyped_storage()`` returns them. ``resize_(0)`` gives them back."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def device(self) -> torch.device:
        """The device, under the name that the program uses."""
        return device_of_sip(self._storage.sip)

    def nbytes(self) -> int:
        """Return the number of bytes; 0 after ``resize_(0)``."""
        return self._storage.nbytes

    size = __len__ = nbytes

    def data_ptr(self) -> int:
        """Return the virtual address of the first byte; 0 after ``resize_(0)``."""
        return self._storage.tensor.va if self._storage.nbytes else 0

    def resize_(self, nbytes: int) -> Self:
        """Give the memory back if ``nbytes`` is 0. For the storage's own size, take memory again."""
        full = self._storage.n * self._storage.dtype.itemsize
        if nbytes == 0:
            self._storage.release()
        elif nbytes == full:
            self._storage.renew()
        else:
            raise InputError(f"a storage of {full:,} bytes on {self.device}: resize_({nbytes}), must be 0 or {full}")
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageBytes) and self._storage is other._storage

    def __hash__(self) -> int:
        return hash(self._storage)


class AhbmTensor(Placed, Tensor):
    """A view of a storage. PyTorch calls ``__torch_dispatch__`` for every operator on such a tensor."""

    backing: Storage
    __torch_function__ = getattr_static(torch._C, "_disabled_torch_function_impl")  # noqa: SLF001 - as PyTorch documents

    @staticmethod
    def __new__(
        cls, storage: Storage, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype
    ) -> AhbmTensor:
        """Create a view of ``storage``; ``offset`` and ``stride`` are in elements."""
        with torch.inference_mode(storage.inference):  # in the mode of the storage, since this may be a view of it
            view: AhbmTensor = Tensor._make_wrapper_subclass(  # noqa: SLF001 - the documented way
                cls,
                size,
                strides=stride,
                storage_offset=offset,
                dtype=dtype,
                device=torch.device(DEVICE, storage.sip),
            )
        view.backing = storage
        return view

    @classmethod
    @_hook
    def __torch_dispatch__(
        cls,
        func: TorchOperator,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator; return NotImplemented for operands of a class that wraps other tensors."""
        if not all(issubclass(kind, AhbmTensor | FakeTensor) for kind in types):
            return NotImplemented
        if FakeTensor in types:
            return _run_without_elements(func, args, kwargs or {})
        return _dispatch.run(func, args, kwargs or {})

    def place(self) -> tuple[machine.Tensor, int]:
        """Return the storage's tensor, and the offset of the first element in bytes."""
        return self.backing.tensor, int(self.storage_offset()) * self.dtype.itemsize

    @property
    def device(self) -> torch.device:
        """Return the device, under the name that the program uses."""
        return device_of_sip(self.backing.sip)

    @device.setter
    def device(self, _: torch.device) -> None:
        _refuse_setting("device")

    @property
    def is_cuda(self) -> bool:
        """Return whether the program calls the machine "cuda"."""
        return is_called_cuda()

    @is_cuda.setter
    def is_cuda(self, _: bool) -> None:
        _refuse_setting("is_cuda")

    @property
    def data(self) -> Tensor:
        """Return the tensor without its history. Setting ``data`` replaces the tensor's contents and storage."""
        return PLAIN_DATA.__get__(self)

    @data.setter
    def data(self, other: Tensor) -> None:
        PLAIN_DATA.__set__(self, other)
        self.backing = storage_of(other)

    def data_ptr(self) -> int:
        """Return the virtual address of the first element."""
        tensor, offset = self.place()
        return tensor.va + offset

    def untyped_storage(self) -> Any:  # PyTorch's class is for its own memory
        """Return the bytes of the storage."""
        return StorageBytes(self.backing)

    def record_stream(self, stream: object) -> None:
        """Do nothing: launches run in one order."""

    def tolist(self) -> Any:
        """Return the elements as lists of Python numbers, after a transfer; of a scalar, its number."""
        return read(self).tolist()

    def numpy(self, *, force: bool = False) -> Array:
        """Transfer the elements to a host array if ``force`` is set. Else raise TypeError, as PyTorch does."""
        if not force:
            raise TypeError(f"numpy() of a tensor on {self.device}: it has to be on the host first: .cpu().numpy()")
        return read(self.detach()).numpy()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Tensor]) -> Tensor:
        """Return a copy with a separate storage, as PyTorch does. Raises RuntimeError for the result of an operator."""
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("deepcopy of the result of an operator: only leaf tensors can be copied")
        with torch.no_grad():
            copy = self.detach().clone()
        is_parameter = isinstance(self, torch.nn.Parameter)
        copy = torch.nn.Parameter(copy, self.requires_grad) if is_parameter else copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        return copy

    def __reduce_ex__(self, protocol: object) -> tuple[Callable[..., Tensor], tuple[object, ...]]:
        """Pickle the elements; ``torch.load`` restores them on the machine, or where ``map_location`` says."""
        elements = read(self.detach())
        device = str(device_of(self))
        return _rebuild_device_tensor_from_cpu_tensor, (elements, self.dtype, device, self.requires_grad)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)


def _describe(x: AhbmTensor, *, tensor_contents: object = None) -> str:  # noqa: ARG001 - as PyTorch calls it
    if not current().has_data:
        wait_for(x)
        return f"tensor(..., size={tuple(x.shape)}, dtype={x.dtype}, device='{x.device}')"
    return f"{repr(peek(x))[:-1]}, device='{x.device}')"


replace(AhbmTensor, "__repr__", _describe)


RunOperator = Callable[[TorchOperator, tuple[Any, ...], dict[str, Any]], Any]
"""A function that runs an operator with its arguments."""


class _Dispatch:
    """The function that runs operators. Its module imports this one, so the function is registered."""

    run: RunOperator


_dispatch = _Dispatch()


def dispatch_by(run: RunOperator) -> None:
    """Register ``run(operator, args, kwargs)`` as the function that runs operators."""
    _dispatch.run = run


class HostOperandError(InputError):
    """A tensor of the host where the machine needs one of its own."""


def on_machine(x: Tensor) -> AhbmTensor:
    """Return ``x`` as a tensor of the machine. Raises HostOperandError for any other tensor."""
    if not isinstance(x, AhbmTensor):
        raise HostOperandError(f"a tensor of shape {tuple(x.shape)} is on {x.device}, must be on {DEVICE}")
    return x


def device_of(x: Tensor) -> torch.device:
    """Return the device of a tensor of the machine as ``ahbm``, whatever the program calls it."""
    return torch.device(DEVICE, sip_of(x))


def storage_of(x: Tensor) -> Storage:
    """Return the storage of a tensor of the machine. Raises HostOperandError for any other tensor."""
    return on_machine(x).backing


def new(size: Sequence[int], dtype: torch.dtype, sip: int, stride: Sequence[int] | None = None) -> AhbmTensor:
    """Return an uninitialised tensor; row-major without ``stride``, in elements."""
    steps = torch.empty(size, device="meta").stride() if stride is None else tuple(stride)
    n = _extent(size, steps)
    storage = Storage(2 * n, torch.float32, sip) if dtype is torch.complex64 else Storage(n, dtype, sip)
    return AhbmTensor(storage, tuple(size), steps, 0, dtype)


def without_elements(x: Any) -> Any:
    """Return a meta tensor of the same layout, to infer the shape of a result. Return other values unchanged."""
    if isinstance(x, AhbmTensor):
        n = x.backing.n * x.backing.dtype.itemsize // x.dtype.itemsize
        storage = torch.empty((n,), dtype=x.dtype, device="meta")
        return torch.as_strided(storage, x.shape, x.stride(), x.storage_offset())
    return torch.device("meta") if isinstance(x, torch.device) else x


def _extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of elements that a tensor spans, gaps included; 0 for a tensor without elements."""
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else 0


_NOTHING = slice(0)


@value
class _StorageSpan:
    """The range of a storage that a tensor covers. Tensor and storage may have dtypes of different width.

    ``begin`` and ``end`` bound the range, in elements of the storage. The other fields are in elements of the
    tensor: ``before`` is the offset of its first element from ``begin``. ``extent`` is the number of elements that it
    spans, gaps included.
    """

    begin: int
    end: int
    before: int
    extent: int

    @staticmethod
    def of(x: AhbmTensor) -> _StorageSpan | None:
        """Return the range of a tensor; None if the tensor has no elements."""
        extent, first = _extent(x.shape, x.stride()), int(x.storage_offset())
        if not extent:
            return None
        item, width = x.dtype.itemsize, x.backing.dtype.itemsize
        begin, end = first * item // width, -(-(first + extent) * item // width)
        return _StorageSpan(begin, end, first - begin * width // item, extent)

    def is_filled_by(self, x: AhbmTensor) -> bool:
        """Return whether the tensor's elements fill the complete range, without gaps."""
        nbytes = (self.end - self.begin) * x.backing.dtype.itemsize
        return self.extent == x.numel() and self.extent * x.dtype.itemsize == nbytes

    def index_of(self, x: AhbmTensor) -> ElementIndex:
        """Return an index into the range: it selects the elements of the storage that contain the tensor's elements."""
        if self.is_filled_by(x):
            return ...
        places = torch.as_strided(torch.arange(self.extent), x.shape, x.stride()).reshape(-1) + self.before
        item, width = x.dtype.itemsize, x.backing.dtype.itemsize
        if item > width:
            places = (places[:, None] * (item // width) + torch.arange(item // width)).reshape(-1)
        elif item < width:
            places = (places * item // width).unique()
        return places.numpy()

    def view_as(self, x: AhbmTensor, flat: Tensor) -> Tensor:
        """Return ``flat``, a host copy of the range, as a view with the layout and dtype of ``x``."""
        return torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), self.before)


def read(x: Tensor, missing: Missing = "raise", *, overwritten: bool = False) -> Tensor:
    """Transfer the elements to the host by one copy of the range that they cover. Strides stay the same.

    ``missing``: the result for values that a run without data lacks. NoDataError is raised if the program sees them.
    Zeros replace them if they only go to another tensor. ``overwritten``: an operator writes all elements, so their
    values are not transferred.
    """
    tensor = on_machine(x)
    span = _StorageSpan.of(tensor)
    if span is None:
        return torch.empty(x.shape, dtype=x.dtype)
    index = _NOTHING if overwritten else span.index_of(tensor)
    return span.view_as(tensor, tensor.backing.read(span.begin, span.end, index, missing))


def has_values(x: Tensor) -> bool:
    """Return whether the elements have values: in a run with data, or if a run without data knows them."""
    return storage_of(x).has_values or not x.numel()


def bits_as(flat: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the elements of a storage reinterpreted in the dtype of a view."""
    if flat.dtype is dtype:
        return flat
    group = dtype.itemsize // min(flat.dtype.itemsize, dtype.itemsize)
    return flat[: len(flat) // group * group].view(dtype)


def peek(x: Tensor) -> Tensor:
    """Return a tensor's elements on the host, in no simulated time, for observers. The run must have data."""
    wait_for(x)
    return torch.as_strided(bits_as(storage_of(x).peek(), x.dtype), x.shape, x.stride(), x.storage_offset())


def wait_for(x: Tensor) -> None:
    """Wait for the launches and collectives that use a tensor, as `peek` does."""
    storage_of(x).tensor.settle()


def known_elements(x: Tensor) -> Tensor | None:
    """Return the elements on the host, in no simulated time, if a run without data knows them; else None."""
    flat = storage_of(x).known()
    if flat is None:
        return None
    return torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), x.storage_offset())


def resize(x: Tensor, size: tuple[int, ...]) -> Tensor:
    """Change ``x`` to ``size`` with a new storage, unless it already has this size. Return ``x``."""
    if tuple(x.shape) != size:
        x.data = new(size, x.dtype, sip_of(x))
    return x


def result_for(
    out: Tensor | None,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    operands: Sequence[Tensor],
    addend: Tensor | None = None,
) -> Tensor:
    """Return the tensor that an operator writes: ``out``, resized to ``shape``, or a new tensor.

    An operator cannot write to ``out`` if ``out`` has another dtype, or shares elements with an operand. It can write
    over its ``addend``: each element is read before it is written.
    """
    if out is None or out.dtype is not dtype:
        return new(shape, dtype, sip_of(operands[0]))
    storage = storage_of(out)
    shared = [operand for operand in operands if storage_of(operand) is storage]
    if addend is not None and storage_of(addend) is storage and _layout(addend) != (shape, *_layout(out)[1:]):
        shared.append(addend)
    if shared:
        return new(shape, dtype, sip_of(operands[0]))
    return resize(out, shape)


def _layout(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(x.shape), x.stride(), int(x.storage_offset())


def deliver(result: Tensor, out: Tensor | None) -> Tensor:
    """Return a result, or ``out`` if there is one; copy the result to ``out`` if it is in another tensor."""
    return result if out is None or result is out else resize(out, tuple(result.shape)).copy_(result)


def put_known(x: Tensor, elements: Tensor) -> None:
    """Store a tensor's elements as known, for a run without data, if the tensor covers its complete storage."""
    if is_whole(x):
        storage = storage_of(x)
        storage.put_known(bits_as(elements.contiguous().reshape(-1), storage.dtype))


def is_whole(x: Tensor) -> bool:
    """Return whether ``x`` covers all elements of its storage, in storage order."""
    storage = storage_of(x)
    return x.is_contiguous() and x.numel() * x.dtype.itemsize == storage.n * storage.dtype.itemsize


def from_host(x: Tensor, sip: int, *, is_known: bool = True) -> AhbmTensor:
    """Return a tensor on the machine with the elements of a host tensor. ``is_known``: its values are real."""
    tensor = new(x.shape, x.dtype, sip)
    write(tensor, x, is_known=is_known)
    return tensor


def write(x: Tensor, source: Tensor, *, is_known: bool = True) -> None:
    """Transfer ``source``, broadcast to the shape of ``x``, from the host to ``x``.

    ``is_known``: the elements are real values, not zeros that stand for unknown ones.
    """
    for axis, step in enumerate(x.stride()):
        if step == 0 and x.shape[axis] > 1:  # all indices of the axis share one element: it gets the last value
            source = source.expand(x.shape).narrow(axis, x.shape[axis] - 1, 1)
            x = x.narrow(axis, 0, 1)
    tensor = on_machine(x)
    span, storage = _StorageSpan.of(tensor), tensor.backing
    if span is None:
        return
    if span.is_filled_by(tensor) and x.is_contiguous():
        flat = bits_as(source.detach().to(x.dtype).expand(x.shape).contiguous().reshape(-1), storage.dtype)
    else:  # the elements between those of x keep their values
        is_known = is_known and storage.has_values
        flat = storage.read(span.begin, span.end, _NOTHING, "zeros")
        span.view_as(tensor, flat).copy_(source.detach())
    storage.write(span.begin, flat, is_known=is_known)


def sip_of(x: Tensor | torch.device | str | int) -> int:
    """Return the SIP of a tensor or of a device; that of a device without an index is the current SIP.

    Raises HostOperandError for a tensor of the host, and InputError for a device of another type.
    """
    if isinstance(x, Tensor):
        return storage_of(x).sip
    device = torch.device(x)
    if device.type != DEVICE:
        raise InputError(f"device {device}: not a device of the machine")
    return current().devices.current if device.index is None else device.index
