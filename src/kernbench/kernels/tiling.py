"""Sizes of tiles: the boxes of an array that programs divide among themselves, load, compute and store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TypeAlias

from kernbench.common.dtypes import Shape
from kernbench.kernels.shares import blocks, share
from kernbench.triton_emu.tl_context import TLContext

Box: TypeAlias = tuple[Shape, Shape]
"""The corner and the extents of a part of an array"""
_SMALLEST, _LARGEST = 2048, 131072
"""Elements of a block: enough to amortise a command, few enough that transfers and computation overlap."""
_BLOCKS = 8
"""Blocks of a program's share, so that loads, computations and stores of several blocks overlap."""
_SIDE_BY_SIDE = 64
"""Minimum number of elements of a transposed operand that are moved together: at least a burst"""
_BYTES_AN_ELEMENT = 64
"""Bytes of scratch for an element of a block: its intermediate results, and the next block that is loaded."""


def most_elements(tl: TLContext) -> int:
    """Return the maximum number of elements that a program computes at a time, to fit in the scratch of its PE."""
    tcm = tl.site.tcm
    return _LARGEST if tcm is None else max(1, min(_LARGEST, len(tcm) // _BYTES_AN_ELEMENT))


def ramp_block() -> int:
    """Return the number of elements of a range that are computed at a time.

    They amortise a command, and their numbers of 8 bytes fit in the scratch of any PE, with intermediate results.
    """
    return 16384


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


def own_boxes(
    shape: Shape, tl: TLContext, *, transposed: bool = False, split: bool = True, limit: int | None = None
) -> Iterator[Box]:
    """Yield the corners and extents of this program's boxes: its share of the first axis, or of the longest one.

    The first axis is split if it has an index for each program. Without ``split``, a program gets all elements.
    ``transposed``: an operand is contiguous along another axis than the last. Boxes are then cut along the last axis,
    too, to extend further along the contiguous one. ``limit``: the maximum number of elements of a box.
    """
    programs = tl.num_programs(0) * tl.num_programs(1)
    axis = 0 if shape[0] >= programs else max(range(len(shape)), key=lambda i: shape[i])
    first, count = share(shape[axis], tl, split)
    if not count:
        return
    extents = (*shape[:axis], count, *shape[axis + 1 :])
    block = min(max(prod(extents) // _BLOCKS, _SMALLEST), most_elements(tl), limit or _LARGEST)
    edge = max(1, block // _SIDE_BY_SIDE) if transposed else extents[-1]
    for behind, width in blocks(extents[-1], edge):
        for corner, box in boxes((*extents[:-1], width), block):
            begin = [*corner[:-1], corner[-1] + behind]
            begin[axis] += first
            yield tuple(begin), box


def boxes(shape: Shape, block: int) -> Iterator[Box]:
    """Yield the corner and extents of boxes of at most ``block`` elements that cover an array of ``shape``."""
    inner = prod(shape[1:])
    if inner <= block:
        for row, count in blocks(shape[0], max(1, block // inner)):
            yield (row, *(0 for _ in shape[1:])), (count, *shape[1:])
        return
    for row in range(shape[0]):
        for corner, extents in boxes(shape[1:], block):
            yield (row, *corner), (1, *extents)
