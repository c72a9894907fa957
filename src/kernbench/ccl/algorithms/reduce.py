"""Reduce to one rank, over SIPs, every PE with the same PE of the others.

Steps: the SIP behind the root sends its shard round the ring, each adds its own and passes the sum on, and the root
keeps the result: n-1 steps. The other ranks' data stay as they are.

Rounding: one sum, in the order of the ring. Time: S/B + (n-1) alpha.
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
    reduce_op: str = "sum",
    slot_size: int = SLOT_BYTES,
    chunk_size: int | None = None,
    load_bytes: int = SLOT_BYTES,
) -> list[Step]:
    """Overwrite the ``n_elem`` elements of ``root`` with the reduction of those of all ranks."""
    sips = over_sips(sips, rank, world_size, ranks_are_sips)
    messages = messages_of(dtype, reduce_op, slot_size, chunk_size)
    pieces = messages.pieces(Chunk(0, n_elem))
    ring, distance = sips.ring, sips.after(checked_rank("root", root, world_size))
    steps: list[Step] = []
    for buffer, loads in loaded(list(enumerate(pieces)), messages.under_way(load_bytes)) if ring.size > 1 else ():
        steps += loads
        if distance != 1:
            steps += [receive(ring.prev, pieces[buffer].size), messages.add(buffer, ring.prev)]
        if distance:
            steps.append(send(ring.next, buffer))
        else:
            steps += [*messages.finish(buffer, ring.size), store(buffer, pieces[buffer])]
    return steps


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.args
