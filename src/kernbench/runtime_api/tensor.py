"""Tensors with PyTorch's interface, in the memory of the machine and in that of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from kernbench.common.dtypes import Array, DType
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError
from kernbench.messages.requests import MappedShard
from kernbench.policy.placement.deploy import deploy_tensor
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.views import select
from kernbench.runtime_api.arrays import (
    Shaped,
    ShapeError,
    SizeArg,
    Tolerance,
    broadcasts,
    complete_shape,
    convert,
    host_dtype,
    numeric,
    shape_of,
)
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.memory import TensorMemory
from kernbench.runtime_api.transfers import HostSource, LaterArray, TensorCopy, check_fits
from kernbench.triton_emu.kernel_runner import check_host_calls

__all__ = ["Tensor", "deploy_tensor"]


class Tensor(Shaped):
    """A tensor in the memory of one SIP, made by a ``RuntimeContext``.

    Reads and writes by the program are transfers between host and device. They take simulated time, and first wait for
    launches in flight that have the tensor as an argument. In a run without data, a write has the same duration. A read
    then raises NoDataError, or returns zeros if the run is configured to do so.

    ``==`` and ``!=`` read the tensor and compare element by element; so do ``in`` and ``remove`` of a list. The hash of
    a tensor depends on its identity, not on its elements.
    """

    __slots__ = ("_layout", "_memory")

    def __init__(self, layout: TensorLayout, memory: TensorMemory) -> None:
        self._layout, self._memory = layout, memory

    @property
    def layout(self) -> TensorLayout:
        """The place of the tensor in memory."""
        return self._layout

    @property
    def name(self) -> str:
        """The name in reports."""
        return self._layout.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return self._layout.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._layout.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, replicas not counted."""
        return self._layout.nbytes

    @property
    def dp(self) -> DPPolicy:
        """The policy that places the tensor over the cubes and PEs of its SIP."""
        return self._layout.dp

    @property
    def sip(self) -> int:
        """The SIP that stores the tensor."""
        return self._layout.sip

    @property
    def device(self) -> str:
        """The device name: ``"ahbm:0"`` on SIP 0."""
        return f"ahbm:{self._layout.sip}"

    @property
    def va(self) -> int:
        """The first virtual address, which is the argument of a kernel."""
        return self._layout.va

    @property
    def shards(self) -> tuple[MappedShard, ...]:
        """The shards in (cube, pe) order: owner, offset in the tensor's virtual range, bytes, physical address."""
        return self._layout.shards

    @property
    def is_live(self) -> bool:
        """True until the tensor is freed."""
        return self._memory.is_live(self._layout)

    def reshape(self, *shape: SizeArg) -> Tensor:
        """Return the same memory under another shape, in no simulated time; one extent may be -1.

        Raises ShapeError if the number of elements differs, or if a shard is no box of the new shape. For such shards,
        the program has to copy the data to a new tensor.
        """
        wanted = shape_of(shape)
        extents = complete_shape(wanted, self.numel())
        if extents is None:
            raise ShapeError(f"{self.name}.reshape({wanted}): shape {self.shape} has {self.numel()} elements")
        layout = self._memory.reshape(self._layout, extents)
        if layout is None:
            raise ShapeError(
                f"{self.name}.reshape({wanted}) cannot be a view: shape {self.shape} is placed by {self.dp}, and its "
                f"shards are no boxes of {extents}. Copy it: torch.empty({extents}, dtype=…, dp=…)"
                f".copy_(x.numpy().reshape{extents})"
            )
        return Tensor(layout, self._memory)

    view = reshape

    def clone(self) -> Tensor:
        """Return a copy with the same layout on the same SIP: every owner PE copies its shards."""
        return Tensor(self._memory.clone(self._layout, f"{self.name}.clone"), self._memory)

    def copy_(self, src: object) -> Tensor:
        """Copy ``src`` (an array, a host tensor, another tensor or a number) to the tensor, and return the tensor.

        Elements are converted to the tensor's dtype. The data pass through the host and are written to every replica.
        The call stores the content of ``src``, which may change afterwards. Raises ShapeError unless ``src`` broadcasts
        to this shape.
        """
        check_host_calls()
        source = src if isinstance(src, Tensor | LaterArray) else numeric(src, self.name)
        if not broadcasts(source.shape, self.shape):
            raise ShapeError(
                f"{self.name}.copy_: the source has shape {source.shape}, which does not broadcast to the "
                f"tensor's shape {self.shape}"
            )
        self._memory.copy(self._layout, self._pass_on(source))
        return self

    def fill_(self, value: float) -> Tensor:
        """Set every element to ``value``, written by the device, and return the tensor."""
        self._memory.fill(self._layout, value)
        return self

    def zero_(self) -> Tensor:
        """Set every element to zero, written by the device, and return the tensor."""
        return self.fill_(0)

    def numpy(self) -> Array:
        """Return all elements in an array of the tensor's dtype, read from the first replica."""
        return self._memory.read(self._layout, self._layout.whole)

    def fetch(self, start: int, stop: int, index: Any = ...) -> Array:
        """Read elements ``start`` to ``stop`` of the first axis, as ``self[start:stop]`` does.

        For libraries that store more elements in a tensor than their program uses; ``index`` selects the used elements.
        """
        window = self._layout.whole.along(0, start, stop)
        return self._memory.read(self._layout, window, index)

    def pass_on(self, start: int = 0, stop: int | None = None, index: Any = ...) -> Array | None:
        """Read as ``fetch`` does, for values that are only written to another tensor; None in a run without data."""
        window = self._layout.whole
        part = window if stop is None else window.along(0, start, stop)
        return self._memory.pass_on(self._layout, part, index)

    def renew(self) -> None:
        """Mark all elements as unwritten: for a library that reuses the memory for a new tensor, as by ``empty``."""
        self._memory.renew(self._layout)

    def cpu(self) -> HostTensor:
        """Return all elements in a host tensor."""
        return HostTensor(self.numpy())

    def peek(self) -> Array:
        """Return all elements as ``numpy`` does, without simulated time.

        For reports and checks, which must not influence the run. Waits only for launches in the queue of the SIP that
        use the tensor.
        """
        self.settle_queued()
        return self._memory.look(self._layout)

    def copies(self, first: Array) -> Iterator[TensorCopy]:
        """Yield the content of every replica, as ``peek`` reads it. ``first`` is the result of ``peek``.

        Yield nothing for a tensor whose elements are stored only once.
        """
        return self._memory.copies(self._layout, first)

    def check(self, tolerance: Tolerance) -> None:
        """Report errors in a compared tensor to observers.

        Errors are unwritten elements, and replicas that differ by more than ``tolerance``.
        """
        self._memory.check(self._layout, tolerance)

    def settle_queued(self) -> None:
        """Wait for launches in the queue of the SIP that have the tensor as an argument."""
        self._memory.uses.settle_queued(self._layout.key)

    @property
    def is_exchanged(self) -> bool:
        """True while a collective or a message that uses the tensor is in flight."""
        return self._memory.uses.is_exchanged(self._layout.key)

    def settle(self) -> None:
        """Wait for launches in flight that have the tensor as an argument."""
        self._memory.settle(self._layout)

    def item(self) -> Any:
        """Return the only element as a Python number. Raises ValueError if there are more."""
        if self.numel() != 1:
            raise ValueError(f"{self.name}.item(): it has {self.numel()} elements, not 1")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        return self.numpy().tolist()

    def free(self) -> None:
        """Unmap the tensor and free its memory; any later use raises InputError."""
        self._memory.release(self._layout)

    def __getitem__(self, index: Any) -> HostTensor:
        """Return the elements that NumPy would select with this index, as a host tensor.

        Only the stretches of shards that contain these elements are read.
        """
        selection = select(index, self.shape)
        fetched = self._memory.read(self._layout, selection.window, selection.rest)
        return HostTensor(np.asarray(fetched[selection.rest]))

    def __setitem__(self, index: Any, value: object) -> None:
        """Assign as NumPy does, in every replica; only the bytes of the assigned elements are sent."""
        check_host_calls()
        selection = select(index, self.shape)
        source = self._pass_on(value if isinstance(value, Tensor) else numeric(value, self.name))
        values = None
        if source is not None:
            array = np.asarray(source)
            if not array.ndim:
                check_fits(array, self.dtype)
            values = np.empty(selection.window.shape, self.dtype.numpy)
            values[selection.rest] = convert(array, self.dtype)
        chosen = np.zeros(selection.window.shape, np.bool_)
        chosen[selection.rest] = True
        self._memory.update(self._layout, selection.window, values, chosen)

    def __eq__(self, other: object) -> Any:
        """Compare element by element, and return a host array of bools; ``other`` broadcasts as in NumPy."""
        return self._compare(np.equal, other)

    def __ne__(self, other: object) -> Any:
        """Compare element by element: True where elements differ."""
        return self._compare(np.not_equal, other)

    __hash__ = object.__hash__

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name} has no axes, so no len()")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return ``numpy()`` for NumPy functions, always a copy."""
        return np.asarray(self.numpy(), dtype=dtype)

    def __repr__(self) -> str:
        shards = f"{len(self.shards)} shard{'s' if len(self.shards) > 1 else ''}"
        return (
            f"Tensor({self.name}, shape={self.shape}, dtype={self.dtype}, sip{self.sip}, {shards}{self._statistics()})"
        )

    def _statistics(self) -> str:
        if not self.is_live:
            return ", freed"
        if not self._memory.has_data:
            return ""
        held = self.peek().astype(np.float64)
        return f", mean={held.mean():.6g}, norm={np.linalg.norm(held.reshape(-1)):.6g}"

    def _compare(self, operator: np.ufunc, other: object) -> Any:
        """Compare element by element.

        Return NotImplemented for an object without numbers, so that Python treats it as unequal to any tensor.
        """
        check_host_calls()
        try:
            source = other if isinstance(other, Tensor) else numeric(other, self.name)
        except InputError:
            return NotImplemented
        try:
            np.broadcast_shapes(self.shape, source.shape)
        except ValueError:
            raise ShapeError(f"{self.name} == …: shapes {self.shape} and {source.shape} do not broadcast") from None
        self.settle()  # fail for a freed tensor before reading the other
        elements, wanted = self.numpy(), source.numpy() if isinstance(source, Tensor) else source
        if isinstance(other, int | float):
            # NumPy converts Python's numbers to the array's type, except for float types that it lacks.
            number = convert(wanted, self.dtype) if self.dtype.is_float else other
            return np.asarray(operator(elements, number))
        if elements.dtype != wanted.dtype:  # some pairs have no common type in NumPy; f64 can represent them
            elements, wanted = elements.astype(np.float64), wanted.astype(np.float64)
        return np.asarray(operator(elements, wanted))

    def _pass_on(self, source: Tensor | HostSource) -> HostSource | None:
        self.settle()  # fail for a freed tensor before reading the source
        return source.pass_on() if isinstance(source, Tensor) else source


class HostTensor(Shaped, NDArrayOperatorsMixin):
    """A view of a NumPy array with the interface of a tensor; its methods take no simulated time.

    NumPy functions and operators accept it and return arrays.
    """

    __slots__ = ("_array",)
    __hash__ = None  # type: ignore[assignment] # comparing gives an array, as NumPy's and PyTorch's do

    def __init__(self, array: Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return self._array.shape

    @property
    def dtype(self) -> DType:
        """The element type; types that the machine does not have retain NumPy's name."""
        return host_dtype(self._array)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self._array.nbytes

    @property
    def device(self) -> str:
        """The device name ``"cpu"``, which is the host."""
        return "cpu"

    def numpy(self) -> Array:
        """Return the array itself, not a copy."""
        return self._array

    def to(self, dtype: object) -> HostTensor:
        """Return a copy with another element type."""
        return HostTensor(convert(self._array, dtype_of(dtype)))

    def clone(self) -> HostTensor:
        """Return a copy."""
        return HostTensor(self._array.copy())

    def reshape(self, *shape: SizeArg) -> HostTensor:
        """Return the array under another shape. Raises ValueError for another number of elements."""
        return HostTensor(self._array.reshape(shape_of(shape)))

    def item(self) -> Any:
        """Return the only element as a Python number. Raises ValueError if there are more."""
        return self._array.item()

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        return self._array.tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype=dtype, copy=bool(copy)) if copy else np.asarray(self._array, dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = (operand.numpy() if isinstance(operand, HostTensor) else operand for operand in inputs)
        return getattr(ufunc, method)(*plain, **kwargs)

    def __getitem__(self, index: Any) -> HostTensor:
        return HostTensor(np.asarray(self._array[index]))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[index] = np.asarray(value)

    def __len__(self) -> int:
        return len(self._array)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self._array)

    def __repr__(self) -> str:
        return f"HostTensor({self._array!r})"


class KnownValues:
    """The tensor elements available in a run without data: the host wrote them, and no kernel has since.

    ``n_writes``: the host's writes so far.
    """

    __slots__ = ("_elements", "_writes", "n_writes")

    def __init__(self) -> None:
        self._elements: dict[Tensor, Array] = {}
        self._writes: dict[Tensor, int] = {}  # the last write of each tensor
        self.n_writes = 0

    def of(self, tensor: Tensor) -> Array | None:
        """Return all elements of a tensor; None if they are unavailable."""
        return self._elements.get(tensor)

    def put(self, tensor: Tensor, first: int, elements: Array) -> None:
        """Store elements that the host writes from element ``first`` on.

        If the elements of a tensor are unavailable, only a write of all its elements is stored.
        """
        if len(elements) == tensor.numel():
            self._elements[tensor] = np.array(elements)
        elif tensor in self._elements:
            self._elements[tensor][first : first + len(elements)] = elements
        self.n_writes += 1
        self._writes[tensor] = self.n_writes

    def forget(self, tensor: Tensor) -> None:
        """Drop the elements of a tensor."""
        self._elements.pop(tensor, None)
        self._writes.pop(tensor, None)

    def forget_range(self, sip: int, first: int, end: int, n_writes: int) -> None:
        """Drop the elements of tensors in a range of a SIP's virtual addresses: a kernel writes this range.

        The kernel's launch followed the first ``n_writes`` writes of the host. Elements of later ones remain.
        """
        in_range = [
            tensor
            for tensor in self._elements
            if tensor.sip == sip and tensor.va < end and first < tensor.va + tensor.nbytes
        ]
        for tensor in in_range:
            if self._writes[tensor] <= n_writes:
                self.forget(tensor)
