"""All-reduce over a binary tree: reduce up, broadcast down.

Steps: ranks add what their children send (left, then right) and send it to their parent; the root's result comes back
down. Piece follows piece, up and down at once, so that a large tensor takes little longer than its bytes.

Rounding: sums are made once, on the way up: all ranks end with the same bits.
Time: 4 S/B + 2 floor(log2 n) alpha: a rank with two children takes in its own data, theirs and the result by one link.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import Messages, message_args
from kernbench.ccl.steps.ranks import own_shard, rank_of
from kernbench.ccl.steps.trees import all_reduce_in_place, in_binary_tree


def kernel_args(*, n_elem: int, world_size: int, **config: Any) -> tuple[int | str, ...]:
    """Nothing beyond what messages take."""
    return n_elem, world_size, *message_args(**config)


def kernel(t_ptr: int, n_elem: int, world_size: int, dtype: str, op: str, chunk: int, *, tl: Any) -> None:
    """Reduce the ``n_elem`` elements of each rank, in place."""
    branch = in_binary_tree(rank_of(tl), world_size)
    at = own_shard(t_ptr, n_elem, dtype, tl)
    all_reduce_in_place(at, n_elem, branch, Messages(dtype, op, chunk), world_size, tl)
