"""Descriptors of a DMA engine, derived from the pointers and the mask of a ``tl.load`` or ``tl.store``."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np

from kernbench.common.dtypes import Array, Shape
from kernbench.common.values import value


@value
class StridedBox:
    """A strided box: element ``i`` of ``shape`` is at ``base + i · strides`` bytes.

    ``valid``: extents of the accessed part, per axis from the first element; None: all elements are accessed.
    """

    base: int
    shape: Shape
    strides: Shape
    valid: Shape | None = None

    def extent(self, itemsize: int) -> tuple[int, int]:
        """Return the lowest address, and the address behind the highest element."""
        steps = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        last = self.base + sum(step for step in steps if step > 0) + itemsize
        return self.base + sum(step for step in steps if step < 0), last

    def shift(self, by: int) -> StridedBox:
        """Return the box at addresses that are ``by`` bytes higher."""
        return StridedBox(self.base + by, self.shape, self.strides, self.valid)


@value
class List:
    """A scatter-gather list: (address, bytes) of each contiguous run of the elements of ``shape``, in row-major order.

    An address of None marks a run of masked-out elements.
    """

    shape: Shape
    runs: tuple[tuple[int | None, int], ...]

    def extent(self, itemsize: int) -> tuple[int, int]:
        """Return the lowest address, and the address behind the highest element."""
        spans = [(at, at + n) for at, n in self.runs if at is not None]
        return min(at for at, _ in spans), max(end for _, end in spans)

    def shift(self, by: int) -> List:
        """Return the list at addresses that are ``by`` bytes higher."""
        return List(self.shape, tuple([(None if at is None else at + by, n) for at, n in self.runs]))


ElementDescriptor: TypeAlias = StridedBox | List


def drop_repeats(data: Array) -> Array:
    """Return ``data`` without its repetitions: an axis of stride 0 gets length 1."""
    strides = data.strides
    return data[_first_of_repeated(strides)] if 0 in strides else data


@lru_cache(maxsize=256)
def _first_of_repeated(strides: Shape) -> tuple[slice, ...]:
    return tuple([slice(1) if step == 0 else slice(None) for step in strides])


def broadcast(data: Array, shape: Shape) -> Array:
    """Return a view of ``data`` broadcast to ``shape``; `drop_repeats` reverts it."""
    if data.shape == shape:
        return data
    if data.dtype.isbuiltin != 1 or not data.flags.c_contiguous:
        return np.broadcast_to(data, shape)
    strides = _repeat_strides(data.shape, data.strides, len(shape))
    return np.ndarray(shape, data.dtype, data, 0, strides)  # a tenth of the CPU time of broadcast_to


@lru_cache(maxsize=256)
def _repeat_strides(shape: Shape, strides: Shape, axes: int) -> Shape:
    """Return strides for ``axes`` axes. The array repeats along missing axes and along its axes of length 1."""
    repeating = [0 if n == 1 else step for n, step in zip(shape, strides, strict=True)]
    return tuple([0] * (axes - len(shape)) + repeating)


def add_offsets(steps: Array, more: Array) -> Array:
    """Return the sum of offsets, in elements. Like Triton's pointers, the sum has 64 bits for inputs of any width."""
    return steps.astype(np.int64) + more.astype(np.int64)


def in_bytes(steps: Array, itemsize: int) -> Array:
    """Convert offsets from elements of ``itemsize`` bytes to bytes. The result has 64 bits, for tensors over 2 GiB."""
    return steps.astype(np.int64) * itemsize


def describe(pointers: Array, mask: Array | None, itemsize: int, *, writing: bool) -> ElementDescriptor | None:
    """Return the descriptor of the elements at ``pointers`` where ``mask`` is true; None if there are no such elements.

    ``pointers`` are byte addresses. ``mask`` broadcasts to their shape; None selects all elements. An axis of a load
    along which all elements have the same address gets length 1: the element is read once and repeated. A store whose
    elements overlap gets a list in the order of the elements instead of a box, so the last write wins.
    """
    at = pointers.view(np.int64) if pointers.dtype == np.uint64 else pointers.astype(np.int64)
    if mask is not None:
        core = drop_repeats(mask)
        chosen = np.count_nonzero(core)  # much faster than any() and all()
        if not chosen:
            return None
        mask = None if chosen == core.size else broadcast(mask, at.shape)
    if not writing:
        at, mask = _without_repeats(at, mask)
    valid = at.shape if mask is None else _corner(mask)
    box = None if valid is None else _box(at, valid, itemsize, writing=writing)
    return box or List(at.shape, _runs(at, mask, itemsize))


def _without_repeats(at: Array, mask: Array | None) -> tuple[Array, Array | None]:
    """Shorten each axis along which neither addresses nor mask change to its first element."""
    for axis, n in enumerate(at.shape):
        if n == 1 or at[_second(axis, at.ndim)] != at.flat[0]:
            continue
        head = tuple([slice(1) if i == axis else slice(None) for i in range(at.ndim)])
        if (at == at[head]).all() and (mask is None or (mask == mask[head]).all()):
            at, mask = at[head], None if mask is None else mask[head]
    return at, mask


def _corner(mask: Array) -> Shape | None:
    """Return the extents of the block at the first element that ``mask`` selects; None if it selects no such block."""
    core = drop_repeats(mask)
    extents = _corner_of(core.tobytes(), core.shape)
    if extents is None or core is mask:
        return extents
    return tuple([n if few == 1 else used for n, few, used in zip(mask.shape, core.shape, extents, strict=True)])


@lru_cache(maxsize=128)
def _corner_of(elements: bytes, shape: Shape) -> Shape | None:
    """Return `_corner` of the mask with these bytes. Results are cached, as programs of a grid share few masks."""
    mask = np.frombuffer(elements, bool).reshape(shape)
    axes = range(mask.ndim)
    extents = tuple([int(mask.any(tuple(j for j in axes if j != i)).sum()) for i in axes])
    corner = mask[tuple([slice(n) for n in extents])]
    return extents if corner.all() and prod(extents) == np.count_nonzero(mask) else None


def _box(at: Array, valid: Shape, itemsize: int, *, writing: bool) -> StridedBox | None:
    """Return the box of the first ``valid`` elements along each axis; None if their addresses form no box.

    Strides are taken from the first two elements of each axis. Every address is then compared with the box.
    """
    region = at[tuple([slice(n) for n in valid])]
    base = int(region.flat[0])
    # None: the axis has one element, so its stride does not matter
    strides = [int(region[_second(axis, at.ndim)]) - base if n > 1 else None for axis, n in enumerate(valid)]
    if any(step is not None and step < 0 for step in strides):
        return None
    if np.count_nonzero(region - base != _lattice(valid, tuple(strides))):
        return None
    if writing and _overlaps(strides, valid, itemsize):
        return None
    dense = [itemsize * prod(at.shape[axis + 1 :]) for axis in range(at.ndim)]
    steps = tuple([row if step is None else step for row, step in zip(dense, strides, strict=True)])
    return StridedBox(base, at.shape, steps, None if valid == at.shape else valid)


@lru_cache(maxsize=32)
def _lattice(extents: Shape, strides: tuple[int | None, ...]) -> Array:
    """Return the offset of each element of a box from its first element."""
    at: Array = np.zeros((), np.int64)
    for axis, (n, step) in enumerate(zip(extents, strides, strict=True)):
        if step is not None:
            at = at + (np.arange(n) * step).reshape([n if i == axis else 1 for i in range(len(extents))])
    return at


def _second(axis: int, axes: int) -> Shape:
    """Return the index of the second element along ``axis``."""
    return tuple([int(i == axis) for i in range(axes)])


def _overlaps(strides: list[int | None], extents: Shape, itemsize: int) -> bool:
    """Return whether elements of a box may share bytes: the step of an axis is below the span of the finer axes."""
    covered = itemsize
    for step, n in sorted((step, n) for step, n in zip(strides, extents, strict=True) if step is not None):
        if step < covered:
            return True
        covered = step * (n - 1) + covered
    return False


def _runs(at: Array, mask: Array | None, itemsize: int) -> tuple[tuple[int | None, int], ...]:
    flat = at.reshape(-1)
    cut = np.diff(flat) != itemsize
    chosen = np.ones(flat.size, bool) if mask is None else mask.reshape(-1)
    # The addresses of neighbours that are both masked out do not matter.
    cut = np.where(chosen[1:] & chosen[:-1], cut, chosen[1:] != chosen[:-1])
    first = np.concatenate(([0], np.flatnonzero(cut) + 1))
    sizes = (np.diff(np.concatenate((first, [flat.size]))) * itemsize).tolist()
    starts = [a if c else None for a, c in zip(flat[first].tolist(), chosen[first].tolist(), strict=True)]
    return tuple(zip(starts, sizes, strict=True))
