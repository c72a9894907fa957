"""All-reduce over a torus of w columns and h rows: row rings, then column rings.

Steps: 2(w-1) along the row (E, W), then 2(h-1) along the column (S, N), each a reduce-scatter and an all-gather.

Rounding: all ranks of a row have the same bits after the row ring. The columns then reduce the same numbers in the same
order, so all ranks end with the same bits.
Time: (2(w-1)/w + 2(h-1)/h) S/B + 2(w+h-2) alpha.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from kernbench.ccl.pieces import Messages, messages_of, number_pieces, split_evenly
from kernbench.ccl.rings import RingPlace, all_reduce_round
from kernbench.ccl.topologies import rank_grid
from kernbench.messages.steps import Chunk, Step, load, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    kernel_w: int | None = None,
    kernel_h: int | None = None,
    reduce_op: str = "sum",
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that reduce the ``n_elem`` elements of each rank; ``rank_grid`` gives the grid."""
    grid = rank_grid(world_size, kernel_w=kernel_w, kernel_h=kernel_h, **config)
    messages = messages_of(reduce_op, chunk_size, **config)
    y, x = divmod(rank, grid.w)
    row, column = RingPlace("E", "W", x, grid.w), RingPlace("S", "N", y, grid.h)
    segments = messages.segments(n_elem) if world_size > 1 else ()
    return [step for segment in segments for step in _all_reduce(segment, row, column, messages)]


def _all_reduce(segment: Chunk, row: RingPlace, column: RingPlace, messages: Messages) -> list[Step]:
    """Return the steps of both rings.

    The data is split into w h parts. A part of the row ring consists of h consecutive parts, a part of the column ring
    of every h-th part.
    """
    w, h = row.size, column.size
    by_part = [messages.pieces(part) for part in split_evenly(segment, w * h)]
    parts, pieces = number_pieces(by_part), list(chain(*by_part))
    by_row = [list(chain(*parts[i * h : (i + 1) * h])) for i in range(w)]
    by_column = [list(chain(*parts[j::h])) for j in range(h)]
    steps = [load(i, pieces[i]) for place in row.backwards(row.place) for i in by_row[place]]
    phases = [phase for phase in ((row, by_row), (column, by_column)) if phase[0].size > 1]
    for ring, lines in phases:
        ring_parts = [lines[place] for place in ring.backwards(ring.place)]
        steps += all_reduce_round(ring, ring_parts, pieces, messages, w * h if ring is phases[-1][0] else 1)
    return steps + [store(i, piece) for i, piece in enumerate(pieces)]


kernel = ScheduledKernel(schedule)
kernel_args = kernel.kernel_args
