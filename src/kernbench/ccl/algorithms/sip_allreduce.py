"""All-reduce over SIPs: every PE that owns a shard works with the same PE of the other SIPs.

Elementwise over ranks, for any layout that is the same on all of them: PyTorch's meaning. Steps: reduce-scatter and
all-gather of each shard round the ring of SIPs, as ``ring_allreduce_rs_ag``; where all SIPs form a grid, along its rows
and columns, both ways round a torus.

Rounding: a part is reduced on one rank and copied, so all ranks end with the same bits.
Time: 2(n-1)/n S/B + 2(n-1) alpha for shards of S bytes, B the share that a PE has of the links between SIPs. In a grid
of w columns and h rows 2(w+h-2) alpha, and of many bytes a mesh has half as many on each link, a torus half of that.
"""

from __future__ import annotations

from kernbench.ccl.grids import SipGrid, all_reduce_segment
from kernbench.ccl.pieces import SCRATCH_BYTES, SLOT_BYTES, messages_of
from kernbench.ccl.rings import all_reduce_segment as all_reduce_ring
from kernbench.ccl.sip_ring import SipRing, over_sips
from kernbench.messages.steps import Step
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    sip_topology: str = "ring_1d",
    sip_w: int = 0,
    sip_h: int = 0,
    sips: SipRing | None = None,
    ranks_are_sips: bool = True,
    hop_bytes: tuple[int, ...] = (SLOT_BYTES,) * 3,
    dtype: str = "f32",
    reduce_op: str = "sum",
    slot_size: int = SLOT_BYTES,
    chunk_size: int | None = None,
    scratch_bytes: int = SCRATCH_BYTES,
) -> list[Step]:
    """Reduce this PE's ``n_elem`` elements over all SIPs; the ring is not used where all SIPs form a grid."""
    sips = over_sips(sips, rank, world_size, ranks_are_sips)
    messages = messages_of(dtype, reduce_op, slot_size, chunk_size)
    grid = SipGrid.of(len(sips.order), sip_topology, sip_w, sip_h)
    steps: list[Step] = []
    for segment in messages.segments(n_elem, scratch_bytes):
        if grid.is_grid:
            steps += all_reduce_segment(segment, grid, rank, messages, hop_bytes[-1])
        else:
            steps += all_reduce_ring(segment, sips.ring, messages)
    return steps


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.args
