"""Predicted times of products in blocks, by hand where one resource takes nearly all of the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiled import compiled
from kernbench.common.dtypes import F16
from kernbench.kernels.gemm_streams import StreamMachine
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.product_grids import (
    CubeGrid,
    PeRates,
    ProductGrid,
    choose_cubes,
    choose_grid,
    prefetched_bytes,
)
from kernbench.kernels.product_ways import ProductWay, choose_way
from kernbench.kernels.ring_sizes import RingMachine
from kernbench.kernels.view import View

FAST = 1e9
RATES = PeRates((32, 64, 32), 16.0, 256.0, FAST, 0.0)
"""PEs of a tile in 16 ns, which read 256 bytes per ns"""


def test_a_grid_takes_the_time_of_tiles_and_an_eighth_of_its_reads():
    """Each of eight PEs has two tiles of 32 × 64 columns, and reads (32 + 64) × 64 elements of 2 bytes in 48 ns."""
    assert choose_grid(RATES, 8, 1, 32, 64, 512, 2) == (max(32, 48) + 32 / 8, ProductGrid(1, 1, 8))
    slow = replace(RATES, tile_ns=160.0)
    assert choose_grid(slow, 8, 1, 32, 64, 512, 2) == (320 + 48 / 8, ProductGrid(1, 1, 8))
    assert choose_grid(slow, 8, 16, 32, 64, 64, 2) == (2 * (320 + 48 / 8), ProductGrid(8, 1, 1))


@pytest.mark.parametrize(("b_by_rows", "row_bytes"), [(False, 64), (True, 256)])
def test_cubes_stage_operands_twice_over_their_links(b_by_rows, row_bytes):
    """Stage what other cubes store of A and of B, whose short rows cost 256 bytes if B is stored by rows."""
    rates = replace(RATES, tile_ns=1 / FAST, bytes_per_ns=FAST, link_bytes_per_ns=1.0)
    m, k, n = 128, 512, 128
    ns, grid = choose_cubes(rates, 4, 8, m, k, n, 2, b_by_rows)
    assert grid is not None
    cube_m, cube_n = m // grid.rows, n // grid.columns
    staged = k * (cube_m * 2 * grid.stages_a + (max(cube_n * 2, row_bytes) if grid.stages_b else 0))
    assert ns == pytest.approx(2 * staged, rel=1e-3)
    assert (grid.stages_a, grid.stages_b) == (grid.columns > 1, grid.rows > 1 or b_by_rows)
    costs = [
        2 * k * (m // rows * 2 * (columns > 1) + (max(n // columns * 2, row_bytes) if rows > 1 or b_by_rows else 0))
        for rows, columns in ((1, 4), (2, 2), (4, 1))
    ]
    assert ns == pytest.approx(min(costs), rel=1e-3)


def test_elements_that_a_cube_stages():
    within = ProductGrid(1, 1, 8)
    assert CubeGrid(2, 3, within, True, True).staged_elements(10, 7, 10) == 7 * (5 + 4)
    assert CubeGrid(1, 4, within, True, False).staged_elements(10, 7, 10) == 7 * 10
    assert CubeGrid(4, 1, within, False, True).staged_elements(10, 7, 10) == 7 * 10


def test_weights_are_read_while_a_is_gathered():
    """A of 1,000 bytes reaches four cubes in 100 ns and 400 ns of links, or of the one memory that stores it."""
    rates = replace(RATES, bytes_per_ns=20.0, link_bytes_per_ns=10.0, round_trip_ns=100.0)
    assert prefetched_bytes(rates, 4, 8, 1000, 1 << 20) == 500 * 20
    assert prefetched_bytes(rates, 4, 8, 1000, 1 << 12) == 1 << 10
    assert prefetched_bytes(replace(rates, link_bytes_per_ns=100.0), 4, 1, 1000, 1 << 20) == 300 * 20
    assert prefetched_bytes(replace(rates, link_bytes_per_ns=0.0, round_trip_ns=0.0), 1, 8, 1000, 1 << 20) == 1000


@pytest.mark.parametrize(("w", "h", "link_rate", "hops"), [(2, 2, 128.0, 1.0), (4, 1, 128.0, 1.25), (1, 1, 0.0, 0.0)])
def test_the_rate_of_cubes_that_read_from_all_cubes(w, h, link_rate, hops):
    """Each of the links, in both directions, carries its share of all bytes, which take so many hops on the mean."""
    spec = compiled("system.sips.count=1", f"sip.cube_mesh={{w: {w}, h: {h}}}").spec
    links = 2 * ((w - 1) * h + w * (h - 1))
    expected = spec.sip.links.cube_to_cube.bw_gbs * links / (w * h * hops) if links else link_rate
    assert PeRates.of(spec, F16).link_bytes_per_ns == pytest.approx(expected)


def way_of(
    link_rate: float,
    mesh_rate: float,
    shape: tuple[int, int, int],
    stored_on: tuple[int, int] = (4, 4),
    tile_ns: float = 1 / FAST,
) -> ProductWay:
    """Return the way of a product on 2 × 2 cubes of eight PEs without rings, which compute in nearly no time.

    ``link_rate``: that of a cube that reads from all cubes. ``mesh_rate``: that of a link between cubes. ``tile_ns``:
    the time of a tile where only the grid is chosen: long ones leave nothing to gain by staging.
    """
    (m, k, n), spec = shape, compiled("system.sips.count=1", "sip.cube_mesh={w: 2, h: 2}").spec
    rates = replace(PeRates.of(spec, F16), tile_ns=tile_ns, bytes_per_ns=FAST, link_bytes_per_ns=link_rate)
    rates = replace(rates, round_trip_ns=0.0)
    machine = replace(RingMachine.of(spec, F16, 4, 8), scratch_bytes=0, link_bytes_per_ns=mesh_rate)
    machine = replace(machine, hop_ns=0.0, access_ns=0.0)
    cube = replace(StreamMachine.of(spec, F16, 8), bytes_per_ns=FAST, macs_per_ns=FAST, access_ns=0.0)
    a, b = View.row_major(0, (1, m, k), F16), View.row_major(0, (1, n, k), F16).transposed
    out = View.row_major(0, (1, m, n), F16)
    return choose_way(rates, machine, cube, (a, b), stored_on, GemvEpilogue(out))


def test_a_factor_that_one_cube_stores_leaves_it_by_two_links():
    """Cube 0 of 2 × 2 stores A, and has two neighbours. Three quarters of what is read of A go to other cubes."""
    shape = m, k, _ = 256, 256, 8192
    way = way_of(FAST, 1e-3, shape, (1, 4), FAST)
    assert way.cubes is way.rings is way.stream is None
    assert way.ns == pytest.approx(way.grid.columns * m * k * 2 * 3 / 4 / (2 * 1e-3), rel=1e-2)
    assert way_of(FAST, 1e-3, shape, tile_ns=FAST).ns < 1e-3 * way.ns


def test_staged_operands_are_read_and_written_over_the_links_of_a_cube():
    shape = 1024, 1024, 1024
    ways = [way_of(rate, FAST, shape) for rate in (1e-3, 2e-3)]
    assert ways[0].cubes is not None
    assert ways[0].cubes == ways[1].cubes
    staged = 2 * ways[0].cubes.staged_elements(*shape)
    for way, rate in zip(ways, (1e-3, 2e-3), strict=True):
        assert way.ns == pytest.approx(2 * staged / rate, rel=1e-3)


def test_all_pes_write_columns_to_one_memory_at_a_time():
    cube = StreamMachine.of(compiled("system.sips.count=1").spec, F16, 8)
    assert [cube.write_rate(axis) / cube.bytes_per_ns for axis in "mkn"] == [1, 1, 0.5]


@pytest.mark.parametrize(
    ("axis", "extents", "expected"),
    [
        ("m", (1, 64, 16), True),  # 16 elements of the result, a quarter of those that are read
        ("m", (1, 64, 17), False),  # more, and a PE has no four tiles
        ("m", (1024, 64, 17), True),  # products hide the steps
        ("m", (1023, 64, 17), False),
    ],
)
def test_reads_or_products_hide_the_steps_of_results(axis, extents, expected):
    """A tile of 32 × 64 takes 64 times as long for an element of the result as its rounding and its write, nearly."""
    cube = StreamMachine.of(compiled("system.sips.count=1").spec, F16, 8)
    slow = replace(cube, macs_per_ns=1.0)
    assert slow.tile[0] * 4 * slow.pes == 1024
    assert slow.hides_results(axis, extents, 2, F16) is expected
    assert not replace(cube, macs_per_ns=FAST).hides_results(axis, (1 << 20, 64, 17), 2, F16)
