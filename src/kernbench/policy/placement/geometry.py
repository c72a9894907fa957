"""Windows: boxes of indices in a tensor, with functions that cut a window into parts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeAlias

from kernbench.common.errors import InputError
from kernbench.common.values import value

Index: TypeAlias = tuple[int, ...]


class PlacementError(InputError, ValueError):
    """A tensor that cannot be placed as requested: an invalid policy, no axis to split, or too few PEs."""


@value
class Window:
    """A box of indices: ``start .. stop`` of every axis. A tensor without axes has a single window without bounds."""

    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Window:
        """Return the window of a complete tensor of ``shape``."""
        return cls(tuple((0, extent) for extent in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return tuple(stop - start for start, stop in self.bounds)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def index(self) -> tuple[slice, ...]:
        """The index that selects the window from an array of the tensor's shape."""
        return tuple(slice(start, stop) for start, stop in self.bounds)

    def along(self, axis: int, start: int, stop: int) -> Window:
        """Return the window with bounds ``start .. stop`` on ``axis``."""
        return Window((*self.bounds[:axis], (start, stop), *self.bounds[axis + 1 :]))

    def meet(self, other: Window) -> Window | None:
        """Return the window of the elements in both windows, or None if they share no element."""
        both: list[tuple[int, int]] = []
        for (a, b), (c, d) in zip(self.bounds, other.bounds, strict=True):
            start, stop = a if a > c else c, b if b < d else d
            if start >= stop:  # true for most pairs of shards
                return None
            both.append((start, stop))
        return Window(tuple(both))

    def within(self, outer: Window) -> Window:
        """Return the window with indices counted from the first corner of ``outer``."""
        moved = ((a - c, b - c) for (a, b), (c, _) in zip(self.bounds, outer.bounds, strict=True))
        return Window(tuple(moved))

    def inward(self, index: Index) -> Index:
        """Convert an index of the tensor to an index counted from this window's first corner."""
        return tuple(at - start for at, (start, _) in zip(index, self.bounds, strict=True))

    def outward(self, index: Index) -> Index:
        """Convert an index counted from this window's first corner to an index of the tensor."""
        return tuple(at + start for at, (start, _) in zip(index, self.bounds, strict=True))


def even_parts(start: int, stop: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of ``parts`` adjacent parts; the first ``remainder`` parts have one more element."""
    length, more = divmod(stop - start, parts)
    for part in range(parts):
        end = start + length + (part < more)
        yield start, end
        start = end


def split_window(window: Window, axis: int, parts: int) -> list[Window]:
    """Cut a window into ``parts`` along ``axis`` (0 or -1); the last parts are empty if the axis is too short.

    Raises PlacementError for a tensor without axes.
    """
    rank = len(window.bounds)
    if rank == 0:
        raise PlacementError(f"a tensor without axes cannot be split into {parts} parts; replicate it")
    at = axis % rank
    return [window.along(at, *bounds) for bounds in even_parts(*window.bounds[at], parts)]


def tiles(shape: tuple[int, ...], tile_m: int, tile_k: int, *, column_major: bool) -> list[Window]:
    """Return the ``tile_m`` x ``tile_k`` tiles of a matrix, row-major or column-major; tiles at the edge are partial.

    Raises PlacementError for anything but a matrix and for tiles without elements.
    """
    if len(shape) != 2:
        raise PlacementError(f"tiles need a matrix, not shape {shape}")
    if tile_m < 1 or tile_k < 1:
        raise PlacementError(f"tile_m={tile_m}, tile_k={tile_k}: a tile has at least 1 row and 1 column")
    rows, columns = _steps(shape[0], tile_m), _steps(shape[1], tile_k)
    if column_major:
        return [Window((row, column)) for column in columns for row in rows]
    return [Window((row, column)) for row in rows for column in columns]


def _steps(extent: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, extent)) for start in range(0, extent, step)]
