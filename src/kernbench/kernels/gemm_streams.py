"""Matrix products with one long axis: each PE streams its share of that axis, in long contiguous pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kernbench.common.dtypes import F32
from kernbench.common.values import value
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.shares import part, program_number
from kernbench.kernels.tiling import ProductStream
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext


@value
class StreamedProduct:
    """A product (1, m, k) by (1, k, n) that is divided along one axis, with its epilogue.

    The operand without this axis stays in scratch. A stream along K writes the f32 sums of each PE, (pes, m, n).
    """

    stream: ProductStream
    a: View
    b: View
    epilogue: GemvEpilogue

    def run(self, out: int, a: int, b: int, *operands: int, tl: TLContext) -> None:
        """Compute this program's share. The arguments are addresses."""
        placed = replace(self, a=self.a.on(a), b=self.b.on(b), epilogue=self.epilogue.on(out, operands))
        number, stream = program_number(tl), self.stream
        share = part(stream.extent, stream.pes, number)
        if stream.axis == "k":
            placed.add_up(number, share, tl)
        else:
            placed.multiply_pieces(share, tl)

    def add_up(self, number: int, share: tuple[int, int], tl: TLContext) -> None:
        """Store the sums of PE ``number``, of its share of K."""
        m, n = self.a.extents[1], self.b.extents[2]
        sums: Handle | None = None
        for first, depth in self.stream.pieces(share):
            a, b = self.a.tile((0, 0, first), (m, depth)), self.b.tile((0, first, 0), (depth, n))
            sums = _multiply(_Factor.load(a, tl), _Factor.load(b, tl), sums, tl)
        assert sums is not None, "each PE has a share of K"
        self.epilogue.out.tile((number, 0, 0), (m, n)).store(sums, tl)

    def multiply_pieces(self, share: tuple[int, int], tl: TLContext) -> None:
        """Store the rows of the result in ``share``, or its columns if the stream is along N."""
        (_, m, k), n = self.a.extents, self.b.extents[2]
        by_rows = self.stream.axis == "m"
        resident = _Factor.load(self.b.tile((), (k, n)) if by_rows else self.a.tile((), (m, k)), tl)
        for first, count in self.stream.pieces(share):
            corner, extents = ((0, first, 0), (1, count, n)) if by_rows else ((0, 0, first), (1, m, count))
            streamed = self.a.tile(corner, (count, k)) if by_rows else self.b.tile(corner, (k, count))
            factors: Sequence[_Factor] = (_Factor.load(streamed, tl), resident)
            a, b = factors if by_rows else factors[::-1]
            self.epilogue.tile(corner, extents).store(tl.reshape(_multiply(a, b, None, tl), extents), 0, tl)


@value(eq=False, guarded=False)
class _Factor:
    """A factor in scratch, as it is stored: ``transposed`` if its columns are contiguous in memory."""

    values: Handle
    transposed: bool

    @staticmethod
    def load(matrix: View, tl: TLContext) -> _Factor:
        """Load a matrix in the order of its elements in memory."""
        transposed = matrix.strides[0] < matrix.strides[1]
        return _Factor((matrix.transposed if transposed else matrix).load(tl), transposed)


def _multiply(a: _Factor, b: _Factor, sums: Handle | None, tl: TLContext) -> Handle:
    return tl.dot(a.values, b.values, sums, out_dtype=F32, trans_a=a.transposed, trans_b=b.transposed)
