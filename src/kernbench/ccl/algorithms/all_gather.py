"""All-gather over SIPs: every rank ends with the shards of all, in slots by rank.

Steps: each shard goes once round the ring, every rank writes it to its slot and passes it on: n-1 steps. Nothing is
computed. Time: (n-1) S/B + (n-1) alpha for shards of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.chunks import loaded, places
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

    ``n_elem`` elements at ``in_ptr + in_offset`` are the PE's; those of rank r come to
    ``out_ptr + out_offset + r * stride``. Without ``shards``: all on PE 0 of cube 0, slots without gaps.

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
    """Fill this PE's slots of the output with the shards of all ranks."""
    sips, messages = sip_ring(order, after, before, tl), Messages(dtype, op, chunk)
    item = tl.itemsize(dtype)
    for block in own_blocks(shards, tl):
        for first, count in blocks(block.n_elem, messages.segment(len(order))):
            at = block.in_offset + first * item, block.out_offset + first * item
            _gather(in_ptr + at[0], out_ptr + at[1], block.stride, count, sips, messages, tl)


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
