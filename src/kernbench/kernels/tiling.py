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


# --- products of few rows

PREFETCHED_PANELS = 2
"""Panels of B that a PE prefetches while the PEs of its cube all-gather A: one to multiply first, one behind it."""
_PANEL_BYTES = 128 << 10
"""Bytes of a panel of B: its transfer takes far longer than its command, and several panels fit in scratch."""
_PANEL_ROWS = 64
"""Rows of a panel of B are a multiple of this: full tiles of the matrix unit along K."""
_RESULT_BLOCKS = 6
"""Maximum number of f32 blocks of the result that are in scratch at once, while an epilogue runs."""
_LAUNCH_BYTES = 2 << 20
"""Bytes that the cubes can exchange in the time of one more launch."""


def is_few_rows(tile_m: int, scratch_bytes: int, m: int, k: int, itemsize: int) -> bool:
    """Return True if A (m, k) has the rows of one tile of the matrix unit, and fits in half of scratch.

    Panels of B need the other half.
    """
    return m <= tile_m and m * k * itemsize <= scratch_bytes // 2


def panel_rows(k: int, columns: int, itemsize: int) -> int:
    """Return the number of rows of a panel of B with ``columns`` columns, at most ``k``."""
    return min(k, max(_PANEL_ROWS, _PANEL_BYTES // (columns * itemsize) // _PANEL_ROWS * _PANEL_ROWS))


def last_panel_rows(rows: int) -> int:
    """Return the number of rows of the last panels, of ``rows`` elsewhere: half, to have less to do after the last."""
    return max(rows // 2, _PANEL_ROWS)


def panel_columns(scratch_bytes: int, pes_of_cube: int, m: int, itemsize: int) -> int:
    """Return the maximum number of columns of a panel whose rows are contiguous.

    Half of scratch holds four panels of minimum size and the blocks of the epilogue. A has the other half. A panel has
    a row from the memory of each PE of the cube.
    """
    rows = max(_PANEL_ROWS, pes_of_cube)
    return max(1, scratch_bytes // 2 // (4 * rows * itemsize + _RESULT_BLOCKS * m * 4))


def is_split_k_faster(cubes: int, m: int, k: int, n: int, itemsize: int) -> bool:
    """Return True if cubes exchange less by sums of their rows of B, whose rows are contiguous, than by columns of B.

    Addition of the sums is one more launch.
    """
    return cubes > 1 and (k * itemsize - cubes * m * 4) * n > _LAUNCH_BYTES


def partial_sum_columns(scratch_bytes: int, parts: int, m: int) -> int:
    """Return the number of columns whose ``parts`` f32 sums fit in half of scratch, with the epilogue's blocks."""
    return max(1, scratch_bytes // 2 // ((parts + _RESULT_BLOCKS) * m * 4))
