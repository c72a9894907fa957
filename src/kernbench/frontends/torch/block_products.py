"""Matrix products in blocks: how PEs and cubes of a SIP divide a product, and the part that each computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from kernbench.common.dtypes import DType
from kernbench.common.values import value
from kernbench.frontends.torch.launches import dtype_of
from kernbench.frontends.torch.tensor import AhbmTensor
from kernbench.kernels.shares import blocks, part
from kernbench.topology.spec import TopologySpec

_PIECE_BYTES = 64 << 10
"""Bytes that a PE moves at a time while its cube stages an operand in its memory."""
_ROW_BYTES = 256
"""Minimum cost of a piece of a row, in bytes: a shorter piece takes as long."""


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
class Matrices:
    """Layout of a batch of matrices: strides, in elements, between matrices, rows and columns."""

    batch: int
    row: int
    column: int
    dtype: DType

    @staticmethod
    def of(x: AhbmTensor) -> Matrices:
        """Return the layout of a tensor of three axes."""
        batch, row, column = x.stride()
        return Matrices(batch, row, column, dtype_of(x))

    def ref(self, address: int, at: tuple[int, int, int], shape: tuple[int, int], tl: Any) -> Any:
        """Return a reference to the window of a matrix that begins at (batch, row, column)."""
        item = self.dtype.itemsize
        first = address + (at[0] * self.batch + at[1] * self.row + at[2] * self.column) * item
        return tl.ref(first, shape, self.dtype, strides=self.strides)

    @property
    def strides(self) -> tuple[int, int]:
        """Return the row and column strides in bytes; those of one element for an axis that repeats."""
        return max(self.row, 1) * self.dtype.itemsize, max(self.column, 1) * self.dtype.itemsize

    def at(self, address: int, row: int, column: int) -> int:
        """Return the address of an element of the first matrix."""
        return address + (row * self.row + column * self.column) * self.dtype.itemsize

    @property
    def is_readable(self) -> bool:
        """Return whether no element repeats along rows or columns."""
        return self.row > 0 and self.column > 0


@value
class Product:
    """A batch of products (m, k) by (k, n), with its epilogue: ``scale``, an addend, an activation."""

    batch: int
    m: int
    k: int
    n: int
    grid: ProductGrid
    a: Matrices
    b: Matrices
    out: Matrices
    addend: Matrices | None = None
    scale: float = 1.0
    activation: str | None = None

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's part; ``addresses`` as in `compute`."""
        self.compute(tl.site.cube * tl.site.num_pes + tl.site.pe, addresses, tl)

    def compute(self, me: int, addresses: Sequence[int], tl: Any) -> None:
        """Compute the part of PE number ``me`` of the grid; ``addresses``: of the result, a, b and the addend."""
        grid = self.grid
        if me >= grid.pes:
            return
        group, rest = divmod(me, grid.rows * grid.columns)
        row, column = divmod(rest, grid.columns)
        first, batches = part(self.batch, grid.batches, group)
        i, rows = part(self.m, grid.rows, row)
        j, columns = part(self.n, grid.columns, column)
        if not rows or not columns:
            return
        out, a, b, *addend = addresses
        # PEs of a group begin at different blocks; otherwise all would read the same memory at a time.
        apart = rows * column // grid.columns, self.k * rest // (grid.rows * grid.columns), columns * row // grid.rows
        for z in range(first, first + batches):
            steps: list[tuple[Any, ...]] = [("scale", self.scale)] if self.scale != 1 else []
            if self.addend is not None:
                steps.append(self._addend(addend[0], (z, i, j), (rows, columns), tl))
            if self.activation is not None:
                steps.append((self.activation,))
            item = self.out.dtype.itemsize
            tl.composite(
                "gemm",
                self.a.ref(a, (z, i, 0), (rows, self.k), tl),
                self.b.ref(b, (z, 0, j), (self.k, columns), tl),
                out_ptr=out + (z * self.out.batch + i * self.out.row + j * self.out.column) * item,
                epilogue=steps,
                out_dtype=self.out.dtype,
                out_strides=(self.out.row * item, self.out.column * item),
                block="least",
                begin=apart,
            )

    def _addend(self, address: int, at: tuple[int, int, int], shape: tuple[int, int], tl: Any) -> tuple[Any, ...]:
        assert self.addend is not None
        if self.addend.row:
            return "add", self.addend.ref(address, at, shape, tl)
        item = self.addend.dtype.itemsize
        first = address + (at[0] * self.addend.batch + at[2] * self.addend.column) * item
        return "bias", tl.ref(first, shape[1], self.addend.dtype, strides=(self.addend.column * item,))


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

    Return None if it is faster that each PE reads its operands while it computes. If all cubes split rows, the rows of
    A that a cube multiplies are stored there. The same holds for columns of B, unless B is row-major (``b_by_rows``).
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

    whole: Product
    cubes: CubeGrid

    @property
    def buffer_elements(self) -> int:
        """Return the number of elements that all cubes stage, each in its own part of the buffer."""
        return self.cubes.rows * self.cubes.columns * self._elements

    @property
    def _elements(self) -> int:
        own_m, own_n = -(-self.whole.m // self.cubes.rows), -(-self.whole.n // self.cubes.columns)
        return self.whole.k * (own_m * self.cubes.brings_a + own_n * self.cubes.brings_b)

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's part; ``addresses``: of the result, the staging buffer, a, b and the addend."""
        out, buffer, a, b, *addend = addresses
        whole, cubes, cube = self.whole, self.cubes, tl.program_id(1)
        row, column = divmod(cube, cubes.columns)
        i, rows = part(whole.m, cubes.rows, row)
        j, columns = part(whole.n, cubes.columns, column)
        left, right, k, item = whole.a, whole.b, whole.k, whole.a.dtype.itemsize
        a, b = left.at(a, i, 0), right.at(b, 0, j)
        here = buffer + cube * self._elements * item
        if cubes.brings_a:
            a, left = self._stage(left, a, here, (rows, k), tl)
            here += rows * k * item
        if cubes.brings_b:
            b, right = self._stage(right, b, here, (k, columns), tl)
        tl.barrier()
        mine = replace(whole, m=rows, n=columns, grid=cubes.within, a=left, b=right)
        added = [] if whole.addend is None else [whole.addend.at(addend[0], i, j)]
        mine.compute(tl.program_id(0), (whole.out.at(out, i, j), a, b, *added), tl)

    def _stage(self, source: Matrices, at: int, to: int, shape: tuple[int, int], tl: Any) -> tuple[int, Matrices]:
        """Stage a matrix in this cube's memory, some pieces by each PE; return its address and layout there.

        Cubes begin with different pieces; otherwise all would read from one cube at a time.
        """
        transposed = source.row < source.column
        lines, width = shape[::-1] if transposed else shape
        item = source.dtype.itemsize
        strides, tight = source.strides[::-1] if transposed else source.strides, (width * item, item)
        most = _PIECE_BYTES // item
        pieces = [
            (line, column, (count, elements))
            for column, elements in blocks(width, most)
            for line, count in blocks(lines, max(1, most // elements))
        ][tl.program_id(0) :: tl.num_programs(0)]
        first = len(pieces) * tl.program_id(1) // tl.num_programs(1)
        for line, column, extents in pieces[first:] + pieces[:first]:
            loaded = tl.load(at + line * strides[0] + column * strides[1], extents, source.dtype, strides=strides)
            tl.store(to + line * tight[0] + column * tight[1], loaded, tight)
        return to, Matrices(0, 1, width, source.dtype) if transposed else Matrices(0, width, 1, source.dtype)
