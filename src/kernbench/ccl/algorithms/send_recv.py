"""Send from one rank to another, over SIPs, every PE with the same PE of the other, by the direct queue between them.

Steps: one. Nothing is computed. Time: S/B + alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import Messages, loaded, message_args, places
from kernbench.ccl.steps.ranks import own_shards
from kernbench.ccl.steps.sip_rings import check_ranks, checked_rank

config_keys = ("chunk_size",)


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    src: int = 0,
    dst: int = 1,
    shards: tuple[int, ...] | None = None,
    ranks_are_sips: bool = True,
    **config: Any,
) -> tuple[Any, ...]:
    """``src`` and ``dst``: the ranks; ``shards`` as for ``sip_allreduce``."""
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    ranks = (checked_rank(name, rank, world_size) for name, rank in (("src", src), ("dst", dst)))
    return *ranks, (0, 0, 0, n_elem) if shards is None else shards, *message_args(**config)


def kernel(
    t_ptr: int,
    src: int,
    dst: int,
    shards: tuple[int, ...],
    dtype: str,
    op: str,
    chunk: int,
    *,
    tl: Any,
) -> None:
    """Overwrite the shards of ``dst`` with those of ``src``; the other ranks do nothing."""
    rank = tl.program_id(2)
    if src == dst or rank not in (src, dst):
        return
    messages = Messages(dtype, op, chunk)
    for shard in own_shards(shards, tl):
        where = places(t_ptr + shard.offset, shard.n_elem, messages, tl)
        if rank == src:
            for x in loaded(where, messages, tl):
                tl.send(f"sip{dst}", x)
        else:
            for at, count in where:
                tl.store(at, tl.recv_async(f"sip{src}", count, dtype))
