"""All-reduce over a binary tree: reduce up, broadcast down.

Steps: ranks add the data of their children (left, then right) and send the sum to their parent. The root's result
returns down the tree. Pieces follow each other up and down the tree at the same time, so the latency of the hops hardly
matters for a large tensor.

Rounding: each sum is computed once, on the way up, so all ranks end with the same bits.
Time: 4 S/B + 2 floor(log2 n) alpha. A rank with two children receives 4 S bytes by one link: its own data, the data of
both children, and the result.
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
    """Return the steps that reduce the ``n_elem`` elements of each rank."""
    messages = messages_of(reduce_op, chunk_size, **config)
    machine = (1, 1) if ranks_are_sips else (pes_per_cube, cubes_per_sip)
    lead = hops_to_root(rank, *machine).lead(messages)
    pieces = messages.pieces(Chunk(0, n_elem))
    return all_reduce(in_binary_tree(rank, world_size), lead, pieces, messages, world_size)


kernel = ScheduledKernel(schedule)
kernel_args = kernel.kernel_args
