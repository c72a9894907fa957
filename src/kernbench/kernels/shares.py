"""The share of the work that each program does: elements, lines of a work table, or rows of a matrix.

Reports name a line in the file of the kernel. Helpers that several kernels use are therefore in this file, not there.

A work table is a flat tuple of integers with a fixed number per line. Each line begins with its cube and PE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernbench.common.dtypes import F32
from kernbench.common.values import value
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


def program_number(tl: TLContext) -> int:
    """Return the number of this program in its SIP: PEs of a cube are adjacent."""
    return tl.site.cube * tl.site.num_pes + tl.site.pe


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


def all_gather(sources: Sequence[View], copies: Sequence[View], tl: TLContext) -> list[View]:
    """Copy arrays that all programs read to the memory of each cube. Return the copies of this program's cube.

    ``sources`` are (1, n). ``copies`` are (cubes, n), with a row in each cube's memory. Each PE of a cube copies a
    piece. All PEs of the cube must call this, because they wait for each other.
    """
    cube, cubes = tl.program_id(1), tl.num_programs(1)
    assert all(copy.extents[0] == cubes for copy in copies), "the buffer has a row for each cube of the launch"
    for source, copy in zip(sources, copies, strict=True):
        first, count = part(source.extents[1], tl.num_programs(0), tl.program_id(0))
        if count:
            copy.tile((cube, first), (1, count)).store(source.tile((0, first), (1, count)).load(tl), tl)
    tl.barrier()
    return [copy.tile((cube, 0), (1, copy.extents[1])) for copy in copies]


@value
class RowPieces:
    """Columns of some rows, in pieces: ``columns(first, count)`` returns ``count`` columns as a handle.

    A single piece is loaded or computed once and stays in scratch. Several pieces are loaded and computed again in each
    pass over the rows.
    """

    pieces: Sequence[tuple[int, int]]
    compute: Callable[[int, int], Handle]

    @staticmethod
    def of(pieces: Sequence[tuple[int, int]], compute: Callable[[int, int], Handle]) -> RowPieces:
        """Return the columns that ``compute(first, count)`` returns; a single piece is computed here."""
        if len(pieces) > 1:
            return RowPieces(pieces, compute)
        values = compute(*pieces[0])
        return RowPieces(pieces, lambda _first, _count: values)

    def __call__(self, first: int, count: int) -> Handle:
        """Return the columns of a piece."""
        return self.compute(first, count)

    def map(self, body: Callable[..., Handle], *operands: RowPieces | Handle) -> RowPieces:
        """Return ``body(piece, *operands)`` of each piece. Operands are columns, or handles that all pieces share."""

        def compute(first: int, count: int) -> Handle:
            pieces = [operand(first, count) if isinstance(operand, RowPieces) else operand for operand in operands]
            return body(self(first, count), *pieces)

        return RowPieces.of(self.pieces, compute)

    def sum(self, tl: TLContext) -> Handle:
        """Return the sum of each row, shape (rows, 1)."""
        total, *more_sums = [tl.sum(self(*piece), 1, keepdims=True) for piece in self.pieces]
        return sum(more_sums, total)

    def max(self, tl: TLContext) -> Handle:
        """Return the maximum of each row, shape (rows, 1)."""
        largest, *more_maxima = [tl.max(self(*piece), 1, keepdims=True) for piece in self.pieces]
        for maximum in more_maxima:
            largest = tl.maximum(largest, maximum)
        return largest

    def store(self, matrix: View, row: int, tl: TLContext) -> None:
        """Store all columns to the rows of ``matrix`` from ``row`` on, rounded to its dtype."""
        for first, count in self.pieces:
            values = self(first, count)
            matrix.tile((row, first), values.shape).store(values, tl)


def columns_of(rows: View, width: int, tl: TLContext) -> RowPieces:
    """Return the columns of ``rows`` in f32, in pieces of at most ``width`` columns. A single piece is loaded here."""

    def load(first: int, count: int) -> Handle:
        return tl.cast(rows.tile((0, first), (rows.extents[0], count)).load(tl), F32)

    return RowPieces.of(tuple(blocks(rows.extents[1], width)), load)


def load_rows(rows: View, tl: TLContext) -> Handle:
    """Load a matrix; floats are cast to f32. If its columns are contiguous, it is loaded transposed."""
    row, column = rows.strides
    values = tl.trans(rows.transposed.load(tl)) if row < column else rows.load(tl)
    return tl.cast(values, F32) if rows.dtype.is_float else values
