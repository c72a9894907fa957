"""The choice of the way in which PEs and cubes share a product: the fastest by the models of all ways."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.kernels.gemm_streams import ProductStream, StreamMachine, choose_stream, predict_grid_ns
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.product_grids import CubeGrid, PeRates, ProductGrid, choose_cubes, choose_grid
from kernbench.kernels.ring_sizes import ABOUT_AS_LONG, RingChoice, RingMachine, choose_rings
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
    rates: PeRates, machine: RingMachine, cube: StreamMachine, factors: tuple[View, View], epilogue: GemvEpilogue
) -> ProductWay:
    """Return the fastest way of a product of ``factors`` (batch, m, k) and (batch, k, n)."""
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
        ns, cubes = choose_cubes(rates, used_cubes, pes, m, k, n, item.itemsize, b_by_rows)
        way = ProductWay(ns if cubes is None else ns + machine.staging_ns, grid, cubes)
    has_rings = item.is_float or epilogue.is_plain
    rings = choose_rings(machine, batch, m, k, n, item, b_by_rows) if has_rings else None
    return way if rings is None or way.ns <= rings.ns else ProductWay(rings.ns, grid, rings=rings)
