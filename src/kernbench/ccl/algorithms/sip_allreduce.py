"""All-reduce over SIPs: every PE that owns a shard works with the same PE of the other SIPs.

Elementwise over ranks, for any layout that is the same on all of them: PyTorch's meaning. Steps: reduce-scatter and
all-gather of each shard round the ring of SIPs, as ``ring_allreduce_rs_ag``; where all SIPs form a grid, along its rows
and columns, both ways round a torus.

Rounding: a part is reduced on one rank and copied, so all ranks end with the same bits.
Time: 2(n-1)/n S/B + 2(n-1) alpha for shards of S bytes, B the share that a PE has of the links between SIPs. In a grid
of w columns and h rows 2(w+h-2) alpha, and of many bytes a mesh has half as many on each link, a torus half of that.
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
    """Reduce this PE's ``n_elem`` elements over all SIPs; the ring is not used where all SIPs form a grid."""
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
