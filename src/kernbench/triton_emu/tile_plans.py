"""Tile plans: how a dot or a composite falls into tiles, and what each tile needs. Pure generators."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TypeAlias

from kernbench.common.values import value
from kernbench.messages.commands import ArrayPlace, Command, Epilogue, MemoryRef, Operand

TileSizes: TypeAlias = tuple[int, int, int]
"""(m, k, n)"""
TileIndex: TypeAlias = tuple[int, int, int]
"""(row, column, step along K)"""


@value(eq=False, guarded=False)
class OperandWindow:
    """A tile of a streamed operand: ``name`` of the operand, first virtual address, shape and byte strides."""

    name: str
    va: int
    shape: tuple[int, ...]
    itemsize: int
    strides: tuple[int, ...]


@value(eq=False, guarded=False)
class Tile:
    """One tile and its stages.

    ``reads`` are streamed in; ``fetch_bytes`` go from TCM to the engine; ``macs`` of the matrix unit;
    ``math_bytes`` has an entry per MATH operation; ``store_bytes`` come back to TCM and ``write`` is streamed out, both
    only for a tile that completes an output tile.
    """

    index: TileIndex
    reads: tuple[OperandWindow, ...]
    fetch_bytes: int
    macs: int
    math_bytes: tuple[int, ...]
    store_bytes: int
    write: OperandWindow | None


@value(eq=False, guarded=False)
class AccumulatorUse:
    """The use of the TCM by a dot: ``fetched``: it reads an accumulator; ``stored``: it writes its result."""

    fetched: bool
    stored: bool


STORED = AccumulatorUse(fetched=False, stored=True)


def row_strides(operand: MemoryRef) -> tuple[int, ...]:
    """Return the byte strides of an operand in memory."""
    if operand.strides is not None:
        return operand.strides
    strides: list[int] = []
    span = operand.dtype.itemsize
    for count in reversed(operand.shape):
        strides.append(span)
        span *= count
    return tuple(reversed(strides))


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
    a, b, out, epilogue = command.a, command.b, command.out, command.params.epilogue
    m, k = a.shape
    n = b.shape[1]
    tm, tk, tn = sizes
    for index, (rows, steps, columns), last in _gemm_grid(m, k, n, sizes):
        row, column, step = index[0] * tm, index[1] * tn, index[2] * tk
        reads = _streamed("a", a, (row, step), (rows, steps))
        reads += _streamed("b", b, (step, column), (steps, columns))
        fetch, macs = (rows * steps + steps * columns) * a.dtype.itemsize, rows * steps * columns
        if not last:
            yield Tile(index, reads, fetch, macs, (), 0, None)
            continue
        place = (row, column), (rows, columns)
        more, extra = _epilogue_operands(epilogue, *place)
        yield Tile(
            index,
            reads + more,
            fetch + extra,
            macs,
            _epilogue_math(epilogue, out, rows * columns),
            rows * columns * out.dtype.itemsize,
            window("out", out, *place),
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
            reads: tuple[OperandWindow, ...] = ()
            for number, operand in enumerate(command.srcs):
                if isinstance(operand, MemoryRef):
                    reads += _streamed(f"x{number}", operand, *place)
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


def _streamed(
    name: str, operand: ArrayPlace, first: tuple[int, int], shape: tuple[int, int]
) -> tuple[OperandWindow, ...]:
    return (window(name, operand, first, shape),) if isinstance(operand, MemoryRef) else ()


def _epilogue_operands(
    steps: tuple[Epilogue, ...], first: tuple[int, int], shape: tuple[int, int]
) -> tuple[tuple[OperandWindow, ...], int]:
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
    return tuple(
        elements
        * max(
            out.dtype.itemsize,
            step.operand.dtype.itemsize if isinstance(step.operand, Operand | MemoryRef) else 0,
        )
        for step in steps
    )
