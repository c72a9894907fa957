"""All-reduce over a binary tree: reduce up, broadcast down.

Steps: ranks add what their children send (left, then right) and send it to their parent; the root's result comes back
down. Piece follows piece, up and down at once, so that a large tensor takes little longer than its bytes.

Rounding: sums are made once, on the way up: all ranks end with the same bits.
Time: 4 S/B + 2 floor(log2 n) alpha: a rank with two children takes in its own data, theirs and the result by one link.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.messages import MESSAGE_KEYS, Messages
from kernbench.ccl.steps.ranks import own_shard, rank_of
from kernbench.ccl.steps.trees import all_reduce_in_place, hops_to_root, in_binary_tree, tree_args, widest_window

config_keys = MESSAGE_KEYS


def kernel_args(
    *,
    n_elem: int,
    world_size: int,
    pes_per_cube: int = 1,
    cubes_per_sip: int = 1,
    num_sips: int | None = None,
    ranks_are_sips: bool = True,
    **config: Any,
) -> tuple[int | str, ...]:
    """Ranks are SIPs when there are ``num_sips`` of them and nobody says else; otherwise PEs."""
    machine = (1, 1) if ranks_are_sips and num_sips == world_size else (pes_per_cube, cubes_per_sip)
    return n_elem, world_size, *machine, *tree_args(**config)


def kernel(
    t_ptr: int,
    n_elem: int,
    world_size: int,
    pes_per_cube: int,
    cubes_per_sip: int,
    n_slots: int,
    buffer_kind: str,
    dtype: str,
    op: str,
    chunk: int,
    *,
    tl: Any,
) -> None:
    """Reduce the ``n_elem`` elements of each rank, in place; ranks are SIPs when these have one cube with one PE."""
    rank, messages = rank_of(tl), Messages(dtype, op, chunk)
    at = own_shard(t_ptr, n_elem, dtype, tl)
    # All PEs of a cube have parents in another one, but those of the first; so have SIPs.
    below = 1, pes_per_cube, pes_per_cube * cubes_per_sip
    top = sum(world_size > pes for pes in below[1:])
    window = widest_window(messages, top, below[top])
    lead = hops_to_root(rank, pes_per_cube, cubes_per_sip).lead(messages, min(n_slots, window), buffer_kind)
    all_reduce_in_place(at, n_elem, in_binary_tree(rank, world_size, window), lead, messages, world_size, tl)
