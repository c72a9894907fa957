"""The process group of PyTorch programs: collectives of the machine for its tensors, exchanges for host tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import reduce as fold
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.distributed import distributed_c10d
from torch.futures import Future

from kernbench.common.errors import InputError
from kernbench.frontends.gpu import DEVICE
from kernbench.frontends.torch.distributed import calls
from kernbench.frontends.torch.distributed.calls import AnyReduction, name_of
from kernbench.frontends.torch.distributed.meetings import KnownNumbers, meetings
from kernbench.frontends.torch.launches import LoadingWorks
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, is_called_cuda, known_elements, put_known
from kernbench.runtime_api import requests
from kernbench.runtime_api.collective_calls import RankGroup

_ON_HOST: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "SUM": torch.add,
        "AVG": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
)
"""The reductions of host tensors, by PyTorch's names."""


class StartedWork(Work):
    """A collective in flight. A launch that uses its tensors begins after it, so no function waits for it."""

    def __init__(self, works: Sequence[requests.Work | None], result: Sequence[Tensor]) -> None:
        super().__init__()
        self.works, self._result = tuple(work for work in works if work is not None), list(result)

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        """Return True at once, as on GPUs."""
        return True

    def synchronize(self) -> None:
        """Do nothing, as ``wait`` does."""

    def is_completed(self) -> bool:
        """Return True if the collective has ended at the current simulated time."""
        return all(work.is_completed() for work in self.works)

    def is_success(self) -> bool:
        """Return True: a collective that fails ends its rank."""
        return True

    def exception(self) -> None:
        """Return None."""

    def result(self) -> list[Tensor]:
        """Return the tensors of the collective."""
        return self._result

    def get_future(self) -> Any:
        """Return a completed future of the tensors."""
        future = Future[object]()
        future.set_result(self._result)
        return future


class SharedWork(StartedWork):
    """A broadcast or a scatter in flight, as of weights."""

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        """Return True at once. Time zero of an initialisation comes after its end."""
        context = current()
        if context.operators.is_loading:
            LoadingWorks.of(context).works.extend(self.works)
        return True


class ReceivedNumbers(StartedWork):
    """A message of whole numbers in flight. ``wait`` waits for it: then a run without data knows what its sender knows.

    A run with data also waits, so that the time is the same.
    """

    def wait(self, timeout: timedelta | None = None) -> bool:  # type: ignore[override]
        """Wait for the message, and return True."""
        return all(work.wait() for work in self.works)


def _reduce_on_host(values: Sequence[Tensor], op: AnyReduction) -> Tensor:
    """Return the reduction of host tensors, one of each rank."""
    name = name_of(op)
    total = fold(_ON_HOST[name], values)
    return total / len(values) if name == "AVG" else total


def _reduction(options: Any) -> AnyReduction:
    return dist.ReduceOp.SUM if options is None else options.reduceOp


class AhbmGroup(dist.ProcessGroup):
    """A group of ranks, as one of them sees it. ``ranks``: their numbers among all ranks."""

    def __init__(self, rank: int, ranks: Sequence[int], *, on_host: bool) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg, arg-type]  # it has no store
        self._rank, self._ranks, self._on_host = rank, tuple(ranks), on_host
        self._n = len(self._ranks)
        is_all = self._n == current().multiprocessing.n_ranks
        self._group = None if is_all else RankGroup(self._ranks)
        self._place = f"group {self._ranks}"
        self._is_member = False

    # what PyTorch asks of a group

    def rank(self) -> int:
        """Return the number of this rank in the group."""
        return self._rank

    def size(self) -> int:
        """Return the number of ranks."""
        return self._n

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the name of the machine's backend."""
        return DEVICE

    @property
    def pg_name(self) -> str:
        """The name under which PyTorch registered the group."""
        return str(distributed_c10d._world.pg_names.get(self, ""))  # noqa: SLF001

    @property
    def group_name(self) -> Any:
        """The name under which PyTorch registered the group."""
        return self.pg_name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu"), torch.device("cuda" if is_called_cuda() else DEVICE)]

    def _get_backend(self, device: torch.device) -> Any:
        return self

    def _get_backend_name(self) -> str:
        return DEVICE

    def _set_default_backend(self, backend_type: object) -> None: ...

    def _register_backend(self, *_: object) -> None: ...

    @property
    def supports_splitting(self) -> bool:
        """False: groups cost nothing."""
        return False

    def abort(self) -> None:
        """Do nothing: the collectives of a rank end with it."""

    def shutdown(self) -> None:
        """Leave the process group of the machine, if this is the group of all ranks."""
        if self._is_member:
            self._is_member = False
            current().distributed.destroy_process_group()

    def join(self) -> None:
        """Join the process group of the machine: this is the group of all ranks."""
        if self._n > 1:
            current().distributed.init_process_group()
            self._is_member = True

    def __repr__(self) -> str:
        return f"AhbmGroup(rank {self._rank} of {list(self._ranks)})"

    # host tensors

    def _exchange(self, name: str, value: Any) -> list[Any]:
        """Return the value of each rank, in no simulated time."""
        return meetings().exchange(name, self._place, self._ranks[self._rank], self._ranks, value)

    def _exchange_numbers(self, x: Tensor) -> list[Tensor] | None:
        """Return the whole numbers of each rank, in a run without data that knows them; else None.

        The ranks also meet in a run with data, so that the time is the same.
        """
        if x.dtype.is_floating_point:
            return None
        values = self._exchange("whole numbers", None if current().has_data else known_elements(x))
        return None if any(value is None for value in values) else values

    # in place

    def _reduce_each(self, name: str, tensors: Sequence[Tensor], op: AnyReduction, root: int | None = None) -> Work:
        """Reduce tensors to all ranks, or to ``root``, a number in the group."""
        of_machine, takes = [], root in (None, self._rank)
        for x in tensors:
            if not isinstance(x, AhbmTensor):
                total = _reduce_on_host(self._exchange(name, x.detach().clone()), op)
                if takes:
                    x.copy_(total)
            elif self._n > 1 and x.numel():
                of_machine.append(x)
        numbers = [self._exchange_numbers(x) for x in of_machine]
        if root is not None:
            works = [calls.reduce(x, self._ranks[root], op, self._group) for x in of_machine]
        else:
            works = [calls.all_reduce(of_machine, op, self._group)] if of_machine else []
        for x, of_ranks in zip(of_machine, numbers, strict=True):
            if of_ranks is not None and takes:
                put_known(x, _reduce_on_host(of_ranks, op))
        return StartedWork(works, tensors)

    def allreduce(self, tensors: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Replace each tensor by its reduction over all ranks."""
        return self._reduce_each("all_reduce", _listed(tensors), _reduction(opts))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """Replace each tensor by its reduction over all ranks."""
        return self._reduce_each("all_reduce", tensors, _reduction(opts))

    def reduce(self, tensors: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Replace the tensors of the root by their reductions over all ranks."""
        return self._reduce_each("reduce", _listed(tensors), _reduction(opts), opts.rootRank)

    def broadcast(self, tensors: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Overwrite each tensor with that of the root."""
        works, root = [], opts.rootRank
        for x in _listed(tensors):
            if not isinstance(x, AhbmTensor):
                values = self._exchange("broadcast", x.detach().clone() if self._rank == root else None)
                if self._rank != root:
                    x.copy_(values[root])
            elif self._n > 1 and x.numel():
                numbers = self._exchange_numbers(x)
                works.append(calls.broadcast(x, self._ranks[root], self._group))
                if numbers is not None:
                    put_known(x, numbers[root])
        return SharedWork(works, _listed(tensors))

    # blocks

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Copy the tensor of each rank to all ranks, for each list of outputs."""
        works = []
        for outputs, x in zip(output_tensors, input_tensors, strict=True):
            if not isinstance(x, AhbmTensor):
                _copy_all(outputs, self._exchange("all_gather", x.detach().clone()))
            elif self._n == 1:
                outputs[0].copy_(x.reshape(outputs[0].shape))
            elif x.numel():
                numbers = self._exchange_numbers(x)
                works.append(calls.all_gather(outputs, x, self._group))
                _put_all(outputs, numbers)
        return StartedWork(works, [x for list_ in output_tensors for x in list_])

    def allgather_coalesced(self, output_lists: list[list[Tensor]], input_list: list[Tensor], opts: Any = None) -> Work:
        """Copy each tensor of each rank to all ranks."""
        by_input = [list(outputs) for outputs in zip(*output_lists, strict=True)]
        return self.allgather(by_input, input_list, opts)

    def all_gather_single_coalesced(
        self, output_lists: list[Tensor], input_list: list[Tensor], opts: Any = None
    ) -> Work:
        """Copy the tensor of each rank r to block r of its output, for each pair of tensors."""
        pairs = self._on_machine(output_lists, input_list)
        for output, x in zip(output_lists, input_list, strict=True):
            if not isinstance(x, AhbmTensor):
                output.copy_(_flat(self._exchange("all_gather", x.detach().clone())).view(output.shape))
        numbers = [self._exchange_numbers(x) for _, x in pairs]
        work = calls.all_gather_into(pairs, self._group) if pairs else None
        for (output, _), of_ranks in zip(pairs, numbers, strict=True):
            if of_ranks is not None:
                put_known(output, _flat(of_ranks))
        return StartedWork([work], output_lists)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:  # noqa: A002
        """Copy the tensor of each rank r to block r of the output."""
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Set the output of rank r to the reduction of input r over all ranks, for each list of inputs."""
        works, op = [], _reduction(opts)
        for output, xs in zip(output_tensors, input_tensors, strict=True):
            if not isinstance(output, AhbmTensor):
                values = self._exchange("reduce_scatter", [x.detach().clone() for x in xs])
                output.copy_(_reduce_on_host([value[self._rank] for value in values], op))
            elif self._n == 1:
                output.copy_(xs[0].reshape(output.shape))
            elif output.numel():
                works.append(calls.reduce_scatter(output, xs, op, self._group))
        return StartedWork(works, output_tensors)

    def reduce_scatter_single_coalesced(
        self,
        outputTensors: list[Tensor],  # noqa: N803
        inputTensors: list[Tensor],  # noqa: N803
        opts: Any = None,
    ) -> Work:
        """Set the output of rank r to the reduction of block r of its input over all ranks, for each pair."""
        op, pairs = _reduction(opts), self._on_machine(outputTensors, inputTensors)
        for output, x in zip(outputTensors, inputTensors, strict=True):
            if not isinstance(output, AhbmTensor):
                total = _reduce_on_host(self._exchange("reduce_scatter", x.detach().clone()), op)
                output.copy_(total.reshape(-1).chunk(self._n)[self._rank].view(output.shape))
        work = calls.reduce_scatter_from(pairs, op, self._group) if pairs else None
        return StartedWork([work], outputTensors)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter_single(self, outputTensor: Tensor, inputTensor: Tensor, opts: Any = None) -> Work:  # noqa: N803
        """Set the output of rank r to the reduction of block r of the input over all ranks."""
        return self.reduce_scatter_single_coalesced([outputTensor], [inputTensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def _on_machine(self, outputs: Sequence[Tensor], xs: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the pairs that the machine has to exchange. With one rank, copy them."""
        pairs = [pair for pair in zip(outputs, xs, strict=True) if isinstance(pair[1], AhbmTensor) and pair[1].numel()]
        if self._n > 1:
            return pairs
        for output, x in pairs:
            output.copy_(x.reshape(output.shape))
        return []

    def alltoall(self, output_tensor: Any, input_tensor: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Copy tensor r of rank s to output s of rank r."""
        outputs, xs = output_tensor, input_tensor
        if not isinstance(xs[0], AhbmTensor):
            values = self._exchange("all_to_all", [x.detach().clone() for x in xs])
            _copy_all(outputs, [value[self._rank] for value in values])
            return StartedWork([], outputs)
        if self._n == 1:
            outputs[0].copy_(xs[0].reshape(outputs[0].shape))
            return StartedWork([], outputs)
        numbers = self._exchange_lists(xs)
        work = calls.all_to_all(outputs, xs, self._group)
        _put_all(outputs, numbers)
        return StartedWork([work], outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Work:
        """Copy block r of the input of rank s to block s of the output of rank r."""
        splits = [list(sizes or ()) for sizes in (output_split_sizes, input_split_sizes)]
        if isinstance(output, AhbmTensor) and self._n > 1 and not any(splits) and output.dtype.is_floating_point:
            return StartedWork([calls.all_to_all_of(output, input, self._group)], [output])
        outputs, xs = (
            list(x.split(_check_splits(side, x, sizes)) if sizes else x.chunk(self._n))
            for side, x, sizes in zip(("output", "input"), (output, input), splits, strict=True)
        )
        if any(splits) and isinstance(output, AhbmTensor):
            rank, nbytes = self._ranks[self._rank], output.numel() * output.itemsize
            notes, place = current().rank_notes, str(program_place())
            notes.note_exchange(place, rank, self._ranks, len(input), len(output), nbytes)
        started: Any = self.alltoall(outputs, xs, opts)
        return StartedWork(started.works, [output])

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _exchange_lists(self, xs: Sequence[Tensor]) -> list[Tensor] | None:
        """Return the whole numbers that each rank sends to this one, as ``_exchange_numbers`` does."""
        if xs[0].dtype.is_floating_point:
            return None
        numbers = None if current().has_data else [known_elements(x) for x in xs]
        values = self._exchange("whole numbers", numbers)
        if any(value is None or any(x is None for x in value) for value in values):
            return None
        return [value[self._rank] for value in values]

    # one rank and the others

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Copy the tensor of each rank to the root."""
        x, root = input_tensors[0], opts.rootRank
        outputs = output_tensors[0] if self._rank == root else None
        if isinstance(x, AhbmTensor) and self._n > 1:
            numbers = self._exchange_numbers(x)
            work = calls.gather(outputs, x, self._ranks[root], self._group)
            if outputs is not None:
                _put_all(outputs, numbers)
            return StartedWork([work], [x])
        values = self._exchange("gather", x if isinstance(x, AhbmTensor) else x.detach().clone())
        if outputs is not None:
            _copy_all(outputs, values)
        return StartedWork([], [x])

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Copy tensor r of the root to rank r."""
        output, root = output_tensors[0], opts.rootRank
        xs = input_tensors[0] if self._rank == root else []
        if isinstance(output, AhbmTensor) and self._n > 1:
            return SharedWork([calls.scatter(output, xs or None, self._ranks[root], self._group)], [output])
        values = self._exchange("scatter", [x if isinstance(x, AhbmTensor) else x.detach().clone() for x in xs])
        output.copy_(values[root][self._rank])
        return StartedWork([], [output])

    # messages

    def send(self, tensors: list[Tensor], dstRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Send a tensor to a rank of the group."""
        (x,) = tensors
        if isinstance(x, AhbmTensor):
            work = calls.send(x, self._ranks[dstRank], self._group)
            if not current().has_data:
                self._numbers_to(self._rank, dstRank).send(None if x.dtype.is_floating_point else known_elements(x))
            return StartedWork([work], tensors)
        store = meetings().messages(self._place, self._rank, dstRank, tag)
        store.put(x.detach().clone())
        return StartedWork([], tensors)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Receive a tensor from a rank of the group."""
        (x,) = tensors
        if isinstance(x, AhbmTensor):
            work = calls.receive(x, self._ranks[srcRank], self._group)
            if not current().has_data:
                self._numbers_to(srcRank, self._rank).receive(lambda elements: put_known(x, elements))
            return (StartedWork if x.dtype.is_floating_point else ReceivedNumbers)([work], tensors)
        x.copy_(meetings().messages(self._place, srcRank, self._rank, tag).take())
        return StartedWork([], tensors)

    def _numbers_to(self, source: int, to: int) -> KnownNumbers:
        return meetings().numbers(self._ranks[source], self._ranks[to])

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        """Refuse to receive from any rank: the machine's queues are between two ranks."""
        calls.refuse_source()

    def barrier(self, opts: Any = None, *_: object) -> Work:  # type: ignore[override]
        """Wait until all ranks have called barrier."""
        if self._on_host or self._n == 1:
            self._exchange("barrier", None)
        else:
            calls.barrier(self._group)
        return StartedWork([], [])

    def monitored_barrier(self, *_: object, **__: object) -> None:
        """Wait on the host until all ranks have called this function."""
        self._exchange("barrier", None)

    # coalesced calls start one by one

    def _start_coalescing(self, device: torch.device) -> None: ...

    def _end_coalescing(self, device: torch.device) -> Work:
        return StartedWork([], [])


def _check_splits(side: str, x: Tensor, sizes: list[int]) -> list[int]:
    """Return split sizes. Raises InputError unless they add up to the rows of the tensor."""
    if sum(sizes) != len(x):
        source = current().engine.keeping.zeros_of
        unknown = f"; this run keeps no data and read zeros from {source}: run it with --data" if source else ""
        raise InputError(
            f"{program_place()}: all_to_all_single: {side} splits {sizes} of {len(x)} rows: their sum must be the "
            f"number of rows{unknown}"
        )
    return sizes


def _listed(tensors: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _copy_all(outputs: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for output, x in zip(outputs, values, strict=True):
        output.copy_(x)


def _put_all(outputs: Sequence[Tensor], numbers: Sequence[Tensor] | None) -> None:
    """In a run without data, store the whole numbers that ranks have exchanged."""
    for output, elements in zip(outputs, numbers or (), strict=numbers is not None):
        put_known(output, elements)


def _flat(values: Sequence[Tensor]) -> Tensor:
    return torch.cat([x.reshape(-1) for x in values])
