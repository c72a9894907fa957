"""Reduce-scatter over SIPs: rank r ends with the reduction of all ranks' blocks r.

Steps: sums of a block go round the ring and end at its rank, every rank adding its own: n-1 steps.

Rounding: each block is one sum, in the order of the ring. Time: (n-1) S/B + (n-1) alpha for blocks of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages, places, store_all
from kernbench.ccl.steps.ranks import block_args, own_pieces
from kernbench.ccl.steps.rings import Relay, reduce_round
from kernbench.ccl.steps.sip_rings import SipRing, sip_ring

config_keys = MESSAGE_KEYS
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
    """Fill this PE's output with the reduction of all ranks' blocks of this rank."""
    sips, messages = sip_ring(order, after, before, tl), Messages(dtype, op, chunk)
    for piece in own_pieces(in_ptr, out_ptr, shards, len(order), messages, tl):
        _scatter(*piece, sips, messages, tl)


def _scatter(source: int, target: int, stride: int, n: int, sips: SipRing, messages: Messages, tl: Any) -> None:
    ring, relay, slot_of = sips.ring, Relay(sips.ring, tl), sips.slots()
    turns: list[range] = []
    values: list[Any] = []
    for place in ring.backwards(ring.place - 1):  # the last one is this rank's own
        where = places(source + slot_of[place] * stride, n, messages, tl)
        turns.append(range(len(values), len(values) + len(where)))
        values += [tl.load(at, count, messages.dtype) for at, count in where]
    if ring.size > 1:
        reduce_round(relay, turns, values, messages, ring.size, tl)
        relay.flush()
    store_all(places(target, n, messages, tl), (values[i] for i in turns[-1]), tl)
