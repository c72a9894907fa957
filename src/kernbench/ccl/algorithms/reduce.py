"""Reduce to one rank, over SIPs, every PE with the same PE of the others.

Steps: the SIP behind the root sends its shard round the ring, each adds its own and passes the sum on, and the root
keeps the result: n-1 steps. The other ranks' data stay as they are.

Rounding: one sum, in the order of the ring. Time: S/B + (n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages, loaded, places
from kernbench.ccl.steps.ranks import own_shards, rooted_args
from kernbench.ccl.steps.sip_rings import SipRing, sip_ring

config_keys = MESSAGE_KEYS
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
    """Overwrite the shards of ``root`` with the reduction of all ranks' shards."""
    sips = sip_ring(order, after, before, tl)
    for shard in own_shards(shards, tl):
        _add_up(t_ptr + shard.offset, shard.n_elem, root, sips, Messages(dtype, op, chunk), tl)


def _add_up(ptr: int, n: int, root: int, sips: SipRing, messages: Messages, tl: Any) -> None:
    ring, distance = sips.ring, sips.after(root)
    where = places(ptr, n, messages, tl)
    for (at, _), mine in zip(where, loaded(where, messages, tl), strict=True):
        x = mine
        if distance != 1 and ring.size > 1:
            x = messages.combine(x, tl.recv_async(ring.prev, x.shape, x.dtype), tl)
        if distance:
            tl.send(ring.next, x)
        else:
            tl.store(at, messages.finish(x, ring.size, tl))
