"""Reduce to one rank, over SIPs: each PE works with the same PE of the other SIPs.

Steps: the SIP after the root sends its shard round the ring. Each SIP adds its shard and passes the sum on, and the
root stores the result: n-1 steps. The data of the other ranks do not change.

Rounding: each element is one sum, computed in the order of the ring. Time: S/B + (n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.rings import check_rank, over_sips
from kernbench.messages.steps import Chunk, Step, receive, send, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    root: int = 0,
    reduce_op: str = "sum",
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that overwrite the ``n_elem`` elements of ``root`` with the reduction over all ranks."""
    sips, messages = over_sips(rank, world_size, **config), messages_of(reduce_op, chunk_size, **config)
    pieces = messages.pieces(Chunk(0, n_elem))
    ring, distance = sips.ring, sips.after(check_rank("root", root, world_size))
    steps: list[Step] = []
    for buffer, loads in messages.load_ahead(pieces) if ring.size > 1 else ():
        steps += loads
        if distance != 1:
            steps += [receive(ring.prev, pieces[buffer].size), messages.add(buffer, ring.prev)]
        if distance:
            steps.append(send(ring.next, buffer))
        else:
            steps += [*messages.finish(buffer, ring.size), store(buffer, pieces[buffer])]
    return steps


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.kernel_args
