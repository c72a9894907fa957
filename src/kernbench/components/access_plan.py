"""Planning of DMA descriptors: from an n-D array with byte strides to the accesses of its memories."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import inf

from kernbench.components.initiator import Target
from kernbench.engine.address_map import AddressMap, Segment
from kernbench.messages.fabric import Access

Dims = tuple[tuple[int, int], ...]
"""(count, stride in bytes) per axis, outermost first"""


def extent(shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None) -> tuple[int, int]:
    """Return the first byte of an array's span, relative to its first element, and the span's length.

    Negative strides make the first byte negative."""
    if strides is None:
        nbytes = itemsize
        for count in shape:
            nbytes *= count
        return 0, nbytes
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    return low, high - low + itemsize


def runs(shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None) -> tuple[int, Dims]:
    """Return the length of a contiguous run, and the (count, stride) of its repetitions, longest stride first.

    Memory is walked in address order, whatever the order of the axes: a transposed matrix is read row by row.
    """
    if strides is None:
        return extent(shape, itemsize, None)[1], ()
    run = itemsize
    dims = sorted(((n, s) for n, s in zip(shape, strides, strict=True) if n > 1), key=_step, reverse=True)
    while dims and dims[-1][1] == run:
        run *= dims.pop()[0]
    return run, tuple(dims)


def _step(dim: tuple[int, int]) -> float:
    """Return the sort key of an axis, its stride. Repetitions of the same bytes (stride 0) are outermost."""
    return abs(dim[1]) or inf


def pages(
    va: int, shape: tuple[int, ...], itemsize: int, strides: tuple[int, ...] | None, page_bytes: int
) -> tuple[int, ...]:
    """Return the numbers of the pages that an array at ``va`` touches, without duplicates, in access order."""
    run, dims = runs(shape, itemsize, strides)
    numbers: dict[int, None] = {}
    for steps in itertools.product(*(range(n) for n, _ in dims)):
        start = va + sum(i * s for i, (_, s) in zip(steps, dims, strict=True))
        numbers.update(dict.fromkeys(range(start // page_bytes, (start + run - 1) // page_bytes + 1)))
    return tuple(numbers)


def plan(
    addresses: AddressMap,
    segments: tuple[Segment, ...],
    shape: tuple[int, ...],
    itemsize: int,
    strides: tuple[int, ...] | None,
) -> tuple[Target, ...]:
    """Return the accesses of an array within the physical ``segments``, in order, each with its memory node."""
    places = addresses.by_node(segments)
    if strides is None:  # contiguous
        return tuple([(node, Access(pa, nbytes)) for node, (pa, nbytes) in places])
    run, dims = runs(shape, itemsize, strides)
    outer, (rows, stride) = dims[:-1], dims[-1] if dims else (1, 0)
    first = -extent(shape, itemsize, strides)[0]
    targets: list[Target] = []
    for steps in itertools.product(*(range(n) for n, _ in outer)):
        start = first + sum(i * s for i, (_, s) in zip(steps, outer, strict=True))
        targets += _block(places, start, run, rows, stride)
    return tuple(targets)


def gather(places: tuple[tuple[str, Segment], ...]) -> tuple[Target, ...]:
    """Group pieces in any order into accesses, node by node. Each access becomes one request."""
    pieces: dict[str, list[Segment]] = {}
    for node, piece in places:
        pieces.setdefault(node, []).append(piece)
    return tuple([(node, access) for node, node_pieces in pieces.items() for access in _group(node_pieces)])


def _block(places: tuple[tuple[str, Segment], ...], start: int, run: int, rows: int, stride: int) -> Iterator[Target]:
    """Yield accesses for one 2-D block, cut at the end of each memory range; equal rows in a range form one access."""
    base = 0
    for node, (pa, nbytes) in places:
        end, near = base + nbytes, range(rows)
        if stride > 0:  # the rows that begin before the end of the place and end after its begin
            near = range(max(0, (base - start - run) // stride + 1), min(rows, -((start - end) // stride)))
        if near:
            first, last = start + near[0] * stride, start + near[-1] * stride
            if base <= min(first, last) and max(first, last) + run <= end:
                yield node, Access(pa + first - base, run, len(near), stride if len(near) > 1 else 0)
            else:
                begins = [start + row * stride for row in near]
                cut = [(max(low, base), min(low + run, end)) for low in begins]
                pieces = [(pa + low - base, high - low) for low, high in cut if low < high]
                yield from ((node, access) for access in _group(pieces))
        base = end


def _group(pieces: list[tuple[int, int]]) -> Iterator[Access]:
    """Yield accesses for (address, nbytes) pieces; adjacent pieces of equal size and distance form one access."""
    i = 0
    while i < len(pieces):
        pa, nbytes = pieces[i]
        stride = pieces[i + 1][0] - pa if i + 1 < len(pieces) else 0
        rows = 1
        while i + rows < len(pieces) and pieces[i + rows] == (pa + rows * stride, nbytes):
            rows += 1
        yield Access(pa, nbytes, rows, stride if rows > 1 else 0)
        i += rows
