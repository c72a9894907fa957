"""Collectives of the machine for PyTorch's tensors: the only calls of ``context.distributed`` by this front end.

They run on the PEs of ``torch.comm``. A contiguous tensor is an operand without a copy, wherever it is in its storage;
any other tensor is copied to a storage of its own, and back. No function waits for the collective: a launch that uses
its tensors begins after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias

import torch.distributed as dist
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current, machine_type
from kernbench.frontends.torch.tensor import AhbmTensor, new, on_machine, sip_of, storage_of
from kernbench.runtime_api.collective_calls import RankGroup
from kernbench.runtime_api.collective_operands import TensorPart
from kernbench.runtime_api.collective_pes import collective_pes
from kernbench.runtime_api.distributed import Distributed
from kernbench.runtime_api.layout import TensorKey
from kernbench.runtime_api.requests import Work

REDUCTIONS = MappingProxyType(
    {name: name.lower() for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")}
)
"""Names of reductions of the machine, by those of PyTorch."""
AnyReduction = Any
"""A ``ReduceOp`` of PyTorch, or a member of its enumeration."""
Pairs: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""Outputs, each with its input."""


def name_of(op: AnyReduction) -> str:
    """Return PyTorch's name of a reduction. Raises InputError for one that the machine lacks."""
    name = next((name for name in REDUCTIONS if op == getattr(dist.ReduceOp, name)), None)
    if name is None:
        names = ", ".join(REDUCTIONS)
        raise InputError(f"{program_place()}: a reduction by {op}: the machine has {names}; scale the tensor before")
    return name


@value
class _RankCollectives:
    """The collectives of a rank, on the PEs of ``torch.comm``."""

    distributed: Distributed


def collectives() -> Distributed:
    """Return the machine's collectives for this rank. Raises InputError if ``torch.comm`` does not fit the machine."""
    context = current()
    local = context.rank_local.get(_RankCollectives)
    if local is None:
        pes = collective_pes(context.frontends.torch, context.topology)
        context.rank_local.put(local := _RankCollectives(context.distributed.on(pes)))
    return local.distributed


class _Staging:
    """The operands of a collective: contiguous tensors, in place of those that are not.

    It holds copies until the collective has started, since the memory of a dropped tensor is reused.
    """

    def __init__(self) -> None:
        self._copies: list[AhbmTensor] = []
        self._results: list[tuple[Tensor, AhbmTensor]] = []
        self._written: list[AhbmTensor] = []
        self._targets: list[AhbmTensor] = []

    def read(self, x: Tensor) -> TensorPart:
        """Return an operand that is read."""
        return _part_of(self._contiguous(x, is_read=True))

    def write(self, x: Tensor, *, is_read: bool = False) -> TensorPart:
        """Return an operand that is written. ``is_read``: the collective also reads it."""
        dense = self._contiguous(x, is_read=is_read)
        if dense is not x:
            self._results.append((x, dense))
        self._written.append(on_machine(x))
        self._targets.append(dense)
        return _part_of(dense)

    def _contiguous(self, x: Tensor, *, is_read: bool) -> AhbmTensor:
        if not isinstance(x, AhbmTensor):
            raise InputError(
                f"{program_place()}: a collective of a tensor on {x.device} and one of the machine; move both to one"
            )
        if x.is_contiguous():
            return x
        dense = new(tuple(x.shape), x.dtype, sip_of(x))
        self._copies.append(dense)
        if is_read:
            dense.copy_(x)
        return dense

    def list_results(self) -> Iterator[tuple[TensorKey, bool]]:
        """Yield the storage of each result of the machine, and whether the result is all of it."""
        for x in self._targets:
            part = _part_of(x)
            yield part.tensor.layout.key, part.size * part.dtype.itemsize == part.tensor.nbytes

    def finish(self) -> None:
        """Copy results to tensors that are not contiguous. In a run without data, forget the written values."""
        context = current()
        if not context.has_data:
            for written in self._written:
                context.known_values.forget(storage_of(written).tensor)
        for x, dense in self._results:
            x.copy_(dense)


def _part_of(x: AhbmTensor) -> TensorPart:
    tensor, offset = x.place()
    return TensorPart(tensor, offset, x.numel(), machine_type(x.dtype))


def _start(
    name: str,
    xs: Sequence[Tensor],
    group: RankGroup | None,
    call: Callable[[Distributed, _Staging], Work | None],
    place: Hashable | None = None,
) -> Work | None:
    """Start a collective: ``call`` prepares its operands and calls the machine.

    ``xs``: the tensors whose bytes the report counts. ``place``: as for ``CollectiveTallies.note``; None: the group.
    """
    staging, context = _Staging(), current()
    work = call(collectives(), staging)
    rank, where = context.distributed.get_rank(), group if place is None else place
    context.alike_work.note_collective(name, where, rank, staging.list_results())
    staging.finish()
    nbytes = sum(x.numel() * x.element_size() for x in xs)
    context.collectives.note(name, nbytes, _size_of(group), where, rank, work)
    return work


def _size_of(group: RankGroup | None) -> int:
    return current().multiprocessing.n_ranks if group is None else group.size


def all_reduce(xs: Sequence[Tensor], op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start an all-reduce of one tensor, or of several as one collective."""
    reduction = REDUCTIONS[name_of(op)]

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        parts = [staging.write(x, is_read=True) for x in xs]
        if len(parts) == 1:
            return machine.all_reduce(parts[0], reduction, group, async_op=True, elementwise=True)
        return machine.all_reduce_coalesced(parts, reduction, group, async_op=True)

    return _start("all_reduce", xs, group, call)


def broadcast(x: Tensor, root: int, group: RankGroup | None) -> Work | None:
    """Start a broadcast from rank ``root``, counted among all ranks, as are the roots and peers below."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        return machine.broadcast(staging.write(x, is_read=True), root, group, async_op=True)

    return _start("broadcast", [x], group, call)


def reduce(x: Tensor, root: int, op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start a reduce to rank ``root``."""
    reduction = REDUCTIONS[name_of(op)]

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        return machine.reduce(staging.write(x, is_read=True), root, reduction, group, async_op=True)

    return _start("reduce", [x], group, call)


def all_gather(outputs: Sequence[Tensor], x: Tensor, group: RankGroup | None) -> Work | None:
    """Start an all-gather into a tensor for each rank."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        parts = [staging.write(output) for output in outputs]
        return machine.all_gather(parts, staging.read(x), group, async_op=True)

    return _start("all_gather", outputs, group, call)


def all_gather_into(pairs: Pairs, group: RankGroup | None) -> Work | None:
    """Start an all-gather of each tensor into its output, as one collective."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        written, read = [staging.write(output) for output, _ in pairs], [staging.read(x) for _, x in pairs]
        if len(read) == 1:
            return machine.all_gather_into_tensor(written[0], read[0], group, async_op=True)
        return machine.all_gather_into_tensor_coalesced(written, read, group, async_op=True)

    return _start("all_gather", [output for output, _ in pairs], group, call)


def reduce_scatter(output: Tensor, xs: Sequence[Tensor], op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start a reduce-scatter of a tensor for each rank."""
    reduction = REDUCTIONS[name_of(op)]

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        parts = [staging.read(x) for x in xs]
        return machine.reduce_scatter(staging.write(output), parts, reduction, group, async_op=True)

    return _start("reduce_scatter", xs, group, call)


def reduce_scatter_from(pairs: Pairs, op: AnyReduction, group: RankGroup | None) -> Work | None:
    """Start a reduce-scatter of each tensor, with a block for each rank, as one collective."""
    reduction = REDUCTIONS[name_of(op)]

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        written, read = [staging.write(output) for output, _ in pairs], [staging.read(x) for _, x in pairs]
        if len(read) == 1:
            return machine.reduce_scatter_tensor(written[0], read[0], reduction, group, async_op=True)
        return machine.reduce_scatter_tensor_coalesced(written, read, reduction, group, async_op=True)

    return _start("reduce_scatter", [x for _, x in pairs], group, call)


def all_to_all(outputs: Sequence[Tensor], xs: Sequence[Tensor], group: RankGroup | None) -> Work | None:
    """Start an all-to-all of a tensor for each rank, of any sizes."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        parts = [staging.write(output) for output in outputs]
        return machine.all_to_all(parts, [staging.read(x) for x in xs], group, async_op=True)

    return _start("all_to_all", xs, group, call)


def all_to_all_of(output: Tensor, x: Tensor, group: RankGroup | None) -> Work | None:
    """Start an all-to-all of one tensor with a block for each rank, all of one size."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        return machine.all_to_all_single(staging.write(output), staging.read(x), None, None, group, async_op=True)

    return _start("all_to_all", [x], group, call)


def gather(outputs: Sequence[Tensor] | None, x: Tensor, root: int, group: RankGroup | None) -> Work | None:
    """Start a gather to rank ``root``, which has an output for each rank."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        parts = None if outputs is None else [staging.write(output) for output in outputs]
        return machine.gather(staging.read(x), parts, root, group, async_op=True)

    return _start("gather", [x] * _size_of(group), group, call)


def scatter(output: Tensor, xs: Sequence[Tensor] | None, root: int, group: RankGroup | None) -> Work | None:
    """Start a scatter from rank ``root``, which has a tensor for each rank."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        parts = None if xs is None else [staging.read(x) for x in xs]
        return machine.scatter(staging.write(output), parts, root, group, async_op=True)

    return _start("scatter", [output] * _size_of(group), group, call)


def send(x: Tensor, to: int, group: RankGroup | None) -> Work | None:
    """Start a message to rank ``to``."""

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        return machine.isend(staging.read(x), to, group)

    work = _start("send_recv", [x], group, call, ("message", current().distributed.get_rank(), to))
    if work is not None:
        current().rank_notes.note_message(work.handles[-1].request_id, to)
    return work


def receive(x: Tensor, source: int, group: RankGroup | None) -> Work | None:
    """Start to receive a message from rank ``source``.

    On the PEs of tensors, a receive that waits for its message would delay launches before it that have yet to begin.
    The host waits for those first.
    """
    pes = collectives().pes
    if pes is not None and pes.are_owners:
        current().queue.wait(sip_of(on_machine(x)))

    def call(machine: Distributed, staging: _Staging) -> Work | None:
        return machine.irecv(staging.write(x), source, group)

    return _start("send_recv", [x], group, call, ("message", source, current().distributed.get_rank()))


def barrier(group: RankGroup | None) -> None:
    """Wait for the launches of this rank, then for all ranks."""
    current().accelerator.synchronize()
    collectives().barrier(group)


def refuse_source() -> NoReturn:
    """Refuse to receive from any rank: the machine's queues are between two ranks."""
    raise InputError(f"{program_place()}: recv without a source: name the rank, src=N")
