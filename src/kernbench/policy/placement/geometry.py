"""Windows: boxes of indices in a tensor, and how one is cut into parts."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeAlias

from kernbench.common.errors import InputError
from kernbench.common.values import value

Index: TypeAlias = tuple[int, ...]


class PlacementError(InputError, ValueError):
    """A tensor that cannot be placed as asked: a bad policy, no axis to split, too few PEs."""


@value
class Window:
    """Indices ``start .. stop`` of every axis; a tensor without axes has one window, without bounds."""

    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Window:
        """Return the window of all of a tensor of ``shape``."""
        return cls(tuple((0, extent) for extent in shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return tuple(stop - start for start, stop in self.bounds)

    @property
    def size(self) -> int:
        """Elements in all."""
        return prod(self.shape)

    @property
    def index(self) -> tuple[slice, ...]:
        """The index that selects the window from an array of the tensor's shape."""
        return tuple(slice(start, stop) for start, stop in self.bounds)

    def along(self, axis: int, start: int, stop: int) -> Window:
        """Return the same window with other bounds on one axis."""
        return Window((*self.bounds[:axis], (start, stop), *self.bounds[axis + 1 :]))

    def meet(self, other: Window) -> Window | None:
        """Return the window of the elements in both; None when they share none."""
        both: list[tuple[int, int]] = []
        for (a, b), (c, d) in zip(self.bounds, other.bounds, strict=True):
            start, stop = a if a > c else c, b if b < d else d
            if start >= stop:  # so of most pairs of shards
                return None
            both.append((start, stop))
        return Window(tuple(both))

    def within(self, outer: Window) -> Window:
        """Return the same elements, counted from the first corner of ``outer``."""
        moved = ((a - c, b - c) for (a, b), (c, _) in zip(self.bounds, outer.bounds, strict=True))
        return Window(tuple(moved))

    def inward(self, index: Index) -> Index:
        """Convert an index of the tensor to one that counts from this window's first corner."""
        return tuple(at - start for at, (start, _) in zip(index, self.bounds, strict=True))

    def outward(self, index: Index) -> Index:
        """Convert an index that counts from this window's first corner to one of the tensor."""
        return tuple(at + start for at, (start, _) in zip(index, self.bounds, strict=True))


def even_parts(start: int, stop: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of ``parts`` neighbours; where they cannot be equal the first ``remainder`` have one more."""
    each, more = divmod(stop - start, parts)
    for part in range(parts):
        end = start + each + (part < more)
        yield start, end
        start = end


def split_window(window: Window, axis: int, parts: int) -> list[Window]:
    """Cut a window into ``parts`` along ``axis`` (0 or -1); the last ones hold nothing where it is too short."""
    rank = len(window.bounds)
    if rank == 0:
        raise PlacementError(f"a tensor without axes cannot be split into {parts} parts; replicate it")
    at = axis % rank
    return [window.along(at, *bounds) for bounds in even_parts(*window.bounds[at], parts)]


def tiles(shape: tuple[int, ...], tile_m: int, tile_k: int, *, column_major: bool) -> list[Window]:
    """Return the ``tile_m`` x ``tile_k`` tiles of a matrix, row-major or column-major; those at the edge are partial.

    PlacementError for anything but a matrix and for tiles without elements.
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
