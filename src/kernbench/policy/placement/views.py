"""The geometry between a tensor and its shards, and NumPy indices on a tensor in shards.

The file splits arrays into shards and assembles them, and finds the shards of a window. For a NumPy index it returns
the window to fetch and the index that remains on it. A shard stores its window row-major: its bytes are those of
``array[view.index]``, made contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index as as_integer
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from kernbench.common.dtypes import Array
from kernbench.common.values import value
from kernbench.policy.placement.dp import DPPolicy, PlacementError, ShardSpec, place_windows
from kernbench.policy.placement.geometry import Window


@value
class ShardView:
    """A shard and its window of the tensor."""

    spec: ShardSpec
    window: Window

    @property
    def index(self) -> tuple[slice, ...]:
        """The index that selects the shard's elements from the tensor."""
        return self.window.index

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the shard."""
        return self.window.shape


@value
class WindowPiece:
    """The part of a window in one shard: ``source`` counts from the shard's corner, ``target`` from the window's."""

    view: ShardView
    source: Window
    target: Window

    def span(self, itemsize: int) -> tuple[int, int]:
        """Return the offset in the shard and the length, in bytes, of the shortest byte range that holds the piece."""
        first = last = 0
        for extent, (start, stop) in zip(self.view.shape, self.source.bounds, strict=True):
            first, last = first * extent + start, last * extent + stop - 1
        return first * itemsize, (last - first + 1) * itemsize


def shard_views(
    policy: DPPolicy, *, shape: tuple[int, ...], itemsize: int, num_pe: int, num_cubes: int = 1, target_sip: int
) -> tuple[ShardView, ...]:
    """Return the shards as ``resolve_dp_policy`` does, with windows, in the same order and with the same errors."""
    placed = place_windows(
        policy, shape=shape, itemsize=itemsize, num_pe=num_pe, num_cubes=num_cubes, target_sip=target_sip
    )
    return tuple(ShardView(spec, window) for spec, window in placed)


def first_copies(views: Iterable[ShardView]) -> tuple[ShardView, ...]:
    """Return the first replica of each part; together these shards contain every element once."""
    first: dict[int, ShardView] = {}
    for view in views:
        first.setdefault(view.spec.offset_bytes, view)
    return tuple(first.values())


def split_array(array: Array, views: Iterable[ShardView]) -> list[Array]:
    """Return the part of ``array`` for each shard as a contiguous array, in the order of ``views``."""
    return [np.array(array[view.index], order="C", copy=True) for view in views]


def assemble(
    shape: tuple[int, ...], dtype: npt.DTypeLike, views: Sequence[ShardView], arrays: Sequence[Array]
) -> Array:
    """Return the tensor of ``shape`` whose shards ``views`` contain ``arrays``.

    Each array has the size of its shard, in any shape. ``views`` are all shards, or only the first
    replicas. Among replicas, the first one is used. Raises PlacementError if the shards do not contain every element.
    """
    tensor = np.empty(shape, dtype)
    parts = first_copies(views)
    covered = sum(view.window.size for view in parts)
    if covered != tensor.size:
        raise PlacementError(f"the shards hold {covered} elements, a tensor of shape {tuple(shape)} has {tensor.size}")
    # Reversed, so the first of several replicas is written last.
    for view, array in zip(reversed(views), reversed(arrays), strict=True):
        tensor[view.index] = array.reshape(view.shape)
    return tensor


def pieces(views: Iterable[ShardView], window: Window) -> tuple[WindowPiece, ...]:
    """Return the pieces of ``window`` in all shards that overlap with it, replicas included."""
    overlaps = []
    for view in views:
        both = view.window.meet(window)
        if both is not None:
            overlaps.append(WindowPiece(view, both.within(view.window), both.within(window)))
    return tuple(overlaps)


AxisBounds = tuple[int, int]


@value
class Selection:
    """The window to fetch for an index: ``tensor[index]`` is ``fetched[rest]``, where ``fetched`` is that window.

    ``dense``: the index selects every element of the window once, so a store need not fetch the window first.
    """

    window: Window
    rest: tuple[Any, ...]
    dense: bool


def select(index: Any, shape: tuple[int, ...]) -> Selection:
    """Return the smallest window with all of ``tensor[index]`` for a tensor of ``shape``, and the remaining index.

    Integers, slices with any step, ``...`` and None narrow the window. Arrays and lists of indices select the window of
    the complete tensor. Raises IndexError as NumPy does, also for an integer out of range.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not all(_is_basic(part) for part in parts):
        return Selection(Window.whole(shape), parts, dense=False)
    _raise_as_numpy(parts, shape)
    return _basic(_without_ellipsis(parts, len(shape)), shape)


def _basic(parts: tuple[Any, ...], shape: tuple[int, ...]) -> Selection:
    bounds: list[AxisBounds] = []
    remaining_index: list[Any] = []
    for part in parts:
        if part is None:
            remaining_index.append(None)
            continue
        extent = shape[len(bounds)]
        bound, remaining = _slice(part, extent) if isinstance(part, slice) else _pick(part, extent)
        bounds.append(bound)
        remaining_index.append(remaining)
    dense = all(not isinstance(part, slice) or part.step in {1, -1} for part in remaining_index)
    return Selection(Window(tuple(bounds)), tuple(remaining_index), dense)


def _is_basic(part: object) -> bool:
    if isinstance(part, bool | np.bool_):
        return False
    # NumPy treats an array of one integer as an array, not as an integer.
    integer = isinstance(part, SupportsIndex) and not isinstance(part, np.ndarray)
    return integer or part is None or part is Ellipsis or isinstance(part, slice)


def _raise_as_numpy(parts: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    # NumPy checks the index on a broadcast byte, which has the shape and needs no memory.
    np.broadcast_to(np.int8(0), shape)[parts]


def _without_ellipsis(parts: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    full = (slice(None),)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    named = sum(part is not None and part is not Ellipsis for part in parts)
    return (*parts[:at], *full * (rank - named), *parts[at + 1 :])


def _pick(part: SupportsIndex, extent: int) -> tuple[AxisBounds, int]:
    at = as_integer(part) % extent
    return (at, at + 1), 0


def _slice(part: slice, extent: int) -> tuple[AxisBounds, slice]:
    chosen = range(extent)[part]
    if not chosen:
        return (0, 0), slice(0, 0, 1)
    low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
    # In the window, the first selected element is at the start, or at the end for a negative step.
    return (low, high + 1), slice(None, None, chosen.step)
