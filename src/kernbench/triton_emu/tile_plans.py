"""Tile plans: pure generators of the tiles of a dot or a composite, and of the bytes that each tile needs.

A product may be computed by *blocks* of its result. K is then split into *panels*: a panel of A and a panel of B are
read at once. All tiles of the block fetch from these panels, while their sums stay in the matrix unit.
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
"""The index of the first tile that uses a panel, and the number of such tiles along rows, columns and K"""


@value(eq=False, guarded=False)
class OperandWindow:
    """A tile of a streamed operand: operand ``name``, first virtual address, shape and byte strides."""

    name: str
    va: int
    shape: tuple[int, ...]
    itemsize: int
    strides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return prod(self.shape) * self.itemsize


Panel: TypeAlias = tuple[PanelIndex, OperandWindow]
"""A part of an operand that one transfer moves for several tiles"""
Windows: TypeAlias = tuple[OperandWindow, ...]
TileSpan: TypeAlias = tuple[int, int]
"""Tiles along an axis: the first tile and the number of tiles"""


@value(eq=False, guarded=False)
class Tile:
    """One tile and the bytes of its stages.

    ``reads`` are the windows of memory that are streamed in. ``fetch_bytes`` are read from TCM by the engine. ``macs``
    are the multiply-accumulates of the matrix unit. ``math_bytes`` has an entry per MATH operation. ``store_bytes`` are
    written back to TCM, and ``write`` is streamed out to memory; only a tile that completes an output tile has both.

    In a product by blocks, whole panels and results are transferred, so a tile has no ``reads`` or ``write``. With
    ``ends_step``, the tile is the last to fetch from its panels. With ``result``, it completes the elements that one
    transfer writes.
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
    """A part of a product by blocks: the panels that it reads, and the tiles that use them.

    ``nbytes`` is the bytes of ``reads``; ``freed`` is the bytes of panels without use after this step.
    """

    reads: tuple[Panel, ...]
    nbytes: int
    freed: int
    tiles: StepTiles


@value(eq=False, guarded=False)
class AccumulatorUse:
    """The use of TCM by a dot for its sums: ``fetched``: it reads an accumulator; ``stored``: it writes its result."""

    fetched: bool
    stored: bool


STORED = AccumulatorUse(fetched=False, stored=True)


def row_strides(operand: MemoryRef) -> tuple[int, ...]:
    """Return the byte strides of an operand in memory."""
    packed = accumulate((operand.dtype.itemsize, *operand.shape[:0:-1]), mul)
    return operand.strides or tuple(packed)[::-1]


def window(name: str, operand: MemoryRef, first: tuple[int, ...], shape: tuple[int, ...]) -> OperandWindow:
    """Return the part of ``operand`` with ``shape`` whose first element is ``first``."""
    strides = row_strides(operand)
    va = operand.va + sum(i * s for i, s in zip(first, strides, strict=True))
    return OperandWindow(name, va, shape, operand.dtype.itemsize, strides)


def dot_tiles(command: Command, sizes: TileSizes, use: AccumulatorUse) -> Iterator[Tile]:
    """Yield the tiles of a dot on operands in TCM, K innermost; ``use`` is the dot's use of TCM for its sums."""
    a, dst = command.a, command.result
    m, n = dst.shape
    k = a.shape[0 if command.params.trans_a else 1]
    for index, (rows, steps, columns), last in _gemm_grid(m, k, n, sizes):
        fetch, macs = (rows * steps + steps * columns) * a.dtype.itemsize, rows * steps * columns
        output = rows * columns * dst.dtype.itemsize if last else 0
        fetch += output * use.fetched
        yield Tile(index, (), fetch, macs, (), output * use.stored, None)


def gemm_tiles(command: Command, sizes: TileSizes) -> Iterator[Tile]:
    """Yield the tiles of a composite GEMM, K innermost: operands in memory are streamed, those in TCM only fetched."""
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
    """Return a tile that completes an output tile, to which its epilogue applies."""
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
    """Yield index, extents (rows, steps along K, columns), and True for the last along K; edge tiles are smaller."""
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
    """Return the windows that the epilogue streams in for an output tile, and the bytes that it fetches from TCM."""
    reads: list[OperandWindow] = []
    fetched = 0
    for number, step in enumerate(steps):
        operand = step.operand
        if not isinstance(operand, Operand | MemoryRef):
            continue
        axes = len(operand.shape)  # a bias is a vector along the columns
        part = tuple(map(min, shape[-axes:], operand.shape))  # scales of rows have one column
        fetched += prod(part) * operand.dtype.itemsize
        if isinstance(operand, MemoryRef):
            begin = tuple([at if extent > 1 else 0 for at, extent in zip(first[-axes:], operand.shape, strict=True)])
            reads.append(window(f"epilogue{number}", operand, begin, part))
    return tuple(reads), fetched


def _epilogue_math(steps: tuple[Epilogue, ...], out: MemoryRef, elements: int) -> tuple[int, ...]:
    """Return the bytes of the wider operand of every step."""
    operands = [step.operand for step in steps]
    sizes = (operand.dtype.itemsize if isinstance(operand, Operand | MemoryRef) else 0 for operand in operands)
    return tuple(elements * max(out.dtype.itemsize, size) for size in sizes)


SUM_BYTES = 4
"""Bytes that the matrix unit needs for the sum of one element of a block."""
ROW_BYTES = 512
"""The shortest row, in bytes, that a memory delivers at its sustained rate."""
FEW = 0.25
"""The largest share of the read time that may go to rows shorter than ``ROW_BYTES``."""
SHARE = 1 / 16
"""The largest share of the room for panels that one step may use so that its rows are long."""
SLACK = 1.3
"""The least ratio of the matrix unit's work on a block to the read time of the block's operands."""
SHORT_ROWS = 0.8
"""The fraction of its sustained rate at which a banked memory delivers rows that use its channels unevenly."""
RAGGED_ROWS = 0.64
"""The same fraction for rows that use the channels unevenly and do not begin at a burst."""


@value
class OperandReads:
    """The reads of an operand of a product: at ``gbs`` GB/s (infinite for an operand in TCM), after ``latency_ns``.

    ``by_rows``: elements of a row are adjacent, otherwise those of a column. ``stripe`` bytes use all channels of the
    memory evenly. Pieces that are no multiple of ``stripe`` are read at ``piece_share`` of the rate.
    """

    gbs: float = inf
    latency_ns: float = 0.0
    by_rows: bool = True
    stripe: int = 1
    piece_share: float = 1.0

    def share_of_rate(self, adjacent: int, extent: int, itemsize: int) -> float:
        """Return the share of the rate for pieces of ``adjacent`` elements of a row of ``extent`` elements."""
        return 1.0 if adjacent >= extent or not adjacent * itemsize % self.stripe else self.piece_share


@value
class BlockRoom:
    """Memory for products by blocks, in bytes: the matrix unit's for ``sums``, and the scheduler's for ``panels``."""

    sums: int
    panels: int


@value
class BlockLimits:
    """The limits of block sizes that kernels choose: the tile (m, k, n), and the room for sums and panels."""

    tile: TileSizes
    room: BlockRoom

    def problem(self, factors: tuple[ArrayPlace, ArrayPlace], epilogue: tuple[Epilogue, ...], block: TileSizes) -> str:
        """Return why blocks of this size do not fit; empty if they fit, or if no blocks fit at all."""
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
    """A product (m, k) by (k, n) and the machine, as inputs of the choice of block sizes.

    ``shape`` and ``tile`` are (m, k, n). ``write_ns`` is the time to write an element of the result to a memory that
    also delivers operands; 0 if another memory takes the result. ``row_bytes``, ``column_bytes`` and ``element_bytes``
    are the bytes that the epilogue reads from memory for a row, for a column and for an element of the result.
    """

    shape: TileSizes
    tile: TileSizes
    itemsize: int
    macs_per_ns: float
    a: OperandReads
    b: OperandReads
    write_ns: float = 0.0
    row_bytes: int = 0
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
        a, b = factors
        extra = [step.operand for step in epilogue if isinstance(step.operand, MemoryRef)]
        n = b.shape[1]
        return cls(
            shape=(a.shape[0], a.shape[1], n),
            tile=tile,
            itemsize=a.dtype.itemsize,
            macs_per_ns=macs_per_ns,
            a=reads[0],
            b=reads[1],
            write_ns=write_ns,
            row_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) > 1 and x.shape[1] < n),
            column_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) == 1),
            element_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) > 1 and x.shape[1] == n),
        )

    @property
    def reads_nothing(self) -> bool:
        """True if both operands are in TCM and need no panels."""
        return self.a.gbs == self.b.gbs == inf

    @property
    def keeps_a(self) -> bool:
        """True if A has the longer read time: blocks then proceed along rows of the result, which reuse A's panels."""
        m, k, n = self.shape
        return m * k / self.a.gbs >= k * n / self.b.gbs

    def line_of(self, sizes: TileSizes, room: BlockRoom) -> bool | None:
        """Return True if all panels of A along K should stay in the room, False for those of B, and None for neither.

        They are those of a block of rows, or of columns, and are read once. If the result is a single block of rows, or
        of columns, these are all of A, or of B. They and two panels of the other operand may take half of the room.
        """
        (m, k, n), (bm, bk, bn) = self.shape, sizes
        rows, columns = -(-m // bm), -(-n // bn)
        is_a = self.keeps_a if min(rows, columns) > 1 else rows == 1
        kept, side, other = (self.a, bm, bn) if is_a else (self.b, bn, bm)
        line_bytes = (side * k + 2 * other * bk) * self.itemsize
        if kept.gbs == inf or (columns if is_a else rows) == 1 or 2 * line_bytes > room.panels:
            return None
        return is_a

    def can_block(self, room: BlockRoom) -> bool:
        """Return True if the smallest blocks fit: two panels of a tile for each operand, and the sums."""
        return not self.reads_nothing and self.fits(self.tile, room)

    def fits(self, sizes: TileSizes, room: BlockRoom) -> bool:
        """Return True if the sums of a block and two panels of each operand fit."""
        return self.sum_bytes(sizes) <= room.sums and self.panel_bytes(sizes) <= room.panels

    def sum_bytes(self, sizes: TileSizes) -> int:
        """Return the bytes of the sums of a block."""
        return sizes[0] * sizes[2] * SUM_BYTES

    def panel_bytes(self, sizes: TileSizes) -> int:
        """Return the bytes of two panels of each operand that is read, and of the epilogue's operands for a block."""
        bm, bk, bn = sizes
        side = bm * (self.a.gbs < inf) + bn * (self.b.gbs < inf)
        epilogue = bm * self.row_bytes + bn * self.column_bytes + bm * bn * self.element_bytes
        return 2 * side * bk * self.itemsize + epilogue

    def whole_tiles(self, sizes: TileSizes) -> TileSizes:
        """Return sizes rounded up to complete tiles, and no larger than the product."""
        bm, bk, bn = (
            -(-min(size, extent) // tile) * tile
            for size, extent, tile in zip(sizes, self.shape, self.tile, strict=True)
        )
        return bm, bk, bn

    def choose(self, room: BlockRoom, choice: BlockChoice = "auto") -> TileSizes | None:
        """Return the sizes of blocks, or None if the smallest blocks do not fit.

        ``auto`` chooses the smallest blocks that meet two conditions. Their panels are read faster than the matrix unit
        works on them, by the factor ``SLACK``, and the memory has time to write the result. ``least``, or ``auto``
        without such blocks, minimises the read time.
        """
        if not self.can_block(room):
            return None
        (m, k, n), (tm, tk, tn) = self.shape, self.tile
        m, n = -(-m // tm) * tm, -(-n // tn) * tn  # an edge tile costs the matrix unit as much as a full tile
        compute_ns = m * k * n / self.macs_per_ns
        a, b = self.a.gbs, self.b.gbs

        # An operand in TCM counts at the rate of the other one: its block of rows or columns is as long.
        a_gbs, b_gbs = (gbs if gbs < inf else other for gbs, other in ((a, b), (b, a)))

        def rank(block: tuple[int, int]) -> tuple[float, ...]:
            bm, bn = block
            read_ns = (m * -(-n // bn) / a_gbs + n * -(-m // bm) / b_gbs) * k * self.itemsize
            needed = max(SLACK * read_ns, self._memory_ns(bm, bn, room))
            enough = choice == "auto" and needed <= compute_ns
            return (0, bm + bn, abs(bm - bn)) if enough else (1, needed, -bm - bn)

        blocks = ((bm, bn) for bm in _sizes(m, tm) for bn in _sizes(n, tn) if self.fits((bm, tk, bn), room))
        bm, bn = min(blocks, key=rank)
        return bm, self._panel_size(bm, bn, room), bn

    def _memory_ns(self, bm: int, bn: int, room: BlockRoom) -> float:
        """Return the time to read all panels, plus the time to write the result if it goes to the same memory."""
        (m, k, n), bk = self.shape, self._panel_size(bm, bn, room)
        columns, rows = -(-n // bn), -(-m // bm)  # numbers of blocks: each block column reads A, each block row reads B
        if bk >= k:
            columns, rows = (1, rows) if self.keeps_a else (columns, 1)
        a_row, b_row = (bk, k) if self.a.by_rows else (bm, m), (bn, n) if self.b.by_rows else (bk, k)
        a_gbs = self.a.gbs * self.a.share_of_rate(*a_row, self.itemsize)
        b_gbs = self.b.gbs * self.b.share_of_rate(*b_row, self.itemsize)
        out = min(self.a, self.b, key=lambda operand: operand.piece_share).share_of_rate(bn, n, self.itemsize)
        return (m * columns / a_gbs + n * rows / b_gbs) * k * self.itemsize + m * n * self.write_ns / out

    def _panel_size(self, bm: int, bn: int, room: BlockRoom) -> int:
        """Return the length of the shortest panels with efficient reads, or of the longest panels that fit.

        Reading a panel lasts at least the latency of a read. Two further conditions hold unless panels would exceed
        their ``SHARE`` of the room. Rows along K have at least ``ROW_BYTES``, unless their share of the read time is at
        most ``FEW``. The read time and the compute time of a step differ by at least the latency, so that a read can
        begin between their ends.
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
        parts = max(1, tiles // (bk // tk))  # K is split evenly: no panel is shorter than bk
        even = -(-tiles // parts) * tk
        return even if self.fits((bm, even, bn), room) else bk


def _sizes(extent: int, tile: int) -> Iterator[int]:
    """Yield the sizes in complete tiles that split an axis into 1, 2, … nearly equal parts, in ascending order."""
    tiles = -(-extent // tile)
    yield from sorted({-(-tiles // parts) * tile for parts in range(1, tiles + 1)})


def _split_evenly(extent: int, size: int, tile: int, begin: int) -> list[TileSpan]:
    """Split an axis into nearly equal parts of at most ``size``; start at the part with ``begin`` and wrap around."""
    tiles, most = -(-extent // tile), size // tile
    parts = -(-tiles // most)
    base, more = divmod(tiles, parts)
    spans = [(at * base + min(at, more), base + (at < more)) for at in range(parts)]
    at = next(at for at, (first, count) in enumerate(spans) if begin < (first + count) * tile)
    return spans[at:] + spans[:at]


def block_steps(
    command: Command, tile: TileSizes, sizes: TileSizes, *, keep_a: bool, retains_line: bool = False
) -> Iterator[BlockStep]:
    """Yield the steps of a composite GEMM by blocks of ``sizes``, along rows of the result (``keep_a``) or columns.

    Along each axis the first block contains the command's point ``begin``, and the blocks wrap around. If one panel
    spans all of K, the panel that the next block shares is retained. With ``retains_line``, all panels along K are.
    """
    (m, k), n = command.a.shape, command.b.shape[1]
    rows, steps, columns = map(_split_evenly, (m, k, n), sizes, tile, command.params.begin)
    retained, other = ("a", "b") if keep_a else ("b", "a")
    for first in rows if keep_a else columns:
        inner = columns if keep_a else rows
        for number, second in enumerate(inner):
            row, column = (first, second) if keep_a else (second, first)
            for step in steps:
                panels, ends = _Panels(command, tile, row, step, column), step == steps[-1]
                other_panels = panels.read(other) + (panels.read_epilogue() if ends else ())
                if len(steps) > 1 and not retains_line:
                    shared, is_first_use, is_last_use = panels.read(retained), True, True
                else:
                    along = (0, sum(count for _, count in inner))
                    spans = (first, step, along) if keep_a else (along, step, first)
                    shared = _Panels(command, tile, *spans).read(retained)
                    is_first_use, is_last_use = number == 0, number == len(inner) - 1
                reads, leaves = shared * is_first_use + other_panels, shared * is_last_use + other_panels
                yield BlockStep(reads, _nbytes(reads), _nbytes(leaves), StepTiles(panels, ends))


def _nbytes(panels: tuple[Panel, ...]) -> int:
    return sum(panel.nbytes for _, panel in panels)


@value(eq=False, guarded=False)
class DotTiles:
    """The tiles of a dot on operands in TCM, K innermost; ``use`` is the dot's use of TCM for its sums."""

    command: Command
    sizes: TileSizes
    use: AccumulatorUse

    def __iter__(self) -> Iterator[Tile]:
        return dot_tiles(self.command, self.sizes, self.use)

    @property
    def key(self) -> Hashable:
        """The values that determine the tiles on a machine."""
        a, dst, use = self.command.a, self.command.result, self.use
        return a.shape, self.command.params.trans_a, dst.shape, a.dtype.name, dst.dtype.name, use.fetched, use.stored


@value(eq=False, guarded=False)
class StepTiles:
    """The tiles of a step, K innermost; ``last``: K ends here, and each complete row of tiles is written."""

    panels: _Panels
    last: bool

    def __iter__(self) -> Iterator[Tile]:
        return self.panels.tiles(self.last)

    @property
    def key(self) -> Hashable:
        """The values that determine the tiles on a machine, except for the windows of results."""
        x, a, out = self.panels, self.panels.command.a, self.panels.command.out
        has_math = self.last and bool(self.panels.command.params.epilogue)
        return a.shape, out.shape, a.dtype.name, out.dtype.name, x.rows, x.steps, x.columns, self.last, has_math

    def result_of(self, number: int) -> Panel:
        """Return the row of tiles of the result that contains tile ``number``."""
        x = self.panels
        return x.result(x.rows[0] + number // (x.columns[1] * x.steps[1]))


@value(eq=False, guarded=False)
class _Panels:
    """The tiles of a step: spans along rows, K and columns, each as first tile and number of tiles."""

    command: Command
    tile: TileSizes
    rows: TileSpan
    steps: TileSpan
    columns: TileSpan

    def read(self, name: str) -> tuple[Panel, ...]:
        """Return the panel of operand ``name``; empty for an operand in TCM."""
        operand = self.command.a if name == "a" else self.command.b
        if not isinstance(operand, MemoryRef):
            return ()
        axes = ((self.rows, self.tile[0]), (self.steps, self.tile[1]), (self.columns, self.tile[2]))
        spans = axes[:2] if name == "a" else axes[1:]
        first, shape = zip(*(_elements(*span, n) for span, n in zip(spans, operand.shape, strict=True)), strict=True)
        (row, rows), (step, steps), (column, columns) = self.rows, self.steps, self.columns
        return (((row, column, step, rows, columns, steps), window(name, operand, first, shape)),)

    def read_epilogue(self) -> tuple[Panel, ...]:
        """Return the epilogue's operands for the block."""
        (row, rows), (step, steps), (column, columns) = self.rows, self.steps, self.columns
        index = row, column, step + steps - 1, rows, columns, 1  # for the tiles of the last step along K
        reads, _ = _epilogue_operands(self.command.params.epilogue, *self._elements_of_result(self.rows))
        return tuple([(index, operand) for operand in reads])

    def tiles(self, last: bool) -> Iterator[Tile]:
        """Yield the tiles, K innermost; ``last``: K ends here, and each complete row of tiles is written."""
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
        (m, k), n, (tm, tk, tn) = self.command.a.shape, self.command.b.shape[1], self.tile
        return min(tm, m - i * tm), min(tk, k - s * tk), min(tn, n - j * tn)

    def result(self, i: int) -> Panel:
        """Return row ``i`` of the tiles of the result."""
        (step, steps), (column, columns) = self.steps, self.columns
        first, shape = self._elements_of_result((i, 1))
        return (i, column, step + steps - 1, 1, columns, 1), window("out", self.command.out, first, shape)

    def _elements_of_result(self, rows: TileSpan) -> tuple[tuple[int, int], tuple[int, int]]:
        m, n = self.command.out.shape
        (row, count), (column, columns) = _elements(rows, self.tile[0], m), _elements(self.columns, self.tile[2], n)
        return (row, column), (count, columns)


def _elements(span: TileSpan, size: int, extent: int) -> tuple[int, int]:
    """Return the first element of some tiles, and their number of elements."""
    first = span[0] * size
    return first, min(span[1] * size, extent - first)
