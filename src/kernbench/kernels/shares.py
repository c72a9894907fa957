"""The share of the work that each program does: elements, lines of a work table, or rows of a matrix.

Reports name a line in the file of the kernel. Helpers that several kernels use are therefore in this file, not there.

A work table is a flat tuple of integers with a fixed number per line. Each line begins with its cube and PE.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from kernbench.common.dtypes import F32
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


def share(n: int, tl: TLContext, split: bool = True) -> tuple[int, int]:
    """Split ``n`` elements over cubes, then PEs, like tensors; return the start and size of this program's part.

    Without ``split``, every program gets all elements, to compute its own copy of a replicated tensor.
    """
    if not split:
        return 0, n
    cube_first, in_cube = part(n, tl.num_programs(1), tl.program_id(1))
    first, count = part(in_cube, tl.num_programs(0), tl.program_id(0))
    return cube_first + first, count


def blocks(n: int, size: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the start and size of each block of ``first`` .. ``first + n``. The last block may be smaller."""
    for at in range(0, n, size):
        yield first + at, min(size, n - at)


def part(n: int, parts: int, which: int) -> tuple[int, int]:
    """Return the start and size of part ``which`` of ``n`` elements: the first ``n % parts`` parts are one larger."""
    size, more = divmod(n, parts)
    return which * size + min(which, more), size + (which < more)


def own_lines(lines: tuple[int, ...], width: int, tl: TLContext) -> Iterator[tuple[int, ...]]:
    """Yield this program's lines of a work table, without cube and PE."""
    here = tl.program_id(1), tl.program_id(0)
    for at in range(0, len(lines), width):
        if lines[at : at + 2] == here:
            yield lines[at + 2 : at + width]


Columns: TypeAlias = Callable[[int, int], Handle]
"""A function of a first column and a number of columns that returns these columns of some rows, in f32"""


def row_blocks(matrix: View, block: int, split: bool, tl: TLContext) -> Iterator[tuple[int, Columns]]:
    """Yield this program's share of the rows, in blocks of at most ``block`` elements and at least one row."""
    rows, columns = matrix.extents
    first, size = share(rows, tl, split)
    for row, count in blocks(size, max(1, block // columns), first):
        yield row, columns_of(matrix.tile((row, 0), (count, columns)), block, tl)


def columns_of(rows: View, width: int, tl: TLContext) -> Columns:
    """Return the columns of ``rows``, for several passes in pieces of at most ``width`` columns.

    Rows that fit in one piece are loaded here, once, and stay in scratch. Longer rows are loaded again in each pass.
    """
    if rows.extents[1] > width:
        return lambda first, count: tl.cast(rows.tile((0, first), (rows.extents[0], count)).load(tl), F32)
    values = tl.cast(rows.load(tl), F32)
    return lambda first, count: values  # noqa: ARG005 - the only piece


def load_rows(rows: View, tl: TLContext) -> Handle:
    """Load a matrix; floats are cast to f32. If its columns are contiguous, it is loaded transposed."""
    row, column = rows.strides
    values = tl.trans(rows.transposed.load(tl)) if row < column else rows.load(tl)
    return tl.cast(values, F32) if rows.dtype.is_float else values
