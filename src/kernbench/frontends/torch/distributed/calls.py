"""Collectives of the machine for PyTorch's tensors: the only calls of ``context.distributed`` by this front end.

A collective works on complete storages. A tensor that is part of a storage is copied to a storage of its own, and back.
No function waits for the collective: a launch that uses its tensors begins after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import torch.distributed as dist
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, is_whole, new, sip_of, storage_of
from kernbench.runtime_api import tensor as machine
from kernbench.runtime_api.collective_calls import RankGroup
from kernbench.runtime_api.requests import Work

_REDUCTIONS = MappingProxyType({"SUM": "sum", "AVG": "avg", "MAX": "max", "MIN": "min"})
"""Names of reductions of the machine, by those of PyTorch."""
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
"""Names of all reductions of PyTorch."""
AnyReduction = Any
"""A ``ReduceOp`` of PyTorch, or a member of its enumeration."""


def refuse(what_is_missing: str) -> NoReturn:
    """Raise InputError, at the line of the program, for a collective that the machine does not have yet."""
    raise InputError(
        f"{program_place()}: {what_is_missing}: the machine does not have this collective; move the tensors to the "
        "host, .cpu(), where ranks exchange them in no simulated time"
    )


def reduction_name(op: AnyReduction) -> str:
    """Return the machine's name of a reduction. Raises InputError for one that the machine lacks."""
    name = next((name for name in REDUCTIONS if op == getattr(dist.ReduceOp, name)), str(op))
    if name not in _REDUCTIONS:
        refuse(f"a reduction by {name}, not one of {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[name]


def machine_tensor(x: AhbmTensor) -> machine.Tensor:
    """Return the machine's tensor with exactly the elements of ``x``, which is whole."""
    return storage_of(x).tensor


def is_own_storage(x: AhbmTensor) -> bool:
    """Return whether a collective can work on the storage of a tensor directly."""
    return is_whole(x) and storage_of(x).dtype is x.dtype


class _Staging:
    """The operands of a collective: whole tensors, in place of those that are part of a storage.

    It holds the whole tensors until the collective has started, since the memory of a dropped tensor is reused.
    """

    def __init__(self) -> None:
        self._staged: list[AhbmTensor] = []
        self._results: list[tuple[Tensor, AhbmTensor]] = []

    def read(self, x: Tensor) -> machine.Tensor:
        """Return an operand that is read."""
        return machine_tensor(self._whole(x, is_read=True))

    def write(self, x: Tensor, *, is_read: bool = False) -> machine.Tensor:
        """Return an operand that is written. ``is_read``: the collective also reads it."""
        staged = self._whole(x, is_read=is_read)
        if staged is not x:
            self._results.append((x, staged))
        return machine_tensor(staged)

    def _whole(self, x: Tensor, *, is_read: bool) -> AhbmTensor:
        if not isinstance(x, AhbmTensor):
            raise InputError(
                f"{program_place()}: a collective of a tensor on {x.device} and one of the machine; move both to one"
            )
        if is_own_storage(x):
            return x
        staged = new(tuple(x.shape), x.dtype, sip_of(x))
        self._staged.append(staged)
        if is_read:
            staged.copy_(x)
        return staged

    def finish(self, work: Work | None, written: Sequence[Tensor]) -> Work | None:
        """Copy results to tensors that are part of a storage. In a run without data, forget the written values."""
        context = current()
        if not context.has_data:
            for x in written:
                context.known_values.forget(storage_of(x).tensor)
        for x, staged in self._results:
            x.copy_(staged)
        return work


def all_reduce(x: Tensor, op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start an all-reduce."""
    staging, name = _Staging(), reduction_name(op)
    tensor = staging.write(x, is_read=True)
    work = current().distributed.all_reduce(tensor, name, group, async_op=True, elementwise=True)
    return staging.finish(work, [x])


def broadcast(x: Tensor, root: int, group: RankGroup | None) -> Work | None:
    """Start a broadcast from rank ``root``, counted among all ranks."""
    staging = _Staging()
    tensor = staging.write(x, is_read=True)
    return staging.finish(current().distributed.broadcast(tensor, root, group, async_op=True), [x])


def reduce(x: Tensor, root: int, op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start a reduce to rank ``root``, counted among all ranks."""
    staging, name = _Staging(), reduction_name(op)
    tensor = staging.write(x, is_read=True)
    return staging.finish(current().distributed.reduce(tensor, root, name, group, async_op=True), [x])


def all_gather(outputs: Sequence[Tensor], x: Tensor, group: RankGroup | None) -> Work | None:
    """Start an all-gather into a tensor for each rank."""
    staging = _Staging()
    tensors = [staging.write(output) for output in outputs]
    work = current().distributed.all_gather(tensors, staging.read(x), group, async_op=True)
    return staging.finish(work, outputs)


def all_gather_into(output: Tensor, x: Tensor, group: RankGroup | None) -> Work | None:
    """Start an all-gather into one tensor."""
    staging = _Staging()
    work = current().distributed.all_gather_into_tensor(staging.write(output), staging.read(x), group, async_op=True)
    return staging.finish(work, [output])


def reduce_scatter(output: Tensor, xs: Sequence[Tensor], op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start a reduce-scatter of a tensor for each rank."""
    staging, name = _Staging(), reduction_name(op)
    tensors = [staging.read(x) for x in xs]
    work = current().distributed.reduce_scatter(staging.write(output), tensors, name, group, async_op=True)
    return staging.finish(work, [output])


def reduce_scatter_from(output: Tensor, x: Tensor, op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start a reduce-scatter of one tensor with a block for each rank."""
    staging, name = _Staging(), reduction_name(op)
    tensor = staging.write(output)
    work = current().distributed.reduce_scatter_tensor(tensor, staging.read(x), name, group, async_op=True)
    return staging.finish(work, [output])


def all_to_all(outputs: Sequence[Tensor], xs: Sequence[Tensor], group: RankGroup | None) -> Work | None:
    """Start an all-to-all of a tensor for each rank, all of one size."""
    if len({x.numel() for x in (*outputs, *xs)}) > 1:
        refuse("all_to_all of blocks of different sizes")
    staging = _Staging()
    tensors = [staging.write(output) for output in outputs]
    work = current().distributed.all_to_all(tensors, [staging.read(x) for x in xs], group, async_op=True)
    return staging.finish(work, outputs)


def all_to_all_of(output: Tensor, x: Tensor, group: RankGroup | None) -> Work | None:
    """Start an all-to-all of one tensor with a block for each rank, all of one size."""
    staging = _Staging()
    tensor = staging.write(output)
    work = current().distributed.all_to_all_single(tensor, staging.read(x), None, None, group, async_op=True)
    return staging.finish(work, [output])


def send(x: Tensor, to: int, group: RankGroup | None) -> Work | None:
    """Start a message to rank ``to``, counted among all ranks."""
    staging = _Staging()
    return staging.finish(current().distributed.isend(staging.read(x), to, group), [])


def receive(x: Tensor, source: int, group: RankGroup | None) -> Work | None:
    """Start to receive a message from rank ``source``, counted among all ranks."""
    staging = _Staging()
    return staging.finish(current().distributed.irecv(staging.write(x), source, group), [x])


def barrier(group: RankGroup | None) -> None:
    """Wait for the launches of this rank, then for all ranks."""
    context = current()
    context.accelerator.synchronize()
    context.distributed.barrier(group)
