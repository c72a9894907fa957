"""Where a kernel's own data are, and the tables that say so: arguments of kernels, and the pieces that they make."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from kernbench.ccl.steps.messages import Messages, message_args
from kernbench.ccl.steps.sip_rings import checked_rank, ring_args
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.shares import blocks


def rank_of(tl: Any) -> int:
    """The rank of this PE where ranks are PEs, or SIPs with one PE each."""
    return int(tl.program_id(2) * tl.num_programs(1) * tl.num_programs(0) + local_of(tl))


def local_of(tl: Any) -> int:
    """The how-manieth PE of its SIP this is."""
    return int(tl.program_id(1) * tl.num_programs(0) + tl.program_id(0))


def own_shard(t_ptr: int, n_elem: int, dtype: str, tl: Any, table: tuple[int, ...] = ()) -> int:
    """Where this PE's ``n_elem`` elements begin in a tensor: as a table of ``own_shards`` says.

    Without one its SIP's PEs own them in turn.
    """
    if table:
        return t_ptr + next(own_shards(table, tl)).offset
    return t_ptr + local_of(tl) * n_elem * int(tl.itemsize(dtype))


class PeShard(NamedTuple):
    """``n_elem`` elements of a PE, ``offset`` bytes behind the tensor's pointer."""

    offset: int
    n_elem: int


class RankBlock(NamedTuple):
    """What a PE owns of two tensors, in bytes behind their pointers: ``n_elem`` elements for each block of a rank.

    The blocks of a tensor that has one for every rank are ``stride`` bytes apart.
    """

    in_offset: int
    n_elem: int
    out_offset: int
    stride: int


def own_shards(table: tuple[int, ...], tl: Any) -> Iterator[PeShard]:
    """This PE's lines of ``(cube, pe, offset_bytes, n_elem)*``."""
    for line in _own_lines(table, 4, tl):
        yield PeShard(*line)


def owners(table: tuple[int, ...]) -> int:
    """How many PEs of a SIP have lines of such a table."""
    return len({table[at : at + 2] for at in range(0, len(table), 4)})


def own_blocks(table: tuple[int, ...], tl: Any) -> Iterator[RankBlock]:
    """This PE's lines of ``(cube, pe, in_offset_bytes, n_elem, out_offset_bytes, stride_bytes)*``."""
    for line in _own_lines(table, 6, tl):
        yield RankBlock(*line)


def _own_lines(table: tuple[int, ...], width: int, tl: Any) -> Iterator[tuple[int, ...]]:
    here = (tl.program_id(1), tl.program_id(0))
    for at in range(0, len(table), width):
        if table[at : at + 2] == here:
            yield table[at + 2 : at + width]


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
