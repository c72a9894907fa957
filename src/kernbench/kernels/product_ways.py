"""The choice of the way in which PEs and cubes share a product: the fastest by the models of all ways."""

from __future__ import annotations

from kernbench.common.dtypes import DType
from kernbench.common.values import value
from kernbench.kernels.product_grids import CubeGrid, PeRates, ProductGrid, choose_cubes, choose_grid
from kernbench.kernels.ring_sizes import RingChoice, RingMachine, choose_rings


@value
class ProductWay:
    """A way to share a product out, and its predicted time.

    ``grid``: PEs compute blocks of the result from operands in memory. ``cubes``: each cube first stages the operands
    that other cubes store. ``rings``: B stays in TCM, and A goes round rings of PEs. Of the last two, at most one is
    set.
    """

    ns: float
    grid: ProductGrid
    cubes: CubeGrid | None = None
    rings: RingChoice | None = None

    def used_cubes(self, pes: int) -> int:
        """Return the number of cubes with work, of ``pes`` PEs each, without rings."""
        return -(-self.grid.pes // pes)


def choose_way(
    rates: PeRates,
    machine: RingMachine,
    shape: tuple[int, int, int, int],
    item: DType,
    *,
    b_by_rows: bool,
    has_rings: bool = True,
) -> ProductWay:
    """Return the fastest way of a product of ``shape`` (batch, m, k, n) for factors of dtype ``item``.

    ``b_by_rows``: rows of B are contiguous. ``has_rings``: the product's last steps are possible on rings.
    """
    batch, m, k, n = shape
    pes = len(machine.form.corners)
    ns, grid = choose_grid(rates, machine.cubes * pes, batch, m, k, n, item.itemsize)
    way = ProductWay(ns, grid)
    used_cubes = way.used_cubes(pes)
    if batch == 1 and used_cubes > 1:
        ns, cubes = choose_cubes(rates, used_cubes, pes, m, k, n, item.itemsize, b_by_rows)
        way = ProductWay(ns if cubes is None else ns + machine.staging_ns, grid, cubes)
    rings = choose_rings(machine, batch, m, k, n, item, b_by_rows) if has_rings else None
    return way if rings is None or way.ns <= rings.ns else ProductWay(rings.ns, grid, rings=rings)
