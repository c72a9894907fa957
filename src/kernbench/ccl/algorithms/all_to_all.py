"""All-to-all over SIPs: block d of rank r ends as block r of rank d.

Steps: every rank sends its blocks round the ring, the next rank's block first. A rank stores the first block that comes
from each other rank and passes the remaining ones on. The n-1 steps move n-1 blocks, n-2 blocks, and so on down to one.
Nothing is computed.
Time: n(n-1)/2 S/B + (n-1) alpha for blocks of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.rings import Relay, SipRing, over_sips
from kernbench.messages.steps import Chunk, Step, load, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *, rank: int, world_size: int, n_elem: int, stride: int = 0, chunk_size: int | None = None, **config: Any
) -> list[Step]:
    """Return the steps that exchange this PE's blocks of ``n_elem`` elements with all ranks.

    Blocks are ``stride`` elements apart.
    """
    sips, messages = over_sips(rank, world_size, **config), messages_of("sum", chunk_size, **config)
    segments = messages.segments(n_elem, sips.ring.size)
    return [step for segment in segments for step in _exchange(messages.pieces(segment), sips, stride)]


def _exchange(pieces: list[Chunk], sips: SipRing, stride: int) -> list[Step]:
    ring, slot_of, relay = sips.ring, sips.slots(), Relay(sips.ring)
    n = len(pieces)

    def block(place: int, tensor: int) -> list[Chunk]:
        at = slot_of[place % ring.size] * stride
        return [Chunk(at + piece.offset, piece.size, tensor) for piece in pieces]

    for distance in range(ring.size):
        relay.steps += [load(distance * n + i, chunk) for i, chunk in enumerate(block(ring.place + distance, 0))]
    relay.steps += [store(i, chunk) for i, chunk in enumerate(block(ring.place, 1))]
    relay.push(range(n, ring.size * n))
    passing = ring.size * n  # the buffer of the next block that is passed on
    for distance in range(1, ring.size):
        for chunk in block(ring.place - distance, 1):
            slot = relay.take(chunk.size)
            relay.steps.append(store(slot, chunk))
        for piece in pieces * (ring.size - 1 - distance):
            relay.keep(passing, piece.size)
            relay.push((passing,))
            passing += 1
    relay.flush()
    return relay.steps


kernel = ScheduledKernel(schedule, over="sips", tensors=2)
kernel_args = kernel.kernel_args
