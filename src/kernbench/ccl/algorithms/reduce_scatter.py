"""Reduce-scatter over SIPs: rank r ends with the reduction of all ranks' blocks r.

Steps: the sum of a block travels round the ring and ends at its rank; every rank adds its block: n-1 steps.

Rounding: each block is one sum, computed in the order of the ring. Time: (n-1) S/B + (n-1) alpha for blocks of S bytes.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from kernbench.ccl.pieces import messages_of, number_pieces
from kernbench.ccl.rings import Relay, order_of_use, over_sips, reduce_round
from kernbench.messages.steps import Chunk, Step, load
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    stride: int = 0,
    block_starts: tuple[int, ...] = (),
    reduce_op: str = "sum",
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that fill this PE's output with the reduction, over all ranks, of the block of this rank.

    Blocks begin at the elements ``block_starts``, by default ``stride`` elements apart.
    """
    sips, messages = over_sips(rank, world_size, **config), messages_of(reduce_op, chunk_size, **config)
    ring, slot_of, relay = sips.ring, sips.slots(), Relay(sips.ring)
    starts = block_starts or [slot * stride for slot in range(ring.size)]
    for segment in messages.segments(n_elem, ring.size):
        out_pieces = messages.pieces(segment)
        blocks = [
            [Chunk(starts[slot_of[place]] + piece.offset, piece.size) for piece in out_pieces]
            for place in ring.backwards(ring.place - 1)  # the last block is the block of this rank
        ]
        parts, pieces = number_pieces(blocks), list(chain(*blocks))
        begin = len(relay.steps)
        order = order_of_use(parts, messages) if messages.far else range(len(pieces))
        relay.steps += [load(i, pieces[i]) for i in order]
        if ring.size > 1:
            reduce_round(relay, parts, pieces, messages, ring.size)
            relay.flush()
        targets = [piece._replace(tensor=1) for piece in out_pieces]
        relay.steps[begin:] = messages.store_all(relay.steps[begin:], zip(parts[-1], targets, strict=True))
    return relay.steps


kernel = ScheduledKernel(schedule, over="sips", tensors=2)
kernel_args = kernel.kernel_args
