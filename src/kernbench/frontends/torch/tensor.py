"""PyTorch's tensor on device ``ahbm``: sizes, strides and an offset into a storage of the machine."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._utils import _rebuild_device_tensor_from_cpu_tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map_only

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.placed import Placed
from kernbench.frontends.torch.storage import Storage, TorchTensor, TorchType, current
from kernbench.runtime_api.tensor import Tensor


class SaysCuda(TorchFunctionMode):
    """A mode in which tensors of the machine report device "cuda"."""


def is_called_cuda() -> bool:
    """Return whether the program calls the machine "cuda" here."""
    return any(isinstance(each, SaysCuda) for each in _get_current_function_mode_stack())


def device_of_sip(sip: int) -> Any:
    """Return the device of a SIP, under the name that the program uses."""
    return torch.device("cuda" if is_called_cuda() else DEVICE, sip)


_DATA = torch.Tensor.data
"""PyTorch's own property ``data``, which replaces the tensor's contents when set."""


def _run_without_elements(operator: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on fake tensors without elements, as PyTorch does to trace functions that capture tensors.

    Raises InputError if a captured tensor requires a gradient: the trace would lose this gradient.
    """
    modes = [x.fake_mode for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)]

    def fake(x: AhbmTensor) -> Any:
        if x.requires_grad:
            raise InputError(
                f"flex_attention: score_mod captures a tensor of shape {tuple(x.shape)}, whose gradient "
                "would be left out; detach it, or write the attention out"
            )
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.on_machine)

    with modes[0]:
        return operator(*tree_map_only(AhbmTensor, fake, args), **tree_map_only(AhbmTensor, fake, kwargs))


class AhbmTensor(Placed, torch.Tensor):
    """A view of a storage. PyTorch calls ``__torch_dispatch__`` for every operator on such a tensor."""

    storage: Storage
    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001 - as PyTorch documents for subclasses

    @staticmethod
    def __new__(
        cls, storage: Storage, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: TorchType
    ) -> AhbmTensor:
        """Create a view of ``storage``; ``offset`` and ``stride`` are in elements."""
        with torch.inference_mode(storage.inference):  # in the mode of the storage, since this may be a view of it
            made: AhbmTensor = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - the documented way
                cls,
                size,
                strides=stride,
                storage_offset=offset,
                dtype=dtype,
                device=torch.device(DEVICE, storage.tensor.sip),
            )
        made.storage = storage
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; return NotImplemented for operands of a class that wraps other tensors."""
        if not all(issubclass(kind, AhbmTensor | FakeTensor) for kind in types):
            return NotImplemented
        if FakeTensor in types:
            return _run_without_elements(func, args, kwargs or {})
        return _dispatch.run(func, args, kwargs or {})

    def place(self) -> tuple[Tensor, int]:
        """Return the storage's tensor, and the offset of the first element in bytes."""
        return self.storage.tensor, self.storage_offset() * self.dtype.itemsize

    @property
    def on_machine(self) -> Any:
        """Return the device as ``ahbm``, whatever the program calls it."""
        return torch.device(DEVICE, self.storage.tensor.sip)

    @property
    def device(self) -> Any:
        """Return the device, under the name that the program uses."""
        return device_of_sip(self.storage.tensor.sip)

    @property
    def is_cuda(self) -> bool:
        """Return whether the program calls the machine "cuda"."""
        return is_called_cuda()

    @property
    def data(self) -> Any:
        """Return the tensor without its history. Setting ``data`` replaces the tensor's contents and storage."""
        return _DATA.__get__(self)

    @data.setter
    def data(self, other: Any) -> None:
        _DATA.__set__(self, other)
        self.storage = other.storage

    def data_ptr(self) -> int:
        """Return the virtual address of the first element."""
        tensor, offset = self.place()
        return tensor.va + offset

    def record_stream(self, stream: object) -> None:
        """Do nothing: launches run in one order."""

    def tolist(self) -> Any:
        """Return the elements as Python numbers, after a transfer."""
        return to_host(self).tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Transfer the elements to a host array if ``force`` is set. Else raise TypeError, as PyTorch does."""
        if not force:
            raise TypeError(f"numpy() of a tensor on {self.device}: it has to be on the host first: .cpu().numpy()")
        return to_host(self.detach()).numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy with a separate storage, as PyTorch does. Raises RuntimeError for the result of an operator."""
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("deepcopy of the result of an operator: only leaf tensors can be copied")
        with torch.no_grad():
            made: Any = self.detach().clone()
        is_parameter = isinstance(self, torch.nn.Parameter)
        made = torch.nn.Parameter(made, self.requires_grad) if is_parameter else made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        if self.grad is not None:
            made.grad = self.grad.__deepcopy__(memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the elements; ``torch.load`` restores them on the machine, or where ``map_location`` says."""
        elements = to_host(self.detach())
        device = str(self.on_machine)
        return _rebuild_device_tensor_from_cpu_tensor, (elements, self.dtype, device, self.requires_grad)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else super().__format__(spec)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        if not current().has_data:
            return f"tensor(..., size={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"
        return f"{repr(look(self))[:-1]}, device='{self.device}')"


class _Dispatch:
    """The function that runs operators. Its module imports this one, so the function is registered."""

    run: Any = None


_dispatch = _Dispatch()


def dispatch_by(run: Any) -> None:
    """Register ``run(operator, args, kwargs)`` as the function that runs operators."""
    _dispatch.run = run


def new(size: tuple[int, ...], dtype: TorchType, sip: int, stride: tuple[int, ...] | None = None) -> AhbmTensor:
    """Return an uninitialised tensor."""
    steps = tuple(torch.empty(size, device="meta").stride()) if stride is None else stride
    return AhbmTensor(Storage(_extent(size, steps), dtype, sip), size, steps, 0, dtype)


def without_elements(x: Any) -> Any:
    """Return a meta tensor of the same layout, to infer the shape of a result. Return other values unchanged."""
    if isinstance(x, AhbmTensor):
        n = x.storage.n * x.storage.dtype.itemsize // x.dtype.itemsize
        whole = torch.empty((n,), dtype=x.dtype, device="meta")
        return torch.as_strided(whole, x.shape, x.stride(), x.storage_offset())
    return torch.device("meta") if isinstance(x, torch.device) else x


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the number of elements that a tensor spans, gaps included; 0 for a tensor without elements."""
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else 0


_NOTHING = slice(0)


@value
class _Stretch:
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
    def of(x: AhbmTensor) -> _Stretch | None:
        """Return the range of a tensor; None if the tensor has no elements."""
        extent, first = _extent(tuple(x.shape), x.stride()), x.storage_offset()
        if not extent:
            return None
        own, width = x.dtype.itemsize, x.storage.dtype.itemsize
        begin, end = first * own // width, -(-(first + extent) * own // width)
        return _Stretch(begin, end, first - begin * width // own, extent)

    def is_filled_by(self, x: AhbmTensor) -> bool:
        """Return whether the tensor's elements fill the complete range, without gaps."""
        nbytes = (self.end - self.begin) * int(x.storage.dtype.itemsize)
        return self.extent == x.numel() and self.extent * int(x.dtype.itemsize) == nbytes

    def index_of(self, x: AhbmTensor) -> Any:
        """Return an index into the range: it selects the elements of the storage that contain the tensor's elements."""
        if self.is_filled_by(x):
            return ...
        places = torch.as_strided(torch.arange(self.extent), x.shape, x.stride()).reshape(-1) + self.before
        own, width = x.dtype.itemsize, x.storage.dtype.itemsize
        if own > width:
            places = (places[:, None] * (own // width) + torch.arange(own // width)).reshape(-1)
        elif own < width:
            places = (places * own // width).unique()
        return places.numpy()

    def elements(self, x: AhbmTensor, flat: TorchTensor) -> TorchTensor:
        """Return the tensor as a view of ``flat``, a host copy of the range."""
        return torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), self.before)


def to_host(x: AhbmTensor) -> TorchTensor:
    """Transfer the elements to the host by one copy of the range that they cover. Strides stay the same.

    Raises NoDataError if the run lacks their values.
    """
    there = _Stretch.of(x)
    if there is None:
        return torch.empty(x.shape, dtype=x.dtype)
    return there.elements(x, x.storage.read(there.begin, there.end, there.index_of(x)))


def fetch(x: AhbmTensor, *, overwritten: bool = False) -> tuple[TorchTensor, bool]:
    """Transfer elements to the host for an operator: return (elements, True), or (zeros, False) for unknown values.

    ``overwritten``: the operator writes all elements, so their values are not transferred.
    """
    there = _Stretch.of(x)
    if there is None:
        return torch.empty(x.shape, dtype=x.dtype), True
    flat, known = x.storage.fetch(there.begin, there.end, _NOTHING if overwritten else there.index_of(x))
    return there.elements(x, flat), known


def bits_as(flat: TorchTensor, dtype: TorchType) -> TorchTensor:
    """Return the elements of a storage reinterpreted in the dtype of a view."""
    if flat.dtype is dtype:
        return flat
    whole = dtype.itemsize // min(flat.dtype.itemsize, dtype.itemsize)
    return flat[: len(flat) // whole * whole].view(dtype)


def look(x: AhbmTensor) -> TorchTensor:
    """Return a tensor's elements on the host, in no simulated time, for observers. The run must have data."""
    return torch.as_strided(bits_as(x.storage.look(), x.dtype), x.shape, x.stride(), x.storage_offset())


def known_tensor(x: AhbmTensor) -> TorchTensor | None:
    """Return the elements on the host, in no simulated time, if a run without data knows them; else None."""
    flat = x.storage.known()
    if flat is None:
        return None
    return torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), x.storage_offset())


def resize(x: AhbmTensor, size: tuple[int, ...]) -> AhbmTensor:
    """Change ``x`` to ``size`` with a new storage, unless it already has this size. Return ``x``."""
    if tuple(x.shape) != size:
        x.data = new(size, x.dtype, x.storage.tensor.sip)
    return x


def put_known(x: AhbmTensor, elements: TorchTensor) -> None:
    """Store a tensor's elements as known, for a run without data, if the tensor covers its complete storage."""
    if is_whole(x):
        x.storage.put_known(bits_as(elements.contiguous().reshape(-1), x.storage.dtype))


def is_whole(x: AhbmTensor) -> bool:
    """Return whether ``x`` covers all elements of its storage, in storage order."""
    nbytes = x.storage.n * x.storage.dtype.itemsize
    return bool(x.is_contiguous() and x.numel() * x.dtype.itemsize == nbytes)


def from_host(x: TorchTensor, sip: int, *, is_known: bool = True) -> AhbmTensor:
    """Return a tensor on the machine with the elements of a host tensor. ``is_known``: its values are real."""
    made = new(tuple(x.shape), x.dtype, sip)
    write(made, x, is_known=is_known)
    return made


def write(x: AhbmTensor, source: TorchTensor, *, is_known: bool = True) -> None:
    """Transfer ``source``, broadcast to the shape of ``x``, from the host to ``x``.

    ``is_known``: the elements are real values, not zeros that stand for unknown ones.
    """
    for axis, step in enumerate(x.stride()):
        if step == 0 and x.shape[axis] > 1:  # all indices of the axis share one element: it gets the last value
            source = source.expand(x.shape).narrow(axis, x.shape[axis] - 1, 1)
            x = x.narrow(axis, 0, 1)
    there = _Stretch.of(x)
    if there is None:
        return
    if there.is_filled_by(x) and x.is_contiguous():
        flat = bits_as(source.detach().to(x.dtype).expand(x.shape).contiguous().reshape(-1), x.storage.dtype)
    else:  # the elements between those of x keep their values
        flat, rest_known = x.storage.fetch(there.begin, there.end, _NOTHING)
        is_known = is_known and rest_known
        there.elements(x, flat).copy_(source.detach())
    x.storage.write(there.begin, flat, is_known=is_known)


def sip_of(device: Any) -> int:
    """Return the SIP of a device; without an index, the current SIP. Raises InputError for another device type."""
    found = torch.device(device)
    if found.type != DEVICE:
        raise InputError(f"device {found}: not a device of the machine")
    return int(found.index) if found.index is not None else current().devices.current
