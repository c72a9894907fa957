"""Grids, numbered row by row from the north-west, and compass directions.

x grows to the east, y to the south; row 0 is in the north.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from kernbench.common.values import value

Side = Literal["E", "W", "N", "S"]
Corner = Literal["NW", "NE", "SW", "SE"]

# Routing between routes of equal length also prefers this order.
SIDES: tuple[Side, ...] = ("E", "W", "N", "S")
# These two directions visit every neighbouring pair of a grid once.
FORWARD: tuple[Side, ...] = ("E", "S")
OPPOSITE: dict[Side, Side] = {"E": "W", "W": "E", "N": "S", "S": "N"}
STEP: dict[Side, tuple[int, int]] = {"E": (1, 0), "W": (-1, 0), "N": (0, -1), "S": (0, 1)}


@value
class Grid:
    """A grid of ``w`` columns and ``h`` rows; entry ``i`` is in column ``i % w`` of row ``i // w``."""

    w: int
    h: int

    def __len__(self) -> int:
        return self.w * self.h

    def xy(self, index: int) -> tuple[int, int]:
        """Return column and row of an entry."""
        return index % self.w, index // self.w

    def index(self, x: int, y: int) -> int:
        """Return the entry in column ``x`` of row ``y``."""
        return y * self.w + x

    def neighbour(self, index: int, side: Side, *, wrap: bool = False) -> int | None:
        """Return the next entry on a side, or None at the border; ``wrap`` continues at the opposite border."""
        x, y = self.xy(index)
        dx, dy = STEP[side]
        x, y = x + dx, y + dy
        if wrap and (self.w if dx else self.h) > 1:
            x, y = x % self.w, y % self.h
        return self.index(x, y) if 0 <= x < self.w and 0 <= y < self.h else None

    def neighbours(self, index: int, sides: Iterable[Side] = SIDES, *, wrap: bool = False) -> dict[Side, int]:
        """Return the next entry on each side that has one."""
        entries = {side: self.neighbour(index, side, wrap=wrap) for side in sides}
        return {side: entry for side, entry in entries.items() if entry is not None}
