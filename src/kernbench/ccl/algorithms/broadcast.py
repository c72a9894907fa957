"""Broadcast from one rank to all others, over SIPs: each PE works with the same PE of the other SIPs.

Steps: the root sends its shard piece by piece to the next SIP of the ring. Each SIP passes the pieces on from their
slots; the last SIP before the root only stores them: n-1 steps. Nothing is computed. Time: S/B + (n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.rings import check_rank, over_sips
from kernbench.messages.steps import Chunk, Step, receive, send, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *, rank: int, world_size: int, n_elem: int, root: int = 0, chunk_size: int | None = None, **config: Any
) -> list[Step]:
    """Return the steps that overwrite this PE's ``n_elem`` elements with those of rank ``root``."""
    sips, messages = over_sips(rank, world_size, **config), messages_of("sum", chunk_size, **config)
    pieces = messages.pieces(Chunk(0, n_elem))
    ring, distance = sips.ring, sips.after(check_rank("root", root, world_size))
    steps: list[Step] = []
    if distance == 0 and ring.size > 1:
        for buffer, loads in messages.load_ahead(pieces):
            steps += [*loads, send(ring.next, buffer)]
    elif distance:
        for piece in pieces:
            steps.append(receive(ring.prev, piece.size))
            if distance < ring.size - 1:
                steps.append(send(ring.next, ring.prev))
            steps.append(store(ring.prev, piece))
    return steps


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.kernel_args
