"""Products of matrices by blocks: how PEs, and the cubes of a SIP, share one out, and what each of them does."""

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
"""Of what a cube brings into its memory, that a PE moves at a time."""
_ROW_BYTES = 256
"""Pieces of rows that are shorter take as long as these."""


@value
class ProductGrid:
    """Shares of PEs in a product: ``batches`` groups, each with rows and columns of the result split over its PEs."""

    batches: int
    rows: int
    columns: int

    @property
    def pes(self) -> int:
        """All of them."""
        return self.batches * self.rows * self.columns


@value
class PeRates:
    """Rates of a PE: tiles (m, k, n) of its matrix unit, each in ``tile_ns``, and bytes a ns that it reads.

    ``link_bytes_per_ns``: so much reaches each cube when all ask all, as every byte takes its share of all links.
    """

    tile: tuple[int, int, int]
    tile_ns: float
    bytes_per_ns: float
    link_bytes_per_ns: float

    @staticmethod
    def of(spec: TopologySpec, item: DType) -> PeRates:
        """Return the rates of a machine, for factors of a type."""
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
    """Return the grid that is the fastest by what each PE computes and reads, and the ns that this takes.

    A PE computes whole tiles of the matrix unit, and reads its rows of A and its columns of B; of equal grids the one
    that splits columns, since weights lie by output features.
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
    """Matrices of a batch that lie somehow: elements from one to the next, from row to row, from column to column."""

    batch: int
    row: int
    column: int
    dtype: DType

    @staticmethod
    def of(x: AhbmTensor) -> Matrices:
        """Describe a tensor of three axes."""
        batch, row, column = x.stride()
        return Matrices(batch, row, column, dtype_of(x))

    def ref(self, address: int, at: tuple[int, int, int], shape: tuple[int, int], tl: Any) -> Any:
        """Name the part of a matrix that begins at (batch, row, column)."""
        item = self.dtype.itemsize
        first = address + (at[0] * self.batch + at[1] * self.row + at[2] * self.column) * item
        return tl.ref(first, shape, self.dtype, strides=self.strides)

    @property
    def strides(self) -> tuple[int, int]:
        """Bytes from row to row, and from column to column; of an axis that repeats, those of one element."""
        return max(self.row, 1) * self.dtype.itemsize, max(self.column, 1) * self.dtype.itemsize

    def at(self, address: int, row: int, column: int) -> int:
        """The address of an element of the first matrix."""
        return address + (row * self.row + column * self.column) * self.dtype.itemsize

    @property
    def is_readable(self) -> bool:
        """True when elements do not repeat along rows or columns."""
        return self.row > 0 and self.column > 0


@value
class Product:
    """A batch of products (m, k) by (k, n), and what follows on each: ``scale``, then an addend."""

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
        """Compute this program's part; ``addresses`` as of `compute`."""
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
        # PEs of a group begin apart: else each would ask the memory that the others ask, too.
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
    """Shares of cubes in a product: rows and columns of the result; ``within``: shares of the PEs of each.

    ``brings_a``, ``brings_b``: each cube brings the rows of A, the columns of B, that it needs into its own memory,
    since they lie with others.
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
    """Return the grid that is the fastest by what each cube brings in, and its PEs compute and read.

    None when it is faster that each PE asks for its own, while it computes. The rows of A that a cube multiplies lie
    with it if all cubes share rows out; so do columns of B, unless B lies row by row (``b_by_rows``).
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
        cost = 2 * brought / rates.link_bytes_per_ns + ns  # it comes, and goes to memory, before the first product
        if cost < least:
            least, found = cost, CubeGrid(rows, columns, within, brings_a, brings_b)
    return found


@value
class SharedProduct:
    """One product on several cubes, where a link between cubes carries what its cube needs once, not for each PE."""

    whole: Product
    cubes: CubeGrid

    @property
    def buffer_elements(self) -> int:
        """The elements of all that the cubes bring in, each into a part of its own."""
        return self.cubes.rows * self.cubes.columns * self._elements

    @property
    def _elements(self) -> int:
        own_m, own_n = -(-self.whole.m // self.cubes.rows), -(-self.whole.n // self.cubes.columns)
        return self.whole.k * (own_m * self.cubes.brings_a + own_n * self.cubes.brings_b)

    def run(self, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's part; ``addresses``: of the result, memory of the cubes, a, b and the addend."""
        out, buffer, a, b, *addend = addresses
        whole, cubes, cube = self.whole, self.cubes, tl.program_id(1)
        row, column = divmod(cube, cubes.columns)
        i, rows = part(whole.m, cubes.rows, row)
        j, columns = part(whole.n, cubes.columns, column)
        left, right, k, item = whole.a, whole.b, whole.k, whole.a.dtype.itemsize
        a, b = left.at(a, i, 0), right.at(b, 0, j)
        here = buffer + cube * self._elements * item
        if cubes.brings_a:
            a, left = self._bring(left, a, here, (rows, k), tl)
            here += rows * k * item
        if cubes.brings_b:
            b, right = self._bring(right, b, here, (k, columns), tl)
        tl.barrier()
        mine = replace(whole, m=rows, n=columns, grid=cubes.within, a=left, b=right)
        added = [] if whole.addend is None else [whole.addend.at(addend[0], i, j)]
        mine.compute(tl.program_id(0), (whole.out.at(out, i, j), a, b, *added), tl)

    def _bring(self, lies: Matrices, at: int, to: int, shape: tuple[int, int], tl: Any) -> tuple[int, Matrices]:
        """Bring a matrix into memory of this cube, each PE some pieces; return where it is, and how it lies there.

        Cubes begin with different pieces: else all would ask one cube at a time.
        """
        turned = lies.row < lies.column
        lines, width = shape[::-1] if turned else shape
        item = lies.dtype.itemsize
        strides, tight = lies.strides[::-1] if turned else lies.strides, (width * item, item)
        most = _PIECE_BYTES // item
        pieces = [
            (line, column, (count, elements))
            for column, elements in blocks(width, most)
            for line, count in blocks(lines, max(1, most // elements))
        ][tl.program_id(0) :: tl.num_programs(0)]
        first = len(pieces) * tl.program_id(1) // tl.num_programs(1)
        for line, column, extents in pieces[first:] + pieces[:first]:
            loaded = tl.load(at + line * strides[0] + column * strides[1], extents, lies.dtype, strides=strides)
            tl.store(to + line * tight[0] + column * tight[1], loaded, tight)
        return to, Matrices(0, 1, width, lies.dtype) if turned else Matrices(0, width, 1, lies.dtype)
