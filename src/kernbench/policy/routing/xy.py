"""Dimension-ordered ways over a grid: X first, then Y."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.topology.sides import Side

Cell = tuple[int, int]


def xy_cells(src: Cell, dst: Cell) -> Iterator[Cell]:
    """Every cell of the way, both ends included."""
    x, y = src
    yield x, y
    while x != dst[0]:
        x += 1 if dst[0] > x else -1
        yield x, y
    while y != dst[1]:
        y += 1 if dst[1] > y else -1
        yield x, y


def side_towards(src: Cell, dst: Cell) -> Side:
    """The side on which a neighbouring cell lies."""
    if src[0] != dst[0]:
        return "E" if dst[0] > src[0] else "W"
    return "S" if dst[1] > src[1] else "N"
