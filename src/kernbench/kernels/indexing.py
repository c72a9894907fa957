"""Gathers and scatters: the DMA moves runs of elements whose addresses a program computes from indices.

Indices are in memory or arguments of a kernel. A program loads its share of the indices in memory, and waits for them.
It then passes the addresses of the runs to the DMA as scatter-gather lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from kernbench.common.dtypes import I32, I64, Array, DType, DTypeLike, Shape
from kernbench.common.dtypes import dtype as element_type
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.tiling import most_runs
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle, Number
from kernbench.triton_emu.tl_context import Runs, TLContext

RunChange: TypeAlias = Literal["set", "add", "max", "min"]
"""A change of memory by a scatter: a store, or an atomic update."""
IndexValues: TypeAlias = Callable[[int, int], Array]
"""A function of a first element and a number of elements that returns their values, for a run without data"""
NOT_HERE = -1
"""Row number that stands for a row of zeros."""


@value
class IndexedAxis:
    """An axis with one index per run, of type ``dtype``, and the extent and the stride of the axis in elements.

    ``values``: the values of the indices in a run without data; None if a program reads them from memory.
    """

    dtype: DType
    extent: int
    stride: int
    values: IndexValues | None = None

    def load(self, ptr: int, first: int, count: int, tl: TLContext) -> Array:
        """Load ``count`` indices from index ``first`` on, wait for them, and return their values."""
        indices = View.row_major(ptr + first * self.dtype.itemsize, (count,), self.dtype).load(tl)
        if self.values is None:
            return tl.value(indices)
        tl.wait(indices)
        return self.values(first, count)


@value
class RunSelection:
    """Places of runs of ``inner`` elements in an array. The offset of a run is the sum over ``lead`` and ``axes``.

    ``operator`` is the name in messages. ``lead``: (extent, stride) of the axes that runs are numbered along in
    row-major order; the stride of an indexed axis is 0. ``wraps``: negative indices count from the end of an axis;
    otherwise they are errors.
    """

    operator: str
    dtype: DType
    runs: int
    inner: int
    axes: tuple[IndexedAxis, ...]
    lead: tuple[tuple[int, int], ...]
    wraps: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all runs."""
        return self.runs * self.inner * self.dtype.itemsize

    def layout(self, ptr: int) -> View:
        """Return the view of a row-major array of all runs."""
        return View.row_major(ptr, (self.runs, self.inner), self.dtype)

    def offsets(self, first: int, indices: Sequence[Array]) -> Array:
        """Return the offsets, in elements, of the runs from run ``first`` on. Each run has one of the ``indices``.

        Raises InputError for an index beyond its axis.
        """
        run = np.arange(first, first + len(indices[0]), dtype=np.int64)
        offsets: Array = np.zeros(len(run), np.int64)
        for extent, stride in reversed(self.lead):
            offsets += run % extent * stride
            run = run // extent
        for axis, values in zip(self.axes, indices, strict=True):
            index, extent = np.asarray(values, np.int64), axis.extent
            is_outside = (index < (-extent if self.wraps else 0)) | (index >= extent)
            if is_outside.any():
                raise InputError(f"{self.operator}: index {index[is_outside][0]} is not within an axis of {extent}")
            offsets += np.where(index < 0, index + extent, index) * axis.stride
        return offsets

    def own_blocks(self, x_ptr: int, index_ptrs: Sequence[int], tl: TLContext) -> Iterator[tuple[int, Shape, Runs]]:
        """Yield this program's runs in blocks: the first run, the extents (runs, inner), and the scatter-gather list.

        ``index_ptrs`` are the addresses of the indices of each axis.
        """
        first, size = share(self.runs, tl)
        item = self.dtype.itemsize
        for run, count in blocks(size, most_runs(self.inner), first):
            indices = [axis.load(ptr, run, count, tl) for axis, ptr in zip(self.axes, index_ptrs, strict=True)]
            offsets = (self.offsets(run, indices) * item).tolist()
            yield run, (count, self.inner), [(x_ptr + offset, self.inner * item) for offset in offsets]


def gather_runs(selection: RunSelection, out_ptr: int, x_ptr: int, *index_ptrs: int, tl: TLContext) -> None:
    """Copy the selected runs of x, in order, to the row-major array out."""
    out = selection.layout(out_ptr)
    for run, extents, places in selection.own_blocks(x_ptr, index_ptrs, tl):
        out.tile((run, 0), extents).store(tl.load(places, extents, selection.dtype), tl)


def scatter_runs(
    selection: RunSelection, change: RunChange, x_ptr: int, source_ptr: int, *index_ptrs: int, tl: TLContext
) -> None:
    """Write the row-major array source to the selected runs of x, or update them atomically with it."""
    source = selection.layout(source_ptr)
    updates = {"add": tl.atomic_add, "max": tl.atomic_max, "min": tl.atomic_min}
    for run, extents, places in selection.own_blocks(x_ptr, index_ptrs, tl):
        values = source.tile((run, 0), extents).load(tl)
        if change == "set":
            tl.store(places, values)
        else:
            updates[change](places, values)


def fill_runs(selection: RunSelection, number: Number, x_ptr: int, *index_ptrs: int, tl: TLContext) -> None:
    """Write ``number`` to all elements of the selected runs of x."""
    for _, extents, places in selection.own_blocks(x_ptr, index_ptrs, tl):
        tl.store(places, tl.full(extents, number, selection.dtype))


def list_nonzero(
    shape: Shape, dtype: DType, values: IndexValues | None, out_ptr: int, x_ptr: int, *, tl: TLContext
) -> None:
    """Write the indices, of i64, of the elements of x that are not 0, in order, one row for each element.

    x has ``shape``. The program waits for the elements, unless ``values`` returns them.
    """
    flags = View.row_major(x_ptr, (prod(shape),), dtype).load(tl)
    tl.cumsum(tl.cast(flags, I32))
    elements = tl.value(flags) if values is None else values(0, prod(shape))
    indices = np.stack(np.unravel_index(np.flatnonzero(elements), shape), axis=1)
    tl.store(out_ptr, tl.constant(indices.astype(np.int64), I64))


def embedding_rows(
    w_ptr: int, y_ptr: int, rows: tuple[int, ...], columns: int, dtype: DTypeLike, block: int = 65536, *, tl: TLContext
) -> None:
    """Copy ``y[i] = w[rows[i]]``, or zeros for ``NOT_HERE``. w and y are row-major, ``columns`` wide.

    The rows of y are split over programs. At most ``block`` elements are copied at a time.
    """
    item = element_type(dtype)
    w, y = (View.row_major(ptr, (len(rows), columns), item) for ptr in (w_ptr, y_ptr))
    first, size = share(len(rows), tl)
    for at in range(first, first + size):
        for column, count in blocks(columns, block):
            is_zero = rows[at] == NOT_HERE
            values = tl.zeros(count, item) if is_zero else w.tile((rows[at], column), (count,)).load(tl)
            y.tile((at, column), (count,)).store(values, tl)


def embedding_one_hot(
    ids_ptr: int,
    w_ptr: int,
    y_ptr: int,
    m: int,
    first_id: int,
    rows: int,
    columns: int,
    dtype: DTypeLike,
    block_m: int = 128,
    block_k: int = 512,
    *,
    tl: TLContext,
) -> None:
    """Compute ``y[i] = w[ids[i] - first_id]``, or zeros where w has no such row; ids (m,) of i32, w (rows, columns).

    The program does not wait for the ids. It multiplies w by a one-hot matrix instead, so w must be finite. Columns are
    split over programs.
    """
    column, width = share(columns, tl)
    if not width:
        return
    item = element_type(dtype)
    w, y = View.row_major(w_ptr, (rows, columns), item), View.row_major(y_ptr, (m, columns), item)
    for at, count in blocks(m, block_m):
        ids = View.row_major(ids_ptr, (m, 1), I32).tile((at, 0), (count, 1)).load(tl)
        total: Handle | None = None
        for row, depth in blocks(rows, block_k):
            hot = tl.cast(tl.iota((1, depth), I32) + (first_id + row) == ids, item)
            table = w.tile((row, column), (depth, width)).load(tl)
            total = tl.dot(hot, table, total, out_dtype="f32")
        assert total is not None, "a table has rows"
        y.tile((at, column), (count, width)).store(total, tl)
