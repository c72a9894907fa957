"""The share of the work that each program does: elements, lines of a work table, or rows of a matrix.

Reports name a line in the file of the kernel. Helpers that several kernels use are therefore in this file, not there.

A work table is a flat tuple of integers with a fixed number per line. Each line begins with its cube and PE.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple


def share(n: int, tl: Any, split: bool = True) -> tuple[int, int]:
    """Return the start and number of this program's elements of ``n``, split over cubes, then PEs, like tensors.

    Return all elements unless ``split``: where tensors are replicated, every program computes its own copy.
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


def own_lines(lines: tuple[int, ...], width: int, tl: Any) -> Iterator[tuple[int, ...]]:
    """Yield this program's lines of a work table, without cube and PE."""
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
        """Load a window of the matrix, in f32."""
        item = tl.itemsize(self.dtype)
        at = self.ptr + (row * self.columns + column) * item
        return tl.cast(tl.load(at, (rows, columns), self.dtype, strides=(self.columns * item, item)), "f32")

    def store(self, row: int, column: int, values: Any, tl: Any) -> None:
        """Store a window of the matrix, rounded to its dtype."""
        item = tl.itemsize(self.dtype)
        at = self.ptr + (row * self.columns + column) * item
        tl.store(at, tl.cast(values, self.dtype), strides=(self.columns * item, item))


class RowBlock:
    """Rows of a matrix, for several passes in pieces of at most ``width`` columns.

    Rows of one piece are read once and stay in scratch. Longer rows are read again in each pass.
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
        """Yield the first column and the values, shape (rows, columns of the piece), of each piece."""
        if self._whole is not None:
            yield 0, self._whole
            return
        for column, columns in blocks(self._matrix.columns, self._width):
            yield column, self.part(column, columns)

    def part(self, column: int, columns: int) -> Any:
        """Return the values of one piece, shape (rows, columns)."""
        if self._whole is not None:
            return self._whole
        return self._matrix.load(self._row, self._rows, column, columns, self._tl)


def row_blocks(matrix: RowMajorMatrix, rows: int, block: int, split: bool, tl: Any) -> Iterator[tuple[int, RowBlock]]:
    """Yield this program's share of ``rows`` rows, in blocks of at most ``block`` elements and at least one row."""
    first, mine = share(rows, tl, split)
    for row, count in blocks(mine, max(1, block // matrix.columns), first):
        yield row, RowBlock(matrix, row, count, block, tl)
