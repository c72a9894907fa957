"""The part of the work that a program takes: a share of some elements, its own lines of a table, its rows of a matrix.

A report names the line in the file of the kernel, so helpers of several kernels stand in this file, apart from them.

A table is a flat tuple of whole numbers, so many to a line. A line begins with the cube and the PE that it is for.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple


def share(n: int, tl: Any, split: bool = True) -> tuple[int, int]:
    """Return first and number of this program's elements of ``n``, split over cubes, then PEs, as tensors are placed.

    All of them when nothing is ``split``: where tensors are replicated every program makes its own copy.
    """
    if not split:
        return 0, n
    cube_first, in_cube = part(n, tl.num_programs(1), tl.program_id(1))
    first, count = part(in_cube, tl.num_programs(0), tl.program_id(0))
    return cube_first + first, count


def blocks(n: int, size: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Yield start and number of the elements of each block of ``first`` .. ``first + n``; the last may have fewer."""
    for at in range(0, n, size):
        yield first + at, min(size, n - at)


def part(n: int, parts: int, which: int) -> tuple[int, int]:
    """Return first and number of elements of part ``which``: the first ``n % parts`` parts have one more."""
    size, more = divmod(n, parts)
    return which * size + min(which, more), size + (which < more)


def own_lines(lines: tuple[int, ...], width: int, tl: Any) -> Iterator[tuple[int, ...]]:
    """Yield this program's lines of a table, without cube and PE."""
    here = tl.program_id(1), tl.program_id(0)
    for at in range(0, len(lines), width):
        if lines[at : at + 2] == here:
            yield lines[at + 2 : at + width]


class RowMajorMatrix(NamedTuple):
    """A row-major matrix of ``columns`` columns of type ``dtype`` at ``ptr``."""

    ptr: int
    columns: int
    dtype: Any

    def load(self, row: int, rows: int, column: int, columns: int, tl: Any) -> Any:
        """Load a part of it, in f32."""
        item = tl.itemsize(self.dtype)
        at = self.ptr + (row * self.columns + column) * item
        return tl.cast(tl.load(at, (rows, columns), self.dtype, strides=(self.columns * item, item)), "f32")

    def store(self, row: int, column: int, values: Any, tl: Any) -> None:
        """Store a part of it, rounded to its type."""
        item = tl.itemsize(self.dtype)
        at = self.ptr + (row * self.columns + column) * item
        tl.store(at, tl.cast(values, self.dtype), strides=(self.columns * item, item))


class RowBlock:
    """Some rows of a matrix, to be gone through several times in pieces of at most ``width`` columns.

    When one piece is all, it is read once and stays in scratch; else each time anew.
    """

    __slots__ = ("_matrix", "_row", "_rows", "_tl", "_whole", "_width")

    def __init__(self, matrix: RowMajorMatrix, row: int, rows: int, width: int, tl: Any) -> None:
        self._matrix = matrix
        self._row = row
        self._rows = rows
        self._width = width
        self._tl = tl
        self._whole = matrix.load(row, rows, 0, matrix.columns, tl) if matrix.columns <= width else None

    def pieces(self) -> Iterator[tuple[int, Any]]:
        """Yield first column and values, shape (rows, columns of the piece), of each piece."""
        if self._whole is not None:
            yield 0, self._whole
            return
        for column, columns in blocks(self._matrix.columns, self._width):
            yield column, self.part(column, columns)

    def part(self, column: int, columns: int) -> Any:
        """Return the values of one piece."""
        if self._whole is not None:
            return self._whole
        return self._matrix.load(self._row, self._rows, column, columns, self._tl)


def row_blocks(matrix: RowMajorMatrix, rows: int, block: int, split: bool, tl: Any) -> Iterator[tuple[int, RowBlock]]:
    """Yield this program's rows, of ``rows`` in all, in blocks of at most ``block`` elements, or of one row."""
    first, mine = share(rows, tl, split)
    for row, count in blocks(mine, max(1, block // matrix.columns), first):
        yield row, RowBlock(matrix, row, count, block, tl)
