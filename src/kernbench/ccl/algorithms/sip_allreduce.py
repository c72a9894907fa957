"""All-reduce over SIPs: every PE that owns a shard works with the same PE of the other SIPs.

Elementwise over ranks, for any layout that is the same on all of them: PyTorch's meaning. Steps: reduce-scatter and
all-gather of each shard round the ring of SIPs, as ``ring_allreduce_rs_ag``; where all SIPs form a grid, along its rows
and columns, both ways round a torus.

Rounding: a part is reduced on one rank and copied, so all ranks end with the same bits.
Time: 2(n-1)/n S/B + 2(n-1) alpha for shards of S bytes, B the share that a PE has of the links between SIPs. In a grid
of w columns and h rows 2(w+h-2) alpha, and of many bytes a mesh has half as many on each link, a torus half of that.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps import grids, rings
from kernbench.ccl.steps.grids import SipGrid
from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages, message_args
from kernbench.ccl.steps.ranks import own_shards, owners
from kernbench.ccl.steps.sip_rings import ring_args, sip_ring
from kernbench.topology.spec import current_topology_name

config_keys = MESSAGE_KEYS


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    shards: tuple[int, ...] | None = None,
    sip_topology: str = "ring_1d",
    sip_w: int = 0,
    sip_h: int = 0,
    **config: Any,
) -> tuple[Any, ...]:
    """``shards``: (cube, pe, offset_bytes, n_elem) of each PE in a row; all on PE 0 of cube 0 when not given.

    The ring: ``ring_order``, ``next_direction``, ``prev_direction``, as ``ring_args`` has them; not used where all SIPs
    form a grid.
    """
    where = (0, 0, 0, n_elem) if shards is None else shards
    kind = current_topology_name(sip_topology)
    return *ring_args(world_size, **config), kind, sip_w, sip_h, where, *message_args(**config)


def kernel(
    t_ptr: int,
    order: tuple[int, ...],
    after: str,
    before: str,
    sip_topology: str,
    sip_w: int,
    sip_h: int,
    shards: tuple[int, ...],
    dtype: str,
    op: str,
    chunk: int,
    *,
    tl: Any,
) -> None:
    """Reduce this PE's shards over all SIPs, in place."""
    sips, messages = SipGrid(len(order), sip_topology, sip_w, sip_h), Messages(dtype, op, chunk)
    for shard in own_shards(shards, tl):
        at = t_ptr + shard.offset
        if sips.is_grid:
            grids.all_reduce_in_place(at, shard.n_elem, sips, owners(shards), messages, tl)
        else:
            rings.all_reduce_in_place(at, shard.n_elem, sip_ring(order, after, before, tl).ring, messages, tl)
