"""All-reduce over SIPs: every PE that owns a shard works with the same PE of the other SIPs.

The reduction is elementwise over ranks, as in PyTorch, for any layout that is the same on all ranks.

Steps: reduce-scatter and all-gather of each shard round the ring of SIPs, as ``ring_allreduce_rs_ag``. If all SIPs form
a grid, the steps go along its rows and columns, and in both directions round a torus.

Rounding: a part is reduced on one rank and copied, so all ranks end with the same bits.
Time: 2(n-1)/n S/B + 2(n-1) alpha for shards of S bytes, where B is a PE's share of the bandwidth of a link between
SIPs. In a grid of w columns and h rows the second term is 2(w+h-2) alpha. If S is large, each link of a mesh carries
half as many bytes as in a ring, and each link of a torus a quarter.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.grids import all_reduce_segment, sip_grid
from kernbench.ccl.pieces import messages_of
from kernbench.ccl.rings import all_reduce_segment as all_reduce_ring
from kernbench.ccl.rings import over_sips
from kernbench.messages.steps import Step
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *, rank: int, world_size: int, n_elem: int, reduce_op: str = "sum", chunk_size: int | None = None, **config: Any
) -> list[Step]:
    """Return the steps that reduce this PE's ``n_elem`` elements over all SIPs; a grid of SIPs uses no ring."""
    sips, messages = over_sips(rank, world_size, **config), messages_of(reduce_op, chunk_size, **config)
    grid = sip_grid(len(sips.order), **config)
    steps: list[Step] = []
    for segment in messages.segments(n_elem):
        if grid.is_grid:
            steps += all_reduce_segment(segment, grid, rank, messages)
        else:
            steps += all_reduce_ring(segment, sips.ring, messages)
    return steps


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.kernel_args
