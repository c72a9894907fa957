"""Tile plans: how a dot or a composite falls into tiles, and what each tile needs. Pure generators.

A product may go by *blocks* of its result. K then goes in *panels*: a panel of A and one of B are read at once, and all
tiles of the block fetch from there, while their sums stay in the matrix unit. ``BlockedProduct`` chooses the sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import accumulate
from math import inf, prod
from operator import mul
from typing import TypeAlias

from kernbench.common.values import value
from kernbench.messages.commands import ArrayPlace, BlockChoice, Command, Epilogue, MemoryRef, Operand

TileSizes: TypeAlias = tuple[int, int, int]
"""(m, k, n)"""
TileIndex: TypeAlias = tuple[int, int, int]
"""(row, column, step along K)"""
PanelIndex: TypeAlias = tuple[int, int, int, int, int, int]
"""The index of the first tile that uses a panel, and how many tiles do along each axis: of the result, and of K"""


@value(eq=False, guarded=False)
class OperandWindow:
    """A tile of a streamed operand: ``name`` of the operand, first virtual address, shape and byte strides."""

    name: str
    va: int
    shape: tuple[int, ...]
    itemsize: int
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return prod(self.shape) * self.itemsize


Panel: TypeAlias = tuple[PanelIndex, OperandWindow]
"""A part of an operand that is moved for several tiles"""
Windows: TypeAlias = tuple[OperandWindow, ...]
TileSpan: TypeAlias = tuple[int, int]
"""Tiles along an axis: the first, and how many"""


@value(eq=False, guarded=False)
class Tile:
    """One tile and its stages.

    ``reads`` are streamed in; ``fetch_bytes`` go from TCM to the engine; ``macs`` of the matrix unit;
    ``math_bytes`` has an entry per MATH operation; ``store_bytes`` come back to TCM and ``write`` is streamed out, both
    only for a tile that completes an output tile. By blocks nothing is read or written for a tile by itself; it may be
    the last to fetch from its panels (``ends_step``), or to complete what is written of the ``result`` at once.
    """

    index: TileIndex
    reads: tuple[OperandWindow, ...]
    fetch_bytes: int
    macs: int
    math_bytes: tuple[int, ...]
    store_bytes: int
    write: OperandWindow | None
    ends_step: bool = False
    result: Panel | None = None


@value(eq=False, guarded=False)
class BlockStep:
    """A part of a product by blocks: the panels that are read for it, and the tiles that work on them.

    ``nbytes`` are those of ``reads``; ``freed`` of the bytes that are there nobody uses behind this step.
    """

    reads: tuple[Panel, ...]
    nbytes: int
    freed: int
    tiles: StepTiles


@value(eq=False, guarded=False)
class AccumulatorUse:
    """The use of the TCM by a dot: ``fetched``: it reads an accumulator; ``stored``: it writes its result."""

    fetched: bool
    stored: bool


STORED = AccumulatorUse(fetched=False, stored=True)


def row_strides(operand: MemoryRef) -> tuple[int, ...]:
    """Return the byte strides of an operand in memory."""
    packed = accumulate((operand.dtype.itemsize, *operand.shape[:0:-1]), mul)
    return operand.strides or tuple(packed)[::-1]


def window(name: str, operand: MemoryRef, first: tuple[int, ...], shape: tuple[int, ...]) -> OperandWindow:
    """Return the part of ``operand`` of ``shape`` whose first element is ``first``."""
    strides = row_strides(operand)
    va = operand.va + sum(i * s for i, s in zip(first, strides, strict=True))
    return OperandWindow(name, va, shape, operand.dtype.itemsize, strides)


def dot_tiles(command: Command, sizes: TileSizes, use: AccumulatorUse) -> Iterator[Tile]:
    """Yield the tiles of a dot on operands in TCM, K innermost; ``use`` says where its sums come from and go."""
    a, dst = command.a, command.result
    m, n = dst.shape
    k = a.shape[0 if command.params.trans_a else 1]
    for index, (rows, steps, columns), last in _gemm_grid(m, k, n, sizes):
        fetch, macs = (rows * steps + steps * columns) * a.dtype.itemsize, rows * steps * columns
        output = rows * columns * dst.dtype.itemsize if last else 0
        fetch += output * use.fetched
        yield Tile(index, (), fetch, macs, (), output * use.stored, None)


def gemm_tiles(command: Command, sizes: TileSizes) -> Iterator[Tile]:
    """The tiles of a composite GEMM, K innermost: operands in memory are streamed, those in TCM are fetched only."""
    (m, k), n = command.a.shape, command.b.shape[1]
    for index, (rows, steps, columns), last in _gemm_grid(m, k, n, sizes):
        row, column, step = index[0] * sizes[0], index[1] * sizes[2], index[2] * sizes[1]
        reads = _stream("a", command.a, (row, step), (rows, steps))
        reads += _stream("b", command.b, (step, column), (steps, columns))
        if not last:
            yield _gemm_tile(command, index, (rows, steps, columns), reads)
            continue
        place = (row, column), (rows, columns)
        reads += _epilogue_operands(command.params.epilogue, *place)[0]
        yield _output_tile(command, index, (rows, steps, columns), reads, window("out", command.out, *place))


def _gemm_tile(
    command: Command, index: TileIndex, extents: tuple[int, int, int], reads: Windows = (), *, ends_step: bool = False
) -> Tile:
    """Make a tile of (rows, steps, columns) that other tiles along K follow."""
    rows, steps, columns = extents
    fetched = (rows * steps + steps * columns) * command.a.dtype.itemsize
    return Tile(index, reads, fetched, rows * steps * columns, (), 0, None, ends_step)


def _output_tile(
    command: Command,
    index: TileIndex,
    extents: tuple[int, int, int],
    reads: Windows,
    write: OperandWindow | None,
    *,
    ends_step: bool = False,
    result: Panel | None = None,
) -> Tile:
    """Make a tile that completes an output tile, which its epilogue works on."""
    (rows, steps, columns), out, epilogue = extents, command.out, command.params.epilogue
    fetched = (rows * steps + steps * columns) * command.a.dtype.itemsize
    _, extra = _epilogue_operands(epilogue, (0, 0), (rows, columns))
    return Tile(
        index,
        reads,
        fetched + extra,
        rows * steps * columns,
        _epilogue_math(epilogue, out, rows * columns),
        rows * columns * out.dtype.itemsize,
        write,
        ends_step,
        result,
    )


def math_tiles(command: Command, sizes: TileSizes) -> Iterator[Tile]:
    """Yield the tiles of an elementwise composite, row by row."""
    tm, _, tn = sizes
    out, epilogue = command.out, command.params.epilogue
    m, n = out.shape
    arrays = [x for x in command.srcs if isinstance(x, Operand | MemoryRef)]
    for i in range(-(-m // tm)):
        for j in range(-(-n // tn)):
            place = (i * tm, j * tn), (min(tm, m - i * tm), min(tn, n - j * tn))
            elements = place[1][0] * place[1][1]
            reads: Windows = ()
            for number, operand in enumerate(command.srcs):
                if isinstance(operand, MemoryRef):
                    reads += _stream(f"x{number}", operand, *place)
            more, extra = _epilogue_operands(epilogue, *place)
            widest = max([out.dtype.itemsize, *(x.dtype.itemsize for x in arrays)])
            yield Tile(
                (i, j, 0),
                reads + more,
                sum(elements * x.dtype.itemsize for x in arrays) + extra,
                0,
                (elements * widest, *_epilogue_math(epilogue, out, elements)),
                elements * out.dtype.itemsize,
                window("out", out, *place),
            )


def _gemm_grid(m: int, k: int, n: int, sizes: TileSizes) -> Iterator[tuple[TileIndex, tuple[int, int, int], bool]]:
    """Index, extent (rows, steps along K, columns) and whether it is the last along K; edge tiles hold less."""
    tm, tk, tn = sizes
    last = -(-k // tk) - 1
    for i in range(-(-m // tm)):
        for j in range(-(-n // tn)):
            for s in range(last + 1):
                yield (i, j, s), (min(tm, m - i * tm), min(tk, k - s * tk), min(tn, n - j * tn)), s == last


def _stream(name: str, operand: ArrayPlace, first: tuple[int, int], shape: tuple[int, int]) -> Windows:
    return (window(name, operand, first, shape),) if isinstance(operand, MemoryRef) else ()


def _epilogue_operands(
    steps: tuple[Epilogue, ...], first: tuple[int, int], shape: tuple[int, int]
) -> tuple[Windows, int]:
    """Return the windows that the epilogue streams in for an output tile, and the bytes it fetches from TCM."""
    reads: list[OperandWindow] = []
    fetched = 0
    for number, step in enumerate(steps):
        operand = step.operand
        if not isinstance(operand, Operand | MemoryRef):
            continue
        axes = len(operand.shape)  # a bias is a vector along the columns
        part = shape[-axes:]
        fetched += prod(part) * operand.dtype.itemsize
        if isinstance(operand, MemoryRef):
            reads.append(window(f"epilogue{number}", operand, first[-axes:], part))
    return tuple(reads), fetched


def _epilogue_math(steps: tuple[Epilogue, ...], out: MemoryRef, elements: int) -> tuple[int, ...]:
    """Return the bytes of the wider operand of every step."""
    others = [step.operand for step in steps]
    sizes = (other.dtype.itemsize if isinstance(other, Operand | MemoryRef) else 0 for other in others)
    return tuple(elements * max(out.dtype.itemsize, size) for size in sizes)


SUM_BYTES = 4
"""What the matrix unit takes for the sum of an element of a block."""
ROW_BYTES = 512
"""A memory gives rows of so many bytes at its sustained rate."""
FEW = 0.25
"""Of what is read, so much may have short rows."""
SHARE = 1 / 16
"""Of the room for panels, what those of one step take at most for the sake of long rows."""
SLACK = 1.3
"""How much faster than the matrix unit works through them a block's operands are read."""
SHORT_ROWS = 0.8
"""Of its sustained rate, what a memory with banks gives of rows that do not use all its channels alike."""
RAGGED_ROWS = 0.64
"""The same, of rows that do not begin with a burst either."""


@value
class OperandReads:
    """The reads of an operand of a product: at ``gbs`` (infinite: it is in TCM), after ``latency_ns``.

    ``by_rows``: elements of a row lie side by side; else those of a column do. ``stripe``: the bytes that lie on all
    channels of the memory alike; of pieces that are no multiples of it, it gives ``piece_share`` of its rate.
    """

    gbs: float = inf
    latency_ns: float = 0.0
    by_rows: bool = True
    stripe: int = 1
    piece_share: float = 1.0

    def share_of_rate(self, side_by_side: int, of: int, itemsize: int) -> float:
        """Return the part of the rate at which pieces are moved that have some elements of a row ``of`` so many."""
        return 1.0 if side_by_side >= of or not side_by_side * itemsize % self.stripe else self.piece_share


@value
class BlockRoom:
    """The bytes that a matrix unit has for ``sums``, and its scheduler for ``panels``."""

    sums: int
    panels: int


@value
class BlockLimits:
    """Limits of blocks, as kernels are told: the tile (m, k, n) that they consist of, and the room that there is."""

    tile: TileSizes
    room: BlockRoom

    def problem(self, factors: tuple[ArrayPlace, ArrayPlace], epilogue: tuple[Epilogue, ...], block: TileSizes) -> str:
        """Say why a product can not go by blocks of this size; empty when it can, or when no blocks have room."""
        reads = [OperandReads(gbs=1.0) if isinstance(x, MemoryRef) else OperandReads() for x in factors]
        product = BlockedProduct.of(factors, epilogue, self.tile, (reads[0], reads[1]), macs_per_ns=1.0, write_ns=0.0)
        sizes, room = product.whole_tiles(block), self.room
        if not product.can_block(room) or product.fits(sizes, room):
            return ""
        return (
            f"block={block} is {' x '.join(map(str, sizes))} in whole tiles: sums of {product.sum_bytes(sizes)} bytes "
            f"(pe.gemm.acc_bytes: {room.sums}), and panels of {product.panel_bytes(sizes)}, two of each operand "
            f"(pe.tcm.scheduler_reserved_bytes: {room.panels}); give smaller sizes, or 'auto'"
        )


@value
class BlockedProduct:
    """A product (m, k) by (k, n) and the machine, as far as they decide the sizes of its blocks.

    ``shape`` and ``tile`` are (m, k, n). ``write_ns``: the time of an element of the result in a memory that gives
    operands meanwhile; 0: another takes it. ``column_bytes`` and ``element_bytes``: what the epilogue reads from memory
    for a column, and for an element, of the result.
    """

    shape: TileSizes
    tile: TileSizes
    itemsize: int
    macs_per_ns: float
    a: OperandReads
    b: OperandReads
    write_ns: float = 0.0
    column_bytes: int = 0
    element_bytes: int = 0

    @classmethod
    def of(
        cls,
        factors: tuple[ArrayPlace, ArrayPlace],
        epilogue: tuple[Epilogue, ...],
        tile: TileSizes,
        reads: tuple[OperandReads, OperandReads],
        *,
        macs_per_ns: float,
        write_ns: float,
    ) -> BlockedProduct:
        """Return the product of two arrays that are read as ``reads`` say, with an epilogue."""
        a, b = factors
        extra = [step.operand for step in epilogue if isinstance(step.operand, MemoryRef)]
        return cls(
            shape=(a.shape[0], a.shape[1], b.shape[1]),
            tile=tile,
            itemsize=a.dtype.itemsize,
            macs_per_ns=macs_per_ns,
            a=reads[0],
            b=reads[1],
            write_ns=write_ns,
            column_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) == 1),
            element_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) > 1),
        )

    @property
    def reads_nothing(self) -> bool:
        """True when both operands are in TCM, which are panels already."""
        return self.a.gbs == self.b.gbs == inf

    @property
    def keeps_a(self) -> bool:
        """True when blocks go along rows of the result, so that A, which is dearer to read, stays as long as it can."""
        m, k, n = self.shape
        return m * k / self.a.gbs >= k * n / self.b.gbs

    def can_block(self, room: BlockRoom) -> bool:
        """Tell whether the smallest blocks fit: two panels of a tile each, and its sums."""
        return not self.reads_nothing and self.fits(self.tile, room)

    def fits(self, sizes: TileSizes, room: BlockRoom) -> bool:
        """Tell whether there is room for the sums of a block, and for its panels twice."""
        return self.sum_bytes(sizes) <= room.sums and self.panel_bytes(sizes) <= room.panels

    def sum_bytes(self, sizes: TileSizes) -> int:
        """Return the bytes of the sums of a block."""
        return sizes[0] * sizes[2] * SUM_BYTES

    def panel_bytes(self, sizes: TileSizes) -> int:
        """Return the bytes of two panels of each operand that is read, and of what the epilogue reads for a block."""
        bm, bk, bn = sizes
        side = bm * (self.a.gbs < inf) + bn * (self.b.gbs < inf)
        return 2 * side * bk * self.itemsize + bn * self.column_bytes + bm * bn * self.element_bytes

    def whole_tiles(self, sizes: TileSizes) -> TileSizes:
        """Return sizes in whole tiles, and no larger than the product."""
        bm, bk, bn = (
            -(-min(size, extent) // tile) * tile
            for size, extent, tile in zip(sizes, self.shape, self.tile, strict=True)
        )
        return bm, bk, bn

    def choose(self, room: BlockRoom, choice: BlockChoice = "auto") -> TileSizes | None:
        """Choose the sizes; None when not even the smallest blocks fit.

        For ``auto``, of those whose panels are read faster than the matrix unit works on them, by ``SLACK``, and that
        leave the memory time to take the result, the smallest; else, and for ``least``, those for which least is read.
        """
        if not self.can_block(room):
            return None
        (m, k, n), (tm, tk, tn) = self.shape, self.tile
        m, n = -(-m // tm) * tm, -(-n // tn) * tn  # edge tiles take the matrix unit as long as whole ones
        compute_ns = m * k * n / self.macs_per_ns
        a, b = self.a.gbs, self.b.gbs

        # One that is in TCM counts as well: its block of rows or columns is as long.
        a_gbs, b_gbs = (mine if mine < inf else other for mine, other in ((a, b), (b, a)))

        def rank(block: tuple[int, int]) -> tuple[float, ...]:
            bm, bn = block
            read_ns = (m * -(-n // bn) / a_gbs + n * -(-m // bm) / b_gbs) * k * self.itemsize
            needed = max(SLACK * read_ns, self._memory_ns(bm, bn, room))
            enough = choice == "auto" and needed <= compute_ns
            return (0, bm + bn, abs(bm - bn)) if enough else (1, needed, -bm - bn)

        found = ((bm, bn) for bm in _sizes(m, tm) for bn in _sizes(n, tn) if self.fits((bm, tk, bn), room))
        bm, bn = min(found, key=rank)
        return bm, self._panel_size(bm, bn, room), bn

    def _memory_ns(self, bm: int, bn: int, room: BlockRoom) -> float:
        """Return the time that the memory takes for all panels, and for the result if that goes there."""
        (m, k, n), bk = self.shape, self._panel_size(bm, bn, room)
        columns, rows = -(-n // bn), -(-m // bm)  # of blocks, for each of which A, or B, is read
        if bk >= k:
            columns, rows = (1, rows) if self.keeps_a else (columns, 1)
        a_row, b_row = (bk, k) if self.a.by_rows else (bm, m), (bn, n) if self.b.by_rows else (bk, k)
        a_gbs = self.a.gbs * self.a.share_of_rate(*a_row, self.itemsize)
        b_gbs = self.b.gbs * self.b.share_of_rate(*b_row, self.itemsize)
        out = min(self.a, self.b, key=lambda each: each.piece_share).share_of_rate(bn, n, self.itemsize)
        return (m * columns / a_gbs + n * rows / b_gbs) * k * self.itemsize + m * n * self.write_ns / out

    def _panel_size(self, bm: int, bn: int, room: BlockRoom) -> int:
        """Return the length of the shortest panels that are read well, or of the longest that there is room for.

        A panel takes at least the latency of a read. Unless panels would take more than their ``SHARE`` of the room,
        rows along K have ``ROW_BYTES``, if they are not few, and between the ends of reading and of working on a step,
        whichever is later, a read can begin.
        """
        (_, k, _), (_, tk, _) = self.shape, self.tile
        a_ns, b_ns = bm * self.itemsize / self.a.gbs, bn * self.itemsize / self.b.gbs
        read_ns, compute_ns = a_ns + b_ns, bm * bn / self.macs_per_ns
        along_k = a_ns * self.a.by_rows + b_ns * (not self.b.by_rows)
        least = ROW_BYTES / self.itemsize if along_k > FEW * read_ns else 0
        latency_ns = max(self.a.latency_ns, self.b.latency_ns)
        bk = tk
        while bk < k and self.fits((bm, bk + tk, bn), room):
            short = bk < least or bk * abs(read_ns - compute_ns) < latency_ns
            modest = self.panel_bytes((bm, bk + tk, bn)) <= 2 * SHARE * room.panels
            if bk * read_ns >= latency_ns and not (short and modest):
                break
            bk += tk
        tiles = -(-k // tk)
        parts = max(1, tiles // (bk // tk))  # K is cut evenly: no panel is shorter than that
        even = -(-tiles // parts) * tk
        return even if self.fits((bm, even, bn), room) else bk


def _sizes(extent: int, tile: int) -> Iterator[int]:
    """Yield the sizes in whole tiles that cut an axis into 1, 2, … as equal parts as there are, the smallest first."""
    tiles = -(-extent // tile)
    yield from sorted({-(-tiles // parts) * tile for parts in range(1, tiles + 1)})


def _split_evenly(extent: int, size: int, tile: int, begin: int) -> list[TileSpan]:
    """Cut an axis into parts of ``size`` at most, as equal as whole tiles allow, in a round from element ``begin``."""
    tiles, most = -(-extent // tile), size // tile
    parts = -(-tiles // most)
    each, more = divmod(tiles, parts)
    spans = [(at * each + min(at, more), each + (at < more)) for at in range(parts)]
    at = next(at for at, (first, count) in enumerate(spans) if begin < (first + count) * tile)
    return spans[at:] + spans[:at]


def block_steps(command: Command, tile: TileSizes, sizes: TileSizes, *, keep_a: bool) -> Iterator[BlockStep]:
    """The steps of a composite GEMM by blocks of ``sizes``: blocks along rows of the result (``keep_a``) or columns.

    Along each axis they go round from where the command has them ``begin``. Where one panel is all of K, that of the
    operand which the next block has in common with this one stays.
    """
    (m, k), n = command.a.shape, command.b.shape[1]
    rows, steps, columns = map(_split_evenly, (m, k, n), sizes, tile, command.params.begin)
    kept, other = ("a", "b") if keep_a else ("b", "a")
    for first in rows if keep_a else columns:
        inner = columns if keep_a else rows
        for number, second in enumerate(inner):
            row, column = (first, second) if keep_a else (second, first)
            for step in steps:
                panels, ends = _Panels(command, tile, row, step, column), step == steps[-1]
                own = panels.read(other) + (panels.read_epilogue() if ends else ())
                if len(steps) > 1:
                    shared, comes, goes = panels.read(kept), True, True
                else:
                    along = (0, sum(count for _, count in inner))
                    whole = (first, step, along) if keep_a else (along, step, first)
                    shared = _Panels(command, tile, *whole).read(kept)
                    comes, goes = number == 0, number == len(inner) - 1
                reads, leaves = shared * comes + own, shared * goes + own
                yield BlockStep(reads, _nbytes(reads), _nbytes(leaves), StepTiles(panels, ends))


def _nbytes(panels: tuple[Panel, ...]) -> int:
    return sum(each.nbytes for _, each in panels)


@value(eq=False, guarded=False)
class DotTiles:
    """The tiles of a dot on operands in TCM, K innermost; ``use`` says where its sums come from and go."""

    command: Command
    sizes: TileSizes
    use: AccumulatorUse

    def __iter__(self) -> Iterator[Tile]:
        return dot_tiles(self.command, self.sizes, self.use)

    @property
    def key(self) -> Hashable:
        """Return what decides them on a machine."""
        a, dst, use = self.command.a, self.command.result, self.use
        return a.shape, self.command.params.trans_a, dst.shape, a.dtype.name, dst.dtype.name, use.fetched, use.stored


@value(eq=False, guarded=False)
class StepTiles:
    """The tiles of a step, K innermost. ``last``: K ends here, and the result is written a row of tiles at a time."""

    panels: _Panels
    last: bool

    def __iter__(self) -> Iterator[Tile]:
        return self.panels.tiles(self.last)

    @property
    def key(self) -> Hashable:
        """Return what decides them on a machine, but for the windows of results."""
        x, a, out = self.panels, self.panels.command.a, self.panels.command.out
        has_math = self.last and bool(self.panels.command.params.epilogue)
        return a.shape, out.shape, a.dtype.name, out.dtype.name, x.rows, x.steps, x.columns, self.last, has_math

    def result_of(self, number: int) -> Panel:
        """Return the row of tiles of the result that tile ``number`` is in."""
        x = self.panels
        return x.result(x.rows[0] + number // (x.columns[1] * x.steps[1]))


@value(eq=False, guarded=False)
class _Panels:
    """The tiles that a step works on: along rows, K and columns, each as first tile and number of tiles."""

    command: Command
    tile: TileSizes
    rows: TileSpan
    steps: TileSpan
    columns: TileSpan

    def read(self, name: str) -> tuple[Panel, ...]:
        """Return the panel of operand ``name``; nothing when that is in TCM."""
        operand = self.command.a if name == "a" else self.command.b
        if not isinstance(operand, MemoryRef):
            return ()
        axes = ((self.rows, self.tile[0]), (self.steps, self.tile[1]), (self.columns, self.tile[2]))
        spans = axes[:2] if name == "a" else axes[1:]
        first, shape = zip(*(_elements(*each, n) for each, n in zip(spans, operand.shape, strict=True)), strict=True)
        (row, rows), (step, steps), (column, columns) = self.rows, self.steps, self.columns
        return (((row, column, step, rows, columns, steps), window(name, operand, first, shape)),)

    def read_epilogue(self) -> tuple[Panel, ...]:
        """Return what the epilogue reads for the block."""
        (row, rows), (step, steps), (column, columns) = self.rows, self.steps, self.columns
        index = row, column, step + steps - 1, rows, columns, 1  # it is for tiles of the last step along K
        reads, _ = _epilogue_operands(self.command.params.epilogue, *self._elements_of_result(self.rows))
        return tuple([(index, each) for each in reads])

    def tiles(self, last: bool) -> Iterator[Tile]:
        """The tiles, K innermost; ``last``: K ends here, and the result is written a row of tiles at a time."""
        (row, rows), (step, steps), (column, columns) = self.rows, self.steps, self.columns
        for i in range(row, row + rows):
            for j in range(column, column + columns):
                for s in range(step, step + steps):
                    ends_row = j == column + columns - 1 and s == step + steps - 1
                    ends = ends_row and i == row + rows - 1
                    index, extents = (i, j, s), self._extents(i, j, s)
                    if last and s == step + steps - 1:
                        result = self.result(i) if ends_row else None
                        yield _output_tile(self.command, index, extents, (), None, ends_step=ends, result=result)
                    else:
                        yield _gemm_tile(self.command, index, extents, ends_step=ends)

    def _extents(self, i: int, j: int, s: int) -> tuple[int, int, int]:
        """Rows, steps along K and columns of a tile."""
        (m, k), n, (tm, tk, tn) = self.command.a.shape, self.command.b.shape[1], self.tile
        return min(tm, m - i * tm), min(tk, k - s * tk), min(tn, n - j * tn)

    def result(self, i: int) -> Panel:
        """Row ``i`` of the tiles of the result."""
        (step, steps), (column, columns) = self.steps, self.columns
        first, shape = self._elements_of_result((i, 1))
        return (i, column, step + steps - 1, 1, columns, 1), window("out", self.command.out, first, shape)

    def _elements_of_result(self, rows: TileSpan) -> tuple[tuple[int, int], tuple[int, int]]:
        """First element and shape of some rows of tiles of the block of the result."""
        m, n = self.command.out.shape
        (row, count), (column, columns) = _elements(rows, self.tile[0], m), _elements(self.columns, self.tile[2], n)
        return (row, column), (count, columns)


def _elements(span: TileSpan, size: int, extent: int) -> tuple[int, int]:
    """Return the first element of some tiles, and how many elements they hold."""
    first = span[0] * size
    return first, min(span[1] * size, extent - first)
