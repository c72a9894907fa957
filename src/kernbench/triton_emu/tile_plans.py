"""Tile plans: pure generators of the tiles of a dot or a composite, and of the bytes that each tile needs.

A product may be computed by *blocks* of its result. K is then split into *panels*: a panel of A and a panel of B are
read at once. All tiles of the block fetch from these panels, while their sums stay in the matrix unit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import accumulate
from math import prod
from operator import mul
from typing import TypeAlias

from kernbench.common.values import value
from kernbench.messages.commands import ArrayPlace, Command, Epilogue, MemoryRef, Operand

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


OperandPanel: TypeAlias = tuple[PanelIndex, OperandWindow]
"""A part of an operand that one transfer moves for several tiles"""
OperandWindows: TypeAlias = tuple[OperandWindow, ...]
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
    result: OperandPanel | None = None


@value(eq=False, guarded=False)
class BlockStep:
    """A part of a product by blocks: the panels that it reads, and the tiles that use them.

    ``nbytes`` is the bytes of ``reads``; ``freed`` is the bytes of panels without use after this step.
    """

    reads: tuple[OperandPanel, ...]
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
    command: Command,
    index: TileIndex,
    extents: tuple[int, int, int],
    reads: OperandWindows = (),
    *,
    ends_step: bool = False,
) -> Tile:
    rows, steps, columns = extents
    fetched = (rows * steps + steps * columns) * command.a.dtype.itemsize
    return Tile(index, reads, fetched, rows * steps * columns, (), 0, None, ends_step)


def _output_tile(
    command: Command,
    index: TileIndex,
    extents: tuple[int, int, int],
    reads: OperandWindows,
    write: OperandWindow | None,
    *,
    ends_step: bool = False,
    result: OperandPanel | None = None,
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
            reads: OperandWindows = ()
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


def _stream(name: str, operand: ArrayPlace, first: tuple[int, int], shape: tuple[int, int]) -> OperandWindows:
    return (window(name, operand, first, shape),) if isinstance(operand, MemoryRef) else ()


def _epilogue_operands(
    steps: tuple[Epilogue, ...], first: tuple[int, int], shape: tuple[int, int]
) -> tuple[OperandWindows, int]:
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


def _nbytes(panels: tuple[OperandPanel, ...]) -> int:
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

    def result_of(self, number: int) -> OperandPanel:
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

    def read(self, name: str) -> tuple[OperandPanel, ...]:
        """Return the panel of operand ``name``; empty for an operand in TCM."""
        operand = self.command.a if name == "a" else self.command.b
        if not isinstance(operand, MemoryRef):
            return ()
        axes = ((self.rows, self.tile[0]), (self.steps, self.tile[1]), (self.columns, self.tile[2]))
        spans = axes[:2] if name == "a" else axes[1:]
        first, shape = zip(*(_elements(*span, n) for span, n in zip(spans, operand.shape, strict=True)), strict=True)
        (row, rows), (step, steps), (column, columns) = self.rows, self.steps, self.columns
        return (((row, column, step, rows, columns, steps), window(name, operand, first, shape)),)

    def read_epilogue(self) -> tuple[OperandPanel, ...]:
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

    def result(self, i: int) -> OperandPanel:
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
