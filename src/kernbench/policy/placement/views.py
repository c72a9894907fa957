"""The geometry between a tensor and its shards, and NumPy indices on a tensor that lies in shards.

Taking arrays apart and putting them together; who holds an index; the window to fetch for a NumPy index, and what is
left to do on it. A shard holds its window row-major on its own; its bytes are those of ``array[view.index]`` made
contiguous.
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
    """A shard and the window of the tensor that it holds."""

    spec: ShardSpec
    window: Window

    @property
    def index(self) -> tuple[slice, ...]:
        """The index that selects the shard's elements from the tensor."""
        return self.window.index

    @property
    def shape(self) -> tuple[int, ...]:
        """The shard's own shape."""
        return self.window.shape


@value
class WindowPiece:
    """The part of a window in one shard: ``source`` counts from the shard's corner, ``target`` from the window's."""

    view: ShardView
    source: Window
    target: Window

    def span(self, itemsize: int) -> tuple[int, int]:
        """Return offset in the shard and length, in bytes, of the shortest stretch that holds the piece."""
        first = last = 0
        for extent, (start, stop) in zip(self.view.shape, self.source.bounds, strict=True):
            first, last = first * extent + start, last * extent + stop - 1
        return first * itemsize, (last - first + 1) * itemsize


def shard_views(
    policy: DPPolicy, *, shape: tuple[int, ...], itemsize: int, num_pe: int, num_cubes: int = 1, target_sip: int
) -> tuple[ShardView, ...]:
    """Resolve a policy as ``resolve_dp_policy`` does, with each shard's window; the same order, the same errors."""
    placed = place_windows(
        policy, shape=shape, itemsize=itemsize, num_pe=num_pe, num_cubes=num_cubes, target_sip=target_sip
    )
    return tuple(ShardView(spec, window) for spec, window in placed)


def first_copies(views: Iterable[ShardView]) -> tuple[ShardView, ...]:
    """Return the first copy of each part: together they hold every element once."""
    first: dict[int, ShardView] = {}
    for view in views:
        first.setdefault(view.spec.offset_bytes, view)
    return tuple(first.values())


def split_array(array: Array, views: Iterable[ShardView]) -> list[Array]:
    """Return the contiguous array that each shard holds of ``array``, in the order of ``views``."""
    return [np.array(array[view.index], order="C", copy=True) for view in views]


def assemble(
    shape: tuple[int, ...], dtype: npt.DTypeLike, views: Sequence[ShardView], arrays: Sequence[Array]
) -> Array:
    """Assemble the tensor of ``shape`` whose shards ``views`` hold ``arrays`` (any shape of the right size).

    ``views`` may be all shards or the first copies; of several copies the first counts. PlacementError when the
    shards do not hold every element.
    """
    whole = np.empty(shape, dtype)
    parts = first_copies(views)
    held = sum(view.window.size for view in parts)
    if held != whole.size:
        raise PlacementError(f"the shards hold {held} elements, a tensor of shape {tuple(shape)} has {whole.size}")
    # Backwards, so that the first of several copies is the last to be written.
    for view, array in zip(reversed(views), reversed(arrays), strict=True):
        whole[view.index] = array.reshape(view.shape)
    return whole


def pieces(views: Iterable[ShardView], window: Window) -> tuple[WindowPiece, ...]:
    """Return the parts of ``window`` that shards hold; copies count, shards that have nothing of it do not."""
    found = []
    for view in views:
        both = view.window.meet(window)
        if both is not None:
            found.append(WindowPiece(view, both.within(view.window), both.within(window)))
    return tuple(found)


AxisBounds = tuple[int, int]


@value
class Selection:
    """``tensor[index]`` is ``fetched[rest]``, where ``fetched`` is what ``window`` holds.

    ``dense``: every element of the window is selected once, so that storing to it need not fetch first.
    """

    window: Window
    rest: tuple[Any, ...]
    dense: bool


def select(index: Any, shape: tuple[int, ...]) -> Selection:
    """Return the smallest window that holds ``tensor[index]`` of a tensor of ``shape``, and the index that remains.

    Integers, slices with any step, ``...`` and None narrow the window; arrays and lists of indices take the whole
    tensor. IndexError as NumPy raises it, also for an integer out of range.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not all(_is_basic(part) for part in parts):
        return Selection(Window.whole(shape), parts, dense=False)
    _raise_as_numpy(parts, shape)
    return _basic(_without_ellipsis(parts, len(shape)), shape)


def _basic(parts: tuple[Any, ...], shape: tuple[int, ...]) -> Selection:
    bounds: list[AxisBounds] = []
    rest: list[Any] = []
    for part in parts:
        if part is None:
            rest.append(None)
            continue
        extent = shape[len(bounds)]
        bound, remaining = _slice(part, extent) if isinstance(part, slice) else _pick(part, extent)
        bounds.append(bound)
        rest.append(remaining)
    dense = all(not isinstance(part, slice) or part.step in {1, -1} for part in rest)
    return Selection(Window(tuple(bounds)), tuple(rest), dense)


def _is_basic(part: object) -> bool:
    if isinstance(part, bool | np.bool_):
        return False
    # An array of one integer is an index that NumPy treats as an array.
    integer = isinstance(part, SupportsIndex) and not isinstance(part, np.ndarray)
    return integer or part is None or part is Ellipsis or isinstance(part, slice)


def _raise_as_numpy(parts: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    # A broadcast byte has the shape and no memory: NumPy itself judges the index.
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
    # Counted from the window's own corner the first element chosen is at its start, or at its end going down.
    return (low, high + 1), slice(None, None, chosen.step)
