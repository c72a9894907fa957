"""The choice of the way in which PEs and cubes share a product: the fastest by the models of all ways."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.kernels.gemm_streams import ProductStream, StreamMachine, choose_stream, predict_grid_ns
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.product_grids import CubeGrid, PeRates, ProductGrid, choose_cubes, choose_grid
from kernbench.kernels.ring_paths import links_around
from kernbench.kernels.ring_sizes import ABOUT_AS_LONG, RingChoice, RingMachine, choose_rings
from kernbench.kernels.tiling import ROW_BYTES
from kernbench.kernels.view import View


@value
class ProductWay:
    """A way to share a product out, and its predicted time.

    ``grid``: PEs compute blocks of the result from operands in memory. ``cubes``: each cube first stages the operands
    that other cubes store. ``rings``: B stays in TCM, and A goes round rings of PEs. ``stream``: PEs of a cube divide
    one axis. Of the last three, at most one is set.
    """

    ns: float
    grid: ProductGrid
    cubes: CubeGrid | None = None
    rings: RingChoice | None = None
    stream: ProductStream | None = None

    def used_cubes(self, pes: int) -> int:
        """Return the number of cubes with work, of ``pes`` PEs each, without rings."""
        return -(-self.grid.pes // pes)


def choose_way(
    rates: PeRates,
    machine: RingMachine,
    cube: StreamMachine,
    factors: tuple[View, View],
    stored_on: tuple[int, int],
    epilogue: GemvEpilogue,
) -> ProductWay:
    """Return the fastest way of a product of ``factors`` (batch, m, k) and (batch, k, n).

    ``stored_on``: the number of cubes that store each factor.
    """
    (a, b), item, pes = factors, factors[0].dtype, len(machine.form.corners)
    (batch, m, k), n, b_by_rows = a.extents, b.extents[2], b.strides[1] > b.strides[2]
    ns, grid = choose_grid(rates, machine.cubes * pes, batch, m, k, n, item.itemsize)
    way = ProductWay(ns, grid)
    if batch == machine.cubes == 1 and item.is_float:
        stream = choose_stream(cube, a, b, epilogue)
        ns = predict_grid_ns(cube, grid, a, b, epilogue.out)
        if stream is None or ns <= stream[0] * ABOUT_AS_LONG:
            return ProductWay(ns, grid)
        return ProductWay(stream[0], grid, stream=stream[1])
    used_cubes = way.used_cubes(pes)
    if batch == 1 and used_cubes > 1:
        ns = _predict_far_grid_ns(rates, machine, cube, grid, factors, stored_on, epilogue.out)
        way = ProductWay(ns, grid)
        _, cubes = choose_cubes(rates, used_cubes, pes, m, k, n, item.itemsize, b_by_rows)
        if cubes is not None:
            ns = _predict_staged_ns(rates, machine, cube, cubes, factors, epilogue.out)
            way = way if way.ns <= ns else ProductWay(ns, grid, cubes)
    has_rings = item.is_float or epilogue.is_plain
    rings = choose_rings(machine, batch, m, k, n, item, b_by_rows) if has_rings else None
    return way if rings is None or way.ns <= rings.ns else ProductWay(rings.ns, grid, rings=rings)


def _predict_far_grid_ns(
    rates: PeRates,
    machine: RingMachine,
    cube: StreamMachine,
    grid: ProductGrid,
    factors: tuple[View, View],
    stored_on: tuple[int, int],
    out: View,
) -> float:
    """Return the predicted time of a product whose PEs read operands of all cubes while they compute.

    All cubes read from all, or links around the few cubes that store a factor carry it to all readers. Half of the
    shorter of the times of links and of PEs is not hidden behind the longer.
    """
    (_, m, k), n, item = factors[0].extents, factors[1].extents[2], factors[0].dtype.itemsize
    read_bytes = grid.columns * m * k * item, grid.rows * k * n * item
    links_ns = sum(read_bytes) / (machine.cubes * rates.link_bytes_per_ns)
    around_ns = sum(
        nbytes
        * (1 - stores / machine.cubes)
        / (links_around(machine.mesh, machine.cubes, stores) * machine.link_bytes_per_ns)
        for nbytes, stores in zip(read_bytes, stored_on, strict=True)
        if stores < machine.cubes
    )
    far_ns, near_ns = max(links_ns, around_ns), predict_grid_ns(cube, grid, *factors, out)
    # The factors, the addend and the result each cross the mesh.
    return max(near_ns, far_ns) + min(near_ns, far_ns) / 2 + 4 * rates.round_trip_ns


def _predict_staged_ns(
    rates: PeRates, machine: RingMachine, cube: StreamMachine, cubes: CubeGrid, factors: tuple[View, View], out: View
) -> float:
    """Return the predicted time of a product whose cubes first stage the operands that other cubes store."""
    (a, b), (_, m, k), n = factors, factors[0].extents, factors[1].extents[2]
    cube_m, cube_n, item, by_rows = (
        -(-m // cubes.rows),
        -(-n // cubes.columns),
        a.dtype.itemsize,
        b.strides[1] > b.strides[2],
    )
    row_bytes = max(cube_n * item, ROW_BYTES) if by_rows else cube_n * item
    staged_bytes = k * (cube_m * item * cubes.stages_a + row_bytes * cubes.stages_b)
    a, b, out = (
        operand.tile((0, 0, 0), (1, *extents))
        for operand, extents in ((a, (cube_m, k)), (b, (k, cube_n)), (out, (cube_m, cube_n)))
    )
    compute_ns = predict_grid_ns(cube, cubes.within, a, b, out)
    # Staged operands are read, and written, before the first product.
    return 2 * staged_bytes / rates.link_bytes_per_ns + machine.staging_ns + rates.round_trip_ns + compute_ns
