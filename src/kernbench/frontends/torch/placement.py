"""Placement of PyTorch tensors and operators on the first PEs of a SIP; more bytes get more PEs."""

from __future__ import annotations

from kernbench.frontends.placed import whole_grid
from kernbench.messages.requests import PeCoord
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import AnyContext

SHARD_BYTES = 1024
"""Minimum bytes per PE. With smaller shards, reading a complete tensor costs more than parallel PEs save."""


def grid_for(context: AnyContext, nbytes: int) -> tuple[int, int]:
    """Return the number of cubes, and of PEs in each, that share ``nbytes`` bytes."""
    cubes, pes = whole_grid(context)
    wanted = max(1, nbytes // SHARD_BYTES)
    if wanted < pes:
        return 1, wanted
    return min(cubes, wanted // pes), pes


def policy_for(context: AnyContext, nbytes: int) -> DPPolicy:
    """Return the policy that shards a storage of ``nbytes`` bytes row-wise over its SIP."""
    cubes, pes = grid_for(context, nbytes)
    return DPPolicy("row_wise", "row_wise", num_pes=pes, num_cubes=cubes)


def pes_for(context: AnyContext, sip: int, nbytes: int) -> tuple[PeCoord, ...]:
    """Return the PEs of a SIP that run an operator on ``nbytes`` bytes. The same PEs store a tensor of that size."""
    cubes, pes = grid_for(context, nbytes)
    return tuple([(sip, cube, pe) for cube in range(cubes) for pe in range(pes)])
