"""Reduce-scatter over SIPs: rank r ends with the reduction of all ranks' blocks r.

Steps: sums of a block go round the ring and end at its rank, every rank adding its own: n-1 steps.

Rounding: each block is one sum, in the order of the ring. Time: (n-1) S/B + (n-1) alpha for blocks of S bytes.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.chunks import places, store_all
from kernbench.ccl.steps.messages import Messages, message_args
from kernbench.ccl.steps.ranks import own_blocks
from kernbench.ccl.steps.rings import Relay, reduce_round
from kernbench.ccl.steps.sip_rings import SipRing, ring_args, sip_ring
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.shares import blocks


def kernel_args(
    *, n_elem: int, world_size: int, shards: tuple[int, ...] | None = None, **config: Any
) -> tuple[Any, ...]:
    """``shards``: (cube, pe, in_offset_bytes, n_elem, out_offset_bytes, stride_bytes) of each PE in a row.

    The PE's elements of block r are at ``in_ptr + in_offset + r * stride``, those of its result at
    ``out_ptr + out_offset``. Without ``shards``: all on PE 0 of cube 0, blocks without gaps.

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
    """Fill this PE's output with the reduction of all ranks' blocks of this rank."""
    sips, messages = sip_ring(order, after, before, tl), Messages(dtype, op, chunk)
    item = tl.itemsize(dtype)
    for block in own_blocks(shards, tl):
        for first, count in blocks(block.n_elem, messages.segment(len(order))):
            at = block.in_offset + first * item, block.out_offset + first * item
            _scatter(in_ptr + at[0], out_ptr + at[1], block.stride, count, sips, messages, tl)


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
