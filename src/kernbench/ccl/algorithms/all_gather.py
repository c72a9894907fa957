"""All-gather over SIPs: every rank ends with the shards of all, in slots by rank.

Steps: each shard goes once round the ring, every rank writes it to its slot and passes it on: n-1 steps. Nothing is
computed. Time: (n-1) S/B + (n-1) alpha for shards of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import Messages, loaded, places
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
    """Fill this PE's slots of the output with the shards of all ranks."""
    sips, messages = sip_ring(order, after, before, tl), Messages(dtype, op, chunk)
    for piece in own_pieces(in_ptr, out_ptr, shards, len(order), messages, tl):
        _gather(*piece, sips, messages, tl)


def _gather(source: int, slots: int, stride: int, n: int, sips: SipRing, messages: Messages, tl: Any) -> None:
    ring, relay, slot_of = sips.ring, Relay(sips.ring, tl), sips.slots()
    for turn, place in enumerate(ring.backwards(ring.place)):
        where = places(slots + slot_of[place] * stride, n, messages, tl)
        mine = loaded(places(source, n, messages, tl), messages, tl) if turn == 0 else None
        for at, count in where:
            x = next(mine) if mine is not None else kept(relay.take_of(count, messages.dtype), tl)
            tl.store(at, x)
            if turn < ring.size - 1:
                relay.put((x,))
    relay.flush()
