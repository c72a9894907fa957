"""Broadcast from one rank to all others, over SIPs, every PE with the same PE of the others.

Steps: the root sends its shard, piece by piece, to the next SIP of the ring, each passes it on as it came, and the last
one before the root keeps it only: n-1 steps. Nothing is computed. Time: S/B + (n-1) alpha.
"""

from __future__ import annotations

from kernbench.ccl.pieces import SLOT_BYTES, loaded, messages_of
from kernbench.ccl.sip_ring import SipRing, checked_rank, over_sips
from kernbench.messages.steps import Chunk, Step, receive, send, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    root: int = 0,
    sips: SipRing | None = None,
    ranks_are_sips: bool = True,
    dtype: str = "f32",
    slot_size: int = SLOT_BYTES,
    chunk_size: int | None = None,
    load_bytes: int = SLOT_BYTES,
) -> list[Step]:
    """Overwrite this PE's ``n_elem`` elements with those of ``root``."""
    sips = over_sips(sips, rank, world_size, ranks_are_sips)
    messages = messages_of(dtype, "sum", slot_size, chunk_size)
    pieces = messages.pieces(Chunk(0, n_elem))
    ring, distance = sips.ring, sips.after(checked_rank("root", root, world_size))
    steps: list[Step] = []
    if distance == 0 and ring.size > 1:
        for buffer, loads in loaded(list(enumerate(pieces)), messages.under_way(load_bytes)):
            steps += [*loads, send(ring.next, buffer)]
    elif distance:
        for piece in pieces:
            steps.append(receive(ring.prev, piece.size))
            if distance < ring.size - 1:
                steps.append(send(ring.next, ring.prev))
            steps.append(store(ring.prev, piece))
    return steps


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.args
