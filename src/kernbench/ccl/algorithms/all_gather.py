"""All-gather over SIPs: every rank ends with the shards of all, in slots by rank.

Steps: each shard travels once round the ring. Every rank writes the shard to its slot and passes it on: n-1 steps.
Nothing is computed. Time: (n-1) S/B + (n-1) alpha for shards of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.rings import Relay, over_sips
from kernbench.messages.steps import Chunk, Step, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    stride: int = 0,
    block_starts: tuple[int, ...] = (),
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that fill this PE's slots of the output with the ``n_elem`` elements of each rank.

    Slots begin at the elements ``block_starts``, by default ``stride`` elements apart.
    """
    sips, messages = over_sips(rank, world_size, **config), messages_of("sum", chunk_size, **config)
    ring, slot_of, relay = sips.ring, sips.slots(), Relay(sips.ring)
    for segment in messages.segments(n_elem, ring.size):
        pieces = messages.pieces(segment)
        local_loads = messages.load_ahead(pieces)
        for hop, place in enumerate(ring.backwards(ring.place)):
            at = block_starts[slot_of[place]] if block_starts else slot_of[place] * stride
            for i, piece in enumerate(pieces, hop * len(pieces)):
                if hop:
                    relay.keep(i, piece.size)
                else:
                    relay.steps += next(local_loads)[1]
                relay.steps.append(store(i, Chunk(at + piece.offset, piece.size, 1)))
                if hop < ring.size - 1:
                    relay.push((i,))
        relay.flush()
    return relay.steps


kernel = ScheduledKernel(schedule, over="sips", tensors=2)
kernel_args = kernel.kernel_args
