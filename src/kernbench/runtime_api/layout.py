"""The place of a tensor in memory: its shards, and the part of the tensor in each shard.

A layout may have another shape over the same shards. Several tensors of one layout may form one range of virtual
addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import TypeAlias

import numpy as np

from kernbench.common.dtypes import Array, DType, Shape, row_major
from kernbench.common.ids import pe_name
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import HostMsg, MappedShard, MmuMapMsg, MmuUnmapMsg, PeCoord, TensorArg, TensorMapping
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.policy.placement.deploy import Deployment
from kernbench.policy.placement.dp import DPPolicy, PlacementError
from kernbench.policy.placement.geometry import Index, Window
from kernbench.policy.placement.views import ShardView, WindowPiece, first_copies, pieces

TensorKey: TypeAlias = tuple[int, int]
"""The key of a tensor in memory: its SIP and its first virtual address."""


@value
class ShardStretch:
    """``nbytes`` of one shard from ``pa`` on, and the piece of the tensor stored there."""

    pa: int
    nbytes: int
    piece: WindowPiece

    @property
    def pe(self) -> PeCoord:
        """The PE that owns the shard."""
        spec = self.piece.view.spec
        return spec.sip, spec.cube, spec.pe

    def elements(self, held: Array) -> Array:
        """Return the elements of the piece as a strided view of ``held``.

        ``held`` begins with the first element of the piece, and also contains the elements of the shard in between.
        """
        strides = row_major(self.piece.view.shape, held.itemsize)
        return np.ndarray(self.piece.source.shape, held.dtype, held, 0, strides)


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorLayout:
    """A tensor in the memory of one SIP. ``views`` and the deployment's shards are in the same order.

    ``made_as``: the shape that the policy ``dp`` splits, if that shape is not ``shape``.
    """

    shape: tuple[int, ...]
    dtype: DType
    dp: DPPolicy
    sip: int
    va: int
    deployment: Deployment
    views: tuple[ShardView, ...] = field(repr=False)
    made_as: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """The name in reports."""
        return self.deployment.name

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, replicas not counted."""
        return self.deployment.nbytes

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def key(self) -> TensorKey:
        """The key that identifies the tensor during its lifetime."""
        return self.sip, self.va

    @property
    def argument(self) -> TensorArg:
        """The tensor as an argument of a kernel."""
        return TensorArg(name=self.name, va=self.va, shape=self.shape, dtype=self.dtype, owners=self.owners)

    @property
    def whole(self) -> Window:
        """The window that contains all elements."""
        return Window.whole(self.shape)

    @property
    def shards(self) -> tuple[MappedShard, ...]:
        """The shards, replicas included, in (cube, pe) order."""
        return self.deployment.shards

    @property
    def parts(self) -> Iterator[tuple[ShardView, MappedShard]]:
        """The shards, each with its view and its place."""
        return zip(self.views, self.shards, strict=True)

    @cached_property
    def owners(self) -> tuple[PeCoord, ...]:
        """The PEs that own a shard, in order."""
        return tuple(sorted({(shard.sip, shard.cube, shard.pe) for shard in self.shards}))

    @cached_property
    def _pa_by_view(self) -> dict[ShardView, int]:
        return {view: shard.pa for view, shard in self.parts}

    def pa_of(self, view: ShardView) -> int:
        """Return the first address of a shard, as an encoded physical address."""
        return self._pa_by_view[view]

    @cached_property
    def _first_views(self) -> tuple[ShardView, ...]:
        return first_copies(self.views)

    @cached_property
    def _later_views(self) -> frozenset[ShardView]:
        return frozenset(self.views).difference(self._first_views)

    @cached_property
    def is_row_major(self) -> bool:
        """True when every shard has consecutive elements of the tensor, at their offset in its virtual range."""
        return all(self._is_in_order(view) for view in self.views)

    def _is_in_order(self, view: ShardView) -> bool:
        """Return True when the shard's elements are consecutive in the tensor and at the matching offset."""
        axis = next((at for at, extent in enumerate(view.shape) if extent > 1), len(view.shape))
        rest_is_whole = view.shape[axis + 1 :] == self.shape[axis + 1 :]
        return rest_is_whole and first_element(view.window, self.shape) * self.dtype.itemsize == view.spec.offset_bytes

    @property
    def has_copies(self) -> bool:
        """True when elements are stored in more than one place."""
        return bool(self._later_views)

    def is_first(self, stretch: ShardStretch) -> bool:
        """Return True when a stretch belongs to the first replica of its shard."""
        return stretch.piece.view not in self._later_views

    def first_stretches(self, window: Window) -> list[ShardStretch]:
        """Return the stretches that contain each element of ``window`` once, in the first replica."""
        return [self._make_stretch(piece) for piece in pieces(self._first_views, window)]

    def all_stretches(self, window: Window) -> list[ShardStretch]:
        """Return the stretches that contain the elements of ``window`` in all replicas, in the order of their PEs."""
        return [self._make_stretch(piece) for piece in pieces(self.views, window)]

    def stretches_of(self, index: Index) -> list[ShardStretch]:
        """Return the stretches that contain one element, in all replicas; the first replica comes first."""
        return self.all_stretches(Window(tuple((at, at + 1) for at in index)))

    def place_of(self, index: Index, fmt: AddressFormat, pe: PeCoord | None = None) -> str:
        """Return PE and address of one element as text: in its first replica, or in the replica on ``pe``."""
        stretch = next(stretch for stretch in self.stretches_of(index) if pe in (None, stretch.pe))
        return f"{pe_name(stretch.pe)}, {PhysAddr.decode(stretch.pa, fmt)!r}"

    def _make_stretch(self, piece: WindowPiece) -> ShardStretch:
        offset, nbytes = piece.span(self.dtype.itemsize)
        return ShardStretch(self.pa_of(piece.view) + offset, nbytes, piece)


def first_element(window: Window, shape: Shape) -> int:
    """Return the flat index of a window's first element in a tensor of ``shape``."""
    number = 0
    for (start, _), extent in zip(window.bounds, shape, strict=True):
        number = number * extent + start
    return number


def shard_table(layout: TensorLayout) -> tuple[int, ...]:
    """Return ``(cube, pe, offset_bytes, n_elem)`` of every shard, replicas included, as one flat tuple for a kernel."""
    size = layout.dtype.itemsize
    return tuple(number for s in layout.shards for number in (s.cube, s.pe, s.offset_bytes, s.nbytes // size))


KINDS = ("row_wise", "column_wise", "replicate")
ViewsOf: TypeAlias = Callable[[DPPolicy], tuple[ShardView, ...]]
Elements: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""Ordered elements of a tensor: the flat index of the first, then (count, distance) of each run, innermost first."""


def reshape_layout(layout: TensorLayout, shape: Shape, place: ViewsOf) -> TensorLayout | None:
    """Return the layout of the same elements, in the same order, under ``shape``; None if a shard is no box in it.

    If a policy for ``shape`` places every element where it is now, the result has that policy. Otherwise the result
    retains ``dp`` and the shape that ``dp`` splits. ``place`` returns the shards that result from a policy for a tensor
    of ``shape``.
    """
    held = [_list_elements(view.window, layout.shape) for view in layout.views]
    windows = [_find_window(elements, shape) for elements in held]
    views = tuple(ShardView(view.spec, new) for view, new in zip(layout.views, windows, strict=True) if new is not None)
    if len(views) < len(windows):
        return None
    fitting = (policy for policy in _list_policies(layout.dp) if _try_policy(place, policy) == views)
    policy = next(fitting, None)
    if policy is None:
        return replace(layout, shape=shape, views=views, made_as=layout.made_as or layout.shape)
    return replace(layout, shape=shape, views=views, dp=policy, made_as=None)


def _list_policies(policy: DPPolicy) -> Iterator[DPPolicy]:
    """Yield the policies over the same cubes and PEs, beginning with ``policy``."""
    yield policy
    for cube, pe in product(KINDS, KINDS):
        yield replace(policy, cube=cube, pe=pe)


def _try_policy(place: ViewsOf, policy: DPPolicy) -> tuple[ShardView, ...]:
    try:
        return place(policy)
    except PlacementError:
        return ()


def _list_elements(window: Window, shape: Shape) -> Elements:
    """Return the elements of a window in order.

    Axes that form one run are merged, so that the result does not depend on the shape.
    """
    first, step = 0, 1
    runs: list[tuple[int, int]] = []
    for (start, stop), extent in zip(reversed(window.bounds), reversed(shape), strict=True):
        first += start * step
        count = stop - start
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * count, runs[-1][1])
        elif count > 1:
            runs.append((count, step))
        step *= extent
    return first, tuple(runs)


def _find_window(elements: Elements, shape: Shape) -> Window | None:
    """Return the window of a tensor of ``shape`` that contains these elements; None if they are no box."""
    first, runs = elements
    counts = [1] * len(shape)
    axis, stride = len(shape) - 1, 1
    for run, step in runs:
        count = run
        while axis >= 0 and (stride < step or shape[axis] == 1):
            stride *= shape[axis]
            axis -= 1
        while axis >= 0 and count > 1:
            counts[axis] = min(count, shape[axis])
            count = -(-count // counts[axis])
            stride *= shape[axis]
            axis -= 1
    corner = [int(at) for at in np.unravel_index(first, shape)]
    window = Window(tuple((at, at + count) for at, count in zip(corner, counts, strict=True)))
    inside = all(stop <= extent for (_, stop), extent in zip(window.bounds, shape, strict=True))
    return window if inside and _list_elements(window, shape) == elements else None


@value
class _Joined:
    va: int
    nbytes: int
    sip: int
    name: str
    pes: tuple[PeCoord, ...]


class JoinedRanges:
    """The lists of joined tensors; a list is dropped when one of its tensors is freed."""

    __slots__ = ("_engine", "_joined")

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._joined: dict[tuple[TensorKey, ...], _Joined] = {}

    def join(self, layouts: Sequence[TensorLayout]) -> tuple[int, list[HostMsg]]:
        """Return the first address of a range in which the tensors follow each other, and the messages that map it.

        There are no messages if the tensors are joined already.
        """
        keys = tuple(layout.key for layout in layouts)
        if keys in self._joined:
            return self._joined[keys].va, []
        first = layouts[0]
        nbytes = first.nbytes * len(layouts)
        va = self._engine.va_allocator(first.sip).alloc(nbytes)
        name = f"[{', '.join(layout.name for layout in layouts)}]"
        pes = tuple(sorted({pe for layout in layouts for pe in layout.owners}))
        self._joined[keys] = _Joined(va, nbytes, first.sip, name, pes)
        shards = tuple(
            replace(shard, offset_bytes=shard.offset_bytes + at * first.nbytes)
            for at, layout in enumerate(layouts)
            for shard in layout.shards
        )
        mapping = TensorMapping(name=name, va_base=va, nbytes=nbytes, shards=shards)
        return va, [MmuMapMsg(name=name, sip=first.sip, mapping=mapping, target_pe=pes)]

    def unmappings(self, layouts: Sequence[TensorLayout]) -> Iterator[HostMsg]:
        """Yield the messages that unmap every list with one of these tensors."""
        for _, joined in self._find_joined(layouts):
            yield MmuUnmapMsg(name=joined.name, sip=joined.sip, va_base=joined.va, target_pe=joined.pes)

    def forget(self, layouts: Sequence[TensorLayout]) -> None:
        """Forget freed tensors, and every list with one of them."""
        for keys, joined in self._find_joined(layouts):
            del self._joined[keys]
            self._engine.va_allocator(joined.sip).free(joined.va, joined.nbytes)

    def _find_joined(self, layouts: Sequence[TensorLayout]) -> list[tuple[tuple[TensorKey, ...], _Joined]]:
        gone = {layout.key for layout in layouts}
        return [(keys, joined) for keys, joined in self._joined.items() if gone.intersection(keys)]
