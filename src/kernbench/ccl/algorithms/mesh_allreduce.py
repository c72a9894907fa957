"""All-reduce over a torus of w columns and h rows: row rings, then column rings.

Steps: 2(w-1) along the row (E, W), then 2(h-1) along the column (S, N), each a reduce-scatter and an all-gather.

Rounding: a row ends with the same bits, and columns then reduce the same numbers in the same order: all ranks are equal
to the bit.
Time: (2(w-1)/w + 2(h-1)/h) S/B + 2(w+h-2) alpha.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages, Parts, message_args
from kernbench.ccl.steps.ranks import own_shard, rank_of
from kernbench.ccl.steps.rings import RingPlace, all_reduce_parts
from kernbench.ccl.topologies import GRID_KEYS, rank_grid
from kernbench.kernels.shares import blocks

config_keys = (*MESSAGE_KEYS, *GRID_KEYS)


def kernel_args(*, n_elem: int, world_size: int, **config: Any) -> tuple[int | str, ...]:
    """The grid is that of ``rank_grid``: ``kernel_w`` and ``kernel_h`` when given."""
    grid = rank_grid(world_size, **config)
    return n_elem, grid.w, grid.h, *message_args(**config)


def kernel(t_ptr: int, n_elem: int, w: int, h: int, dtype: str, op: str, chunk: int, *, tl: Any) -> None:
    """Reduce the ``n_elem`` elements of each rank, in place."""
    if w * h == 1:
        return
    messages = Messages(dtype, op, chunk)
    y, x = divmod(rank_of(tl), w)
    row, column = RingPlace("E", "W", x, w), RingPlace("S", "N", y, h)
    at, item = own_shard(t_ptr, n_elem, dtype, tl), tl.itemsize(dtype)
    for first, count in blocks(n_elem, messages.segment()):
        data = Parts(at + first * item, count, w * h, messages, tl)
        data.load(messages, (part for i in row.backwards(x) for part in range(i * h, (i + 1) * h)), tl)
        _all_reduce(data, row, column, messages, tl)
        data.store(tl)


def _all_reduce(data: Parts, row: RingPlace, column: RingPlace, messages: Messages, tl: Any) -> None:
    """A part of the row ring is h parts in a row; one of the column ring is every h-th."""
    w, h = row.size, column.size
    by_row = [list(chain(*data.parts[i * h : (i + 1) * h])) for i in range(w)]
    by_column = [list(chain(*data.parts[j::h])) for j in range(h)]
    phases = [phase for phase in ((row, by_row), (column, by_column)) if phase[0].size > 1]
    for phase in phases:
        contributions = w * h if phase is phases[-1] else 1
        data.settle(tl)
        all_reduce_parts(*phase, data.values, messages, contributions, tl)
