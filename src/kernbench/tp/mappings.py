"""Transfer of activations between one rank and all ranks, forward only, named as in Megatron-LM.

Collectives have PyTorch's semantics for any algorithm that ccl.yaml names. With one rank every function returns its
argument.
"""

from __future__ import annotations

from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.ops import PeGrid, as_rows, blocks_side_by_side, matrix_size, part_of_columns
from kernbench.tp.parallel_state import parallel_state, split_evenly


def copy_to_tp_region(x: Tensor, torch: AnyContext | None = None) -> Tensor:
    """Return ``x``, which is equal on all ranks. The forward pass needs no transfer."""
    parallel_state(torch)
    return x


def reduce_from_tp_region(x: Tensor, torch: AnyContext | None = None) -> Tensor:
    """Sum ``x`` over ranks, in place. The result is bitwise equal on all ranks."""
    group = parallel_state(torch)
    if group.world_size > 1:
        group.torch.distributed.all_reduce(x, elementwise=True)
    return x


def scatter_to_tp_region(x: Tensor, torch: AnyContext | None = None) -> Tensor:
    """Return this rank's shard, along the last axis, of ``x``, which is equal on all ranks.

    Raises SizeError if the axis cannot be split evenly.
    """
    group = parallel_state(torch)
    split_evenly(f"the last axis of {x.name}", matrix_size(x)[1], group.world_size)
    if group.world_size == 1:
        return x
    rows = as_rows(x, group.torch)
    part = part_of_columns(rows, group.rank, group.world_size, group.torch)
    if rows is not x:
        rows.free()
    return part


def gather_from_tp_region(x: Tensor, torch: AnyContext | None = None) -> Tensor:
    """Concatenate the shards of all ranks along the last axis, in rank order."""
    group = parallel_state(torch)
    (m, n), world = matrix_size(x), group.world_size
    if world == 1:
        return x
    context, rows = group.torch, as_rows(x, group.torch)
    blocks = context.empty(world * m, n, dtype=x.dtype, dp=PeGrid.of(x).rows(world * m), name=f"{x.name}.blocks")
    context.distributed.all_gather_into_tensor(blocks, rows)
    y = blocks_side_by_side(blocks, (*x.shape[:-1], world * n), context)
    for tensor in (blocks, rows):
        if tensor is not x:
            tensor.free()
    return y
