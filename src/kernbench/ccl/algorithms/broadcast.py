"""Broadcast from one rank to all others, over SIPs, every PE with the same PE of the others.

Steps: the root sends its shard, piece by piece, to the next SIP of the ring, each passes it on as it came, and the last
one before the root keeps it only: n-1 steps. Nothing is computed. Time: S/B + (n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import Messages, loaded, places
from kernbench.ccl.steps.ranks import own_shards, rooted_args
from kernbench.ccl.steps.sip_rings import SipRing, sip_ring

config_keys = ("chunk_size",)
kernel_args = rooted_args


def kernel(
    t_ptr: int,
    root: int,
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
    """Overwrite this PE's shards with those of ``root``."""
    sips = sip_ring(order, after, before, tl)
    for shard in own_shards(shards, tl):
        _pass_on(t_ptr + shard.offset, shard.n_elem, root, sips, Messages(dtype, op, chunk), tl)


def _pass_on(ptr: int, n: int, root: int, sips: SipRing, messages: Messages, tl: Any) -> None:
    ring, distance = sips.ring, sips.after(root)
    where = places(ptr, n, messages, tl)
    if distance == 0 and ring.size > 1:
        for x in loaded(where, messages, tl):
            tl.send(ring.next, x)
    elif distance:
        for at, count in where:
            x = tl.recv_async(ring.prev, count, messages.dtype)
            if distance < ring.size - 1:
                tl.send(ring.next, x)
            tl.store(at, x)
            del x
