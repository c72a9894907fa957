"""Matrix products in blocks: how PEs and cubes of a SIP divide a product, and the part that each computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kernbench.common.dtypes import DType
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, part
from kernbench.kernels.view import View
from kernbench.topology.spec import TopologySpec

_PIECE_BYTES = 64 << 10
"""Bytes that a PE moves at a time while its cube stages an operand in its memory."""
_ROW_BYTES = 256
"""Minimum cost of a piece of a row, in bytes: a shorter piece takes as long as one of this size."""


@value
class ProductGrid:
    """A division of a product over PEs: ``batches`` groups, each with a grid of rows and columns of the result."""

    batches: int
    rows: int
    columns: int

    @property
    def pes(self) -> int:
        """Return the number of PEs."""
        return self.batches * self.rows * self.columns


@value
class PeRates:
    """Rates of a PE: tiles (m, k, n) of its matrix unit, ``tile_ns`` each, and bytes per ns that it reads.

    ``link_bytes_per_ns`` is the rate at each cube while all cubes read from all: every byte occupies several links.
    """

    tile: tuple[int, int, int]
    tile_ns: float
    bytes_per_ns: float
    link_bytes_per_ns: float

    @staticmethod
    def of(spec: TopologySpec, item: DType) -> PeRates:
        """Return the rates of a machine for factors of dtype ``item``."""
        gemm, mesh = spec.pe.gemm, spec.sip.cube_mesh
        links = 2 * ((mesh.w - 1) * mesh.h + mesh.w * (mesh.h - 1))
        on_the_way = (mesh.w - 1 / mesh.w + mesh.h - 1 / mesh.h) / 3
        reaches = spec.sip.links.cube_to_cube.bw_gbs * links / (mesh.w * mesh.h * on_the_way) if links else 0.0
        tile = gemm.tile_m, gemm.tile_k, gemm.tile_n
        return PeRates(tile, gemm.tile_ns(item), spec.cube.links.pe_to_xbar.bw_gbs, reaches)


@lru_cache(maxsize=4096)
def choose_grid(
    rates: PeRates, pes: int, batch: int, m: int, k: int, n: int, itemsize: int
) -> tuple[float, ProductGrid]:
    """Return the predicted ns and the grid that minimises them, from the work and the reads of each PE.

    A PE computes full tiles of the matrix unit, and reads its rows of A and its columns of B. Of equally fast grids,
    the one that splits columns is returned, as weights are stored by output features.
    """
    tile_m, tile_k, tile_n = rates.tile
    found: tuple[float, int, ProductGrid] | None = None
    batches = min(batch, pes)
    each = -(-batch // batches)
    free = pes // batches
    for rows in range(1, free + 1):
        columns = free // rows
        if rows > m or (rows > 1 and m // rows < tile_m // 2):
            break
        columns = min(columns, n)
        own_m, own_n = -(-m // rows), -(-n // columns)
        computed = -(-own_m // tile_m) * -(-own_n // tile_n) * -(-k // tile_k) * rates.tile_ns
        read = (own_m + own_n) * k * itemsize / rates.bytes_per_ns
        cost = each * (max(computed, read) + min(computed, read) / 8)
        if found is None or cost < found[0]:
            found = cost, rows, ProductGrid(batches, rows, columns)
    assert found is not None, "one row of PEs is always possible"
    return found[0], found[2]


@value
class Product:
    """A batch of products (m, k) by (k, n), with its epilogue: ``scale``, an addend, an activation."""

    grid: ProductGrid
    a: View
    b: View
    out: View
    addend: View | None = None
    scale: float = 1.0
    activation: str | None = None

    def on(self, addresses: Sequence[int]) -> Product:
        """Return this product, of tensors at ``addresses``: those of the result, a, b and the addend."""
        out, a, b, *addend = addresses
        placed = None if self.addend is None else self.addend.on(addend[0])
        return replace(self, out=self.out.on(out), a=self.a.on(a), b=self.b.on(b), addend=placed)

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's part; ``addresses`` as in `on`."""
        self.on(addresses).compute(tl.site.cube * tl.site.num_pes + tl.site.pe, tl)

    def compute(self, me: int, tl: Any) -> None:
        """Compute the part of PE number ``me`` of the grid."""
        grid, k, (batch, m, n) = self.grid, self.a.extents[2], self.out.extents
        if me >= grid.pes:
            return
        group, number = divmod(me, grid.rows * grid.columns)
        row, column = divmod(number, grid.columns)
        first, batches = part(batch, grid.batches, group)
        i, rows = part(m, grid.rows, row)
        j, columns = part(n, grid.columns, column)
        if not rows or not columns:
            return
        # PEs of a group begin at different blocks; otherwise all would read the same memory at a time.
        apart = rows * column // grid.columns, k * number // (grid.rows * grid.columns), columns * row // grid.rows
        for z in range(first, first + batches):
            steps: list[tuple[Any, ...]] = [("scale", self.scale)] if self.scale != 1 else []
            if self.addend is not None:
                is_bias = not self.addend.strides[1]
                addend = self.addend.tile((z, i, j), (columns,) if is_bias else (rows, columns))
                steps.append(("bias" if is_bias else "add", addend.ref(tl)))
            if self.activation is not None:
                steps.append((self.activation,))
            _, row_stride, column_stride = self.out.strides
            item = self.out.dtype.itemsize
            tl.composite(
                "gemm",
                self.a.tile((z, i, 0), (rows, k)).ref(tl),
                self.b.tile((z, 0, j), (k, columns)).ref(tl),
                out_ptr=self.out.at((z, i, j)),
                epilogue=steps,
                out_dtype=self.out.dtype,
                out_strides=(row_stride * item, column_stride * item),
                block="least",
                begin=apart,
            )


@value
class CubeGrid:
    """A division of a product over cubes, rows by columns of the result; ``within`` divides it over each cube's PEs.

    ``brings_a``, ``brings_b``: other cubes store rows of A, or columns of B, that a cube needs. Each cube then stages
    these operands in its own memory.
    """

    rows: int
    columns: int
    within: ProductGrid
    brings_a: bool
    brings_b: bool


@lru_cache(maxsize=4096)
def choose_cubes(
    rates: PeRates, cubes: int, pes: int, m: int, k: int, n: int, itemsize: int, b_by_rows: bool
) -> CubeGrid | None:
    """Return the grid that minimises the predicted time: staging for each cube, then work and reads of its PEs.

    Return None if no staging is faster: each PE then reads its operands while it computes. If all cubes split rows,
    each stores the rows of A that it multiplies. The same holds for columns of B, unless B is row-major
    (``b_by_rows``).
    """
    ns, alone = choose_grid(rates, cubes * pes, 1, m, k, n, itemsize)
    asked = pes * (-(-m // alone.rows) + -(-n // alone.columns)) * k * itemsize
    least, found = max(ns, asked / rates.link_bytes_per_ns), None
    for rows in range(1, cubes + 1):
        columns = cubes // rows
        if rows * columns != cubes or rows > m or columns > n:
            continue
        own_m, own_n = -(-m // rows), -(-n // columns)
        brings_a, brings_b = columns > 1, rows > 1 or b_by_rows
        wide = max(own_n * itemsize, _ROW_BYTES) if b_by_rows else own_n * itemsize
        brought = k * (own_m * itemsize * brings_a + wide * brings_b)
        ns, within = choose_grid(rates, pes, 1, own_m, k, own_n, itemsize)
        cost = 2 * brought / rates.link_bytes_per_ns + ns  # operands arrive, and go to memory, before the first product
        if cost < least:
            least, found = cost, CubeGrid(rows, columns, within, brings_a, brings_b)
    return found


@value
class SharedProduct:
    """A product on several cubes. The links between cubes carry each operand once for a cube, not for each PE."""

    product: Product
    cubes: CubeGrid

    @property
    def buffer_elements(self) -> int:
        """Return the number of elements that all cubes stage, each in its own part of the buffer."""
        return self.cubes.rows * self.cubes.columns * self._elements

    @property
    def _elements(self) -> int:
        _, m, k = self.product.a.extents
        rows, columns = -(-m // self.cubes.rows), -(-self.product.b.extents[2] // self.cubes.columns)
        return k * (rows * self.cubes.brings_a + columns * self.cubes.brings_b)

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's part. ``addresses``: those of the result, the staging buffer, a, b and the addend."""
        out, buffer, *operands = addresses
        product, cubes, cube = self.product.on((out, *operands)), self.cubes, tl.program_id(1)
        (_, m, k), n = product.a.extents, product.b.extents[2]
        row, column = divmod(cube, cubes.columns)
        i, rows = part(m, cubes.rows, row)
        j, columns = part(n, cubes.columns, column)
        a, b = product.a.tile((0, i, 0), (1, rows, k)), product.b.tile((0, 0, j), (1, k, columns))
        stage_at = buffer + cube * self._elements * a.dtype.itemsize
        if cubes.brings_a:
            a = _stage(a, stage_at, tl)
            stage_at += rows * k * a.dtype.itemsize
        if cubes.brings_b:
            b = _stage(b, stage_at, tl)
        tl.barrier()
        corner, extents = (0, i, j), (1, rows, columns)
        addend = None if product.addend is None else product.addend.tile(corner, extents)
        part_of_cube = replace(
            product, grid=cubes.within, a=a, b=b, out=product.out.tile(corner, extents), addend=addend
        )
        part_of_cube.compute(tl.program_id(0), tl)


def _stage(source: View, address: int, tl: Any) -> View:
    """Stage a matrix, (1, rows, columns), in this cube's memory, some pieces by each PE. Return the view of the copy.

    Cubes begin with different pieces; otherwise all would read from one cube at a time.
    """
    if source.strides[1] < source.strides[2]:
        return _stage(source.transposed, address, tl).transposed
    copy, most = View.row_major(address, source.extents, source.dtype), _PIECE_BYTES // source.dtype.itemsize
    _, lines, width = source.extents
    pieces = [
        ((0, line, column), (count, elements))
        for column, elements in blocks(width, most)
        for line, count in blocks(lines, max(1, most // elements))
    ][tl.program_id(0) :: tl.num_programs(0)]
    first = len(pieces) * tl.program_id(1) // tl.num_programs(1)
    for corner, extents in pieces[first:] + pieces[:first]:
        copy.tile(corner, extents).store(source.tile(corner, extents).load(tl), tl)
    return copy
