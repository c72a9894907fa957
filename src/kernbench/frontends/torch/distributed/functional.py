"""Functional collectives, and the exchange of DTensor: operators of PyTorch that return new tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from kernbench.frontends.torch.distributed.group import AhbmGroup
from kernbench.frontends.torch.storage import Lowering
from kernbench.frontends.torch.tensor import new, sip_of


def group_of(operand: object) -> dist.ProcessGroup:
    """Return the group that is the operand of an operator: a name, a group, or a boxed group."""
    if isinstance(operand, str):
        return c10d._resolve_process_group(distributed_c10d.GroupName(operand))  # noqa: SLF001 - as PyTorch does
    if isinstance(operand, dist.ProcessGroup):
        return operand
    group: Any = operand
    return dist.ProcessGroup.unbox(group)


def _options(op: str) -> c10d.AllreduceOptions:
    options = c10d.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, op.upper())
    return options


def _empty(x: Tensor, rows: int) -> Tensor:
    """Return an uninitialised tensor like ``x`` with another number of rows."""
    return new((rows, *x.shape[1:]), x.dtype, sip_of(x))


def _all_reduce(group: AhbmGroup, x: Tensor, op: str, *_: object) -> Tensor:
    result = x.contiguous().clone()
    group.allreduce([result], _options(op))
    return result


def _all_reduce_in_place(group: AhbmGroup, x: Tensor, op: str, *_: object) -> Tensor:
    group.allreduce([x], _options(op))
    return x


def _broadcast(group: AhbmGroup, x: Tensor, root: int, *_: object) -> Tensor:
    return _broadcast_in_place(group, x.contiguous().clone(), root)


def _broadcast_in_place(group: AhbmGroup, x: Tensor, root: int, *_: object) -> Tensor:
    options = c10d.BroadcastOptions()
    options.rootRank = root
    group.broadcast([x], options)
    return x


def _all_gather(group: AhbmGroup, x: Tensor, n_ranks: int, *_: object) -> Tensor:
    return _all_gather_into(group, x, n_ranks, out=_empty(x, len(x) * n_ranks))


def _all_gather_into(group: AhbmGroup, x: Tensor, *_: object, out: Tensor) -> Tensor:
    group.all_gather_single(out, x.contiguous())
    return out


def _reduce_scatter(group: AhbmGroup, x: Tensor, op: str, n_ranks: int, *_: object) -> Tensor:
    return _reduce_scatter_into(group, x, op, out=_empty(x, len(x) // n_ranks))


def _reduce_scatter_into(group: AhbmGroup, x: Tensor, op: str, *_: object, out: Tensor) -> Tensor:
    group.reduce_scatter_single(out, x.contiguous(), _options(op))
    return out


def _all_to_all(
    group: AhbmGroup, x: Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], *_: object
) -> Tensor:
    result = _empty(x, sum(output_sizes) if output_sizes else len(x))
    group.all_to_all_single(result, x.contiguous(), output_sizes, input_sizes)
    return result


def _shard_dim_all_to_all(group: AhbmGroup, x: Tensor, gather_dim: int, shard_dim: int, *_: object) -> Tensor:
    parts = [part.contiguous() for part in x.chunk(group.size(), shard_dim)]
    results: list[Tensor] = [new(tuple(part.shape), x.dtype, sip_of(x)) for part in parts]
    group.alltoall(results, parts)
    return torch.cat(results, gather_dim)


def _of_each(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Return a coalesced collective, which calls ``function`` for each tensor."""
    return lambda group, xs, *options: [function(group, x, *options) for x in xs]


_BY_NAME: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "all_reduce": _all_reduce,
        "all_reduce_": _all_reduce_in_place,
        "all_reduce_coalesced": _of_each(_all_reduce),
        "all_reduce_coalesced_": _of_each(_all_reduce_in_place),
        "broadcast": _broadcast,
        "broadcast_": _broadcast_in_place,
        "all_gather_into_tensor": _all_gather,
        "all_gather_into_tensor_coalesced": _of_each(_all_gather),
        "all_gather_into_tensor_out": _all_gather_into,
        "reduce_scatter_tensor": _reduce_scatter,
        "reduce_scatter_tensor_coalesced": _of_each(_reduce_scatter),
        "reduce_scatter_tensor_out": _reduce_scatter_into,
        "all_to_all_single": _all_to_all,
        "shard_dim_alltoall": _shard_dim_all_to_all,
    }
)


def by_size(name: str, of_one_rank: Lowering) -> Lowering:
    """Return the lowering of an operator by its name: that of the machine for a group of ranks, else ``of_one_rank``.

    The group is the last operand.
    """
    of_ranks = _BY_NAME.get(name)

    def run(*args: Any, **named: Any) -> Any:
        if of_ranks is not None:
            group = group_of(args[-1])
            if isinstance(group, AhbmGroup):
                return of_ranks(group, *args[:-1], **named)
        return of_one_rank(*args, **named)

    return run
