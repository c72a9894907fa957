"""The sizes of blocks of a product: those that suit the rates and the room of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, prod

from kernbench.common.values import value
from kernbench.messages.commands import ArrayPlace, BlockChoice, Epilogue, MemoryRef
from kernbench.triton_emu.tile_plans import TileSizes

SUM_BYTES = 4
"""Bytes that the matrix unit needs for the sum of one element of a block."""
ROW_BYTES = 512
"""The shortest row, in bytes, that a memory delivers at its sustained rate."""
BURST_BYTES = 256
"""The least bytes that a piece of a row costs: a shorter piece takes as long."""
FEW = 0.25
"""The largest share of the read time that may go to rows shorter than ``ROW_BYTES``."""
SHARE = 1 / 16
"""The largest share of the room for panels that one step may use so that its rows are long."""
SLACK = 1.3
"""The least ratio of the matrix unit's work on a block to the read time of the block's operands."""
SHORT_ROWS = 0.8
"""The fraction of its sustained rate at which a banked memory delivers rows that use its channels unevenly."""
RAGGED_ROWS = 0.64
"""The same fraction for rows that use the channels unevenly and do not begin at a burst."""


@value
class OperandReads:
    """The reads of an operand of a product: at ``gbs`` GB/s (infinite for an operand in TCM), after ``latency_ns``.

    ``by_rows``: elements of a row are adjacent, otherwise those of a column. ``stripe`` bytes use all channels of the
    memory evenly. Pieces that are no multiple of ``stripe`` are read at ``piece_share`` of the rate.
    """

    gbs: float = inf
    latency_ns: float = 0.0
    by_rows: bool = True
    stripe: int = 1
    piece_share: float = 1.0

    def in_banks(self, pitch: int, burst_bytes: int, round_bytes: int) -> OperandReads:
        """Return these reads from memory with banks. ``pitch``: bytes from a row, or a column, to the next one."""
        share = RAGGED_ROWS if pitch % burst_bytes else SHORT_ROWS
        return replace(self, stripe=round_bytes, piece_share=share)

    def share_of_rate(self, adjacent: int, extent: int, itemsize: int, least_bytes: int = 1) -> float:
        """Return the share of the rate for pieces of ``adjacent`` elements of a row of ``extent`` elements.

        A shorter piece takes as long as one of ``least_bytes``.
        """
        nbytes = adjacent * itemsize
        if adjacent >= extent:
            return 1.0
        return min(1.0, nbytes / least_bytes) * (self.piece_share if nbytes % self.stripe else 1.0)


@value
class BlockRoom:
    """Memory for products by blocks, in bytes: the matrix unit's for ``sums``, and the scheduler's for ``panels``."""

    sums: int
    panels: int


@value
class BlockLimits:
    """The limits of block sizes that kernels choose: the tile (m, k, n), and the room for sums and panels."""

    tile: TileSizes
    room: BlockRoom

    def problem(self, factors: tuple[ArrayPlace, ArrayPlace], epilogue: tuple[Epilogue, ...], block: TileSizes) -> str:
        """Return why blocks of this size do not fit; empty if they fit, or if no blocks fit at all."""
        reads = [OperandReads(gbs=1.0) if isinstance(x, MemoryRef) else OperandReads() for x in factors]
        product = BlockedProduct.of(factors, epilogue, self.tile, (reads[0], reads[1]), macs_per_ns=1.0, write_ns=0.0)
        sizes, room = product.whole_tiles(block), self.room
        if not product.can_block(room) or product.fits(sizes, room):
            return ""
        return (
            f"block={block} is {' x '.join(map(str, sizes))} in whole tiles: sums of {product.sum_bytes(sizes)} bytes "
            f"(pe.gemm.acc_bytes: {room.sums}), and panels of {product.panel_bytes(sizes)}, two of each operand "
            f"(pe.tcm.scheduler_reserved_bytes: {room.panels}); give smaller sizes, or 'auto'"
        )


@value
class BlockedProduct:
    """A product (m, k) by (k, n) and the machine, as inputs of the choice of block sizes.

    ``shape`` and ``tile`` are (m, k, n). ``write_ns`` is the time to write an element of the result to a memory that
    also delivers operands; 0 if another memory takes the result. ``row_bytes``, ``column_bytes`` and ``element_bytes``
    are the bytes that the epilogue reads from memory for a row, for a column and for an element of the result.
    """

    shape: TileSizes
    tile: TileSizes
    itemsize: int
    macs_per_ns: float
    a: OperandReads
    b: OperandReads
    write_ns: float = 0.0
    row_bytes: int = 0
    column_bytes: int = 0
    element_bytes: int = 0

    @classmethod
    def of(
        cls,
        factors: tuple[ArrayPlace, ArrayPlace],
        epilogue: tuple[Epilogue, ...],
        tile: TileSizes,
        reads: tuple[OperandReads, OperandReads],
        *,
        macs_per_ns: float,
        write_ns: float,
    ) -> BlockedProduct:
        a, b = factors
        extra = [step.operand for step in epilogue if isinstance(step.operand, MemoryRef)]
        n = b.shape[1]
        return cls(
            shape=(a.shape[0], a.shape[1], n),
            tile=tile,
            itemsize=a.dtype.itemsize,
            macs_per_ns=macs_per_ns,
            a=reads[0],
            b=reads[1],
            write_ns=write_ns,
            row_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) > 1 and x.shape[1] < n),
            column_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) == 1),
            element_bytes=sum(x.dtype.itemsize for x in extra if len(x.shape) > 1 and x.shape[1] == n),
        )

    @property
    def reads_nothing(self) -> bool:
        """True if both operands are in TCM and need no panels."""
        return self.a.gbs == self.b.gbs == inf

    @property
    def keeps_a(self) -> bool:
        """True if A has the longer read time: blocks then proceed along rows of the result, which reuse A's panels."""
        m, k, n = self.shape
        return m * k / self.a.gbs >= k * n / self.b.gbs

    def line_of(self, sizes: TileSizes, room: BlockRoom) -> bool | None:
        """Return True if all panels of A along K should stay in the room, False for those of B, and None for neither.

        They are those of a block of rows, or of columns, and are read once. If the result is a single block of rows, or
        of columns, these are all of A, or of B. They and two panels of the other operand may take half of the room.
        """
        (m, k, n), (bm, bk, bn) = self.shape, sizes
        rows, columns = -(-m // bm), -(-n // bn)
        is_a = self.keeps_a if min(rows, columns) > 1 else rows == 1
        kept, side, other = (self.a, bm, bn) if is_a else (self.b, bn, bm)
        line_bytes = (side * k + 2 * other * bk) * self.itemsize
        if kept.gbs == inf or (columns if is_a else rows) == 1 or 2 * line_bytes > room.panels:
            return None
        return is_a

    def can_block(self, room: BlockRoom) -> bool:
        """Return True if the smallest blocks fit: two panels of a tile for each operand, and the sums."""
        return not self.reads_nothing and self.fits(self.tile, room)

    def fits(self, sizes: TileSizes, room: BlockRoom) -> bool:
        """Return True if the sums of a block and two panels of each operand fit."""
        return self.sum_bytes(sizes) <= room.sums and self.panel_bytes(sizes) <= room.panels

    def sum_bytes(self, sizes: TileSizes) -> int:
        """Return the bytes of the sums of a block."""
        return sizes[0] * sizes[2] * SUM_BYTES

    def panel_bytes(self, sizes: TileSizes) -> int:
        """Return the bytes of two panels of each operand that is read, and of the epilogue's operands for a block."""
        bm, bk, bn = sizes
        side = bm * (self.a.gbs < inf) + bn * (self.b.gbs < inf)
        epilogue = bm * self.row_bytes + bn * self.column_bytes + bm * bn * self.element_bytes
        return 2 * side * bk * self.itemsize + epilogue

    def whole_tiles(self, sizes: TileSizes) -> TileSizes:
        """Return sizes rounded up to complete tiles, and no larger than the product."""
        bm, bk, bn = (
            -(-min(size, extent) // tile) * tile
            for size, extent, tile in zip(sizes, self.shape, self.tile, strict=True)
        )
        return bm, bk, bn

    def choose(self, room: BlockRoom, choice: BlockChoice = "auto") -> TileSizes | None:
        """Return the sizes of blocks, or None if the smallest blocks do not fit.

        ``auto`` chooses the smallest blocks that meet two conditions. Their panels are read faster than the matrix unit
        works on them, by the factor ``SLACK``, and the memory has time to write the result. ``least``, or ``auto``
        without such blocks, minimises the read time.
        """
        if not self.can_block(room):
            return None
        (m, k, n), (tm, tk, tn) = self.shape, self.tile
        m, n = -(-m // tm) * tm, -(-n // tn) * tn  # an edge tile costs the matrix unit as much as a full tile
        compute_ns = m * k * n / self.macs_per_ns
        a, b = self.a.gbs, self.b.gbs

        # An operand in TCM counts at the rate of the other one: its block of rows or columns is as long.
        a_gbs, b_gbs = (gbs if gbs < inf else other for gbs, other in ((a, b), (b, a)))

        def rank(block: tuple[int, int]) -> tuple[float, ...]:
            bm, bn = block
            read_ns = (m * -(-n // bn) / a_gbs + n * -(-m // bm) / b_gbs) * k * self.itemsize
            needed = max(SLACK * read_ns, self._memory_ns(bm, bn, room))
            enough = choice == "auto" and needed <= compute_ns
            return (0, bm + bn, abs(bm - bn)) if enough else (1, needed, -bm - bn)

        blocks = ((bm, bn) for bm in _sizes(m, tm) for bn in _sizes(n, tn) if self.fits((bm, tk, bn), room))
        bm, bn = min(blocks, key=rank)
        return bm, self._panel_size(bm, bn, room), bn

    def predict(self, room: BlockRoom, out: OperandReads) -> tuple[float, float, float, float]:
        """Return the predicted times in ns of a product in blocks of the ``least`` read time.

        They are of the matrix unit, of memory, of the first panels and of the last result. Rows of the result are
        written at the rate at which ``out`` would be read.
        """
        compute_ns = prod(self.whole_tiles(self.shape)) / self.macs_per_ns
        if (sizes := self.choose(room, "least")) is None:
            return compute_ns, 0.0, 0.0, 0.0
        (m, _, n), (bm, bk, bn) = self.shape, sizes
        begin_ns = (bm / self.a.gbs + bn / self.b.gbs) * bk * self.itemsize
        write_ns = self.write_ns / out.share_of_rate(bn, n, self.itemsize, BURST_BYTES)
        return compute_ns, self._read_ns(bm, bn, room, BURST_BYTES) + m * n * write_ns, begin_ns, bm * bn * write_ns

    def _memory_ns(self, bm: int, bn: int, room: BlockRoom) -> float:
        """Return the time to read all panels, plus the time to write the result if it goes to the same memory."""
        m, _, n = self.shape
        out = min(self.a, self.b, key=lambda operand: operand.piece_share).share_of_rate(bn, n, self.itemsize)
        return self._read_ns(bm, bn, room) + m * n * self.write_ns / out

    def _read_ns(self, bm: int, bn: int, room: BlockRoom, least_bytes: int = 1) -> float:
        """Return the time to read all panels. Pieces of rows take as long as pieces of ``least_bytes``, or longer."""
        (m, k, n), bk = self.shape, self._panel_size(bm, bn, room)
        columns, rows = -(-n // bn), -(-m // bm)  # numbers of blocks: each block column reads A, each block row reads B
        if bk >= k:
            columns, rows = (1, rows) if self.keeps_a else (columns, 1)
        a_row, b_row = (bk, k) if self.a.by_rows else (bm, m), (bn, n) if self.b.by_rows else (bk, k)
        a_gbs = self.a.gbs * self.a.share_of_rate(*a_row, self.itemsize, least_bytes)
        b_gbs = self.b.gbs * self.b.share_of_rate(*b_row, self.itemsize, least_bytes)
        return (m * columns / a_gbs + n * rows / b_gbs) * k * self.itemsize

    def _panel_size(self, bm: int, bn: int, room: BlockRoom) -> int:
        """Return the length of the shortest panels with efficient reads, or of the longest panels that fit.

        Reading a panel lasts at least the latency of a read. Two further conditions hold unless panels would exceed
        their ``SHARE`` of the room. Rows along K have at least ``ROW_BYTES``, unless their share of the read time is at
        most ``FEW``. The read time and the compute time of a step differ by at least the latency, so that a read can
        begin between their ends.
        """
        (_, k, _), (_, tk, _) = self.shape, self.tile
        a_ns, b_ns = bm * self.itemsize / self.a.gbs, bn * self.itemsize / self.b.gbs
        read_ns, compute_ns = a_ns + b_ns, bm * bn / self.macs_per_ns
        along_k = a_ns * self.a.by_rows + b_ns * (not self.b.by_rows)
        least = ROW_BYTES / self.itemsize if along_k > FEW * read_ns else 0
        latency_ns = max(self.a.latency_ns, self.b.latency_ns)
        bk = tk
        while bk < k and self.fits((bm, bk + tk, bn), room):
            short = bk < least or bk * abs(read_ns - compute_ns) < latency_ns
            modest = self.panel_bytes((bm, bk + tk, bn)) <= 2 * SHARE * room.panels
            if bk * read_ns >= latency_ns and not (short and modest):
                break
            bk += tk
        tiles = -(-k // tk)
        parts = max(1, tiles // (bk // tk))  # K is split evenly: no panel is shorter than bk
        even = -(-tiles // parts) * tk
        return even if self.fits((bm, even, bn), room) else bk


def _sizes(extent: int, tile: int) -> Iterator[int]:
    """Yield the sizes in complete tiles that split an axis into 1, 2, … nearly equal parts, in ascending order."""
    tiles = -(-extent // tile)
    yield from sorted({-(-tiles // parts) * tile for parts in range(1, tiles + 1)})
