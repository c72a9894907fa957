"""All-to-all over SIPs: block d of rank r ends as block r of rank d.

Steps: every rank sends its blocks round the ring, the next rank's first; of what comes from a rank the first block is
its own, and the rest goes on: n-1 steps, the first of n-1 blocks, the last of one. Nothing is computed.
Time: n(n-1)/2 S/B + (n-1) alpha for blocks of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.chunks import loaded, places, store_all
from kernbench.ccl.steps.messages import Messages, message_args
from kernbench.ccl.steps.ranks import own_blocks
from kernbench.ccl.steps.rings import Relay, kept
from kernbench.ccl.steps.sip_rings import SipRing, ring_args, sip_ring
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.shares import blocks


def kernel_args(
    *, n_elem: int, world_size: int, shards: tuple[int, ...] | None = None, **config: Any
) -> tuple[Any, ...]:
    """``shards``: (cube, pe, in_offset_bytes, n_elem, out_offset_bytes, stride_bytes) of each PE in a row.

    The PE's elements for rank d are at ``in_ptr + in_offset + d * stride``, those from rank r come to
    ``out_ptr + out_offset + r * stride``. Without ``shards``: all on PE 0 of cube 0, blocks without gaps.

    The ring as for ``sip_allreduce``.
    """
    common = message_args(**config)
    alone = (0, 0, 0, n_elem, 0, n_elem * element_type(common[0]).itemsize)
    where = alone if shards is None else shards
    return *ring_args(world_size, **config), where, *common


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
    item = tl.itemsize(dtype)
    for block in own_blocks(shards, tl):
        for first, count in blocks(block.n_elem, messages.segment(len(order))):
            at = block.in_offset + first * item, block.out_offset + first * item
            _exchange(in_ptr + at[0], out_ptr + at[1], block.stride, count, sips, messages, tl)


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
