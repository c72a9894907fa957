"""All-reduce by passing every rank's tile once round the ring.

Steps: n-1. Each rank sends its own tile, then adds what comes and passes it on as it came, from the slot it lies in; a
few pieces at a time, one less than a queue has slots, since a ring of full queues could not move.

Rounding: every rank adds in its own order, so that for more than two ranks the ranks may differ in the last bits.
Time: (n-1) (S/B + alpha) for tiles of one message; more when few slots leave few pieces on their way.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.chunks import loaded, places, store_all
from kernbench.ccl.steps.messages import Messages, message_args
from kernbench.ccl.steps.ranks import own_shard
from kernbench.kernels.shares import blocks


def kernel_args(*, n_elem: int, world_size: int, n_slots: int = 2, **config: Any) -> tuple[int | str, ...]:
    """``n_slots``: slots of a queue; more than one piece at a time goes round when there are more than two."""
    return n_elem, world_size, *message_args(**config), max(1, n_slots - 1)


def kernel(
    t_ptr: int, n_elem: int, world_size: int, dtype: str, op: str, chunk: int, at_a_time: int, *, tl: Any
) -> None:
    """Reduce the ``n_elem`` elements of each rank, in place."""
    if world_size == 1:
        return
    messages = Messages(dtype, op, chunk)
    where = places(own_shard(t_ptr, n_elem, dtype, tl), n_elem, messages, tl)
    mine = loaded(where, messages, tl)
    for first, count in blocks(len(where), at_a_time):
        values = [next(mine) for _ in range(count)]
        _pass_round(values, world_size, messages, tl)
        store_all(where[first : first + count], (messages.finish(x, world_size, tl) for x in values), tl)


def _pass_round(values: list[Any], world_size: int, messages: Messages, tl: Any) -> None:
    for x in values:
        tl.send("E", x)
    for step in range(1, world_size):
        for i, mine in enumerate(values):
            passing = tl.recv_async("W", mine.shape, mine.dtype)
            values[i] = messages.combine(mine, passing, tl)
            if step < world_size - 1:
                tl.send("E", passing)
            del passing
