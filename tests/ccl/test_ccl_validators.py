"""Which layouts each validator accepts, and what it says of the others."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from ccl_support import machine

from kernbench.ccl.layouts import VALIDATORS
from kernbench.common.dtypes import F16, DType
from kernbench.common.errors import InputError
from kernbench.messages.requests import MappedShard
from kernbench.policy.placement.dp import SINGLE_PE, DPPolicy, resolve_dp_policy

SPEC = machine().spec


@dataclass(frozen=True)
class Placed:
    """A tensor that lies nowhere."""

    shape: tuple[int, ...]
    dp: DPPolicy
    shards: tuple[MappedShard, ...]
    name: str = "t"
    dtype: DType = F16


def placed(shape: tuple[int, ...], dp: DPPolicy) -> Placed:
    specs = resolve_dp_policy(dp, shape=shape, itemsize=2, num_pe=8, num_cubes=16, target_sip=1)
    shards = (
        MappedShard(sip=1, cube=s.cube, pe=s.pe, offset_bytes=s.offset_bytes, nbytes=s.nbytes, pa=0) for s in specs
    )
    return Placed(shape, dp, tuple(shards))


LAYOUTS = {
    "single": placed((3, 5), SINGLE_PE),
    "rows": placed((16, 40), DPPolicy(cube="row_wise", num_pes=1)),
    "columns": placed((4, 256), DPPolicy(cube="column_wise", pe="column_wise")),
    "copies": placed((4, 5), DPPolicy()),
    "uneven": placed((4, 130), DPPolicy(cube="column_wise", pe="column_wise")),
    "two rows a cube": placed((32, 40), DPPolicy(cube="row_wise", num_pes=1)),
    "half the cubes": placed((16, 40), DPPolicy(cube="row_wise", num_pes=1, num_cubes=8)),
    "three axes": placed((16, 4, 10), DPPolicy(cube="row_wise", num_pes=1)),
    "columns over cubes, as many as cubes": placed((16, 16), DPPolicy(cube="column_wise", num_pes=1)),
    "one cube": placed((4, 64), DPPolicy(pe="column_wise", num_cubes=1)),
}
ACCEPTED = {
    "single_shard_per_rank": {"single"},
    "multi_pe_sip_local": {"columns", "copies"},
    "row_per_cube": {"rows"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", VALIDATORS)
def test_what_is_accepted(name: str, layout: str) -> None:
    tensor = LAYOUTS[layout]
    if layout in ACCEPTED[name]:
        VALIDATORS[name](tensor, 2, SPEC)
    else:
        with pytest.raises(
            InputError, match=rf"tensor 't': layout not accepted by {name}, which takes .*; found shape"
        ):
            VALIDATORS[name](tensor, 2, SPEC)


def test_a_rejected_layout_names_the_accepted_one_and_what_was_found() -> None:
    with pytest.raises(InputError) as error:
        VALIDATORS["row_per_cube"](LAYOUTS["uneven"], 2, SPEC)
    assert 'shape (16, n), a row on PE 0 of each cube: DPPolicy(cube="row_wise", num_pes=1)' in str(error.value)
    assert "shape (4, 130), 128 shards of 8 to 16 bytes on PEs 0 to 7 of 16 cubes" in str(error.value)
