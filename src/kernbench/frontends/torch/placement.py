"""The PEs that a tensor of PyTorch lies on, and an operator runs on: the first ones, as many as there is work for."""

from __future__ import annotations

from typing import Any

from kernbench.frontends.placed import whole_grid
from kernbench.messages.requests import PeCoord
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

SHARD_BYTES = 1024
"""A PE gets no less: pieces that are smaller cost whoever reads all of a tensor more than the PEs in parallel save."""


def grid_for(context: RuntimeContext[Any], nbytes: int) -> tuple[int, int]:
    """Return how many cubes, and PEs of each, work on so many bytes."""
    cubes, pes = whole_grid(context)
    wanted = max(1, nbytes // SHARD_BYTES)
    if wanted < pes:
        return 1, wanted
    return min(cubes, wanted // pes), pes


def policy_for(context: RuntimeContext[Any], nbytes: int) -> DPPolicy:
    """Return how a storage of so many bytes spreads over its SIP: row by row over those PEs."""
    cubes, pes = grid_for(context, nbytes)
    return DPPolicy("row_wise", "row_wise", num_pes=pes, num_cubes=cubes)


def pes_for(context: RuntimeContext[Any], sip: int, nbytes: int) -> tuple[PeCoord, ...]:
    """Return the PEs of a SIP that an operator on so many bytes runs on: those that a tensor of that size lies on."""
    cubes, pes = grid_for(context, nbytes)
    return tuple([(sip, cube, pe) for cube in range(cubes) for pe in range(pes)])
