"""Predicted times of products on rings, by hand where one resource takes nearly all of the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiled import compiled
from kernbench.common.dtypes import F16
from kernbench.kernels.ring_paths import busiest_link
from kernbench.kernels.ring_sizes import ABOUT_AS_LONG, RingMachine, choose_rings, list_choices
from kernbench.topology.builder import Topology
from kernbench.topology.grid import Grid

SLOW, FAST = 1e-3, 1e9


@pytest.fixture(scope="module")
def topology() -> Topology:
    return compiled("system.sips.count=1", "sip.cube_mesh={w: 4, h: 2}")


@pytest.fixture(scope="module")
def machine(topology: Topology) -> RingMachine:
    """Eight cubes of eight PEs, whose tiles, messages and commands take no time."""
    rates = RingMachine.of(topology.spec, F16, 8, 8)
    return replace(rates, tile_ns=1 / FAST, hop_ns=1 / FAST, dot_ns=0.0, access_ns=0.0, bytes_per_ns=FAST)


def times_of(machine: RingMachine, batch: int, m: int, k: int, n: int, *, b_by_rows: bool) -> dict[int, list[float]]:
    """Return the predicted times by number of blocks."""
    times: dict[int, list[float]] = {}
    for choice in list_choices(machine, batch, m, k, n, F16, b_by_rows):
        times.setdefault(choice.blocks, []).append(choice.ns)
    return times


@pytest.mark.parametrize(("b_by_rows", "row_bytes"), [(False, 16), (True, 64)])
def test_a_memory_reads_the_columns_of_a_group_in_bursts(machine, b_by_rows, row_bytes):
    """A ring of 32 PEs divides 256 columns: a PE has 8, or 16 bytes of a row. A group has half of K."""
    slow = replace(machine, memory_bytes_per_ns=SLOW, far_bytes_per_ns=FAST, link_bytes_per_ns=FAST, burst_bytes=64)
    k, choices = 4096, list_choices(slow, 1, 512, 4096, 256, F16, b_by_rows)
    for choice in choices:
        if choice.blocks == 1:
            first_panel = choice.sizes.depth * 8 * F16.itemsize
            assert choice.ns * SLOW == pytest.approx(k // 2 * row_bytes + first_panel, rel=1e-3)
    assert choices


@pytest.mark.parametrize("batch", [2, 8, 16])
def test_matrices_of_a_batch_come_from_the_cubes_that_store_them(machine, batch):
    """Each PE of the four of a group reads its columns, all but the part that its own cube stores."""
    slow = replace(machine, memory_bytes_per_ns=FAST, far_bytes_per_ns=SLOW, link_bytes_per_ns=FAST)
    cube_bytes = 4096 * (256 // 32) * F16.itemsize * 4
    for ns in times_of(slow, batch, 512, 4096, 256, b_by_rows=False)[1]:
        assert ns * SLOW == pytest.approx(batch * 7 / 8 * cube_bytes * min(batch, 8), rel=1e-3)


def test_one_block_of_cubes_reads_columns_that_it_stores(machine):
    """No byte of B crosses a link, unless all cubes store rows of B. Then the busiest link is in the middle."""
    slow = replace(machine, memory_bytes_per_ns=FAST, far_bytes_per_ns=FAST, link_bytes_per_ns=SLOW)
    cube_bytes = 4096 * (2048 // 32) * F16.itemsize * 4
    columns, rows = (times_of(slow, 1, 512, 4096, 2048, b_by_rows=by_rows)[1] for by_rows in (False, True))
    assert max(columns) * SLOW < 1
    # On a link of the middle of two rows, the two cubes behind it get what the other half of each row stores.
    assert [ns * SLOW for ns in rows] == pytest.approx([slow.crossing_part(1, 2048, True) * cube_bytes] * len(rows))
    assert slow.crossing_part(1, 2048, True) == 8 / 8


@pytest.mark.parametrize(("has_places", "busiest"), [(True, 1 / 2), (False, 4 / 2)])
def test_the_busiest_link_of_two_blocks_of_cubes(has_places, busiest):
    """Blocks are the rows of a mesh of 4 × 2 cubes. Bytes are in parts of what a cube reads from two cubes.

    Cubes that read the other one of their column use one link. Otherwise cubes 1 and 5 read cubes 2 and 3, and the link
    from cube 2 to cube 1 carries all of it.
    """
    assert busiest_link(Grid(4, 2), 8, 2, has_places, False) == busiest


def test_a_ring_takes_a_turn_for_as_many_pieces_as_its_queues_hold(machine):
    """A piece passes by all PEs but the last: 31 hops a turn of 4 pieces of each of 32 PEs."""
    slow = replace(machine, memory_bytes_per_ns=FAST, far_bytes_per_ns=FAST, link_bytes_per_ns=FAST, hop_ns=100.0)
    (tile_m, _, _), k_of_group = slow.tile, 2048
    for choice in list_choices(slow, 1, 4096, 4096, 256, F16, False):
        if choice.blocks == 1:
            pieces = -(-4096 // tile_m) * -(-k_of_group // choice.sizes.depth)
            turns = -(-pieces // (32 * choice.sizes.own_pieces))
            assert choice.ns == pytest.approx(turns * 31 * 100 + 100, rel=1e-3)


def test_of_choices_that_take_about_as_long_the_largest_pieces_are_chosen(topology):
    rates = RingMachine.of(topology.spec, F16, 8, 8)
    for shape in ((1, 512, 4096, 4096), (1, 2048, 4096, 4096), (4, 256, 1024, 1024)):
        chosen, choices = choose_rings(rates, *shape, F16, False), list_choices(rates, *shape, F16, False)
        least = min(choice.ns for choice in choices)
        near = [choice for choice in choices if choice.ns <= ABOUT_AS_LONG * least]
        assert chosen in near
        assert chosen.sizes.depth == max(choice.sizes.depth for choice in near)
