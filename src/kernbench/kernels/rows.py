"""Rows of a row-major matrix as f32, in pieces of columns that fit in scratch: what row-wise kernels read and write."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from kernbench.kernels.shares import blocks, share


class Matrix(NamedTuple):
    """A row-major matrix of ``columns`` columns of type ``dtype`` at ``ptr``."""

    ptr: int
    columns: int
    dtype: Any

    def load(self, row: int, rows: int, column: int, columns: int, tl: Any) -> Any:
        """A part of it, in f32."""
        item = tl.itemsize(self.dtype)
        at = self.ptr + (row * self.columns + column) * item
        return tl.cast(tl.load(at, (rows, columns), self.dtype, strides=(self.columns * item, item)), "f32")

    def store(self, row: int, column: int, values: Any, tl: Any) -> None:
        """A part of it, rounded to its type."""
        item = tl.itemsize(self.dtype)
        at = self.ptr + (row * self.columns + column) * item
        tl.store(at, tl.cast(values, self.dtype), strides=(self.columns * item, item))


class RowBlock:
    """Some rows of a matrix, to be gone through several times in pieces of at most ``width`` columns.

    When one piece is all, it is read once and stays in scratch; else each time anew.
    """

    __slots__ = ("_matrix", "_row", "_rows", "_tl", "_whole", "_width")

    def __init__(self, matrix: Matrix, row: int, rows: int, width: int, tl: Any) -> None:
        self._matrix = matrix
        self._row = row
        self._rows = rows
        self._width = width
        self._tl = tl
        self._whole = matrix.load(row, rows, 0, matrix.columns, tl) if matrix.columns <= width else None

    def pieces(self) -> Iterator[tuple[int, Any]]:
        """First column and values, shape (rows, columns of the piece), of each piece."""
        if self._whole is not None:
            yield 0, self._whole
            return
        for column, columns in blocks(self._matrix.columns, self._width):
            yield column, self.part(column, columns)

    def part(self, column: int, columns: int) -> Any:
        """The values of one piece."""
        if self._whole is not None:
            return self._whole
        return self._matrix.load(self._row, self._rows, column, columns, self._tl)


def row_blocks(matrix: Matrix, rows: int, block: int, split: bool, tl: Any) -> Iterator[tuple[int, RowBlock]]:
    """This program's rows, of ``rows`` in all, so many at a time as have at most ``block`` elements; at least one."""
    first, mine = share(rows, tl, split)
    for row, count in blocks(mine, max(1, block // matrix.columns), first):
        yield row, RowBlock(matrix, row, count, block, tl)
