"""Products of few rows (GEMV): one read of B from the memories of a machine takes most of their time.

`Gemv` has the programs that read B. `PartialSums` finishes a split-K product, whose cubes sum different rows of B. Both
end with a `GemvEpilogue`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate, groupby
from operator import add
from typing import TypeAlias

from kernbench.common.dtypes import F32, Shape
from kernbench.common.values import value
from kernbench.kernels.shares import all_gather, blocks, part, share
from kernbench.kernels.tiling import (
    PREFETCHED_PANELS,
    column_panels,
    gathered_copies,
    panel_rows,
    piece_rows,
    shard_panel_rows,
)
from kernbench.kernels.view import View
from kernbench.triton_emu.composites import EpilogueCall
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

RowPiece: TypeAlias = tuple[int, int, int]
"""A piece of A: the first of the rows of B that it is multiplied by, parts, rows of a part"""


@value
class GemvEpilogue:
    """Last steps of a product: scales, an addend, an activation, then rounding to the dtype of ``out``.

    ``out`` and ``addend`` are (batch, m, n). The addend has stride 0 along an axis that it is broadcast along.
    ``scale`` is a number. ``factors`` are scales in memory, (1, m, n) in f32, of rows, of columns or of all elements:
    they have stride 0 along the other axes.
    """

    out: View
    addend: View | None = None
    scale: float = 1.0
    activation: str | None = None
    factors: tuple[View, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Return True if there are no steps but rounding."""
        return not self.factors and self.addend is None and self.scale == 1 and self.activation is None

    def on(self, out: int, operands: Sequence[int]) -> GemvEpilogue:
        """Return this epilogue at the address of the result. ``operands``: addresses of the factors and the addend."""
        placed = None if self.addend is None else self.addend.on(operands[len(self.factors)])
        factors = [factor.on(address) for factor, address in zip(self.factors, operands, strict=False)]
        return replace(self, out=self.out.on(out), addend=placed, factors=tuple(factors))

    def tile(self, corner: Sequence[int], extents: Shape) -> GemvEpilogue:
        """Return the epilogue of the part of the result from ``corner`` on."""
        addend = None if self.addend is None else self.addend.tile(corner, extents)
        factors = tuple([factor.tile(corner, extents) for factor in self.factors])
        return replace(self, out=self.out.tile(corner, extents), addend=addend, factors=factors)

    def steps(self, tl: TLContext) -> list[EpilogueCall]:
        """Return the steps of a composite that computes the result, a matrix."""
        steps: list[EpilogueCall] = [("scale", self.scale)] if self.scale != 1 else []
        rows, columns = self.out.extents[-2:]
        for factor in self.factors:
            if factor.strides[-2]:
                steps.append(("scale_rows", factor.tile((), (rows, columns)).ref(tl)))
                continue
            values = factor.tile((), (1, columns)).load(tl)
            steps.append(("scale_columns", tl.broadcast(values, (1, columns))))
        if self.addend is not None:
            is_bias = not self.addend.strides[0]
            addend = self.addend.tile((), self.addend.extents[1:]) if is_bias else self.addend
            steps.append(("bias" if is_bias else "add", addend.ref(tl)))
        if self.activation is not None:
            steps.append((self.activation,))
        return steps

    def finish(self, sums: Handle, tl: TLContext) -> Handle:
        """Apply the steps to ``sums`` in f32, which have the extents of the result, and return it, not yet rounded."""
        if self.scale != 1:
            sums = sums * self.scale
        for factor in self.factors:
            sums = sums * tl.cast(factor.load(tl), F32)
        if self.addend is not None:
            sums = sums + tl.cast(self.addend.load(tl), F32)
        if self.activation is not None:
            sums = tl.elementwise(self.activation, sums)
        return sums

    def store(self, sums: Handle, column: int, tl: TLContext) -> None:
        """Apply the steps to ``sums``, (m, columns) in f32 from ``column`` on, and store the result."""
        part_of_result = self.tile((0, 0, column), sums.shape)
        part_of_result.out.store(part_of_result.finish(sums, tl), tl)


@value
class WeightPanel:
    """A panel of B: ``columns`` columns from ``column`` on, in ``parts`` groups of ``depth`` rows.

    The first group begins at ``row``. Each further group begins ``apart`` rows after the start of the previous group.
    ``piece_rows``: rows of a group that are multiplied by one dot; 0 for all of them.
    """

    row: int
    column: int
    depth: int
    columns: int
    parts: int = 1
    apart: int = 0
    piece_rows: int = 0

    @property
    def pieces(self) -> list[RowPiece]:
        """Return the pieces of A that the panel is multiplied by, in order."""
        rows = self.piece_rows or self.depth
        return [(self.row + first, self.parts, rows) for first in range(0, self.depth, rows)]


@value
class Gemv:
    """A product (m, k) by (k, n) of few rows. A is row-major, and B has the layout ``b``, (1, k, n).

    Layouts of B and their programs:

    - Columns of B are contiguous, as in weights of PyTorch: each program of `run` computes the columns that the memory
      of its PE stores.
    - Rows are contiguous: each cube can multiply the rows that its memory stores, by `run_split_k`.
    - ``is_sharded``: the columns of each program of `run` are a row-major matrix in its PE's memory. These matrices
      follow each other in the order of the programs.

    ``a_grid``, ``prefetched``: of shards, the cubes, and PEs of each, whose memories serve A to all cubes. These PEs
    prefetch nothing beside that, and all other PEs ``prefetched`` panels. Without shards, all PEs prefetch panels of
    ``prefetched_bytes``.
    ``tile_n``: columns of a tile of the matrix unit. ``max_columns``: number of columns that fit in scratch, for a B
    with contiguous rows. ``is_by_pieces``: B arrives more slowly than it is multiplied, so that the last panels of
    weights are small.
    """

    m: int
    b: View
    epilogue: GemvEpilogue
    tile_n: int
    max_columns: int
    is_sharded: bool = False
    a_grid: tuple[int, int] = (0, 0)
    prefetched: int = PREFETCHED_PANELS
    prefetched_bytes: int = 0
    is_by_pieces: bool = False

    def run(self, out: int, buffer: int, a: int, b: int, *addend: int, tl: TLContext) -> None:
        """Compute this program's columns. The arguments are addresses.

        ``buffer`` has room for the copies of A of each cube, stored in the memory of that cube: `gathered_copies`, or a
        single one for shards.
        """
        columns = share(self.b.extents[2], tl)
        b_view = self._shard(b, columns) if self.is_sharded else self.b.on(b)
        panels = self._panels((0, self.b.extents[1]), columns, tl)
        prefetched = list[Handle]()
        if self.is_sharded:
            serves_a = tl.program_id(1) < self.a_grid[0] and tl.program_id(0) < self.a_grid[1]
            prefetched += [self._load(b_view, panel, tl) for panel in panels[: 0 if serves_a else self.prefetched]]
        if tl.num_programs(1) > 1:
            if self.is_sharded:
                a = self._all_gather(a, buffer, tl)
            else:
                piece = self._ask_for_piece(a, tl)
                prefetched += [self._load(b_view, panel, tl) for panel in self._early(panels)]
                a = self._exchange(piece, buffer, tl)
        pieces = self._load_rows(a, panels, tl)
        if self.is_sharded and pieces:  # panels behind A would fill the queues of the memories that A comes from
            tl.wait(next(reversed(pieces.values())))
        self._multiply(pieces, b_view, panels, prefetched, self.epilogue.on(out, addend), tl)

    def run_split_k(self, sums: int, a: int, b: int, *, tl: TLContext) -> None:
        """Multiply the rows of B in this cube's memory, and store their sums at index ``cube`` of ``sums``."""
        cube, (_, k, n) = tl.program_id(1), self.b.extents
        rows, columns = part(k, tl.num_programs(1), cube), part(n, tl.num_programs(0), tl.program_id(0))
        sums_of_cube = self.epilogue.out.on(sums).at((cube,))
        panels = self._panels(rows, columns, tl)
        pieces = self._load_rows(a, panels, tl)
        self._multiply(pieces, self.b.on(b), panels, (), self.epilogue.on(sums_of_cube, ()), tl)

    def _shard(self, b: int, columns: tuple[int, int]) -> View:
        """Return the layout of a program's shard, indexed by the columns of all shards."""
        (_, k, n), (first, count) = self.b.extents, columns
        before_shard = first * (k - 1) * self.b.dtype.itemsize  # column 0 would be there
        return View(b + before_shard, (1, k, n), (k * count, count, 1), self.b.dtype)

    def _multiply(
        self,
        pieces: Mapping[RowPiece, Handle],
        b: View,
        panels: Sequence[WeightPanel],
        prefetched: Sequence[Handle],
        epilogue: GemvEpilogue,
        tl: TLContext,
    ) -> None:
        for column, group in groupby(enumerate(panels), key=lambda numbered: numbered[1].column):
            sums: Handle | None = None
            for i, panel in group:
                right = prefetched[i] if i < len(prefetched) else self._load(b, panel, tl)
                for at, piece in enumerate(panel.pieces):
                    rows_of_b = tl.part(right, at) if self._is_transposed else right
                    sums = tl.dot(pieces[piece], rows_of_b, sums, out_dtype=F32, trans_b=self._is_transposed)
            assert sums is not None, "a group has a panel"
            epilogue.store(sums, column, tl)

    def _load_rows(self, a: int, panels: Sequence[WeightPanel], tl: TLContext) -> dict[RowPiece, Handle]:
        """Load A in pieces that match the panels of B, with one command for all pieces of one shape."""
        k, pieces = self.b.extents[1], dict[RowPiece, Handle]()
        forms = {(*piece, panel.apart): None for panel in panels for piece in panel.pieces}
        for depth, parts, apart in dict.fromkeys((depth, parts, apart) for _, parts, depth, apart in forms):
            firsts = sorted(row for row, *form in forms if form == [parts, depth, apart])
            together = firsts == list(range(firsts[0], firsts[0] + len(firsts) * depth, depth))
            assert together, "panels of one form follow each other"
            address = a + firsts[0] * self.b.dtype.itemsize
            shape, strides = (len(firsts), self.m, parts, depth), (depth, k, apart, 1)
            loaded = View(address, shape, strides, self.b.dtype).load(tl)
            for i, row in enumerate(firsts):
                pieces[row, parts, depth] = tl.reshape(tl.part(loaded, i), (self.m, parts * depth))
        return pieces

    def _panels(self, rows: tuple[int, int], columns: tuple[int, int], tl: TLContext) -> list[WeightPanel]:
        """Return the panels of a range of rows and columns of B. Panels of the same columns are consecutive."""
        if not (rows[1] and columns[1]):
            return []
        if self._is_transposed:
            return list(self._column_panels(rows, columns))
        return list(self._row_panels(rows, columns, 1 if self.is_sharded else tl.num_programs(0)))

    def _column_panels(self, rows: tuple[int, int], columns: tuple[int, int]) -> Iterator[WeightPanel]:
        """Yield panels of contiguous columns: first the partial tile, then full tiles, with smaller panels at the end.

        A small last panel leaves little to multiply after it has arrived. A is loaded once, in the pieces of all
        panels.
        """
        (row, k), (column, n) = rows, columns
        odd, depth = n % self.tile_n, panel_rows(k, self.tile_n, self.b.dtype.itemsize)
        groups = [(column, odd)] * (odd > 0) + list(blocks(n - odd, self.tile_n, column + odd))
        piece = piece_rows(k, depth) if self.is_by_pieces else depth
        for group in groups:
            for first, lines in column_panels(k, depth, piece, is_last=group == groups[-1]):
                yield WeightPanel(row + first, group[0], lines, group[1], piece_rows=min(piece, lines))

    def _row_panels(self, rows: tuple[int, int], columns: tuple[int, int], parts: int) -> Iterator[WeightPanel]:
        """Yield panels of contiguous rows, each with rows from ``parts`` memories.

        All PEs of a cube read the same rows at once. Each panel therefore takes rows from all memories of the cube,
        so that the PEs do not meet at one memory.
        """
        (row, k), (column, n) = rows, columns
        width = min(n, self.max_columns)
        choose_rows = shard_panel_rows if self.is_sharded else panel_rows
        depth = choose_rows(k, width, self.b.dtype.itemsize)
        apart = k // parts if k > depth else 0
        for j, count in blocks(n, width, column):
            for first, lines in blocks(apart, max(depth // parts, 1), row):
                yield WeightPanel(first, j, lines, count, parts, apart)
            if k > apart * parts:
                yield WeightPanel(row + apart * parts, j, k - apart * parts, count)

    @property
    def _is_transposed(self) -> bool:
        """True if the columns of B are contiguous, as in weights. Panels are then loaded transposed."""
        _, row, column = self.b.strides
        return row < column

    def _early(self, panels: Sequence[WeightPanel]) -> Sequence[WeightPanel]:
        """Return the first panels, up to ``prefetched_bytes`` and at least one."""
        ends = accumulate(panel.parts * panel.depth * panel.columns * self.b.dtype.itemsize for panel in panels)
        return panels[: 1 + sum(end < self.prefetched_bytes for end in ends)]

    def _all_gather(self, a: int, buffer: int, tl: TLContext) -> int:
        """Copy A to this cube's memory, and return the address of the copy."""
        size = self.m * self.b.extents[1]
        source = View.row_major(a, (1, size), self.b.dtype)
        copies = View.row_major(buffer, (tl.num_programs(1), size), self.b.dtype)
        return all_gather([source], [copies], tl)[0].address

    def _own_piece(self, tl: TLContext) -> tuple[int, int]:
        """Return the first element and the size of the piece of A that this PE copies to its cube.

        A memory serves the accesses of its PE in order. The piece therefore avoids the memory of the PE,
        where it would wait behind the prefetched panels.
        """
        pe, pes = tl.program_id(0), tl.num_programs(0)
        half = pes // 2
        number = pe if gathered_copies(pes) == 1 else 2 * ((pe + 1) % half) + pe // half
        return part(self.m * self.b.extents[1], pes, number)

    def _ask_for_piece(self, a: int, tl: TLContext) -> Handle | None:
        """Load this PE's piece of A. Return None for a piece without elements."""
        first, count = self._own_piece(tl)
        return View(a + first * self.b.dtype.itemsize, (count,), (1,), self.b.dtype).load(tl) if count else None

    def _exchange(self, piece: Handle | None, buffer: int, tl: TLContext) -> int:
        """Write this PE's piece to all copies of its cube, and return the address of the copy that the PE reads.

        Panels stay in flight: the PEs of the cube only wait for each other's writes.
        """
        (first, count), copies = self._own_piece(tl), gathered_copies(tl.num_programs(0))
        shape = (tl.num_programs(1), copies, self.m * self.b.extents[1])
        gathered, cube = View.row_major(buffer, shape, self.b.dtype), tl.program_id(1)
        if piece is not None:
            for copy in range(copies):
                gathered.tile((cube, copy, first), (count,)).store(piece, tl)
        tl.barrier(writes_only=True)
        return gathered.at((cube, 0 if copies == 1 else 1 - tl.program_id(0) // (tl.num_programs(0) // 2)))

    def _load(self, b: View, panel: WeightPanel, tl: TLContext) -> Handle:
        tile = b.tile((0, panel.row, panel.column), (panel.depth, panel.columns))
        row, column = tile.strides
        if self._is_transposed:
            rows = panel.piece_rows
            shape, strides = (panel.depth // rows, panel.columns, rows), (rows * row, column, row)
            return View(tile.address, shape, strides, tile.dtype).load(tl)
        groups = View(tile.address, (panel.parts, *tile.extents), (panel.apart * row, row, column), tile.dtype)
        return tl.reshape(groups.load(tl), (panel.parts * panel.depth, panel.columns))


@value
class PartialSums:
    """Sums of a split-K product of few rows, (parts, m, n) in f32, that are still to be added.

    ``max_columns``: number of columns whose sums fit in scratch.
    """

    parts: int
    m: int
    n: int
    epilogue: GemvEpilogue
    max_columns: int

    def run(self, out: int, sums: int, *addend: int, tl: TLContext) -> None:
        """Add the sums of this program's columns and apply the epilogue. The arguments are addresses."""
        epilogue = self.epilogue.on(out, addend)
        view = View.row_major(sums, (self.parts, self.m, self.n), F32)
        first, count = share(self.n, tl)
        for column, columns in blocks(count, self.max_columns, first):
            parts = [view.tile((i, 0, column), (self.m, columns)).load(tl) for i in range(self.parts)]
            epilogue.store(reduce(add, parts), column, tl)
