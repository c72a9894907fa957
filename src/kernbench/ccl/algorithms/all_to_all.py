"""All-to-all over SIPs: block d of rank r ends as block r of rank d.

Steps: every rank sends its blocks round the ring, the next rank's first; of what comes from a rank the first block is
its own, and the rest goes on: n-1 steps, the first of n-1 blocks, the last of one. Nothing is computed.
Time: n(n-1)/2 S/B + (n-1) alpha for blocks of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import Messages, loaded, places, store_all
from kernbench.ccl.steps.ranks import block_args, own_pieces
from kernbench.ccl.steps.rings import Relay, kept
from kernbench.ccl.steps.sip_rings import SipRing, sip_ring

config_keys = ("chunk_size",)
kernel_args = block_args


def kernel(
    in_ptr: int,
    out_ptr: int,
    order: tuple[int, ...],
    after: str,
    before: str,
    shards: tuple[int, ...],
    dtype: str,
    op: str,
    chunk: int,
    *,
    tl: Any,
) -> None:
    """Exchange this PE's blocks with those of all ranks."""
    sips, messages = sip_ring(order, after, before, tl), Messages(dtype, op, chunk)
    for piece in own_pieces(in_ptr, out_ptr, shards, len(order), messages, tl):
        _exchange(*piece, sips, messages, tl)


def _exchange(source: int, target: int, stride: int, n: int, sips: SipRing, messages: Messages, tl: Any) -> None:
    ring, relay, slot_of = sips.ring, Relay(sips.ring, tl), sips.slots()

    def block(base: int, place: int) -> list[tuple[int, int]]:
        return places(base + slot_of[place % ring.size] * stride, n, messages, tl)

    mine = block(source, ring.place)
    store_all(block(target, ring.place), loaded(mine, messages, tl), tl)
    for distance in range(1, ring.size):
        relay.put(loaded(block(source, ring.place + distance), messages, tl))
    for distance in range(1, ring.size):
        for at, count in block(target, ring.place - distance):
            tl.store(at, relay.take_of(count, messages.dtype))
        for _ in range(ring.size - 1 - distance):
            relay.put([kept(relay.take_of(count, messages.dtype), tl) for _, count in mine])
    relay.flush()
