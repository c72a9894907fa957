"""Tensors on the machine, with the face that PyTorch gives them."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.messages.mapping import MappedShard
from kernbench.policy.placement.deploy import deploy_tensor
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.indexing import select
from kernbench.runtime_api.arrays import Array, converted, numeric
from kernbench.runtime_api.host_tensor import HostTensor
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.memory import TensorMemory

__all__ = ["Tensor", "deploy_tensor"]


class Tensor:
    """A tensor in the memory of one SIP, made by a ``RuntimeContext``.

    Reading and writing are host transfers: they cost simulated time, and first wait for launches under way that have
    the tensor as an argument. On a machine without data they cost the same and reads give zeros.
    """

    __slots__ = ("_layout", "_memory")

    def __init__(self, layout: TensorLayout, memory: TensorMemory) -> None:
        self._layout, self._memory = layout, memory

    @property
    def layout(self) -> TensorLayout:
        """Where it lies."""
        return self._layout

    @property
    def name(self) -> str:
        """What reports call it."""
        return self._layout.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._layout.shape

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self._layout.shape)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._layout.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, once however many copies there are."""
        return self._layout.nbytes

    @property
    def dp(self) -> DPPolicy:
        """How it spreads over the cubes and PEs of its SIP."""
        return self._layout.dp

    @property
    def sip(self) -> int:
        """The SIP it lies on."""
        return self._layout.sip

    @property
    def va(self) -> int:
        """Its first virtual address: what a kernel gets."""
        return self._layout.va

    @property
    def shards(self) -> tuple[MappedShard, ...]:
        """Its parts in (cube, pe) order: owner, offset in the tensor's virtual range, bytes, physical address."""
        return self._layout.shards

    @property
    def is_live(self) -> bool:
        """False once it has been freed."""
        return self._memory.is_live(self._layout)

    def numel(self) -> int:
        """How many elements."""
        return self._layout.size

    def copy_(self, src: object) -> Tensor:
        """Take over ``src`` (an array, a host tensor, another tensor), converted to this dtype; returns itself.

        Goes through the host and writes every copy. InputError for another shape.
        """
        source = src if isinstance(src, Tensor) else numeric(src, self.name)
        if source.shape != self.shape:
            raise InputError(f"{self.name}.copy_: the source has shape {source.shape}, the tensor {self.shape}")
        self._memory.copy(self._layout, self._on_host(source))
        return self

    def fill_(self, value: float) -> Tensor:
        """Make every element ``value``, written by the device; returns itself."""
        self._memory.fill(self._layout, value)
        return self

    def numpy(self) -> Array:
        """All elements in an array of this dtype; of several copies the first."""
        return self._memory.read(self._layout, self._layout.whole)

    def cpu(self) -> HostTensor:
        """All elements in a host tensor."""
        return HostTensor(self.numpy())

    def peek(self) -> Array:
        """As ``numpy``, without time or waiting: for reports and checks, which must not change what they watch."""
        return self._memory.look(self._layout)

    def settle(self) -> None:
        """Wait for launches under way that have it as an argument."""
        self._memory.settle(self._layout)

    def item(self) -> Any:
        """The only element as a Python number; ValueError when there are more."""
        if self.numel() != 1:
            raise ValueError(f"{self.name}.item(): it has {self.numel()} elements, not 1")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self.numpy().tolist()

    def free(self) -> None:
        """Unmap it and give its memory back; any later use is an InputError."""
        self._memory.release(self._layout)

    def __getitem__(self, index: Any) -> HostTensor:
        """What NumPy would select, as a host tensor; only the stretches of shards that hold it are read."""
        selection = select(index, self.shape)
        fetched = self._memory.read(self._layout, selection.window)
        return HostTensor(np.asarray(fetched[selection.rest]))

    def __setitem__(self, index: Any, value: object) -> None:
        """What NumPy would assign, in every copy; only the bytes that change hands are sent."""
        selection = select(index, self.shape)
        source = self._on_host(value if isinstance(value, Tensor) else numeric(value, self.name))
        values = np.empty(selection.window.shape, self.dtype.numpy)
        values[selection.rest] = converted(source, self.dtype)
        chosen = np.zeros(selection.window.shape, np.bool_)
        chosen[selection.rest] = True
        self._memory.update(self._layout, selection.window, values, chosen)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"{self.name} has no axes, so no len()")
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """What NumPy functions see: ``numpy()``, which is always a copy."""
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

    def _on_host(self, source: Tensor | Array) -> Array:
        # A tensor that is freed is found out before the source is read.
        self.settle()
        return source.numpy() if isinstance(source, Tensor) else source
