"""Transfers of tensors: messages of the host, and copies that PEs make of their shards.

Values from the host are stored until phase 2 writes them: as a copy, or as a function that computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, TypeAlias
from weakref import ref

import numpy as np

from kernbench.common.dtypes import Array, DType, misfit, row_major
from kernbench.common.errors import InputError
from kernbench.common.late import late
from kernbench.common.values import value
from kernbench.messages.requests import HostBytes, KernelLaunchMsg, KernelRef, MemoryReadMsg, MemoryWriteMsg, PeCoord
from kernbench.numerics.memory import never_changes
from kernbench.policy.placement.geometry import Window
from kernbench.policy.placement.views import WindowPiece, pieces
from kernbench.runtime_api.arrays import as_bytes, convert, numeric
from kernbench.runtime_api.layout import ShardStretch, TensorLayout

ELEMENTWISE = "kernbench.kernels.elementwise"
"""The kernels that copy tensors of other layouts, which few runs use"""


class LaterArray:
    """An array of ``shape`` that ``make`` computes on first use; NumPy functions and ``copy_`` accept it.

    The elements are cached as long as they are referenced; a later use computes equal elements again. A run that reads
    no values never computes the elements.
    """

    __slots__ = ("_made", "_make", "shape")

    def __init__(self, shape: tuple[int, ...], make: Callable[[], Array]) -> None:
        self.shape, self._make = shape, make
        self._made: Callable[[], Array | None] = _nothing

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Compute the elements."""
        array = self._made()
        if array is None:
            array = self._make()
            assert array.shape == self.shape, f"an array of {self.shape} was made with shape {array.shape}"
            self._made = ref(array)
        return array if dtype is None else array.astype(dtype, copy=bool(copy))


def _nothing() -> None:
    """Stand in for the reference to an array that does not exist yet."""


HostSource: TypeAlias = "Array | LaterArray"


def snapshot(source: Array) -> Array:
    """Return a read-only array of the current elements, which is a copy unless no code can change ``source``.

    Elements that ``source`` repeats by broadcasting are copied once.
    """
    if never_changes(source):
        return source
    once = tuple(slice(0, 1) if step == 0 and extent else slice(None) for step, extent in _list_axes(source))
    kept = np.array(source[once])
    kept.flags.writeable = False
    return np.broadcast_to(kept, source.shape)


def _list_axes(array: Array) -> zip[tuple[int, int]]:
    return zip(array.strides, array.shape, strict=True)


class HeldValues:
    """The values of a transfer: ``source`` in ``shape`` and ``dtype``.

    Windows of the values are computed when phase 2 writes them.
    """

    __slots__ = ("_dtype", "_elements", "_held_bytes", "_shape", "_source")

    def __init__(self, source: HostSource, shape: tuple[int, ...], dtype: DType) -> None:
        self._shape, self._dtype = shape, dtype
        self._source, self._held_bytes = source, 0
        if isinstance(source, np.ndarray):
            self._source = kept = snapshot(source)
            self._held_bytes = prod(extent for step, extent in _list_axes(kept) if step) * kept.itemsize
        self._elements: Array | None = None

    def window(self, index: tuple[slice, ...]) -> HostBytes:
        """Return the bytes of a part. The first part reports the stored bytes of the whole transfer."""
        held, self._held_bytes = self._held_bytes, 0
        nbytes = prod(len(range(*part.indices(n))) for part, n in zip(index, self._shape, strict=True))
        return HostBytes(nbytes * self._dtype.itemsize, lambda: self._make_bytes(index), held)

    def _make_bytes(self, index: tuple[slice, ...]) -> Array:
        if self._elements is None:
            self._elements = np.broadcast_to(np.asarray(self._source), self._shape)
        elements = self._elements
        part = np.asarray(elements[index])
        if never_changes(elements) and part.dtype == self._dtype.numpy and part.flags.c_contiguous:
            return as_bytes(part)  # memory stores the array itself
        converted = convert(part, self._dtype)
        converted.flags.writeable = False  # memory may then share this array among replicas of the part
        return as_bytes(converted)


ReadBytes: TypeAlias = Callable[[int, int], Array]


def fill_pattern(value: float, dtype: DType) -> bytes:
    """Return the bytes of an element with ``value``.

    Raises InputError unless ``value`` is one real number that the type can hold.
    """
    number = numeric(value, "a fill value")
    if number.ndim:
        raise InputError(f"a fill value is one number, not {value!r}")
    check_fits(number, dtype)
    return convert(number, dtype).tobytes()


def check_fits(number: Array, dtype: DType) -> None:
    """Raise InputError when ``dtype`` cannot hold ``number``, an array without axes.

    As in kernels, no number is rounded or wrapped.
    """
    wrong = misfit(number.item(), dtype)
    if wrong:
        raise InputError(f"a fill value for {dtype}: {wrong}; use a type that holds it, or another value")


def fill_messages(layout: TensorLayout, value: float) -> Iterator[MemoryWriteMsg]:
    """Yield the messages that make the device set every element to ``value``, one for each shard."""
    pattern = fill_pattern(value, layout.dtype)
    for shard in layout.deployment.shards:
        yield MemoryWriteMsg(name=layout.name, pa=shard.pa, nbytes=shard.nbytes, pattern=pattern)


def copy_messages(layout: TensorLayout, source: HostSource | None) -> Iterator[MemoryWriteMsg]:
    """Yield the messages that copy ``source``, in its current state, to the tensor, one for each shard.

    ``source`` broadcasts to the tensor's shape and may have any element type; None: no data. Replicas of a shard share
    one array of bytes.
    """
    held = None if source is None else HeldValues(source, layout.shape, layout.dtype)
    sent: dict[int, HostBytes] = {}
    for view, shard in layout.parts:
        if held is not None and shard.offset_bytes not in sent:
            sent[shard.offset_bytes] = held.window(view.index)
        data = sent.get(shard.offset_bytes)
        yield MemoryWriteMsg(name=layout.name, pa=shard.pa, nbytes=shard.nbytes, data=data)


def update_messages(
    layout: TensorLayout, window: Window, values: Array | None, chosen: Array
) -> Iterator[MemoryWriteMsg]:
    """Yield the messages that set the elements where ``chosen`` is true to ``values``.

    ``values`` and ``chosen`` have the shape of ``window``. Each run of consecutive bytes in a shard, replicas included,
    is one message. ``values`` None: no data.
    """
    size = layout.dtype.itemsize
    for piece in pieces(layout.views, window):
        here = np.asarray(chosen[piece.target.index])
        data = None if values is None else as_bytes(np.asarray(values[piece.target.index])[here])
        pa = layout.pa_of(piece.view)
        for at, start, count in _split_runs(_find_positions(piece, here)):
            run = None if data is None else data[at * size : (at + count) * size]
            yield MemoryWriteMsg(name=layout.name, pa=pa + start * size, nbytes=count * size, data=run)


def _find_positions(piece: WindowPiece, chosen: Array) -> Array:
    """Return the positions of the chosen elements in the shard, in order."""
    corner = np.array([start for start, _ in piece.source.bounds], np.int64)
    return (np.argwhere(chosen) + corner) @ np.array(row_major(piece.view.shape, 1), np.int64)


def _split_runs(positions: Array) -> Iterator[tuple[int, int, int]]:
    """Yield each run of consecutive positions: the count of positions before it, its first position and its length."""
    if not positions.size:
        return
    starts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist()]
    for at, end in zip(starts, [*starts[1:], positions.size], strict=True):
        yield at, int(positions[at]), end - at


def read_messages(layout: TensorLayout, stretches: Iterable[ShardStretch]) -> Iterator[MemoryReadMsg]:
    """Yield one message for each stretch."""
    for stretch in stretches:
        yield MemoryReadMsg(name=layout.name, pa=stretch.pa, nbytes=stretch.nbytes)


def gather(layout: TensorLayout, window: Window, stretches: Iterable[ShardStretch], read: ReadBytes) -> Array:
    """Return the elements of ``window``; ``read(pa, nbytes)`` returns the bytes of a stretch."""
    elements = np.empty(window.shape, layout.dtype.numpy)
    for stretch in stretches:
        held = read(stretch.pa, stretch.nbytes).view(layout.dtype.numpy)
        elements[stretch.piece.target.index] = stretch.elements(held)
    return elements


@value
class TensorCopy:
    """The replica on one PE of elements of a window: those in ``part``, relative to the window's corner.

    ``held``: its elements, in the shape of ``part``; None for the first replica, or if the bytes equal the first's.
    """

    pe: PeCoord
    part: Window
    held: Array | None


def copies(layout: TensorLayout, window: Window, first: Array, read: ReadBytes) -> Iterator[TensorCopy]:
    """Yield every replica of the elements of ``window``; ``first``: the elements of the first replica.

    Only one replica at a time is in memory. Replicas are first compared with the first byte by byte, so that equal
    replicas cost no further comparison.
    """
    bits = f"u{layout.dtype.itemsize}"
    for stretch in layout.all_stretches(window):
        part = stretch.piece.target
        held = None
        if not layout.is_first(stretch):
            held = stretch.elements(read(stretch.pa, stretch.nbytes).view(layout.dtype.numpy))
            if np.array_equal(held.view(bits), np.asarray(first[part.index]).view(bits)):
                held = None
        yield TensorCopy(stretch.pe, part, held)


def copy_launch(source: TensorLayout, target: TensorLayout) -> KernelLaunchMsg:
    """Return the launch in which every owner copies its shards from ``source`` to ``target``, of the same layout."""
    item = source.dtype.itemsize
    lines = (
        (shard.cube, shard.pe, shard.offset_bytes, shard.offset_bytes, shard.nbytes // item, item, item)
        for shard in source.shards
    )
    return KernelLaunchMsg(
        name="clone",
        kernel=KernelRef(name="clone", function=late(ELEMENTWISE, "copy_windows")),
        args=(source.argument, target.argument, tuple(n for line in lines for n in line), 1, source.dtype.name),
        targets=source.owners,
    )
