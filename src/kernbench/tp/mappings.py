"""Bring activations from one rank's part to all ranks and back: forward only, under Megatron-LM's names.

Collectives have PyTorch's meaning whatever ccl.yaml names. With one rank every function gives its argument back.
"""

from __future__ import annotations

from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.ops import PeGrid, as_rows, blocks_side_by_side, matrix_size, part_of_columns
from kernbench.tp.parallel_state import parallel_state, split_evenly


def copy_to_tp_region(x: Tensor, torch: AnyContext | None = None) -> Tensor:
    """Return ``x``, which all ranks have: on the way forward there is nothing to do."""
    parallel_state(torch)
    return x


def reduce_from_tp_region(x: Tensor, torch: AnyContext | None = None) -> Tensor:
    """Sum ``x`` over ranks, in place; the same bits on all of them."""
    group = parallel_state(torch)
    if group.world_size > 1:
        group.torch.distributed.all_reduce(x, elementwise=True)
    return x


def scatter_to_tp_region(x: Tensor, torch: AnyContext | None = None) -> Tensor:
    """Return this rank's part of the last axis of ``x``, which all have; SizeError if it does not split evenly."""
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
    """Put the parts of all ranks side by side along the last axis, in the order of ranks."""
    group = parallel_state(torch)
    (m, n), world = matrix_size(x), group.world_size
    if world == 1:
        return x
    context, rows = group.torch, as_rows(x, group.torch)
    blocks = context.empty(world * m, n, dtype=x.dtype, dp=PeGrid.of(x).rows(world * m), name=f"{x.name}.blocks")
    context.distributed.all_gather_into_tensor(blocks, rows)
    y = blocks_side_by_side(blocks, (*x.shape[:-1], world * n), context)
    for each in (blocks, rows):
        if each is not x:
            each.free()
    return y
