"""Boxes of strided tensors that fit in scratch: the units that the programs of an operator divide, load and store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from kernbench.common.dtypes import DType, Shape
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, share
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


@value
class Strided:
    """Layout of an operand along the axes of an operator: strides in elements, 0 where elements repeat."""

    strides: tuple[int, ...]
    dtype: DType

    def extents(self, box: Shape) -> Shape:
        """Return the extents of a box in memory: 1 where elements repeat."""
        return tuple([1 if step == 0 else n for n, step in zip(box, self.strides, strict=True)])

    def at(self, corner: Sequence[int]) -> int:
        """Return the offset in bytes of the element at ``corner``."""
        return sum([at * step for at, step in zip(corner, self.strides, strict=True)]) * self.dtype.itemsize

    def load(self, address: int, corner: Shape, box: Shape, tl: Any) -> Any:
        """Load a box; axes along which elements repeat have length 1."""
        return tl.load(address + self.at(corner), self.extents(box), self.dtype, strides=self._steps())

    def store(self, address: int, corner: Shape, values: Any, tl: Any) -> None:
        """Store a box."""
        tl.store(address + self.at(corner), values, strides=self._steps())

    @property
    def is_transposed(self) -> bool:
        """Return whether elements are contiguous along another axis than the last, which does not repeat."""
        return self.strides[-1] > 1 and 1 in self.strides

    def _steps(self) -> Shape:
        return tuple([(step or 1) * self.dtype.itemsize for step in self.strides])


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
