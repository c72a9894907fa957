"""All-reduce by passing every rank's tile once round the ring.

Steps: n-1 for each piece of the tile. A rank passes on what comes as it came, from the slot it lies in, and adds it.
Of each rank half as many pieces are on their way at once as a queue has slots, since in a ring of full queues nothing
could move: a piece that has been everywhere makes room for the next.

Rounding: every rank adds in its own order, so that for more than two ranks the ranks may differ in the last bits.
Time: (n-1) (S/B + alpha); more when so few slots leave gaps on the links.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages, Parts, message_args
from kernbench.ccl.steps.ranks import own_shard
from kernbench.kernels.shares import blocks

config_keys = MESSAGE_KEYS


def kernel_args(*, n_elem: int, world_size: int, n_slots: int = 2, **config: Any) -> tuple[int | str, ...]:
    """``n_slots``: slots of a queue; more than one piece at a time goes round when there are more than two."""
    # Half of the slots on their way and half of them free moves most; a power of two divides most tensors evenly.
    lanes = 1 << max(0, (n_slots // 2).bit_length() - 1)
    return n_elem, world_size, *message_args(**config), lanes


def kernel(
    t_ptr: int, n_elem: int, world_size: int, dtype: str, op: str, chunk: int, at_a_time: int, *, tl: Any
) -> None:
    """Reduce the ``n_elem`` elements of each rank, in place."""
    if world_size == 1:
        return
    messages = Messages(dtype, op, chunk)
    ptr, item = own_shard(t_ptr, n_elem, dtype, tl), tl.itemsize(dtype)
    for first, count in blocks(n_elem, messages.segment()):
        data = Parts(ptr + first * item, count, 1, messages, tl)
        data.load(messages, (0,), tl)
        _pass_round(data.values, world_size, at_a_time, messages, tl)
        data.store(tl)


def _pass_round(values: list[Any], world_size: int, at_a_time: int, messages: Messages, tl: Any) -> None:
    """Reduce ``values``: ``at_a_time`` lanes, in each of which one piece after the other goes round."""
    pieces = list(values)
    lanes = min(at_a_time, len(values))
    for piece in pieces[:lanes]:
        tl.send("E", piece)
    for i, hop in _arrivals(len(values), lanes, world_size - 1):
        passing = tl.recv("W", values[i].shape, values[i].dtype)
        if hop < world_size - 1:
            tl.send("E", passing)
        elif i + lanes < len(pieces):
            tl.send("E", pieces[i + lanes])
        values[i] = messages.combine(values[i], passing, tl)
        del passing
        if hop == world_size - 1:
            values[i] = messages.finish(values[i], world_size, tl)


def _arrivals(pieces: int, lanes: int, hops: int) -> Iterator[tuple[int, int]]:
    """Which piece comes next, and how many hops it has behind it, in the order in which every rank sends them."""
    for turn in range(-(-pieces // lanes) * hops):
        for lane in range(lanes):
            piece = lane + turn // hops * lanes
            if piece < pieces:
                yield piece, turn % hops + 1
