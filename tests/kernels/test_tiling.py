"""Sizes of tiles by hand: blocks of attention, divisions of axes, panels of products, digits of integer weights."""

from __future__ import annotations

from math import prod

import pytest

from compiled import compiled
from kernbench.common.dtypes import BF16, F32, I8, I32
from kernbench.kernels import tiling
from kernbench.kernels.tiling import MemoryRates, QuantisedTiles, split_axes

KIB = 1 << 10


@pytest.mark.parametrize(
    ("queries", "keys", "heads", "pes", "parts"),
    [
        (1, 4096, 1, 8, 8),
        (32, 4096, 1, 8, 8),
        (33, 4096, 1, 8, 1),  # enough queries for all PEs
        (1, 4096, 3, 8, 2),
        (1, 4096, 9, 8, 1),
        (1, 255, 1, 8, 3),  # parts of at least 64 keys
        (1, 63, 1, 8, 1),
    ],
)
def test_few_queries_split_their_keys(queries, keys, heads, pes, parts):
    assert tiling.key_parts(queries, keys, heads, pes) == parts


@pytest.mark.parametrize(
    ("keys", "heads", "pes", "block"),
    [(64, 1, 8, 64), (512, 1, 8, 64), (513, 1, 8, 128), (1024, 1, 8, 128), (1024, 2, 8, 256), (8192, 8, 8, 256)],
)
def test_blocks_of_gradients_are_as_small_as_gives_each_pe_one(keys, heads, pes, block):
    assert tiling.gradient_block(keys, heads, pes) == block


def test_blocks_of_attention():
    assert tiling.attention_blocks(1000, 1000) == (128, 256)
    assert tiling.attention_blocks(5, 7) == (5, 7)


@pytest.mark.parametrize(
    ("shape", "strides", "parts"),
    [
        ((8, 1024), (1024, 1), (8, 1)),  # the first axis has an index for each program
        ((4, 1024), (1024, 1), (4, 2)),  # runs of 512 elements cost no more than their bytes
        ((3, 64), (64, 1), (3, 2)),  # an eighth of each row would cost as much as three rows
        ((4, 1024), (1, 4), (1, 8)),  # columns are contiguous
        ((3, 5, 1024), (5120, 1024, 1), (1, 1, 8)),  # all programs have equal parts
    ],
)
def test_axes_are_split_so_that_pieces_of_rows_stay_long(shape, strides, parts):
    chosen = split_axes(shape, ((strides, 4),), 8)
    assert prod(chosen) <= 8
    assert chosen == parts


def test_programs_that_read_the_same_elements_wait_for_each_other():
    """A slice of 4 channels serves an array of one burst by one of them, so all programs wait for it."""
    rates = MemoryRates(4, 256, 64)
    assert rates.delay(256, 8, 16) == 8 * 64 * 4
    assert rates.delay(256, 8, 128) == 8 * 128 * 4
    assert rates.delay(1024, 8, 128) == 8 * 128
    assert rates.delay(1025, 8, 128) == 8 * 128 * 4 // 5


def test_lists_of_runs_have_as_many_elements_as_transfers_overlap_with():
    assert [tiling.most_runs(inner) for inner in (0, 1, 64, 65, 65536, 1 << 20)] == [1024, 1024, 1024, 1008, 1, 1]


def test_boxes_cover_an_array():
    assert list(tiling.boxes((5, 4), 8)) == [((0, 0), (2, 4)), ((2, 0), (2, 4)), ((4, 0), (1, 4))]
    assert list(tiling.boxes((2, 3), 2)) == [((0, 0), (1, 2)), ((0, 2), (1, 1)), ((1, 0), (1, 2)), ((1, 2), (1, 1))]


def test_axes_that_all_operands_step_through_are_merged():
    assert tiling.collapse((2, 3, 4), [(12, 4, 1), (12, 4, 1)]) == ((24,), [(1,), (1,)])
    assert tiling.collapse((2, 3, 4), [(12, 4, 1), (0, 4, 1)]) == ((2, 12), [(12, 1), (0, 1)])
    assert tiling.collapse((3, 1, 2), [(1, 7, 3), (2, 7, 1)]) == ((2, 3), [(3, 1), (1, 2)])
    assert tiling.collapse((1, 1), [(5, 5)]) == ((1,), [(0,)])


def test_products_of_few_rows_fit_in_half_of_scratch():
    assert tiling.is_few_rows(32, 64 * KIB, 32, 512, 2)
    assert not tiling.is_few_rows(32, 64 * KIB, 33, 16, 2)
    assert not tiling.is_few_rows(32, 64 * KIB, 32, 513, 2)


def test_panels_have_full_tiles_and_fit_in_128_kib():
    assert [tiling.panel_rows(4096, columns, 2) for columns in (64, 100, 1024, 2048)] == [1024, 640, 64, 64]
    assert tiling.panel_rows(50, 64, 2) == 50
    assert [tiling.shard_panel_rows(k, 64, 2) for k in (1024, 1025, 4096, 1 << 16)] == [64, 128, 256, 1024]


def test_memories_serve_panels_while_they_serve_their_part_of_a():
    """A panel of 256 rows of 64 elements has 32 KiB. Four cubes read 1 MiB of A, half of it from each memory."""
    assert tiling.gathering_panels(4, 1 << 20, 2, (4096, 64), 2, 1 << 30) == 64
    assert tiling.gathering_panels(4, (1 << 20) + 1, 2, (4096, 64), 2, 1 << 30) == 65
    assert tiling.gathering_panels(4, 1 << 20, 2, (4096, 64), 2, 1 << 20) == 8


def test_pieces_of_panels():
    assert [tiling.gathered_copies(pes) for pes in (1, 2, 3, 4, 5, 8)] == [1, 1, 1, 2, 1, 2]
    assert [tiling.piece_rows(4096, depth) for depth in (64, 256, 1024, 1088)] == [64, 64, 256, 320]
    assert tiling.piece_rows(256, 256) == 128
    assert list(tiling.column_panels(1000, 256, 64, is_last=False)) == [
        *((0, 256), (256, 256), (512, 256), (768, 192)),
        (960, 40),
    ]
    assert list(tiling.column_panels(1000, 256, 64, is_last=True)) == [
        (0, 256),
        *((256, 192), (448, 192), (640, 192), (832, 128)),
        (960, 40),
    ]


def test_columns_of_panels_leave_room_for_the_epilogue():
    assert tiling.panel_columns(1 << 20, 8, 1, 2) == (1 << 19) // (4 * 64 * 2 + 6 * 4)
    assert tiling.panel_columns(1 << 20, 128, 1, 2) == (1 << 19) // (4 * 128 * 2 + 6 * 4)
    assert tiling.panel_columns(1, 8, 1, 2) == 1
    assert tiling.partial_sum_columns(1 << 20, 16, 2) == (1 << 19) // (22 * 8)


def test_sums_of_rows_are_exchanged_if_that_saves_2_mib():
    """One row by K rows of 2 bytes, of four cubes: per column, K × 2 bytes less four sums of 4 bytes."""
    assert not tiling.is_split_k_faster(4, 1, 2056, 512, 2)
    assert tiling.is_split_k_faster(4, 1, 2056, 513, 2)
    assert not tiling.is_split_k_faster(1, 1, 1 << 20, 1 << 20, 2)


def test_reductions_split_rows_only_if_pes_have_none():
    assert [tiling.reduction_parts(rows, 2048, 8) for rows in (1, 7, 8)] == [8, 8, 1]
    assert [tiling.reduction_parts(1, columns, 8) for columns in (255, 512, 1024, 1 << 20)] == [1, 2, 4, 8]
    assert tiling.is_row_shared(7, 65536, 8)
    assert not tiling.is_row_shared(8, 65536, 8)
    assert not tiling.is_row_shared(7, 65535, 8)


def test_a_cube_gathers_an_array_if_that_saves_more_than_its_accesses():
    spec = compiled().spec
    limit = 4 * spec.cube.hbm_access_ns * spec.sip.links.cube_to_cube.bw_gbs / (3 * 7)
    assert [tiling.is_all_gather_faster(spec, 4, 8, round(limit * share)) for share in (0.99, 1.01)] == [False, True]
    assert not tiling.is_all_gather_faster(spec, 1, 8, 1 << 30)
    assert not tiling.is_all_gather_faster(spec, 4, 1, 1 << 30)


@pytest.mark.parametrize(
    ("a", "m", "digits"), [(BF16, 1, 3), (F32, 1, 4), (BF16, 10, 3), (BF16, 11, 0), (F32, 8, 4), (F32, 9, 0)]
)
def test_digits_of_all_rows_fit_in_a_tile_of_32_rows(a, m, digits):
    tiles = QuantisedTiles.of(compiled().spec, a, m, 512, (I8,))
    assert tiles.tile_m == 32
    assert tiles.digits == digits
    assert QuantisedTiles.of(compiled().spec, a, m, 512, (I8, I32)).digits == 0  # no such products


def test_sizes_of_products_by_integer_weights():
    tiles = QuantisedTiles(3, 2, 4, 1 << 20, 32, 32, parts=False)
    assert tiles.retains(64, 2048)
    assert not tiles.retains(64, 2049)
    assert [tiles.scales_sums(group) for group in (23, 24)] == [False, True]
    assert tiles.most_columns(1024, 4096) == 128
    assert tiles.most_columns(1 << 20, 4096) == 32
    assert list(tiles.panels(5000, (10, 40))) == [
        *((0, 4096, 10, 32), (4096, 904, 10, 32)),
        *((0, 4096, 42, 8), (4096, 904, 42, 8)),
    ]
    assert tiling.packed_panel_size(1 << 15) == 2
