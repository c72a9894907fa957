"""Arguments of kernels that work on shards by tables: what ``kernel_args`` returns, and the pieces that it makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from kernbench.ccl.steps.messages import Messages, message_args
from kernbench.ccl.steps.ranks import own_blocks
from kernbench.ccl.steps.sip_rings import checked_rank, ring_args
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.shares import blocks

Table: TypeAlias = tuple[int, ...]


def rooted_args(
    *, n_elem: int, world_size: int, root: int = 0, shards: Table | None = None, **config: Any
) -> tuple[Any, ...]:
    """``root``: the rank that gives the data, or gets the result; ``shards`` and the ring as for ``sip_allreduce``."""
    where = (0, 0, 0, n_elem) if shards is None else shards
    return checked_rank("root", root, world_size), *ring_args(world_size, **config), where, *message_args(**config)


def block_args(*, n_elem: int, world_size: int, shards: Table | None = None, **config: Any) -> tuple[Any, ...]:
    """``shards``: (cube, pe, in_offset_bytes, n_elem, out_offset_bytes, stride_bytes) of each PE in a row.

    The PE's ``n_elem`` elements begin at those offsets behind the two pointers; of a tensor that has a block for every
    rank, block r lies r strides further. Without ``shards``: all on PE 0 of cube 0, blocks without gaps. The ring as
    for ``sip_allreduce``.
    """
    common = message_args(**config)
    alone = (0, 0, 0, n_elem, 0, n_elem * element_type(common[0]).itemsize)
    return *ring_args(world_size, **config), alone if shards is None else shards, *common


class Piece(NamedTuple):
    """``n_elem`` elements at ``source`` and ``target``; blocks of other ranks are ``stride`` bytes apart."""

    source: int
    target: int
    stride: int
    n_elem: int


def own_pieces(in_ptr: int, out_ptr: int, shards: Table, n_blocks: int, messages: Messages, tl: Any) -> Iterator[Piece]:
    """This PE's blocks, in pieces of which scratch is meant to hold ``n_blocks`` at a time."""
    item = tl.itemsize(messages.dtype)
    for block in own_blocks(shards, tl):
        for first, count in blocks(block.n_elem, messages.segment(n_blocks)):
            at = first * item
            yield Piece(in_ptr + block.in_offset + at, out_ptr + block.out_offset + at, block.stride, count)
