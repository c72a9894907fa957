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
    """Inside, tensors of the machine say that they are on "cuda"."""


def is_called_cuda() -> bool:
    """Tell whether the machine is "cuda" here."""
    return any(isinstance(each, SaysCuda) for each in _get_current_function_mode_stack())


def device_of_sip(sip: int) -> Any:
    """Return the device that the program knows a SIP by."""
    return torch.device("cuda" if is_called_cuda() else DEVICE, sip)


_DATA = torch.Tensor.data
"""What PyTorch knows of a tensor, which it swaps."""


def _run_without_elements(operator: Any, args: Any, kwargs: Any) -> Any:
    """Trace an operator on tensors without elements, as PyTorch does with a function that holds tensors of its own.

    InputError where one of those is to have a gradient: what is traced has none for it.
    """
    modes = [x.fake_mode for x in tree_leaves((args, kwargs)) if isinstance(x, FakeTensor)]

    def fake(x: AhbmTensor) -> Any:
        if x.requires_grad:
            raise InputError(
                f"flex_attention: score_mod takes a tensor of shape {tuple(x.shape)} from outside, whose gradient "
                "would be left out; detach it, or write the attention out"
            )
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.on_machine)

    with modes[0]:
        return operator(*tree_map_only(AhbmTensor, fake, args), **tree_map_only(AhbmTensor, fake, kwargs))


class AhbmTensor(Placed, torch.Tensor):
    """A view of a storage. PyTorch hands every operator on it to ``operators.dispatch``."""

    storage: Storage
    __torch_function__ = torch._C._disabled_torch_function_impl  # noqa: SLF001 - how subclasses say that

    @staticmethod
    def __new__(
        cls, storage: Storage, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: TorchType
    ) -> AhbmTensor:
        """``offset`` and ``stride`` in elements."""
        with torch.inference_mode(storage.inference):  # whatever the mode is now: it may be a view
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
        """Carry out an operator; NotImplemented where it also takes tensors of a class that wraps others."""
        if not all(issubclass(kind, AhbmTensor | FakeTensor) for kind in types):
            return NotImplemented
        if FakeTensor in types:
            return _run_without_elements(func, args, kwargs or {})
        return _dispatch.run(func, args, kwargs or {})

    def place(self) -> tuple[Tensor, int]:
        """The storage's tensor, and where in it this begins."""
        return self.storage.tensor, self.storage_offset() * self.dtype.itemsize

    @property
    def on_machine(self) -> Any:
        """Its device, whatever the program calls that."""
        return torch.device(DEVICE, self.storage.tensor.sip)

    @property
    def device(self) -> Any:
        """Its device, as the program calls it."""
        return device_of_sip(self.storage.tensor.sip)

    @property
    def is_cuda(self) -> bool:
        """True where "cuda" means the machine."""
        return is_called_cuda()

    @property
    def data(self) -> Any:
        """The tensor without its history; set: it becomes another one, storage and all."""
        return _DATA.__get__(self)

    @data.setter
    def data(self, other: Any) -> None:
        _DATA.__set__(self, other)
        self.storage = other.storage

    def data_ptr(self) -> int:
        """The virtual address of its first element."""
        tensor, offset = self.place()
        return tensor.va + offset

    def record_stream(self, stream: object) -> None:
        """Nothing: launches are in one order."""

    def tolist(self) -> Any:
        """Its elements as Python's numbers: a transfer."""
        return to_host(self).tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return its elements as an array of the host, if ``force``: a transfer; else TypeError, as of any device."""
        if not force:
            raise TypeError(f"numpy() of a tensor on {self.device}: it has to be on the host first: .cpu().numpy()")
        return to_host(self.detach()).numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a tensor of its own, as PyTorch's: of one that the program made, not of a result."""
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("deepcopy of a tensor that is a result: only those that the program made can be copied")
        with torch.no_grad():
            made: Any = self.detach().clone()
        is_parameter = isinstance(self, torch.nn.Parameter)
        made = torch.nn.Parameter(made, self.requires_grad) if is_parameter else made.requires_grad_(self.requires_grad)
        memo[id(self)] = made
        if self.grad is not None:
            made.grad = self.grad.__deepcopy__(memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save it as its elements: ``torch.load`` brings them back to the machine, or where ``map_location`` says."""
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
    """The place of the function that carries operators out; its module imports this one, and says so here."""

    run: Any = None


_dispatch = _Dispatch()


def dispatch_by(run: Any) -> None:
    """``run(operator, args, kwargs)`` carries operators out."""
    _dispatch.run = run


def new(size: tuple[int, ...], dtype: TorchType, sip: int, stride: tuple[int, ...] | None = None) -> AhbmTensor:
    """A tensor that nothing is written to."""
    steps = tuple(torch.empty(size, device="meta").stride()) if stride is None else stride
    return AhbmTensor(Storage(_extent(size, steps), dtype, sip), size, steps, 0, dtype)


def without_elements(x: Any) -> Any:
    """Return a tensor of the same form that has no elements, to ask PyTorch for the form of a result; else ``x``."""
    if isinstance(x, AhbmTensor):
        n = x.storage.n * x.storage.dtype.itemsize // x.dtype.itemsize
        whole = torch.empty((n,), dtype=x.dtype, device="meta")
        return torch.as_strided(whole, x.shape, x.stride(), x.storage_offset())
    return torch.device("meta") if isinstance(x, torch.device) else x


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """From the first element to behind the last, in elements."""
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if prod(size) else 0


_NOTHING = slice(0)


@value
class _Stretch:
    """Where a tensor with elements lies in its storage, whose type may have another width: from its first element to
    behind its last.

    ``begin``, ``end``: in elements of the storage. ``before``, ``extent``: in its own, from ``begin`` to its first, and
    from there to behind its last.
    """

    begin: int
    end: int
    before: int
    extent: int

    @staticmethod
    def of(x: AhbmTensor) -> _Stretch | None:
        """Return that of a tensor; None if it has no elements."""
        extent, first = _extent(tuple(x.shape), x.stride()), x.storage_offset()
        if not extent:
            return None
        own, width = x.dtype.itemsize, x.storage.dtype.itemsize
        begin, end = first * own // width, -(-(first + extent) * own // width)
        return _Stretch(begin, end, first - begin * width // own, extent)

    def is_filled_by(self, x: AhbmTensor) -> bool:
        """Tell whether nothing lies between the tensor's elements, nor beside them in elements of the storage."""
        nbytes = (self.end - self.begin) * int(x.storage.dtype.itemsize)
        return self.extent == x.numel() and self.extent * int(x.dtype.itemsize) == nbytes

    def asked(self, x: AhbmTensor) -> Any:
        """Index the elements of the storage that the tensor's lie in."""
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
        """Return the tensor's elements within ``flat``, what the storage has of the stretch."""
        return torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), self.before)


def to_host(x: AhbmTensor) -> TorchTensor:
    """Its elements on the host, in the same strides: a transfer of the stretch that they are in.

    NoDataError if the run does not have them.
    """
    there = _Stretch.of(x)
    if there is None:
        return torch.empty(x.shape, dtype=x.dtype)
    return there.elements(x, x.storage.read(there.begin, there.end, there.asked(x)))


def fetch(x: AhbmTensor, *, overwritten: bool = False) -> tuple[TorchTensor, bool]:
    """The same for operators, which the program does not see into, and whether these are the values; else zeros.

    ``overwritten``: the program does not want them, it writes all of them.
    """
    there = _Stretch.of(x)
    if there is None:
        return torch.empty(x.shape, dtype=x.dtype), True
    flat, known = x.storage.fetch(there.begin, there.end, _NOTHING if overwritten else there.asked(x))
    return there.elements(x, flat), known


def bits_as(flat: TorchTensor, dtype: TorchType) -> TorchTensor:
    """Return elements of a storage in the type that a view of it has: their bits, as they are."""
    if flat.dtype is dtype:
        return flat
    whole = dtype.itemsize // min(flat.dtype.itemsize, dtype.itemsize)
    return flat[: len(flat) // whole * whole].view(dtype)


def look(x: AhbmTensor) -> TorchTensor:
    """Return the elements of a tensor on the host, in no simulated time, in a run with data: for who watches."""
    return torch.as_strided(bits_as(x.storage.look(), x.dtype), x.shape, x.stride(), x.storage_offset())


def known_tensor(x: AhbmTensor) -> TorchTensor | None:
    """Return the elements that a run without data knows of a tensor, on the host, in no time; None if it does not."""
    flat = x.storage.known()
    if flat is None:
        return None
    return torch.as_strided(bits_as(flat, x.dtype), x.shape, x.stride(), x.storage_offset())


def resize(x: AhbmTensor, size: tuple[int, ...]) -> AhbmTensor:
    """Make ``x`` a tensor of another size, with a storage of its own."""
    if tuple(x.shape) != size:
        x.data = new(size, x.dtype, x.storage.tensor.sip)
    return x


def put_known(x: AhbmTensor, elements: TorchTensor) -> None:
    """Note the elements of a tensor that a run without data knows, where they are all that its storage has."""
    if is_whole(x):
        x.storage.put_known(bits_as(elements.contiguous().reshape(-1), x.storage.dtype))


def is_whole(x: AhbmTensor) -> bool:
    """Tell whether it has all elements of its storage, in their order."""
    nbytes = x.storage.n * x.storage.dtype.itemsize
    return bool(x.is_contiguous() and x.numel() * x.dtype.itemsize == nbytes)


def from_host(x: TorchTensor, sip: int, *, known: bool = True) -> AhbmTensor:
    """A tensor on the machine with the elements of one of the host; ``known``: these are its values."""
    made = new(tuple(x.shape), x.dtype, sip)
    write(made, x, known=known)
    return made


def write(x: AhbmTensor, source: TorchTensor, *, known: bool = True) -> None:
    """The elements of ``x`` become those of ``source``, which broadcasts to it: a transfer.

    ``known``: these are its values, and not zeros that stand for them.
    """
    for axis, step in enumerate(x.stride()):
        if step == 0 and x.shape[axis] > 1:  # all elements of the axis are one, which gets what the last of them has
            source = source.expand(x.shape).narrow(axis, x.shape[axis] - 1, 1)
            x = x.narrow(axis, 0, 1)
    there = _Stretch.of(x)
    if there is None:
        return
    if there.is_filled_by(x) and x.is_contiguous():
        flat = bits_as(source.detach().to(x.dtype).expand(x.shape).contiguous().reshape(-1), x.storage.dtype)
    else:  # what lies between stays what it is
        flat, rest_known = x.storage.fetch(there.begin, there.end, _NOTHING)
        known = known and rest_known
        there.elements(x, flat).copy_(source.detach())
    x.storage.write(there.begin, flat, known=known)


def sip_of(device: Any) -> int:
    """The SIP that a device of the machine means; the current one without an index."""
    found = torch.device(device)
    if found.type != DEVICE:
        raise InputError(f"device {found}: not a device of the machine")
    return int(found.index) if found.index is not None else current().devices.current
