"""Matrix products with one long axis: each PE streams its share of that axis, in long contiguous pieces.

A stream reads no element twice but those of the operand without the axis, which is the smallest. A grid of blocks reads
an operand once for each row or column of PEs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from operator import itemgetter

from kernbench.common.dtypes import F32, DType
from kernbench.common.values import value
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.product_grids import ProductGrid
from kernbench.kernels.shares import part, program_number
from kernbench.kernels.tiling import RESULT_BLOCKS
from kernbench.kernels.view import View
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.block_sizes import BlockedProduct, BlockRoom, OperandReads
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

_SHARE_OF_SCRATCH = 4
"""Data without the axis take at most this share of scratch, and so does a piece of all data with the axis."""
_LEAST_READS, _LEAST_PRODUCT = 4, 1.25
"""Least ratios along M and N: of bytes read to bytes of the result, or of the time of products to that of the result's
steps. The steps of results then hide behind reads, or behind products.
"""
_LEAST_TILES = 4
"""Least number of tiles along the axis for each PE, if products hide the steps of results"""
_FIRST_PIECE = 16
"""Ratio of a full piece to the first piece, whose transfer delays the first multiplication."""


@value
class StreamMachine:
    """Rates of a cube of ``pes`` PEs that decide between a stream and a grid of blocks, for factors of one dtype.

    ``tile`` has the sizes (m, k, n) of a tile of the matrix unit. ``bytes_per_ns`` is the rate at which each PE reads
    while all PEs read. ``round_bytes`` use all channels of a memory evenly. ``burst_bytes`` is 1 for memory without
    banks. ``launch_ns`` is the time of a launch without its work.
    """

    pes: int
    tile: tuple[int, int, int]
    macs_per_ns: float
    bytes_per_ns: float
    access_ns: float
    burst_bytes: int
    round_bytes: int
    scratch_bytes: int
    room: BlockRoom
    launch_ns: float
    tcm_bytes_per_ns: float
    math_bytes_per_ns: float

    @staticmethod
    def of(spec: TopologySpec, item: DType, pes: int) -> StreamMachine:
        """Return the rates of ``pes`` PEs of a cube for factors of dtype ``item``."""
        gemm, hbm, tcm, io = spec.pe.gemm, spec.cube.hbm, spec.pe.tcm, spec.sip.components
        noc, parts = spec.cube.noc, spec.cube.components
        to_cube = (spec.system.components.switch, io.pcie_ep, io.io_cpu, io.io_noc, io.ucie, parts.ucie, parts.m_cpu)
        way_ns = sum(component.attrs.overhead_ns for component in to_cube)
        way_ns += 2 * (noc.w + noc.h) * parts.noc_router.attrs.overhead_ns
        return StreamMachine(
            pes=pes,
            tile=gemm.tile_sizes,
            macs_per_ns=gemm.rate(item),
            bytes_per_ns=min(spec.cube.links.pe_to_xbar.bw_gbs, spec.cube.slice_bw_gbs * hbm.slices / pes),
            access_ns=spec.cube.hbm_access_ns,
            burst_bytes=1 if hbm.banks is None else hbm.banks.burst_bytes,
            round_bytes=1 if hbm.banks is None else hbm.round_bytes,
            scratch_bytes=tcm.scratch_bytes,
            room=BlockRoom(gemm.acc_bytes, tcm.scheduler_reserved_bytes),
            launch_ns=4 * way_ns,  # the command and its completion, each with an acknowledgement
            tcm_bytes_per_ns=tcm.read_bw_gbs,
            math_bytes_per_ns=spec.pe.math.bytes_per_ns,
        )

    def reads(self, matrix: View) -> OperandReads:
        """Return the reads of an operand by a PE."""
        rows, columns = matrix.strides[-2:]
        reads = OperandReads(self.bytes_per_ns, self.access_ns, by_rows=columns <= rows)
        pitch = max(rows, columns) * matrix.dtype.itemsize
        return reads if self.burst_bytes == 1 else reads.in_banks(pitch, self.burst_bytes, self.round_bytes)

    def matrix_ns(self, matrix: View, rows: int, columns: int) -> float:
        """Return the time in which a PE reads a part of a matrix while all PEs read."""
        reads, item = self.reads(matrix), matrix.dtype.itemsize
        line = (columns, matrix.extents[2]) if reads.by_rows else (rows, matrix.extents[1])
        return rows * columns * item / self.bytes_per_ns / reads.share_of_rate(*line, item)

    def write_rate(self, axis: str) -> float:
        """Return the bytes per ns at which each PE writes the results of a stream along ``axis``.

        Along N, all PEs write the same rows, and thus mostly to the same memory, at a time: at about half of the rate.
        """
        return self.bytes_per_ns / 2 if axis == "n" else self.bytes_per_ns

    def hides_results(self, axis: str, extents: tuple[int, int, int], itemsize: int, out: DType) -> bool:
        """Return True if the steps of results hide behind the reads, or behind the products, of a stream.

        ``extents``: of ``axis``, of K, and of the result's other axis. ``itemsize`` is of the factors. Products hide
        the steps if they take longer than rounding and writes, and if each PE has tiles enough to be in step.
        """
        (extent, k, other), tile = extents, self.tile["mkn".index(axis)]
        if other * out.itemsize * _LEAST_READS <= k * itemsize:
            return True
        steps_ns = max(F32.itemsize / self.math_bytes_per_ns, out.itemsize / self.write_rate(axis))
        product_ns = -(-k // self.tile[1]) * self.tile[1] / self.macs_per_ns
        return product_ns >= _LEAST_PRODUCT * steps_ns and extent >= _LEAST_TILES * tile * self.pes

    def tiles_ns(self, m: int, k: int, n: int) -> float:
        """Return the time of the matrix unit for a product of these extents, in full tiles."""
        tiles = prod(-(-extent // size) for extent, size in zip((m, k, n), self.tile, strict=True))
        return tiles * prod(self.tile) / self.macs_per_ns


@value
class ProductStream:
    """A division of a product over PEs along one axis, ``m``, ``k`` or ``n``, of ``extent`` elements.

    PEs read or write their share of the longest array in pieces of ``piece`` elements of the axis. Memory serves
    such pieces in full sweeps over its banks.
    """

    axis: str
    extent: int
    pes: int
    first_piece: int
    piece: int

    def extents(self, shape: tuple[int, int, int], size: int) -> tuple[int, int, int]:
        """Return the extents (m, k, n) of a part of a product of ``shape`` with ``size`` elements of the axis."""
        m, k, n = (size if axis == self.axis else extent for axis, extent in zip("mkn", shape, strict=True))
        return m, k, n

    def pieces(self, share: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the start and size of the pieces of a PE's share: each double the last one, up to ``piece``.

        The next piece arrives while one is multiplied, and the first multiplication begins early. The last pieces are
        half of what is left, so that little remains to be done when the last one has arrived.
        """
        (at, left), size = share, self.first_piece
        while left:
            yield at, min(size, left)
            at, left = at + size, max(left - size, 0)
            size = min(2 * size, self.piece)
            if self.axis != "k":
                size = min(size, max(left // 2 // self.first_piece, 1) * self.first_piece)


@lru_cache(maxsize=4096)
def choose_stream(
    machine: StreamMachine, a: View, b: View, epilogue: GemvEpilogue
) -> tuple[float, ProductStream] | None:
    """Return the predicted ns and the stream that minimises them; None if no axis suits.

    Scratch has room for two pieces of all arrays, with f32 results and the blocks of the epilogue. A stream along M or
    N reads contiguous rows that blocks would cut, and hides the steps of its results.
    """
    (_, m, k), n, out = a.extents, b.extents[2], epilogue.out
    item, quarter = a.dtype.itemsize, machine.scratch_bytes // _SHARE_OF_SCRATCH
    result = F32.itemsize + out.dtype.itemsize if epilogue.is_plain else RESULT_BLOCKS * F32.itemsize
    has_m = a.strides[1] < a.strides[2] and machine.hides_results("m", (m, k, n), item, out.dtype)
    has_n = b.strides[2] < b.strides[1] and machine.hides_results("n", (n, k, m), item, out.dtype)
    streams = []
    for axis, extent, tile, is_possible, streamed, resident in (
        ("m", m, machine.tile[0], has_m, k * item + n * result, k * n * item),
        ("k", k, machine.tile[1], True, (m + n) * item, 2 * m * n * F32.itemsize),
        ("n", n, machine.tile[2], has_n, k * item + m * result, m * k * item),
    ):
        piece = quarter // streamed // tile * tile
        if is_possible and resident <= quarter and piece and extent >= machine.pes:
            first_piece = max(tile, piece // _FIRST_PIECE // tile * tile)
            stream = ProductStream(axis, extent, machine.pes, first_piece, piece)
            streams.append((_predict_ns(machine, stream, a, b, out), stream))
    return min(streams, key=itemgetter(0), default=None)


def _predict_ns(machine: StreamMachine, stream: ProductStream, a: View, b: View, out: View) -> float:
    """Return the predicted time of a pipeline: reads of pieces, products, rounding and writes of results.

    Along K, each piece reads the sums so far, and a second launch adds up the sums of all PEs.
    """
    (_, m, k), n, share = a.extents, b.extents[2], -(-stream.extent // stream.pes)
    shape, rate, write_rate = (m, k, n), machine.bytes_per_ns, machine.write_rate(stream.axis)
    resident_ns = {"m": machine.matrix_ns(b, k, n), "k": 0.0, "n": machine.matrix_ns(a, m, k)}[stream.axis]
    read_ns = machine.access_ns + resident_ns
    product_ns = round_ns = write_ns = 0.0
    for _, size in stream.pieces((0, share)):
        rows, depth, columns = stream.extents(shape, size)
        elements = rows * columns
        read_ns += machine.matrix_ns(a, rows, depth) + machine.matrix_ns(b, depth, columns) - resident_ns
        product_ns = max(read_ns, product_ns) + machine.tiles_ns(rows, depth, columns)
        if stream.axis == "k":
            product_ns += elements * F32.itemsize / machine.tcm_bytes_per_ns
            continue
        round_ns = max(product_ns, round_ns) + elements * F32.itemsize / machine.math_bytes_per_ns
        write_ns = max(round_ns, write_ns) + elements * out.dtype.itemsize / write_rate
    rows, _, columns = stream.extents(shape, share)
    out_ns = rows * columns * out.dtype.itemsize / write_rate
    if stream.axis != "k":
        return max(write_ns, read_ns + out_ns) + machine.access_ns
    sums_bytes = m * n * F32.itemsize
    add_ns = sums_bytes / machine.math_bytes_per_ns + machine.launch_ns + 4 * machine.access_ns
    return product_ns + 2 * sums_bytes / rate + add_ns + out_ns / stream.pes


def _overlapped(*parts_ns: float) -> float:
    """Return the time of parts at once: an eighth of the shorter ones is not hidden behind the longest."""
    return max(parts_ns) + (sum(parts_ns) - max(parts_ns)) / 8


@lru_cache(maxsize=4096)
def predict_grid_ns(machine: StreamMachine, grid: ProductGrid, a: View, b: View, out: View) -> float:
    """Return the predicted time of a product (1, m, k) by (1, k, n) on a grid, by the blocks of the slowest PE."""
    (_, m, k), n = a.extents, b.extents[2]
    product = BlockedProduct(
        shape=(-(-m // grid.rows), k, -(-n // grid.columns)),
        tile=machine.tile,
        itemsize=a.dtype.itemsize,
        macs_per_ns=machine.macs_per_ns,
        a=machine.reads(a),
        b=machine.reads(b),
        write_ns=out.dtype.itemsize / machine.bytes_per_ns,
    )
    compute_ns, memory_ns, begin_ns, end_ns = product.predict(machine.room, machine.reads(out))
    return begin_ns + _overlapped(compute_ns, memory_ns) + end_ns + 2 * machine.access_ns


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
            sums = _multiply(_StoredMatrix.load(a, tl), _StoredMatrix.load(b, tl), sums, tl)
        assert sums is not None, "each PE has a share of K"
        self.epilogue.out.tile((number, 0, 0), (m, n)).store(sums, tl)

    def multiply_pieces(self, share: tuple[int, int], tl: TLContext) -> None:
        """Store the rows of the result in ``share``, or its columns if the stream is along N."""
        (_, m, k), n = self.a.extents, self.b.extents[2]
        by_rows = self.stream.axis == "m"
        resident = _StoredMatrix.load(self.b.tile((), (k, n)) if by_rows else self.a.tile((), (m, k)), tl)
        for first, count in self.stream.pieces(share):
            corner, extents = ((0, first, 0), (1, count, n)) if by_rows else ((0, 0, first), (1, m, count))
            streamed = self.a.tile(corner, (count, k)) if by_rows else self.b.tile(corner, (k, count))
            factors: Sequence[_StoredMatrix] = (_StoredMatrix.load(streamed, tl), resident)
            a, b = factors if by_rows else factors[::-1]
            self.epilogue.tile(corner, extents).store(tl.reshape(_multiply(a, b, None, tl), extents), 0, tl)


@value(eq=False, guarded=False)
class _StoredMatrix:
    """A factor in scratch, as it is stored: ``transposed`` if its columns are contiguous in memory."""

    values: Handle
    transposed: bool

    @staticmethod
    def load(matrix: View, tl: TLContext) -> _StoredMatrix:
        """Load a matrix in the order of its elements in memory."""
        transposed = matrix.strides[0] < matrix.strides[1]
        return _StoredMatrix((matrix.transposed if transposed else matrix).load(tl), transposed)


def _multiply(a: _StoredMatrix, b: _StoredMatrix, sums: Handle | None, tl: TLContext) -> Handle:
    return tl.dot(a.values, b.values, sums, out_dtype=F32, trans_a=a.transposed, trans_b=b.transposed)
