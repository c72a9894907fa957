"""Matrix products on many PEs: the part of a product that each PE and each cube computes, as a composite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernbench.common.dtypes import I32, DType, DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.common.values import value
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.product_grids import CubeGrid, ProductGrid, piece_elements
from kernbench.kernels.shares import blocks, part, share
from kernbench.kernels.view import View
from kernbench.triton_emu.composites import EpilogueCall
from kernbench.triton_emu.handles import Handle, Ref
from kernbench.triton_emu.tl_context import TLContext


def product_dtype(factor: DType, out_dtype: DTypeLike | None) -> DType:
    """Return the dtype of a product: ``out_dtype`` if set, else i32 for integer factors and ``factor`` for floats."""
    return element_type(out_dtype or (factor if factor.is_float else I32))


def write_product(
    out: View,
    a: Handle | Ref,
    b: Handle | Ref,
    tl: TLContext,
    *,
    epilogue: Sequence[EpilogueCall] = (),
    block: str | None = "auto",
    begin: tuple[int, int, int] | None = None,
) -> None:
    """Write the product of two matrices to ``out`` by the tile scheduler; the arguments are those of ``composite``."""
    strides = tuple([stride * out.dtype.itemsize for stride in out.strides])
    tl.composite(
        "gemm",
        a,
        b,
        out_ptr=out.address,
        epilogue=epilogue,
        out_dtype=out.dtype,
        out_strides=strides,
        block=block,
        begin=begin,
    )


@value
class BlockProduct:
    """A batch of products (m, k) by (k, n) on a grid of PEs, with their epilogue."""

    grid: ProductGrid
    a: View
    b: View
    epilogue: GemvEpilogue

    def on(self, out: int, a: int, b: int, addend: Sequence[int]) -> BlockProduct:
        """Return this product, of tensors at these addresses. ``addend`` is empty without an addend."""
        return replace(self, a=self.a.on(a), b=self.b.on(b), epilogue=self.epilogue.on(out, addend))

    def run(self, out: int, a: int, b: int, *addend: int, tl: TLContext) -> None:
        """Compute this program's part. The arguments are addresses."""
        self.on(out, a, b, addend).compute(tl.site.cube * tl.site.num_pes + tl.site.pe, tl)

    def compute(self, pe: int, tl: TLContext) -> None:
        """Compute the part of PE number ``pe`` of the grid."""
        grid, (batch, m, k), n = self.grid, self.a.extents, self.b.extents[2]
        if pe >= grid.pes:
            return
        pes_of_group = grid.rows * grid.columns
        group, number = divmod(pe, pes_of_group)
        row, column = divmod(number, grid.columns)
        first, batches = part(batch, grid.batches, group)
        i, rows = part(m, grid.rows, row)
        j, columns = part(n, grid.columns, column)
        if not rows or not columns:
            return
        # PEs of a group begin at different blocks; otherwise all would read the same memory at a time.
        begin = rows * column // grid.columns, k * number // pes_of_group, columns * row // grid.rows
        for z in range(first, first + batches):
            result = self.epilogue.tile((z, i, j), (rows, columns))
            steps = result.steps(tl)
            left = self.a.tile((z, i, 0), (rows, k)).ref(tl)
            right = self.b.tile((z, 0, j), (k, columns)).ref(tl)
            write_product(result.out, left, right, tl, epilogue=steps, block="least", begin=begin)


@value
class SharedProduct:
    """A product on several cubes. The links between cubes carry each operand once for a cube, not for each PE."""

    product: BlockProduct
    cubes: CubeGrid

    @property
    def buffer_elements(self) -> int:
        """Return the number of elements that all cubes stage, each in its own part of the buffer."""
        return self.cubes.rows * self.cubes.columns * self._elements

    @property
    def _elements(self) -> int:
        (_, m, k), n = self.product.a.extents, self.product.b.extents[2]
        return self.cubes.staged_elements(m, k, n)

    def run(self, out: int, buffer: int, a: int, b: int, *addend: int, tl: TLContext) -> None:
        """Compute this program's part. The arguments are addresses; ``buffer`` has the staged operands."""
        product, cubes, cube = self.product.on(out, a, b, addend), self.cubes, tl.program_id(1)
        (_, m, k), n = product.a.extents, product.b.extents[2]
        row, column = divmod(cube, cubes.columns)
        i, rows = part(m, cubes.rows, row)
        j, columns = part(n, cubes.columns, column)
        rows_of_a, columns_of_b = product.a.tile((0, i, 0), (1, rows, k)), product.b.tile((0, 0, j), (1, k, columns))
        item = rows_of_a.dtype.itemsize
        stage_at = buffer + cube * self._elements * item
        if cubes.stages_a:
            rows_of_a = _stage(rows_of_a, stage_at, tl)
            stage_at += rows * k * item
        if cubes.stages_b:
            columns_of_b = _stage(columns_of_b, stage_at, tl)
        tl.barrier()
        epilogue = product.epilogue.tile((0, i, j), (1, rows, columns))
        BlockProduct(cubes.within, rows_of_a, columns_of_b, epilogue).compute(tl.program_id(0), tl)


def _stage(source: View, address: int, tl: TLContext) -> View:
    """Stage a matrix, (1, rows, columns), in this cube's memory, some pieces by each PE. Return the view of the copy.

    Cubes begin with different pieces; otherwise all would read from one cube at a time.
    """
    if source.strides[1] < source.strides[2]:
        return _stage(source.transposed, address, tl).transposed
    copy, most = View.row_major(address, source.extents, source.dtype), piece_elements(source.dtype.itemsize)
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


@value
class GroupedProduct:
    """Products of groups of rows of A by one matrix each: (rows, k) by (groups, k, n).

    ``splits_k``: the groups divide the summed axis instead, so (rows, k) by (k, n) gives (groups, rows, n). Each
    program computes its columns of all groups. All views have three axes. The ends of the groups are ``groups``
    elements of ``ends_dtype`` in memory. ``assumed_ends`` are used in place of the loaded values, if set.
    """

    out: View
    a: View
    b: View
    groups: int
    splits_k: bool
    ends_dtype: DType
    assumed_ends: tuple[int, ...] | None

    def run(self, out: int, a: int, b: int, ends: int, *, tl: TLContext) -> None:
        """Compute this program's columns. The arguments are addresses."""
        placed = replace(self, out=self.out.on(out), a=self.a.on(a), b=self.b.on(b))
        loaded = tl.load(ends, (self.groups,), self.ends_dtype)
        if self.assumed_ends is None:
            group_ends = tuple([int(end) for end in tl.value(loaded)])
        else:
            tl.wait(loaded)
            group_ends = self.assumed_ends
        columns, first = share(self.b.extents[2], tl), 0
        for group, end in enumerate(group_ends):
            if columns[1]:
                placed.multiply_group(group, (first, end - first), columns, tl)
            first = end

    def multiply_group(self, group: int, bounds: tuple[int, int], columns: tuple[int, int], tl: TLContext) -> None:
        """Compute columns of a group's product. ``bounds``: first index and size of the group."""
        (first, size), (j, width), (_, rows, k) = bounds, columns, self.a.extents
        if self.splits_k:
            out = self.out.tile((group, 0, j), (rows, width))
            if size <= 0:  # an empty group: nothing to add up
                out.store(tl.zeros((rows, width), out.dtype), tl)
                return
            left, right = self.a.tile((0, 0, first), (rows, size)), self.b.tile((0, first, j), (size, width))
        elif size <= 0:
            return
        else:
            out = self.out.tile((0, first, j), (size, width))
            left, right = self.a.tile((0, first, 0), (size, k)), self.b.tile((group, 0, j), (k, width))
        write_product(out, left.ref(tl), right.ref(tl), tl)
