"""Sizes of tiles: the boxes, rows and panels that programs divide among themselves, load, compute and store.

A size is a function of the machine (scratch, tiles of the matrix unit, rates of links) and of the shape. The constants
are lower bounds that amortise a command, counts of blocks that overlap, and bytes of scratch for an element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import TypeAlias

from kernbench.common.dtypes import DType, Shape
from kernbench.common.values import value
from kernbench.kernels.shares import RowPieces, blocks, columns_of, part, share
from kernbench.kernels.view import View
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.tl_context import TLContext

Box: TypeAlias = tuple[Shape, Shape]
"""The corner and the extents of a part of an array"""
_SMALLEST, _LARGEST = 2048, 131072
"""Elements of a block: enough to amortise a command, few enough that transfers and computation overlap."""
_BLOCKS = 8
"""Blocks of a program's share, so that loads, computations and stores of several blocks overlap."""
ROW_BYTES = 256
"""Minimum cost of a piece of a row, in bytes: a shorter piece takes as long as one of this size."""
_SIDE_BY_SIDE = 64
"""Minimum number of elements of a transposed operand that are moved together: at least a burst"""
_BYTES_AN_ELEMENT = 64
"""Bytes of scratch for an element of a block: its intermediate results, and the next block that is loaded."""
_MOST_RUNS, _ELEMENTS_OF_RUNS = 1024, 65536
"""Runs in one scatter-gather list, and elements of all its runs: transfers overlap with the next indices."""
MOST_NUMBERS = 16384
"""Elements of one constant of random numbers: the next constant is computed while one is stored."""


def most_elements(tl: TLContext) -> int:
    """Return the maximum number of elements that a program computes at a time, to fit in the scratch of its PE."""
    tcm = tl.site.tcm
    return _LARGEST if tcm is None else max(1, min(_LARGEST, len(tcm) // _BYTES_AN_ELEMENT))


def ramp_block() -> int:
    """Return the number of elements of a range that are computed at a time.

    They amortise a command, and their numbers of 8 bytes fit in the scratch of any PE, with intermediate results.
    """
    return 16384


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[Shape, list[Shape]]:
    """Order axes as the first operand stores them, merge axes that all operands step through as one, drop length 1.

    ``strides`` has the strides of each operand. Return the merged shape and strides.
    """
    axes = [(n, [steps[i] for steps in strides]) for i, n in enumerate(shape) if n != 1] or [(1, [0] * len(strides))]
    axes.sort(key=lambda axis: -axis[1][0])
    merged = [axes[0]]
    for n, steps in axes[1:]:
        outer, before = merged[-1]
        if all(b == s * n for b, s in zip(before, steps, strict=True)):
            merged[-1] = (outer * n, steps)
        else:
            merged.append((n, steps))
    return tuple(n for n, _ in merged), [tuple(steps[i] for _, steps in merged) for i in range(len(strides))]


@value
class MemoryRates:
    """Rates at which memory serves reads, as a PE reads from its slice: ``channels`` of a slice, a burst each in turn.

    All reads of an array of one burst come from one channel.
    """

    channels: int
    burst_bytes: int
    access_bytes: int

    @staticmethod
    def of(spec: TopologySpec) -> MemoryRates:
        """Return the rates of a machine."""
        hbm = spec.cube.hbm
        return MemoryRates(hbm.num_pcs, hbm.interleave_bytes, hbm.piece_bytes)

    def delay(self, nbytes: int, programs: int, piece_bytes: int) -> int:
        """Return the bytes that a PE could read while ``programs`` each read a piece of an array of ``nbytes``."""
        return programs * max(piece_bytes, self.access_bytes) * self.channels // -(-nbytes // self.burst_bytes)


def own_boxes(
    views: Sequence[View],
    tl: TLContext,
    *,
    rates: MemoryRates | None = None,
    split: bool = True,
    limit: int | None = None,
) -> Iterator[Box]:
    """Yield the corners and extents of this program's boxes of arrays that have one shape.

    ``rates`` is needed if an array repeats along an axis. Without ``split``, a program gets all elements. ``limit``:
    the maximum number of elements of a box. If an array is contiguous along another axis than the last, boxes are also
    cut along the last axis, to extend further along the contiguous one.
    """
    corner, extents = own_part(views, rates, tl) if split else ((0,) * len(views[0].extents), views[0].extents)
    if not prod(extents):
        return
    block = min(max(prod(extents) // _BLOCKS, _SMALLEST), most_elements(tl), limit or _LARGEST)
    transposed = any(view.strides[-1] > 1 and 1 in view.strides for view in views)
    edge = max(1, block // _SIDE_BY_SIDE) if transposed else extents[-1]
    for behind, width in blocks(extents[-1], edge):
        for at, box in boxes((*extents[:-1], width), block):
            inner = (*at[:-1], at[-1] + behind)
            yield tuple([first + index for first, index in zip(corner, inner, strict=True)]), box


def own_part(views: Sequence[View], rates: MemoryRates | None, tl: TLContext) -> Box:
    """Return the corner and the extents of this program's part of arrays that have one shape."""
    shape = views[0].extents
    programs: int = tl.num_programs(0) * tl.num_programs(1)
    parts = split_axes(shape, tuple([(view.strides, view.dtype.itemsize) for view in views]), programs, rates)
    split = [axis for axis, count in enumerate(parts) if count > 1]
    if len(split) < 2:  # elements of one axis are divided as tensors are
        axis = split[0] if split else 0
        first, size = share(shape[axis], tl)
        corner = tuple([first if i == axis else 0 for i in range(len(shape))])
        return corner, (*shape[:axis], size, *shape[axis + 1 :])
    index, is_used = share(prod(parts), tl)
    ranges = []
    for n, count in zip(reversed(shape), reversed(parts), strict=True):
        index, place = divmod(index, count)
        ranges.append(part(n, count, place))
    ranges.reverse()
    return tuple([first for first, _ in ranges]), tuple([size * is_used for _, size in ranges])


@lru_cache(maxsize=4096)
def split_axes(
    shape: Shape, layouts: tuple[tuple[Shape, int], ...], programs: int, rates: MemoryRates | None = None
) -> Shape:
    """Return into how many parts to split each axis of arrays, so that a program waits least for its bytes.

    The first axis is split if it has an index for each program. ``layouts``: strides and bytes of an element of each
    array. A piece of a row counts as 256 bytes or more. Programs that read the same elements of an array wait for each
    other. Of equal divisions, the one that splits the first axes most is returned: its parts are closest to contiguous.
    """
    if shape[0] >= programs:
        return (programs, *[1] * (len(shape) - 1))
    reach = [(strides, itemsize, _distinct(shape, strides) * itemsize) for strides, itemsize in layouts]

    def cost(parts: Shape) -> int:
        box = tuple([-(-n // count) for n, count in zip(shape, parts, strict=True)])
        total = 0
        for strides, itemsize, nbytes in reach:
            total += _moved_bytes(box, strides, itemsize)
            if rates is not None and 0 in strides:
                total += rates.delay(nbytes, prod(parts), _distinct(box, strides) * itemsize)
        return total

    return min(_divisions(shape, programs), key=cost)


def _distinct(shape: Shape, strides: Shape) -> int:
    """Return the number of distinct elements of an array, which repeat along axes of stride 0."""
    return prod([n for n, step in zip(shape, strides, strict=True) if step])


def _divisions(shape: Shape, programs: int) -> Iterator[Shape]:
    """Yield divisions of the axes of ``shape`` into at most ``programs`` parts, those with most parts in front first.

    An axis is split into all its elements, or into a divisor of the number of programs that remain for it.
    """
    if len(shape) == 1:
        yield (min(shape[0], programs),)
        return
    limit = min(shape[0], programs)
    for count in [n for n in range(limit, 0, -1) if n == limit or programs % n == 0]:
        for rest in _divisions(shape[1:], programs // count):
            yield (count, *rest)


def _moved_bytes(box: Shape, strides: Shape, itemsize: int) -> int:
    """Return the bytes to move a box of an array with ``strides``, with each contiguous run as 256 bytes or more."""
    run, elements = 1, 1
    for step, extent in sorted(zip(strides, box, strict=True)):
        if step:
            run = run * extent if step == run == elements else run
            elements *= extent
    return elements // run * max(run * itemsize, ROW_BYTES)


def most_runs(inner: int) -> int:
    """Return the maximum number of runs of ``inner`` elements in one scatter-gather list."""
    return max(1, min(_MOST_RUNS, _ELEMENTS_OF_RUNS // max(inner, 1)))


def boxes(shape: Shape, block: int) -> Iterator[Box]:
    """Yield the corner and extents of boxes of at most ``block`` elements that cover an array of ``shape``."""
    inner = prod(shape[1:])
    if inner <= block:
        for row, count in blocks(shape[0], max(1, block // inner)):
            yield (row, *(0 for _ in shape[1:])), (count, *shape[1:])
        return
    for row in range(shape[0]):
        for corner, extents in boxes(shape[1:], block):
            yield (row, *corner), (1, *extents)


def attention_blocks(queries: int, keys: int) -> tuple[int, int]:
    """Return the number of queries and of keys of a block of attention.

    128 queries use each block of keys that is loaded, and the scores of 256 keys in f32 then take 128 KiB of scratch.
    """
    return min(128, queries), min(256, keys)


def key_parts(queries: int, keys: int, heads: int, pes: int) -> int:
    """Return into how many parts attention splits the keys of each of ``heads`` heads over ``pes`` PEs.

    Up to 32 queries leave PEs idle without a split. A part of fewer than 64 keys costs more to merge than it saves.
    """
    return max(1, min(pes // heads, keys // 64)) if queries <= 32 else 1


def gradient_block(keys: int, heads: int, pes: int) -> int:
    """Return the number of keys of a block of attention's gradients, which PEs compute for ``heads`` heads.

    Blocks are multiples of 64 keys, to fill the matrix unit. They are as small as gives each PE one, to use all PEs.
    """
    per_pe = -(-keys * heads // pes)
    return min(256, max(64, -(-per_pe // 64) * 64))


# --- products of few rows

PREFETCHED_PANELS = 2
"""Panels of a shard that a PE prefetches while the PEs of its cube all-gather A: one to multiply first, one behind."""
_PANEL_BYTES = 128 << 10
"""Bytes of a panel of B: its transfer takes far longer than its command, and several panels fit in scratch."""
_PANEL_ROWS = 64
"""Rows of a panel of B are a multiple of this: full tiles of the matrix unit along K."""
RESULT_BLOCKS = 6
"""Maximum number of f32 blocks of the result that are in scratch at once, while an epilogue runs."""
_LAUNCH_BYTES = 2 << 20
"""Bytes that the cubes can exchange in the time of one more launch."""


def is_few_rows(tile_m: int, scratch_bytes: int, m: int, k: int, itemsize: int) -> bool:
    """Return True if A (m, k) has the rows of one tile of the matrix unit, and fits in half of scratch.

    Panels of B need the other half.
    """
    return m <= tile_m and m * k * itemsize <= scratch_bytes // 2


def panel_rows(k: int, columns: int, itemsize: int) -> int:
    """Return the number of rows of a panel of B with ``columns`` columns, at most ``k``."""
    return min(k, max(_PANEL_ROWS, _PANEL_BYTES // (columns * itemsize) // _PANEL_ROWS * _PANEL_ROWS))


def shard_panel_rows(k: int, columns: int, itemsize: int) -> int:
    """Return the number of rows of a panel of a shard (k, columns), which a single PE reads.

    A sixteenth of the shard or less: the multiplication of the last panel delays the end by at most that part.
    """
    sixteenth = -(-k // (16 * _PANEL_ROWS)) * _PANEL_ROWS
    return min(sixteenth, panel_rows(k, columns, itemsize))


def gathering_panels(
    cubes: int, a_bytes: int, memories: int, shard: tuple[int, int], itemsize: int, scratch_bytes: int
) -> int:
    """Return the number of panels that a memory serves while each memory that stores A serves its part to all cubes.

    ``memories``: the number of memories that store A. ``shard``: rows and columns of B that a PE reads. The panels take
    at most a quarter of scratch.
    """
    panel_bytes = shard_panel_rows(*shard, itemsize) * shard[1] * itemsize
    return min(-(-cubes * a_bytes // (memories * panel_bytes)), scratch_bytes // 4 // panel_bytes)


def gathered_copies(pes: int) -> int:
    """Return the number of copies of A that a cube gathers: two, each in half of its memories, or a single one.

    A PE reads the copy in the other half, and its piece is in the memories of other PEs.
    """
    return 2 if pes >= 4 and pes % 2 == 0 else 1


def piece_rows(k: int, depth: int) -> int:
    """Return the number of rows of B that a dot sums, in panels of ``depth`` rows: a quarter, or half of the only one.

    Panels of any number of pieces then need A in a single form.
    """
    parts = 4 if k > depth else 2
    return min(depth, -(-depth // (parts * _PANEL_ROWS)) * _PANEL_ROWS)


def column_panels(k: int, depth: int, piece: int, *, is_last: bool) -> Iterator[tuple[int, int]]:
    """Yield the first row and the rows of each panel of contiguous columns: full pieces, then the remaining rows.

    Panels have up to ``depth`` rows. The last columns end with panels of three quarters. Less is left to multiply when
    the last one has arrived, and its runs of bytes are still long enough for the rate of the memory.
    """
    full = k - k % piece
    most = depth // piece * piece
    small = max(piece, most // piece * 3 // 4 * piece)
    before = max(full - 2 * most, 0) // most * most if is_last else full
    yield from blocks(before, most)
    yield from blocks(full - before, small, before)
    yield from blocks(k - full, piece, full)


def panel_columns(scratch_bytes: int, pes_of_cube: int, m: int, itemsize: int) -> int:
    """Return the maximum number of columns of a panel whose rows are contiguous.

    Half of scratch holds four panels of minimum size and the blocks of the epilogue. A has the other half. A panel has
    a row from the memory of each PE of the cube.
    """
    rows = max(_PANEL_ROWS, pes_of_cube)
    return max(1, scratch_bytes // 2 // (4 * rows * itemsize + RESULT_BLOCKS * m * 4))


def is_split_k_faster(cubes: int, m: int, k: int, n: int, itemsize: int) -> bool:
    """Return True if cubes exchange less by sums of their rows of B, whose rows are contiguous, than by columns of B.

    Addition of the sums is one more launch.
    """
    return cubes > 1 and (k * itemsize - cubes * m * 4) * n > _LAUNCH_BYTES


def partial_sum_columns(scratch_bytes: int, parts: int, m: int) -> int:
    """Return the number of columns whose ``parts`` f32 sums fit in half of scratch, with the epilogue's blocks."""
    return max(1, scratch_bytes // 2 // ((parts + RESULT_BLOCKS) * m * 4))


# --- products of integer weights

DIGIT_BITS = 7
"""Bits of a digit of a whole number: an i8 has room for a digit without a sign."""
_DIGIT_BYTES = 24
"""Bytes of scratch for an element of A while it is split into digits: its digits as i32, twice, and in between."""
_SPLIT_BYTES = 15
"""Bytes that MATH reads for a digit of an element of A: three steps in i32, and its share of steps for all digits"""


@value
class QuantisedTiles:
    """Sizes of a product by integer weights on a machine.

    ``digits`` of each element of A are multiplied as integers; 0: the weights are converted to the dtype of A.
    ``itemsize``: bytes of that dtype. ``rows``: rows of A. ``tile_m``, ``tile_n``: rows and columns of a tile of the
    matrix unit. ``parts``: A is split into digits part by part, as that takes longer than the first panels.
    """

    digits: int
    itemsize: int
    rows: int
    scratch_bytes: int
    tile_m: int
    tile_n: int
    parts: bool
    prefetched: int = PREFETCHED_PANELS

    @staticmethod
    def of(spec: TopologySpec, a: DType, m: int, k: int, needs: Sequence[DType]) -> QuantisedTiles:
        """Return the sizes for A (m, k).

        Digits cover the significand of the dtype of A and as many bits again for small elements, but at most 28 bits.
        They are used if the digits of all rows fit in a tile, and if the matrix unit multiplies the dtypes ``needs``.
        """
        gemm, scratch = spec.pe.gemm, spec.pe.tcm.scratch_bytes
        digits = 4 if a.itemsize > 2 else 3
        has_types = all(needed.name in gemm.macs_per_ns for needed in needs) and k < 1 << 31 - 7 - DIGIT_BITS
        fits = digits * m <= gemm.tile_m and digits * m * k * _DIGIT_BYTES <= scratch // 2
        bytes_per_ns = min(spec.cube.links.pe_to_xbar.bw_gbs, spec.cube.slice_bw_gbs)
        panel_ns = panel_rows(k, gemm.tile_n, 1) * gemm.tile_n / bytes_per_ns
        parts = digits * m * k * _SPLIT_BYTES / spec.pe.math.bytes_per_ns > PREFETCHED_PANELS * panel_ns
        digits = digits if has_types and fits else 0
        return QuantisedTiles(digits, a.itemsize, m, scratch, gemm.tile_m, gemm.tile_n, parts)

    def panels(self, k: int, columns: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the panels of i8 weights: first row and rows of K, then first column and columns of the result.

        If A is split in parts, panels have many columns, and as few rows as memory reads well. Otherwise they have
        complete rows. The panels that are loaded ahead take at most a quarter of scratch.
        """
        depth = max(ROW_BYTES, panel_rows(k, columns[1], 1)) if self.parts else panel_rows(k, self.tile_n, 1)
        most = self.scratch_bytes // 4 // ((self.prefetched + 1) * depth) if self.parts else self.tile_n
        for column, count in blocks(columns[1], max(most // self.tile_n, 1) * self.tile_n, columns[0]):
            for row, rows in blocks(k, depth):
                yield row, rows, column, count

    def depth(self, k: int, columns: int) -> int:
        """Return the rows of a panel of i8 weights with ``columns`` columns, which MATH converts."""
        return panel_rows(k, columns, 1)

    def most_columns(self, k: int, columns: int) -> int:
        """Return the number of columns whose converted weights take at most a quarter of scratch."""
        fit = self.scratch_bytes // 4 // (k * self.itemsize) // self.tile_n * self.tile_n
        return min(columns, max(fit, self.tile_n))

    def retains(self, m: int, k: int) -> bool:
        """Return True if A (m, k) takes at most a quarter of scratch, so that it is loaded once."""
        return m * k * self.itemsize <= self.scratch_bytes // 4

    def scales_sums(self, group: int) -> bool:
        """Return True if digits are used, and MATH scales the sums of ``group`` weights in less time than the weights.

        It reads 8 bytes for each digit of a row, and 4 bytes for each weight.
        """
        return 0 < 8 * self.digits * self.rows <= 4 * group

    @property
    def rows_of_block(self) -> int:
        """Return the number of rows of A that use converted weights at a time: few enough to overlap with loads."""
        return 4 * self.tile_m


def packed_panel_size(nbytes: int) -> int:
    """Return how many pieces of ``nbytes`` bytes of packed weights, two in a byte, a panel has."""
    return max(1, _PANEL_BYTES // 2 // nbytes)


# --- rows

_ROW_BLOCKS = 4
"""Blocks into which a program divides its rows, so that transfers and computation overlap."""
_MOST_ROWS = 4096
"""Rows that a program reduces at a time: enough to amortise a command."""
MOST_ROWS_OF_PARTS = 512
"""Rows of which a program reduces a part at a time: more, shorter parts would fill scratch with partial results."""
_LEAST_PART = 256
"""Minimum elements of a row that a PE reduces: with fewer, the launch that combines costs more than it saves."""
_SHARED_ROW = 65536
"""Minimum elements of a row that PEs should share: one PE needs longer for them than the parts need to launch."""
SOFTMAX_BYTES, NORM_BYTES, NORM_GRADIENT_BYTES = 24, 32, 48
"""Bytes of scratch for an element of a row: its value before and after each step, and parameters and their sums."""


def row_ranges(matrix: View, block: int, split: bool, tl: TLContext) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each block of this program's share.

    A block has at most ``block`` elements, and at least one row. A large share has four blocks or more: the next one is
    loaded while one is computed.
    """
    rows, columns = matrix.extents
    first, size = share(rows, tl, split)
    if size:
        least = max(size, _ROW_BLOCKS * (_SMALLEST // columns))
        yield from blocks(size, max(1, min(-(-least // _ROW_BLOCKS), block // columns)), first)


def row_blocks(matrix: View, block: int, split: bool, tl: TLContext) -> Iterator[tuple[int, RowPieces]]:
    """Yield the first row and the columns of each block of `row_ranges`."""
    for row, count in row_ranges(matrix, block, split, tl):
        yield row, columns_of(matrix.tile((row, 0), (count, matrix.extents[1])), block, tl)


def reduced_rows(columns: int, tl: TLContext) -> int:
    """Return the number of rows of ``columns`` elements that a program reduces at a time, to fit in scratch."""
    return max(1, min(most_elements(tl) // max(columns, 1), _MOST_ROWS))


def reduction_parts(rows: int, columns: int, pes: int) -> int:
    """Return into how many parts a reduction splits each row: 1 if there is a row for each PE."""
    return max(1, min(pes, columns // _LEAST_PART)) if rows < pes else 1


def is_row_shared(rows: int, columns: int, pes: int) -> bool:
    """Return True if PEs should share rows, by several launches, in place of one launch with a PE for each row."""
    return columns >= _SHARED_ROW and rows < pes


def piece_of_row(columns: int, bytes_per_element: int, tl: TLContext) -> int:
    """Return the number of columns that a program computes at a time: all of a row that fits in scratch.

    ``bytes_per_element``: bytes of scratch for an element of the row, with all its intermediate results. A longer row
    is loaded again in each pass, in pieces that overlap with computation.
    """
    tcm = tl.site.tcm
    return columns if tcm is not None and columns * bytes_per_element <= len(tcm) else most_elements(tl)


# --- arrays that all programs read


def is_all_gather_faster(spec: TopologySpec, cubes: int, pes: int, nbytes: int) -> bool:
    """Return True if the PEs of a cube should gather an array of ``nbytes`` that all PEs read, then read their copy.

    Otherwise, the cube that stores the array sends it to each of the ``pes`` PEs of every other cube, not once to each
    cube. All this leaves by the links of one cube. The copy costs a write and a read of the cube's memory, and their
    transfers about as much.
    """
    saved_ns = (cubes - 1) * (pes - 1) * nbytes / spec.sip.links.cube_to_cube.bw_gbs
    return saved_ns > 4 * spec.cube.hbm_access_ns
