"""All-reduce by reduce-scatter and all-gather round the ring, which is bandwidth-optimal.

Steps: 2(n-1), each with an n-th of the data. In each of the first n-1 steps, every rank adds its part to the incoming
sum and passes the sum on; in the end each rank has one reduced part. In the other n-1 steps the reduced parts travel
round the ring. Pieces of consecutive steps overlap.

Rounding: a part is reduced on one rank and copied, so all ranks end with the same bits.
Time: 2(n-1)/n S/B + 2(n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.rings import RingPlace, all_reduce_segment
from kernbench.messages.steps import Step
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *, rank: int, world_size: int, n_elem: int, reduce_op: str = "sum", chunk_size: int | None = None, **config: Any
) -> list[Step]:
    """Return the steps that reduce the ``n_elem`` elements of each rank."""
    messages, ring = messages_of(reduce_op, chunk_size, **config), RingPlace("E", "W", rank, world_size)
    return [step for segment in messages.segments(n_elem) for step in all_reduce_segment(segment, ring, messages)]


kernel = ScheduledKernel(schedule)
kernel_args = kernel.kernel_args
