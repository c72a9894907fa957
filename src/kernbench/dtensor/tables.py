"""Which PE does what in a local operation: the tables of the kernels of ``kernbench.kernels.windows``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from kernbench.common.dtypes import row_major
from kernbench.dtensor.layouts import is_plain, is_row_major
from kernbench.kernels.shares import part
from kernbench.messages.requests import PeCoord
from kernbench.policy.placement.geometry import Window
from kernbench.policy.placement.views import first_copies
from kernbench.runtime_api.layout import TensorLayout

Table: TypeAlias = tuple[int, ...]
Move: TypeAlias = tuple[Window, Window]
"""Elements of one tensor, and where they go in another; of one shape."""


class _Held(NamedTuple):
    """A window of a tensor that lies row-major from ``offset`` bytes behind its address on."""

    window: Window
    offset: int

    def place_of(self, window: Window, itemsize: int) -> int:
        """Where a window inside of it begins."""
        at = 0
        for (start, _), (first, last) in zip(window.bounds, self.window.bounds, strict=True):
            at = at * (last - first) + start - first
        return self.offset + at * itemsize


def shard_table(layout: TensorLayout) -> Table:
    """``(cube, pe, offset in bytes, elements)`` of every shard and copy."""
    item = layout.dtype.itemsize
    return tuple(n for s in layout.shards for n in (s.cube, s.pe, s.offset_bytes, s.nbytes // item))


def copy_table(source: TensorLayout, target: TensorLayout, moves: Iterable[Move]) -> Table:
    """The lines of ``copy_windows``, every PE with its own shards and copies of the target; axes as the target's."""
    held, item = _held(source), source.dtype.itemsize
    lines: list[int] = []
    for taken, given in moves:
        shifts = [a - b for (a, _), (b, _) in zip(taken.bounds, given.bounds, strict=True)]
        for view in target.views:
            both = view.window.meet(given)
            if both is None:
                continue
            wanted, mine = _moved(both, shifts), _Held(view.window, view.spec.offset_bytes)
            for there in held:
                found = there.window.meet(wanted)
                if found is not None:
                    here = _moved(found, [-shift for shift in shifts])
                    lines += (view.spec.cube, view.spec.pe, there.place_of(found, item), mine.place_of(here, item))
                    lines += _extents(found.shape, there.window.shape, view.shape, item)
    return tuple(lines)


def gemm_table(out: TensorLayout, pes: Sequence[PeCoord], tile: tuple[int, int]) -> Table:
    """The lines of ``gemm_windows``: every PE a part of the product, or its own shards when they lie otherwise.

    ``tile``: rows and columns of an output tile. Less than one costs what one costs, so a part is one at least.
    """
    item = out.dtype.itemsize
    if not is_plain(out):
        windows = [(view.spec.cube, view.spec.pe, view.window, view.spec.offset_bytes) for view in out.views]
        return tuple(n for cube, pe, window, at in windows for n in (cube, pe, *_line(window, at, window, item)))
    whole = _Held(out.whole, 0)
    parts = _parts(out.shape, _grid(out.shape, len(pes), tile))
    placed = ((pe, window, whole.place_of(window, item)) for pe, window in zip(pes, parts, strict=False))
    return tuple(n for (_, cube, pe), window, at in placed for n in (cube, pe, *_line(window, at, out.whole, item)))


def _held(layout: TensorLayout) -> list[_Held]:
    """What a reader finds where, each element once."""
    if is_row_major(layout):
        return [_Held(layout.whole, 0)]
    return [_Held(view.window, view.spec.offset_bytes) for view in first_copies(layout.views)]


def _moved(window: Window, by: Sequence[int]) -> Window:
    return Window(tuple((a + shift, b + shift) for (a, b), shift in zip(window.bounds, by, strict=True)))


def _extents(shape: tuple[int, ...], source: tuple[int, ...], target: tuple[int, ...], itemsize: int) -> list[int]:
    """Extents and both strides of a box; what is contiguous in both is one axis, the last."""
    if not shape:
        return [1, itemsize, itemsize]
    box = list(zip(shape, row_major(source, itemsize), row_major(target, itemsize), strict=True))
    merged = [box.pop()]
    while box:
        extent, far, wide = box.pop()
        inner, near, narrow = merged[0]
        if (far, wide) == (inner * near, inner * narrow):
            merged[0] = (extent * inner, near, narrow)
        else:
            merged.insert(0, (extent, far, wide))
    merged = [(1, *merged[0][1:])] * (len(shape) - len(merged)) + merged
    return [axis[which] for which in range(3) for axis in merged]


def _line(window: Window, offset: int, rows_of: Window, itemsize: int) -> tuple[int, ...]:
    (row, last_row), (column, last_column) = window.bounds
    return row, last_row - row, column, last_column - column, offset, rows_of.shape[1] * itemsize


def _grid(shape: tuple[int, ...], pes: int, tile: tuple[int, int]) -> tuple[int, int]:
    """Into how many parts rows and columns of a product are cut: as many as there are PEs and tiles, near to square."""
    row_tiles, column_tiles = (-(-extent // size) for extent, size in zip(shape, tile, strict=True))
    grids = ((rows, min(pes // rows, column_tiles)) for rows in range(1, min(pes, row_tiles) + 1))
    return max(grids, key=lambda grid: (grid[0] * grid[1], -(grid[0] * shape[1] + grid[1] * shape[0])))


def _parts(shape: tuple[int, ...], grid: tuple[int, int]) -> Iterator[Window]:
    rows, columns = (
        [part(extent, parts, at) for at in range(parts)] for extent, parts in zip(shape, grid, strict=True)
    )
    for row, height in rows:
        for column, width in columns:
            yield Window(((row, row + height), (column, column + width)))
