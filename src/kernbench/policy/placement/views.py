"""The geometry between a tensor and its shards: taking arrays apart, putting them together, finding who holds an index.

A shard holds its window row-major on its own; its bytes are those of ``array[view.index]`` made contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernbench.policy.placement.dp import DPPolicy, PlacementError, ShardSpec, placed_windows
from kernbench.policy.placement.geometry import Window

Array = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard and the window of the tensor that it holds."""

    spec: ShardSpec
    window: Window

    @property
    def index(self) -> tuple[slice, ...]:
        """What selects the shard's elements from the tensor."""
        return self.window.index

    @property
    def shape(self) -> tuple[int, ...]:
        """The shard's own shape."""
        return self.window.shape


@dataclass(frozen=True, slots=True)
class Piece:
    """What one shard has of a window: ``source`` counts from the shard's corner, ``target`` from the window's."""

    view: ShardView
    source: Window
    target: Window

    def span(self, itemsize: int) -> tuple[int, int]:
        """Offset in the shard and length, in bytes, of the shortest stretch that holds the piece."""
        first = last = 0
        for extent, (start, stop) in zip(self.view.shape, self.source.bounds, strict=True):
            first, last = first * extent + start, last * extent + stop - 1
        return first * itemsize, (last - first + 1) * itemsize


def shard_views(
    policy: DPPolicy, *, shape: tuple[int, ...], itemsize: int, num_pe: int, num_cubes: int = 1, target_sip: int
) -> tuple[ShardView, ...]:
    """``resolve_dp_policy`` with each shard's window; the same order, the same errors."""
    placed = placed_windows(
        policy, shape=shape, itemsize=itemsize, num_pe=num_pe, num_cubes=num_cubes, target_sip=target_sip
    )
    return tuple(ShardView(spec, window) for spec, window in placed)


def first_copies(views: Iterable[ShardView]) -> tuple[ShardView, ...]:
    """Of each part the first copy: together they hold every element once."""
    first: dict[int, ShardView] = {}
    for view in views:
        first.setdefault(view.spec.offset_bytes, view)
    return tuple(first.values())


def split(array: Array, views: Iterable[ShardView]) -> list[Array]:
    """The contiguous array that each shard holds of ``array``, in the order of ``views``."""
    return [np.array(array[view.index], order="C", copy=True) for view in views]


def assemble(
    shape: tuple[int, ...], dtype: npt.DTypeLike, views: Sequence[ShardView], arrays: Sequence[Array]
) -> Array:
    """The tensor of ``shape`` whose shards ``views`` hold ``arrays`` (any shape with the right count of elements).

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


def pieces(views: Iterable[ShardView], window: Window) -> tuple[Piece, ...]:
    """What each shard has of ``window``; shards that have nothing are left out, copies are not."""
    found = ((view, view.window.meet(window)) for view in views)
    return tuple(Piece(view, both.within(view.window), both.within(window)) for view, both in found if both)
