"""PyTorch's collectives in a program without ranks: those of a group of one rank are copies; more are refused.

The schemas of c10d's operators do not declare outputs, so the host cannot compute such an operator for the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup, Work
from torch.distributed import distributed_c10d
from torch.nn.parallel import comm

from kernbench.common.errors import InputError
from kernbench.frontends.torch.distributed.functional import by_size, group_of
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import Lowering, TorchOperator
from kernbench.frontends.torch.tensor import replace
from kernbench.runtime_api.context import current_context

NAMESPACES = frozenset(["c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem"])
"""Namespaces of the operators by which ranks exchange tensors."""
_START_RANKS = "start a rank for each SIP with --ranks N, or with torch.multiprocessing.spawn"


def refuse(operator: TorchOperator, *_: object, **__: object) -> NoReturn:
    """Raise InputError for an operator that exchanges data between ranks and has no lowering."""
    raise InputError(
        f"{program_place()}: operator {operator.name()} of a tensor of the machine: its schema does not say what it "
        "writes, so the host cannot compute it; move its tensors to the host, .cpu(), and the results back"
    )


# a group of one rank


def _check_group(group: str | ProcessGroup | torch.ScriptObject) -> None:
    """Raise InputError if ``group`` has several ranks. It is a name, a group, or the boxed operand of an operator."""
    _check_size(group_of(group).size())


def _check_root(root: object) -> None:
    if root != 0:
        raise InputError(f"{program_place()}: a collective with root {root}: its group has rank 0 alone")


def _put(target: Tensor, source: Tensor) -> None:
    """Copy the only rank's tensor to ``target``. Raises InputError if the target has another size or dtype."""
    if (target.numel(), target.dtype) != (source.numel(), source.dtype):
        raise InputError(
            f"{program_place()}: a collective of one rank: its result has {target.numel()} elements of {target.dtype}, "
            f"must have {source.numel()} of {source.dtype}"
        )
    target.copy_(source.reshape(target.shape))


_work_of: Callable[[torch.futures.Future[object]], Work] = vars(c10d)["_create_work_from_future"]
"""PyTorch's function, which its types leave out."""


def _done(results: object) -> torch.ScriptObject:
    """Return a boxed ``Work`` that is complete, with ``results`` as its result."""
    future = torch.futures.Future[object]()
    future.set_result(results if isinstance(results, list) else [results])
    return _work_of(future).boxed()


_Results = TypeVar("_Results")
_Sources = TypeVar("_Sources")
_P = ParamSpec("_P")
_Pairs: TypeAlias = Iterable[tuple[Tensor, Tensor]]
"""Results, each with the source that is copied to it."""
_Lists: TypeAlias = Sequence[Sequence[Tensor]]


def _firsts(lists: _Lists) -> list[Tensor]:
    """Return the first tensor of each list: that of the only rank."""
    return [tensors[0] for tensors in lists]


def _single(result: Tensor, source: Tensor) -> _Pairs:
    return [(result, source)]


def _pairwise(results: Sequence[Tensor], sources: Sequence[Tensor]) -> _Pairs:
    return zip(results, sources, strict=True)


def _to_firsts(results: _Lists, sources: Sequence[Tensor]) -> _Pairs:
    return zip(_firsts(results), sources, strict=True)


def _from_firsts(results: Sequence[Tensor], sources: _Lists) -> _Pairs:
    return zip(results, _firsts(sources), strict=True)


def _to_first_list(results: _Lists, sources: Sequence[Tensor]) -> _Pairs:
    return zip(results[0], sources, strict=True)


def _copying(
    pair: Callable[[_Results, _Sources], _Pairs], *, only_work: bool = False, has_root: bool = False
) -> Lowering:
    """Return a collective whose results are copies of its sources. ``only_work``: it returns no tensors, only work."""

    def carry_out(
        results: _Results, sources: _Sources, group: torch.ScriptObject, *options: object
    ) -> torch.ScriptObject | tuple[_Results, torch.ScriptObject]:
        _check_group(group)
        if has_root:
            _check_root(options[0])
        for target, source in pair(results, sources):
            _put(target, source)
        return _done(results) if only_work else (results, _done(results))

    return carry_out


def _leaving(*, only_work: bool = False, root_at: int | None = None) -> Lowering:
    """Return a collective that changes no tensor: with one rank, the tensors already are the result."""

    def carry_out(
        tensors: _Results, group: torch.ScriptObject, *options: object
    ) -> torch.ScriptObject | tuple[_Results, torch.ScriptObject]:
        _check_group(group)
        if root_at is not None:
            _check_root(options[root_at])
        return _done(tensors) if only_work else (tensors, _done(tensors))

    return carry_out


def _copy_of(x: Tensor | Sequence[Tensor], *options: Any) -> Tensor | list[Tensor]:
    """Return a copy of ``x`` as the result of a functional collective, whose last operand is the group."""
    _check_group(options[-1])
    return x.clone() if isinstance(x, Tensor) else [tensor.clone() for tensor in x]


def _same(x: _Results, *options: Any) -> _Results:
    _check_group(options[-1])
    return x


def _into(x: Tensor, *options: Any, out: Tensor) -> Tensor:
    _check_group(options[-1])
    _put(out, x)
    return out


_C10D: Mapping[str, Lowering] = MappingProxyType(
    {
        "allreduce_": _leaving(),
        "allreduce_coalesced_": _leaving(only_work=True),
        "barrier": _leaving(only_work=True),
        "broadcast_": _leaving(root_at=0),
        "reduce_": _leaving(only_work=True, root_at=1),
        "allgather_": _copying(_to_firsts),
        "allgather_coalesced_": _copying(_to_first_list, only_work=True),
        "allgather_into_tensor_coalesced_": _copying(_pairwise, only_work=True),
        "_allgather_base_": _copying(_single),
        "gather_": _copying(_to_firsts, only_work=True, has_root=True),
        "reduce_scatter_": _copying(_from_firsts),
        "reduce_scatter_tensor_coalesced_": _copying(_pairwise, only_work=True),
        "_reduce_scatter_base_": _copying(_single),
        "scatter_": _copying(_from_firsts, has_root=True),
        "alltoall_": _copying(_pairwise),
        "alltoall_base_": _copying(_single, only_work=True),
    }
)
_FUNCTIONAL: Mapping[str, Lowering] = MappingProxyType(
    {
        "all_reduce": _copy_of,
        "all_reduce_": _same,
        "all_reduce_coalesced": _copy_of,
        "all_reduce_coalesced_": _same,
        "broadcast": _copy_of,
        "broadcast_": _same,
        "all_gather_into_tensor": _copy_of,
        "all_gather_into_tensor_coalesced": _copy_of,
        "all_gather_into_tensor_out": _into,
        "reduce_scatter_tensor": _copy_of,
        "reduce_scatter_tensor_coalesced": _copy_of,
        "reduce_scatter_tensor_out": _into,
        "all_to_all_single": _copy_of,
        "wait_tensor": lambda x: x,
    }
)
LOWERINGS: Mapping[TorchOperator, Lowering] = MappingProxyType(
    {getattr(torch.ops.c10d, name).default: collective for name, collective in _C10D.items()}
    | {
        getattr(torch.ops._c10d_functional, name).default: by_size(name, collective)  # noqa: SLF001 - operators' names
        for name, collective in _FUNCTIONAL.items()
    }
    | {torch.ops._dtensor.shard_dim_alltoall.default: by_size("shard_dim_alltoall", _copy_of)}  # noqa: SLF001
)


# several ranks


def _check_size(n_ranks: int) -> None:
    if n_ranks > 1:
        raise InputError(f"{program_place()}: a group of {n_ranks} ranks in a program of one: {_START_RANKS}")


def _check_before(function: Callable[_P, _Results], check: Callable[..., None]) -> Callable[_P, _Results]:
    """Return ``function``, changed to call ``check`` first in a program on the machine, outside of its ranks."""

    @wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _Results:
        context = current_context()
        if context is not None and not (check in _OF_RANKS and context.multiprocessing.is_rank):
            check(*args, **options)
        return function(*args, **options)

    return call


def _check_rendezvous(url: str, rank: int = -1, world_size: int = -1, **_: object) -> None:  # noqa: ARG001
    """Refuse several ranks, in a program without ranks, before PyTorch waits for the others to join."""
    _check_size(world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1")))


def _check_new_group(n_ranks: int, *_: object, **__: object) -> None:
    _check_size(n_ranks)


_OF_RANKS = (_check_rendezvous, _check_new_group)
"""Checks of what ranks may do."""


def _refuse_replicas(*_: object, **__: object) -> None:
    raise InputError(
        f"{program_place()}: DataParallel runs a copy of the model on each device from one process; use "
        f"DistributedDataParallel instead: {_START_RANKS}"
    )


REPLACED: tuple[tuple[ModuleType | type, str, Callable[..., None]], ...] = (
    (distributed_c10d, "rendezvous", _check_rendezvous),
    (distributed_c10d, "_new_process_group_helper", _check_new_group),
    (torch.nn.DataParallel, "__init__", _refuse_replicas),
    (torch.nn.parallel, "data_parallel", _refuse_replicas),
    (comm, "broadcast", _refuse_replicas),
    (comm, "broadcast_coalesced", _refuse_replicas),
    (comm, "scatter", _refuse_replicas),
    (comm, "gather", _refuse_replicas),
)
"""PyTorch's entry points for several ranks, and the check that runs before each."""


def install() -> None:
    """Refuse several ranks while a program runs on the machine."""
    for owner, name, check in REPLACED:
        replace(owner, name, _check_before(vars(owner)[name], check))
