"""Matrix products whose B stays in the TCM of PEs while pieces of A go round rings of PEs.

The columns of the result are divided over the cubes of a block, then over the PEs of a group. In a linear layer, each
cube thus reads the weights that it stores. The groups of a cube divide K, so that B is read once. A piece of A begins
at one place of its group's ring, and is received, multiplied and sent on without a copy::

    queue in ──▶ slot ──┬──▶ dot with the panel of B in scratch ──▶ half sum of the row block
                        └──▶ queue out, to the next PE of the ring

The rings have opposite directions, so the groups of a cube finish row blocks in opposite orders. Of each row block, the
group that is finished first sends its half sum to the other, which adds both and stores the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from kernbench.common.dtypes import F32, I32, DType
from kernbench.common.values import state, value
from kernbench.kernels.gemm_grid import BlockProduct
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.ring_paths import CubeRing
from kernbench.kernels.shares import blocks, part
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

IndexSpan = tuple[int, int]
"""The first index and the number of indices of a part of an axis"""
Piece = tuple[int, int]
"""A piece of A: the numbers of its row block and of its part of K"""
Turn = tuple[tuple[Piece, ...], ...]
"""The pieces that go once round a ring, by the position where they begin"""


@value
class RingQueues:
    """Names of the queues of a PE for the rings of ``blocks`` blocks of cubes: those that send end in ``_out``.

    Pieces go to the next PE of the ring, half sums to the PE of the other group with the same columns.
    """

    blocks: int

    @property
    def piece(self) -> str:
        """Return the name of the queues of pieces, without its end."""
        return f"product{self.blocks}"

    @property
    def half_sum(self) -> str:
        """Return the name of the queues of half sums, without its end."""
        return f"product{self.blocks}_sum"


@value
class ColumnGroups:
    """Columns of the result: ``width`` from ``first`` on, in ``copies`` groups that begin ``apart`` columns apart.

    Each of several blocks of cubes computes all columns. A cube has those of the cubes in its place in all blocks.
    """

    first: int
    width: int
    copies: int = 1
    apart: int = 0

    @property
    def count(self) -> int:
        """Return the number of columns."""
        return self.width * self.copies

    def divide(self, parts: int, most: int) -> list[tuple[ColumnGroups, ...]]:
        """Return ``parts`` parts of the columns, each in pieces of at most ``most`` columns."""
        widths = [part(self.width, parts, number) for number in range(parts)]
        return [
            tuple(
                [replace(self, first=j, width=count) for j, count in blocks(width, most // self.copies, self.first + i)]
            )
            for i, width in widths
        ]

    def of(self, matrix: View) -> View:
        """Return these columns of ``matrix``, (rows, n), as (rows, copies, width)."""
        (rows, _), (row, column) = matrix.extents, matrix.strides
        strides = row, self.apart * column, column
        return View(matrix.at((0, self.first)), (rows, self.copies, self.width), strides, matrix.dtype)


@value
class RingSizes:
    """Sizes of a product on rings.

    ``rows``, ``depth``: extents of a piece of A. ``own_pieces``: maximum number of pieces of a PE in one turn, fewer
    than the slots of a queue. ``columns``: columns of a half sum. ``pass_columns``: columns whose part of B fits in
    scratch. ``wave_rows``: rows whose half sums fit in scratch.
    """

    rows: int
    depth: int
    own_pieces: int
    interleaved: int
    columns: int
    pass_columns: int
    wave_rows: int


@value
class Wave:
    """Row blocks that are finished before the next ones begin: their rows, and the turns of each group's pieces."""

    row_blocks: tuple[IndexSpan, ...]
    turns: tuple[tuple[Turn, ...], ...]

    def order_of(self, group: int, position: int) -> list[Piece]:
        """Return the pieces that the PE at a position of a group's ring multiplies, in order."""
        return [piece for turn in self.turns[group] for step in steps_of(turn, position) for piece in step]

    def rows_of(self, group: int, position: int) -> list[int]:
        """Return the row blocks in the order in which the PE at a position of a group's ring finishes them."""
        last = {row: i for i, (row, _) in enumerate(self.order_of(group, position))}
        return sorted(last, key=lambda row: last[row])


def steps_of(turn: Turn, position: int) -> Iterator[tuple[Piece, ...]]:
    """Yield the pieces that come to a position of a ring: first its own, then those of the positions before it."""
    for step in range(len(turn)):
        yield turn[(position - step) % len(turn)]


@value
class RingBlock:
    """The waves of one block of cubes, and its rings. ``depths[g]`` has the parts of K of group g."""

    ring: CubeRing
    depths: tuple[tuple[IndexSpan, ...], ...]
    waves: tuple[Wave, ...]


def divide_depth(k: int, groups: int, depth: int, tile_k: int) -> tuple[tuple[IndexSpan, ...], ...]:
    """Return the parts of K of each group, of at most ``depth`` rows of B. Groups begin at full tiles."""
    tiles = -(-k // tile_k)
    parts: list[tuple[IndexSpan, ...]] = []
    for group in range(groups):
        first, count = part(tiles, groups, group)
        begin, end = first * tile_k, min(k, (first + count) * tile_k)
        parts.append(tuple(blocks(end - begin, depth, begin)))
    return tuple(parts)


def plan_block(
    ring: CubeRing, row_span: IndexSpan, k: int, m_of_cube: float, sizes: RingSizes, tile_k: int
) -> RingBlock:
    """Return the waves of a block of cubes that computes the rows ``row_span`` of a product over ``k``.

    ``m_of_cube``: the number of rows of A that a cube stores.
    """
    depths = divide_depth(k, len(ring.rings), sizes.depth, tile_k)
    row_blocks = list(blocks(row_span[1], sizes.rows, row_span[0]))
    most_pieces = sizes.own_pieces * len(ring.rings[0])
    rows_of_turn = most_pieces // max(map(len, depths))
    rows_of_wave = max(1, min(rows_of_turn, sizes.wave_rows // sizes.rows))
    n_waves = -(-len(row_blocks) // rows_of_wave)
    waves = []
    for wave in range(n_waves):
        members = row_blocks[wave::n_waves]
        turns = [
            _turns_of(
                members,
                len(parts),
                [place.cube for place in ring.rings[group]],
                m_of_cube,
                most_pieces,
                sizes.interleaved,
            )
            for group, parts in enumerate(depths)
        ]
        waves.append(Wave(tuple(members), tuple(turns)))
    return RingBlock(ring, depths, tuple(waves))


def _turns_of(
    row_blocks: Sequence[IndexSpan],
    n_parts: int,
    cubes: Sequence[int],
    m_of_cube: float,
    most_pieces: int,
    interleaved: int,
) -> tuple[Turn, ...]:
    """Return the turns of the pieces of some row blocks on a ring through ``cubes``.

    Pieces are spread evenly, in the order of the cubes that store their rows.
    """
    first_position = {cube: cubes.index(cube) for cube in set(cubes)}

    def home(row: int) -> int:
        return first_position.get(int(row_blocks[row][0] // m_of_cube), 0)

    rows = sorted(range(len(row_blocks)), key=lambda row: (home(row), row))
    pieces = [
        (row, number)
        for first, count in blocks(len(rows), interleaved)
        for number in range(n_parts)
        for row in rows[first : first + count]
    ]
    turns = []
    for first, count in blocks(len(pieces), most_pieces):
        starting: list[list[Piece]] = [[] for _ in cubes]
        for i, piece in enumerate(pieces[first : first + count]):
            starting[i * len(cubes) // count].append(piece)
        turns.append(tuple([tuple(pieces_of_pe) for pieces_of_pe in starting]))
    return tuple(turns)


@value
class RingProduct:
    """A product (batch, m, k) by (batch, k, n) on rings. ``blocks`` of cubes each compute their part of the rows."""

    product: BlockProduct
    blocks: tuple[RingBlock, ...]
    sizes: RingSizes
    positions: Mapping[tuple[int, int], RingPosition] = field(hash=False, repr=False)

    @staticmethod
    def of(product: BlockProduct, ring_blocks: Sequence[RingBlock], sizes: RingSizes) -> RingProduct:
        """Return a product on the rings of ``ring_blocks``. ``positions`` has the position of each (cube, PE)."""
        positions = {
            (place.cube, place.pe): RingPosition(number, group, position)
            for number, block in enumerate(ring_blocks)
            for group, places in enumerate(block.ring.rings)
            for position, place in enumerate(places)
        }
        return RingProduct(product, tuple(ring_blocks), sizes, positions)

    def run(self, out: int, a: int, b: int, *addend: int, tl: TLContext) -> None:
        """Compute this program's part. The arguments are addresses."""
        product, at = self.product.on(out, a, b, addend), self.positions.get((tl.program_id(1), tl.program_id(0)))
        if at is None:
            return
        block = self.blocks[at.block]
        columns, widest = self._columns_of(at, product.b)
        n_passes = max(1, -(-widest // self.sizes.pass_columns))
        for z in range(product.a.extents[0]):
            for pieces in columns.divide(n_passes, self.sizes.columns):
                RingProgram(self, at, block, product, z, pieces, tl).run()

    def _columns_of(self, at: RingPosition, b: View) -> tuple[ColumnGroups, int]:
        """Return the columns of a PE, and the maximum number of columns of any PE.

        Each cube stores some columns of B, unless B is row-major; then all columns of a PE are contiguous.
        """
        ring, n_blocks, n = self.blocks[at.block].ring, len(self.blocks), b.extents[2]
        place, cubes = ring.rings[at.group][at.position], sorted(ring.cubes)
        number, units = cubes.index(place.cube), n_blocks * len(cubes) * ring.parts
        if n_blocks > 1 and n % units == 0 and b.strides[1] < b.strides[2]:
            width = n // units
            first = (number * ring.parts + place.part) * width
            return ColumnGroups(first, width, n_blocks, n // n_blocks), n_blocks * width
        j, of_cube = part(n, len(cubes), number)
        first, count = part(of_cube, ring.parts, place.part)
        return ColumnGroups(j + first, count), -(-n // (len(cubes) * ring.parts))


@value
class RingPosition:
    """The number of a block of cubes, of a group, and of a position on the group's ring."""

    block: int
    group: int
    position: int


@state
class RingProgram:
    """The program of one PE for product ``z`` of a batch and some columns of the result, in ``columns`` of a half sum.

    ``panels``: B by part of K and columns. ``sums``: half sums by row block and columns. ``partners``: half sums of the
    other group. ``own_rows``: row blocks that this group finishes. ``results``: results that are stored after the wave,
    so that stores do not delay pieces. ``positions``: on each ring, that of the PE of this cube with these columns.
    ``by_columns``: whether columns of A, and of B, are contiguous.
    """

    plan: RingProduct
    at: RingPosition
    block: RingBlock
    product: BlockProduct
    z: int
    columns: tuple[ColumnGroups, ...]
    tl: TLContext
    panels: dict[tuple[int, int], Handle] = field(default_factory=dict)
    sums: dict[tuple[int, int], Handle] = field(default_factory=dict)
    partners: dict[tuple[int, int], Handle] = field(default_factory=dict)
    results: list[tuple[View, Handle]] = field(default_factory=list)
    own_rows: frozenset[int] = frozenset()
    positions: tuple[int, ...] = field(init=False)
    queues: RingQueues = field(init=False)
    sum_dtype: DType = field(init=False)
    by_columns: tuple[bool, bool] = field(init=False)

    def __post_init__(self) -> None:
        rings, a, b = self.block.ring.rings, self.product.a, self.product.b
        place = rings[self.at.group][self.at.position]
        self.positions = tuple(
            [[(other.cube, other.part) for other in ring].index((place.cube, place.part)) for ring in rings]
        )
        self.queues = RingQueues(len(self.plan.blocks))
        self.sum_dtype = F32 if a.dtype.is_float else I32
        self.by_columns = a.strides[1] < a.strides[2], b.strides[1] < b.strides[2]

    def run(self) -> None:
        """Multiply all pieces that come by."""
        group, position = self.at.group, self.at.position
        waves = self.block.waves
        turns = [(wave, turn) for wave in waves for turn in wave.turns[group]]
        loaded = self._load_first(*turns[0]) if turns else []
        current: Wave | None = None
        left: dict[int, int] = {}
        for number, (wave, turn) in enumerate(turns):
            if wave is not current:
                current, left = wave, dict.fromkeys(range(len(wave.row_blocks)), len(self.block.depths[group]))
                self._receive_sums(wave)
            following = turns[number + 1 : number + 2]
            next_loaded = self._load_pieces(*following[0], position) if following else []
            self._turn(wave, turn, loaded, left)
            loaded = next_loaded
            if not following or following[0][0] is not wave:
                self._store_results()

    def _turn(self, wave: Wave, turn: Turn, loaded: list[Handle], left: dict[int, int]) -> None:
        """Multiply the pieces of a turn, and send on all but those that the next PE has had."""
        tl, last_step = self.tl, len(turn) - 1
        piece_in, piece_out = f"{self.queues.piece}_in", f"{self.queues.piece}_out"
        for step, pieces in enumerate(steps_of(turn, self.at.position)):
            for row, number in pieces:
                shape = self._piece_view(wave, row, number).extents
                piece = loaded.pop(0) if step == 0 else tl.recv_async(piece_in, shape, self.product.a.dtype)
                self._multiply(piece, row, number)
                if step < last_step:
                    tl.send(piece_out, piece)
                del piece
                left[row] -= 1
                if not left[row]:
                    self._finish(wave, row)

    def _multiply(self, piece: Handle, row: int, number: int) -> None:
        """Add the product of a piece to the half sums of its row block."""
        tl = self.tl
        for column in range(len(self.columns)):
            panel, key = self.panels[number, column], (row, column)
            self.sums[key] = tl.dot(
                piece, panel, self.sums.pop(key, None), self.sum_dtype, self.by_columns[0], self.by_columns[1]
            )

    def _finish(self, wave: Wave, row: int) -> None:
        """Send the half sums of a row block to the other group, or add those of the other group."""
        tl = self.tl
        for column, span in enumerate(self.columns):
            half = self.sums.pop((row, column))
            if len(self.positions) > 1 and row not in self.own_rows:
                tl.send(f"{self.queues.half_sum}_out", half)
                continue
            if len(self.positions) > 1:
                half = half + self.partners.pop((row, column))
            first, count = wave.row_blocks[row]
            epilogue = self._epilogue_of((first, count), span)
            result = epilogue.finish(tl.reshape(half, epilogue.out.extents), tl)
            self.results.append((epilogue.out, tl.cast(result, epilogue.out.dtype)))

    def _receive_sums(self, wave: Wave) -> None:
        """Receive the half sums that the other group will send in a wave, into scratch, which frees their slots."""
        if len(self.positions) == 1:
            return
        tl, orders = self.tl, [wave.rows_of(group, position) for group, position in enumerate(self.positions)]
        middle = len(wave.row_blocks) // 2
        self.own_rows = frozenset(orders[0][:middle] if self.at.group else orders[0][middle:])
        for row in orders[1 - self.at.group]:
            if row in self.own_rows:
                for column, span in enumerate(self.columns):
                    shape = wave.row_blocks[row][1], span.count
                    self.partners[row, column] = tl.copy(
                        tl.recv_async(f"{self.queues.half_sum}_in", shape, self.sum_dtype)
                    )

    def _store_results(self) -> None:
        for view, result in self.results:
            view.store(result, self.tl)
        self.results.clear()

    def _load_pieces(self, wave: Wave, turn: Turn, position: int) -> list[Handle]:
        return [self._piece_view(wave, *piece).load(self.tl) for piece in turn[position]]

    def _piece_view(self, wave: Wave, row: int, number: int) -> View:
        (first, count), (k, depth) = wave.row_blocks[row], self.block.depths[self.at.group][number]
        view = self.product.a.tile((self.z, first, k), (count, depth))
        return view.transposed if self.by_columns[0] else view

    def _load_first(self, wave: Wave, turn: Turn) -> list[Handle]:
        """Load the pieces of the first turn, and this PE's part of B, in the order in which they are multiplied."""
        pieces = []
        for piece in turn[self.at.position]:
            pieces.append(self._piece_view(wave, *piece).load(self.tl))
            self._load_panel(piece[1])
        for _, number in wave.order_of(self.at.group, self.at.position):
            self._load_panel(number)
        return pieces

    def _load_panel(self, number: int) -> None:
        """Load a part of B, unless it has been loaded."""
        k, depth = self.block.depths[self.at.group][number]
        matrix = self.product.b.tile((self.z, k, 0), (depth, self.product.b.extents[2]))
        for column, span in enumerate(self.columns):
            if (number, column) not in self.panels:
                view = span.of(matrix)
                if self.by_columns[1]:
                    (_, copies, width), (row, apart, step) = view.extents, view.strides
                    view = View(view.address, (copies, width, depth), (apart, step, row), view.dtype)
                shape = (span.count, depth) if self.by_columns[1] else (depth, span.count)
                self.panels[number, column] = self.tl.reshape(view.load(self.tl), shape)

    def _epilogue_of(self, rows: IndexSpan, columns: ColumnGroups) -> GemvEpilogue:
        """Return the last steps of a part of the result, (rows, copies, width)."""
        (first, count), epilogue = rows, self.product.epilogue
        n = epilogue.out.extents[2]
        placed = epilogue.tile((self.z, first, 0), (count, n))
        addend = None if placed.addend is None else columns.of(placed.addend)
        return replace(placed, out=columns.of(placed.out), addend=addend)
