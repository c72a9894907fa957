"""Boxes of strided tensors that fit in scratch: the units that the programs of an operator divide, load and store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from kernbench.common.dtypes import Shape
from kernbench.frontends.torch.launches import dtype_of
from kernbench.frontends.torch.tensor import AhbmTensor
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.view import View
from kernbench.kernels.windows import boxes

_SMALLEST, _LARGEST = 2048, 131072
"""Elements of a block: enough to amortise a command, few enough that transfers and computation overlap."""
_BLOCKS = 8
_SIDE_BY_SIDE = 64
"""Minimum number of elements of a transposed operand that are moved together: at least a burst"""
_BYTES_AN_ELEMENT = 64
"""Bytes of scratch for an element of a block: its intermediate results, and the next block that is loaded."""


def most_elements(tl: Any) -> int:
    """Return the maximum number of elements that a program computes at a time, to fit in the scratch of its PE."""
    tcm = tl.site.tcm
    return _LARGEST if tcm is None else max(1, min(_LARGEST, len(tcm) // _BYTES_AN_ELEMENT))


def merged_views(tensors: Sequence[AhbmTensor]) -> list[View]:
    """Return the layout of each of ``tensors``, which have one shape, along their `collapse`d axes."""
    shape, strides = collapse(tensors[0].shape, [x.stride() for x in tensors])
    return [View(0, shape, steps, dtype_of(x)) for steps, x in zip(strides, tensors, strict=True)]


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[Shape, list[Shape]]:
    """Merge axes that every operand steps through as through one axis, and drop axes of length 1.

    ``strides`` has the strides of each operand. Return the merged shape and strides.
    """
    axes = [(n, [each[i] for each in strides]) for i, n in enumerate(shape) if n != 1] or [(1, [0] * len(strides))]
    merged = [axes[0]]
    for n, steps in axes[1:]:
        outer, before = merged[-1]
        if all(b == s * n for b, s in zip(before, steps, strict=True)):
            merged[-1] = (outer * n, steps)
        else:
            merged.append((n, steps))
    return tuple(n for n, _ in merged), [tuple(steps[i] for _, steps in merged) for i in range(len(strides))]


def own_boxes(shape: Shape, tl: Any, *, transposed: bool = False) -> Iterator[tuple[Shape, Shape]]:
    """Yield the corners and extents of this program's boxes: its share of the first axis, or of the longest one.

    The first axis is split if it has an index for each program. ``transposed``: an operand is contiguous along another
    axis than the last. Boxes are then cut along the last axis, too, to extend further along the contiguous one.
    """
    programs = tl.num_programs(0) * tl.num_programs(1)
    axis = 0 if shape[0] >= programs else max(range(len(shape)), key=lambda i: shape[i])
    first, mine = share(shape[axis], tl)
    if not mine:
        return
    own = (*shape[:axis], mine, *shape[axis + 1 :])
    block = min(max(prod(own) // _BLOCKS, _SMALLEST), most_elements(tl))
    edge = max(1, block // _SIDE_BY_SIDE) if transposed else own[-1]
    for behind, width in blocks(own[-1], edge):
        for corner, box in boxes((*own[:-1], width), block):
            begin = [*corner[:-1], corner[-1] + behind]
            begin[axis] += first
            yield tuple(begin), box
