from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from kernbench.common.errors import InputError
from kernbench.policy.placement.dp import (
    SINGLE_PE,
    DPPolicy,
    ShardSpec,
    column_wise,
    replicate,
    resolve_dp_policy,
    row_wise,
    tiled_column_major,
    tiled_row_major,
)


def resolve(cube, pe, shape, itemsize=1, num_pe=2, num_cubes=2, **policy):
    return resolve_dp_policy(
        DPPolicy(cube, pe, **policy), shape=shape, itemsize=itemsize, num_pe=num_pe, num_cubes=num_cubes, target_sip=1
    )


def extents(specs):
    return [(s.cube, s.pe, s.offset_bytes, s.nbytes) for s in specs]


def test_defaults_and_names():
    assert DPPolicy() == DPPolicy(cube="replicate", pe="replicate", num_pes=None, num_cubes=None)
    with pytest.raises(FrozenInstanceError):
        DPPolicy().cube = "row_wise"
    for unknown in ("sip", "num_sips"):
        with pytest.raises(TypeError):
            DPPolicy(**{unknown: 1})
    with pytest.raises(ValueError, match=r"cube='rows'.*replicate, column_wise, row_wise"):
        DPPolicy(cube="rows")
    with pytest.raises(InputError, match="num_pes=0"):
        DPPolicy(num_pes=0)


def test_columns_over_cubes_rows_over_pes():
    specs = resolve("column_wise", "row_wise", (4, 6), itemsize=2)
    assert specs[0] == ShardSpec(sip=1, cube=0, pe=0, offset_bytes=0, nbytes=12)
    assert extents(specs) == [(0, 0, 0, 12), (0, 1, 12, 12), (1, 0, 24, 12), (1, 1, 36, 12)]


def test_copies_share_an_offset():
    assert extents(resolve("replicate", "row_wise", (4, 2))) == [(0, 0, 0, 4), (0, 1, 4, 4), (1, 0, 0, 4), (1, 1, 4, 4)]
    assert extents(resolve("column_wise", "replicate", (4, 2))) == [
        (0, 0, 0, 4),
        (0, 1, 0, 4),
        (1, 0, 4, 4),
        (1, 1, 4, 4),
    ]


def test_the_first_parts_take_what_remains():
    assert [s.nbytes for s in resolve("row_wise", "replicate", (8, 1), num_cubes=3, num_pe=1)] == [3, 3, 2]
    both = resolve("column_wise", "column_wise", (1, 11), num_cubes=2, num_pe=4)
    assert [s.nbytes for s in both] == [2, 2, 1, 1, 2, 1, 1, 1]


@pytest.mark.parametrize("cut", ["row_wise", "column_wise"])
def test_one_axis_is_both_rows_and_columns(cut):
    assert [s.nbytes for s in resolve("replicate", cut, (5,), itemsize=4, num_cubes=1)] == [12, 8]


def test_more_axes_split_at_the_first_or_the_last():
    assert [s.nbytes for s in resolve("row_wise", "column_wise", (3, 5, 4))] == [20, 20, 10, 10]


def test_a_scalar_can_only_be_copied():
    assert extents(resolve("replicate", "replicate", (), itemsize=4, num_cubes=1)) == [(0, 0, 0, 4), (0, 1, 0, 4)]
    with pytest.raises(InputError, match="without axes"):
        resolve("row_wise", "replicate", ())


def test_an_axis_too_short_leaves_some_without_a_part():
    """By cube and PE, with first byte and length: 3 rows over 4 PEs; 4 columns over 3 cubes, then over 2 PEs."""
    short = resolve("replicate", "row_wise", (3, 9), num_pe=4)
    assert extents(short) == [(c, p, 9 * p, 9) for c in range(2) for p in range(3)]
    both = resolve("column_wise", "column_wise", (9, 4), num_cubes=3, num_pe=2)
    assert extents(both) == [(0, 0, 0, 9), (0, 1, 9, 9), (1, 0, 18, 9), (2, 0, 27, 9)]
    nobody = resolve("row_wise", "row_wise", (1, 1), num_cubes=3, num_pe=2)
    assert extents(nobody) == [(0, 0, 0, 1)]
    assert [(s.local_pe, s.nbytes) for s in row_wise((2, 5), 2, 4)] == [(0, 10), (1, 10)]


def test_the_first_cubes_and_pes():
    specs = resolve_dp_policy(
        DPPolicy("row_wise", "replicate", num_pes=2, num_cubes=4),
        shape=(4, 4),
        itemsize=1,
        num_pe=8,
        num_cubes=16,
        target_sip=0,
    )
    assert [(s.cube, s.pe) for s in specs] == [(c, p) for c in range(4) for p in range(2)]
    single = resolve_dp_policy(SINGLE_PE, shape=(4, 4), itemsize=1, num_pe=8, num_cubes=16, target_sip=0)
    assert single == [ShardSpec(0, 0, 0, 0, 16)]
    with pytest.raises(InputError, match="num_pes=9: there are 8"):
        resolve_dp_policy(DPPolicy(num_pes=9), shape=(4,), itemsize=1, num_pe=8, target_sip=0)


def test_pe_level_resolvers():
    assert [(s.local_pe, s.offset_bytes, s.nbytes) for s in column_wise((2, 5), 2, 2)] == [(0, 0, 12), (1, 12, 8)]
    assert [(s.local_pe, s.offset_bytes, s.nbytes) for s in row_wise((2, 5), 2, 2)] == [(0, 0, 10), (1, 10, 10)]
    assert [(s.local_pe, s.offset_bytes, s.nbytes) for s in replicate((2, 5), 2, 2)] == [(0, 0, 20), (1, 0, 20)]
    assert row_wise((2, 5), 2, 2)[1].on(1, 3) == ShardSpec(1, 3, 1, 10, 10)


def test_tiles_are_dealt_in_turn():
    rows = tiled_row_major((4, 5), 1, 3, tile_m=2, tile_k=2)
    assert [s.local_pe for s in rows] == [0, 1, 2, 0, 1, 2]
    assert [s.nbytes for s in rows] == [4, 4, 2, 4, 4, 2]
    assert [s.offset_bytes for s in rows] == [0, 4, 8, 10, 14, 18]
    columns = tiled_column_major((4, 5), 1, 3, tile_m=2, tile_k=2)
    assert [s.window.bounds for s in columns[:3]] == [((0, 2), (0, 2)), ((2, 4), (0, 2)), ((0, 2), (2, 4))]


def test_tiles_need_a_matrix():
    with pytest.raises(InputError, match="matrix"):
        tiled_row_major((4,), 1, 3, tile_m=2, tile_k=2)
    with pytest.raises(InputError, match="tile_k=0"):
        tiled_row_major((4, 4), 1, 3, tile_m=2, tile_k=0)
