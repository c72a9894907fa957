"""Products in blocks: the rates of PEs, and the grids of PEs and cubes that divide the result."""

from __future__ import annotations

from functools import lru_cache

from kernbench.common.dtypes import DType
from kernbench.common.values import value
from kernbench.kernels.tiling import ROW_BYTES
from kernbench.topology.spec import TopologySpec

_PIECE_BYTES = 64 << 10
"""Bytes that a PE moves at a time to stage an operand: each PE has several pieces, and one hides the next command."""


def piece_elements(itemsize: int) -> int:
    """Return the maximum number of elements that a PE moves at a time while its cube stages an operand."""
    return _PIECE_BYTES // itemsize


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
    ``round_trip_ns`` is the latency from corner to corner of the mesh of cubes and back.
    """

    tile: tuple[int, int, int]
    tile_ns: float
    bytes_per_ns: float
    link_bytes_per_ns: float
    round_trip_ns: float

    @staticmethod
    def of(spec: TopologySpec, item: DType) -> PeRates:
        """Return the rates of a machine for factors of dtype ``item``."""
        gemm, mesh = spec.pe.gemm, spec.sip.cube_mesh
        links = 2 * ((mesh.w - 1) * mesh.h + mesh.w * (mesh.h - 1))
        hops = (mesh.w - 1 / mesh.w + mesh.h - 1 / mesh.h) / 3
        link_rate = spec.sip.links.cube_to_cube.bw_gbs * links / (mesh.w * mesh.h * hops) if links else 0.0
        parts = spec.cube.components
        hop_ns = 2 * parts.ucie.attrs.overhead_ns + spec.cube.noc.w * parts.noc_router.attrs.overhead_ns
        round_trip_ns = 2 * (mesh.w + mesh.h - 1) * hop_ns
        rate = spec.cube.links.pe_to_xbar.bw_gbs
        return PeRates(gemm.tile_sizes, gemm.tile_ns(item), rate, link_rate, round_trip_ns)

    def is_memory_bound(self, itemsize: int) -> bool:
        """Return True if a tile of B takes the matrix unit no longer than the link that the PE reads it by."""
        _, tile_k, tile_n = self.tile
        return self.tile_ns <= tile_k * tile_n * itemsize / self.bytes_per_ns


@lru_cache(maxsize=4096)
def choose_grid(
    rates: PeRates, pes: int, batch: int, m: int, k: int, n: int, itemsize: int
) -> tuple[float, ProductGrid]:
    """Return the predicted ns and the grid that minimises them, from the work and the reads of each PE.

    A PE computes full tiles of the matrix unit, and reads its rows of A and its columns of B. Of equally fast grids,
    the one that splits columns is returned, as weights are stored by output features.
    """
    tile_m, tile_k, tile_n = rates.tile
    best: tuple[float, ProductGrid] | None = None
    groups = min(batch, pes)
    products, pes_of_group = -(-batch // groups), pes // groups
    for rows in range(1, pes_of_group + 1):
        if rows > m or (rows > 1 and m // rows < tile_m // 2):
            break
        columns = min(pes_of_group // rows, n)
        pe_m, pe_n = -(-m // rows), -(-n // columns)
        compute_ns = -(-pe_m // tile_m) * -(-pe_n // tile_n) * -(-k // tile_k) * rates.tile_ns
        read_ns = (pe_m + pe_n) * k * itemsize / rates.bytes_per_ns
        # An eighth of the shorter time is not hidden behind the longer.
        ns = products * (max(compute_ns, read_ns) + min(compute_ns, read_ns) / 8)
        if best is None or ns < best[0]:
            best = ns, ProductGrid(groups, rows, columns)
    assert best is not None, "one row of PEs is always possible"
    return best


@value
class CubeGrid:
    """A division of a product over cubes, rows by columns of the result; ``within`` divides it over each cube's PEs.

    ``stages_a``, ``stages_b``: other cubes store rows of A, or columns of B, that a cube needs. Each cube then stages
    these operands in its own memory.
    """

    rows: int
    columns: int
    within: ProductGrid
    stages_a: bool
    stages_b: bool

    def staged_elements(self, m: int, k: int, n: int) -> int:
        """Return the maximum number of elements that a cube stages for a product (m, k) by (k, n)."""
        return k * (-(-m // self.rows) * self.stages_a + -(-n // self.columns) * self.stages_b)


@lru_cache(maxsize=4096)
def choose_cubes(
    rates: PeRates, cubes: int, pes: int, m: int, k: int, n: int, itemsize: int, b_by_rows: bool
) -> tuple[float, CubeGrid | None]:
    """Return the predicted ns and the grid that minimises them: staging for each cube, then work and reads of its PEs.

    The grid is None if no staging is faster: each PE then reads its operands while it computes. If cubes split rows,
    each stores the rows of A that it multiplies. The same holds for columns of B, unless B is row-major
    (``b_by_rows``).
    """
    unshared_ns, grid = choose_grid(rates, cubes * pes, 1, m, k, n, itemsize)
    read_bytes = pes * (-(-m // grid.rows) + -(-n // grid.columns)) * k * itemsize
    best_ns, best = max(unshared_ns, read_bytes / rates.link_bytes_per_ns), None
    for rows in range(1, cubes + 1):
        columns = cubes // rows
        if rows * columns != cubes or rows > m or columns > n:
            continue
        cube_m, cube_n = -(-m // rows), -(-n // columns)
        stages_a, stages_b = columns > 1, rows > 1 or b_by_rows
        row_bytes = max(cube_n * itemsize, ROW_BYTES) if b_by_rows else cube_n * itemsize
        staged_bytes = k * (cube_m * itemsize * stages_a + row_bytes * stages_b)
        compute_ns, within = choose_grid(rates, pes, 1, cube_m, k, cube_n, itemsize)
        # Operands arrive, and go to memory, before the first product.
        ns = 2 * staged_bytes / rates.link_bytes_per_ns + compute_ns
        if ns < best_ns:
            best_ns, best = ns, CubeGrid(rows, columns, within, stages_a, stages_b)
    return best_ns, best


def prefetched_bytes(rates: PeRates, cubes: int, memories: int, a_bytes: int, scratch_bytes: int) -> int:
    """Return the bytes of B that a PE reads while the cubes gather A: at most a quarter of scratch.

    ``memories``: the number of memories that store A and serve all cubes. A crosses the mesh once and is exchanged
    between the PEs of a cube. That takes a round trip over the mesh, and the time of links or memories.
    """
    rate = min(rates.link_bytes_per_ns, memories * rates.bytes_per_ns) or rates.bytes_per_ns
    gather_ns = rates.round_trip_ns + cubes * a_bytes / rate
    return min(int(gather_ns * rates.bytes_per_ns), scratch_bytes // 4)
