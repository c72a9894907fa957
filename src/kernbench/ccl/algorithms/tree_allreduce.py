"""All-reduce over a binary tree: reduce up, broadcast down.

Steps: ranks add what their children send (left, then right) and send it to their parent; the root's result comes back
down. Piece follows piece, up and down at once, so that a large tensor takes little longer than its bytes.

Rounding: sums are made once, on the way up: all ranks end with the same bits.
Time: 4 S/B + 2 floor(log2 n) alpha: a rank with two children takes in its own data, theirs and the result by one link.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.trees import all_reduce, hops_to_root, in_binary_tree
from kernbench.messages.steps import Chunk, Step
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    pes_per_cube: int = 1,
    cubes_per_sip: int = 1,
    ranks_are_sips: bool = False,
    reduce_op: str = "sum",
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Reduce the ``n_elem`` elements of each rank."""
    messages = messages_of(reduce_op, chunk_size, **config)
    machine = (1, 1) if ranks_are_sips else (pes_per_cube, cubes_per_sip)
    lead = hops_to_root(rank, *machine).lead(messages)
    pieces = messages.pieces(Chunk(0, n_elem))
    return all_reduce(in_binary_tree(rank, world_size), lead, pieces, messages, world_size)


kernel = ScheduledKernel(schedule)
kernel_args = kernel.kernel_args
