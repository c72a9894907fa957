"""The products of the GEMM evaluation, and their division into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from kernbench.common.values import value
from kernbench.kernels.gemm import VARIANTS
from kernbench.triton_emu.tile_plans import TileSizes

__all__ = ["LARGEST", "SHAPES", "VARIANTS", "GemmShape", "GemmTile", "TileSizes"]


@value
class GemmTile:
    """The extent of a tile: rows of A, steps along K, columns of B. ``last``: the tile completes an output tile."""

    rows: int
    steps: int
    columns: int
    last: bool


@value
class GemmShape:
    """An (m, k) by (k, n) product."""

    m: int
    k: int
    n: int

    def __str__(self) -> str:
        return f"{self.m}×{self.k}×{self.n}"

    @property
    def macs(self) -> int:
        """The multiply-accumulates of the product."""
        return self.m * self.k * self.n

    def under_tile(self, sizes: TileSizes) -> bool:
        """Return True if an axis is shorter than the tile, so that every tile is partly empty."""
        return self.m < sizes[0] or self.k < sizes[1] or self.n < sizes[2]

    def tile_count(self, sizes: TileSizes) -> int:
        """Return the number of tiles."""
        return ceil(self.m / sizes[0]) * ceil(self.k / sizes[1]) * ceil(self.n / sizes[2])

    def tiles(self, sizes: TileSizes) -> Iterator[GemmTile]:
        """Yield the tiles in plan order, K innermost. Tiles at an edge contain the remainder."""
        for rows in _extents(self.m, sizes[0]):
            for columns in _extents(self.n, sizes[2]):
                left = self.k
                for steps in _extents(self.k, sizes[1]):
                    left -= steps
                    yield GemmTile(rows, steps, columns, not left)


def _extents(extent: int, size: int) -> Iterator[int]:
    """Yield pieces of ``size`` that add up to ``extent``; the last is the remainder."""
    for at in range(0, extent, size):
        yield min(size, extent - at)


LARGEST = GemmShape(512, 512, 512)
"""A shape of 2,048 tiles. It has a separate figure, because it would hide the other shapes."""

SHAPES = (
    GemmShape(16, 64, 32),  # one tile, M below it
    GemmShape(32, 32, 32),  # one tile, K below it
    GemmShape(8, 256, 256),  # a few rows, as in decoding: M below the tile, 32 tiles
    GemmShape(128, 256, 16),  # few columns: N below the tile, 16 tiles
    GemmShape(32, 64, 32),  # one whole tile
    GemmShape(72, 200, 72),  # whole tiles and partial ones at every edge, 36 tiles
    GemmShape(128, 256, 128),  # 64 whole tiles
    LARGEST,
)
"""Shapes below a tile first, then ascending sizes. A tile of the default machine is 32×64×32."""
