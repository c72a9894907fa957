"""Sizes of tiles: the boxes of an array that programs divide among themselves, load, compute and store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from kernbench.common.dtypes import Shape
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.windows import boxes
from kernbench.triton_emu.tl_context import TLContext

_SMALLEST, _LARGEST = 2048, 131072
"""Elements of a block: enough to amortise a command, few enough that transfers and computation overlap."""
_BLOCKS = 8
_SIDE_BY_SIDE = 64
"""Minimum number of elements of a transposed operand that are moved together: at least a burst"""
_BYTES_AN_ELEMENT = 64
"""Bytes of scratch for an element of a block: its intermediate results, and the next block that is loaded."""


def most_elements(tl: TLContext) -> int:
    """Return the maximum number of elements that a program computes at a time, to fit in the scratch of its PE."""
    tcm = tl.site.tcm
    return _LARGEST if tcm is None else max(1, min(_LARGEST, len(tcm) // _BYTES_AN_ELEMENT))


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[Shape, list[Shape]]:
    """Merge axes that every operand steps through as through one axis, and drop axes of length 1.

    ``strides`` has the strides of each operand. Return the merged shape and strides.
    """
    axes = [(n, [steps[i] for steps in strides]) for i, n in enumerate(shape) if n != 1] or [(1, [0] * len(strides))]
    merged = [axes[0]]
    for n, steps in axes[1:]:
        outer, before = merged[-1]
        if all(b == s * n for b, s in zip(before, steps, strict=True)):
            merged[-1] = (outer * n, steps)
        else:
            merged.append((n, steps))
    return tuple(n for n, _ in merged), [tuple(steps[i] for _, steps in merged) for i in range(len(strides))]


def own_boxes(shape: Shape, tl: TLContext, *, transposed: bool = False) -> Iterator[tuple[Shape, Shape]]:
    """Yield the corners and extents of this program's boxes: its share of the first axis, or of the longest one.

    The first axis is split if it has an index for each program. ``transposed``: an operand is contiguous along another
    axis than the last. Boxes are then cut along the last axis, too, to extend further along the contiguous one.
    """
    programs = tl.num_programs(0) * tl.num_programs(1)
    axis = 0 if shape[0] >= programs else max(range(len(shape)), key=lambda i: shape[i])
    first, count = share(shape[axis], tl)
    if not count:
        return
    extents = (*shape[:axis], count, *shape[axis + 1 :])
    block = min(max(prod(extents) // _BLOCKS, _SMALLEST), most_elements(tl))
    edge = max(1, block // _SIDE_BY_SIDE) if transposed else extents[-1]
    for behind, width in blocks(extents[-1], edge):
        for corner, box in boxes((*extents[:-1], width), block):
            begin = [*corner[:-1], corner[-1] + behind]
            begin[axis] += first
            yield tuple(begin), box


def piece_of_row(columns: int, bytes_per_element: int, tl: TLContext) -> int:
    """Return the number of columns that a program computes at a time: all of a row that fits in scratch.

    ``bytes_per_element``: bytes of scratch for an element of the row, with all its intermediate results. A longer row
    is loaded again in each pass, in pieces that overlap with computation.
    """
    tcm = tl.site.tcm
    return columns if tcm is not None and columns * bytes_per_element <= len(tcm) else most_elements(tl)
