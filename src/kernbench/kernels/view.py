"""A strided array in memory: the addresses of its elements, and the ``tl`` calls that load, store and reference it."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.dtypes import DType, Shape, row_major
from kernbench.common.values import value
from kernbench.triton_emu.handles import Handle, Ref
from kernbench.triton_emu.tl_context import TLContext


@value
class View:
    """An array in memory: the address of its first element, and the extent and the stride of each axis, in elements.

    Elements repeat along an axis of stride 0. `load` and `ref` read such an axis with extent 1. A layout that is known
    before its address has address 0, until `on` places it.
    """

    address: int
    extents: Shape
    strides: Shape
    dtype: DType

    @staticmethod
    def row_major(address: int, extents: Shape, dtype: DType) -> View:
        """Return the view of a contiguous array."""
        return View(address, extents, row_major(extents, 1), dtype)

    def on(self, address: int) -> View:
        """Return a view with the same layout at ``address``."""
        return View(address, self.extents, self.strides, self.dtype)

    @property
    def form(self) -> tuple[Shape, Shape, DType]:
        """The layout without the address: extents, strides and dtype."""
        return self.extents, self.strides, self.dtype

    def at(self, corner: Sequence[int]) -> int:
        """Return the address of the element at ``corner``; omitted last indices are 0."""
        offset = sum([index * stride for index, stride in zip(corner, self.strides, strict=False)])
        return self.address + offset * self.dtype.itemsize

    def tile(self, corner: Sequence[int], extents: Shape) -> View:
        """Return the window from ``corner`` on. It has as many axes as ``extents``: the last ones of the array."""
        return View(self.at(corner), extents, self.strides[-len(extents) :], self.dtype)

    @property
    def transposed(self) -> View:
        """The same elements with the last two axes swapped."""
        (*outer, rows, columns), (*steps, row, column) = self.extents, self.strides
        return View(self.address, (*outer, columns, rows), (*steps, column, row), self.dtype)

    def load(self, tl: TLContext) -> Handle:
        """Load all elements."""
        extents = self._distinct
        shape, strides = _merge_strided(extents, self._byte_strides, self.dtype.itemsize)
        values = tl.load(self.address, shape, self.dtype, strides=strides)
        return values if shape == extents else tl.reshape(values, extents)

    def store(self, values: Handle, tl: TLContext) -> None:
        """Store ``values``, which have the extents of the view, rounded to its dtype."""
        rounded = tl.cast(values, self.dtype)
        shape, strides = _merge_strided(self.extents, self._byte_strides, self.dtype.itemsize)
        tl.store(self.address, rounded if shape == self.extents else tl.reshape(rounded, shape), strides=strides)

    def ref(self, tl: TLContext) -> Ref:
        """Return a reference to all elements, for a composite."""
        return tl.ref(self.address, self._distinct, self.dtype, strides=self._byte_strides)

    @property
    def _distinct(self) -> Shape:
        return tuple([extent if stride else 1 for extent, stride in zip(self.extents, self.strides, strict=True)])

    @property
    def _byte_strides(self) -> Shape:
        return tuple([(stride or 1) * self.dtype.itemsize for stride in self.strides])


def _merge_strided(extents: Shape, strides: Shape, itemsize: int) -> tuple[Shape, Shape]:
    """Return the extents and byte strides of an array, with axes that continue each other as one.

    The DMA needs an access for each index of the outer axes, so a merged axis has fewer. It joins contiguous elements
    itself, so an array whose rows are contiguous stays as it is.
    """
    if not strides or strides[-1] == itemsize:
        return extents, strides
    axes = [(n, stride) for n, stride in zip(extents, strides, strict=True) if n > 1]
    merged: list[tuple[int, int]] = []
    for n, stride in axes:
        outer = merged.pop()[0] if merged and merged[-1][1] == n * stride else 1
        merged.append((outer * n, stride))
    if len(merged) == len(axes):
        return extents, strides
    return tuple([n for n, _ in merged]), tuple([stride for _, stride in merged])
