"""``torch.distributed``: process groups and collectives. A rank is a SIP."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TypeAlias

from kernbench.ccl.config import AlgorithmConfig
from kernbench.common.errors import InputError
from kernbench.runtime_api.arrays import whole_number
from kernbench.runtime_api.collective_calls import RankGroup, group_of
from kernbench.runtime_api.collective_operands import (
    Operand,
    TensorPart,
    check_apart,
    check_fit,
    check_one_dtype,
    find_blocks,
    find_coalesced,
    find_stretch,
    has_blocks_of_any_size,
    split_rows,
)
from kernbench.runtime_api.collective_operations import Member
from kernbench.runtime_api.collective_pes import CollectivePes
from kernbench.runtime_api.collectives import Collectives
from kernbench.runtime_api.process_group import ProcessGroups
from kernbench.runtime_api.ranks import Workers, wants_debugging
from kernbench.runtime_api.requests import Requests, Work

BACKEND = "ahbm"


class WholeGroup:
    """``torch.distributed.group``, whose ``WORLD`` stands for all ranks, as None does."""

    WORLD: RankGroup | None = None


class ReduceOp(StrEnum):
    """The operators that combine contributions to one value; their names are accepted as strings too."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    AVG = "avg"
    PRODUCT = "product"
    BAND = "band"
    BOR = "bor"
    BXOR = "bxor"


MessageCall: TypeAlias = Callable[[Operand, int, RankGroup | None], Work]
"""``isend`` or ``irecv``"""


class BatchedMessage:
    """A message of a batch: ``op``, which is ``isend`` or ``irecv``, of ``tensor`` with rank ``peer``."""

    __slots__ = ("group", "op", "peer", "tensor")

    def __init__(self, op: MessageCall, tensor: Operand, peer: int, group: RankGroup | None = None) -> None:
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group


class Distributed:
    """``torch.distributed`` of one context; every call acts for the running rank.

    A collective blocks and returns None, or with ``async_op=True`` returns a Work at once. The tensors of a rank are on
    its SIP, with the same shape, dtype and layout on all ranks. ``group``: a result of ``new_group``; None: all ranks.
    """

    P2POp = BatchedMessage
    ReduceOp = ReduceOp
    TensorPart = TensorPart
    group = WholeGroup
    __slots__ = ("_collectives", "_groups", "_requests", "_workers")

    def __init__(self, groups: ProcessGroups, collectives: Collectives, requests: Requests, workers: Workers) -> None:
        self._groups, self._collectives = groups, collectives
        self._requests, self._workers = requests, workers

    def on(self, pes: CollectivePes) -> Distributed:
        """Return this interface for collectives on ``pes``, whatever PEs own the tensors.

        Operands must store their elements in order, each once. Ranks may call a collective with tensors of different
        shapes, if the numbers of elements are equal. All-reduce is elementwise over ranks.
        """
        return Distributed(self._groups, self._collectives.on(pes), self._requests, self._workers)

    @property
    def pes(self) -> CollectivePes | None:
        """The PEs that run collectives; None: those that own the tensors."""
        return self._collectives.pes

    @property
    def algorithm(self) -> AlgorithmConfig:
        """The algorithm that ccl.yaml configures for all_reduce; it reduces the tensors whose layout it accepts."""
        return self._groups.load_configured().config

    def init_process_group(
        self,
        backend: str | None = BACKEND,
        init_method: str | None = None,
        timeout: object = None,
        world_size: int = -1,
        rank: int = -1,
        *,
        device_id: object = None,
    ) -> None:
        """Join the process group; return when all ranks have joined and the queues between them are installed.

        If the program itself calls this before ``spawn``, the queues are installed then. The ranks are members from the
        start, and the call returns at once in each of them.

        ``world_size`` and ``rank`` may be omitted; if present, they must be those of the spawn. ``init_method``,
        ``timeout`` and ``device_id`` are PyTorch's and have no effect. Raises InputError for another backend, and
        unless there is a rank for every SIP.
        """
        if backend not in (None, BACKEND):
            raise InputError(f"backend {backend!r}: the backend of this machine is {BACKEND!r}")
        worker = self._workers.current
        if rank not in (-1, worker.rank):
            raise InputError(f"init_process_group: rank={rank}, but this is rank {worker.rank}")
        if world_size not in (-1, self._groups.world_size):
            raise InputError(
                f"init_process_group: world_size={world_size}, but there are {self._groups.world_size} SIPs"
            )
        self._groups.join(worker)

    def destroy_process_group(self, group: RankGroup | None = None) -> None:
        """Wait for this rank's requests in flight, and leave the group; the last rank to leave removes the queues.

        If the program itself created the group, the program's call removes the queues, once the ranks have ended. A
        ``group`` of some ranks has no state: the call destroys nothing.
        """
        if group is not None:
            self._find_member("destroy_process_group", group)
            return
        self._groups.leave(self._workers.current)

    def is_available(self) -> bool:
        """Return True."""
        return True

    def is_initialized(self) -> bool:
        """Return True when this rank is in a process group."""
        return self._groups.of(self._workers.current) is not None

    def new_group(self, ranks: Iterable[int] | None = None) -> RankGroup:
        """Return a group of some ranks, by default of all, as the argument ``group`` of collectives.

        The call takes no simulated time.

        Collectives identify roots by their rank among all ranks. Blocks are in ascending order of rank.
        """
        return group_of(ranks, self._find_member("new_group", None).group.world_size)

    def get_process_group_ranks(self, group: RankGroup | None = None) -> list[int]:
        """Return the ranks of a group; without a group, all ranks."""
        return list(range(self.get_world_size())) if group is None else list(group.ranks)

    def get_rank(self, group: RankGroup | None = None) -> int:
        """Return the number of this rank in the world, or in ``group`` (-1 if it is not a member).

        Outside a rank return 0, with a warning under KERNBENCH_DEBUG=1.
        """
        worker = self._workers.current
        if not worker.spawned and wants_debugging():
            warnings.warn("get_rank() outside a rank of torch.multiprocessing.spawn is 0", RuntimeWarning, stacklevel=2)
        return worker.rank if group is None else group.rank_of(worker.rank)

    def get_world_size(self, group: RankGroup | None = None) -> int:
        """Return the number of ranks of ``group``, else of this rank's process group, else of the spawn."""
        if group is not None:
            return group.size
        process_group = self._groups.of(self._workers.current)
        return self._workers.current.n_ranks if process_group is None else process_group.world_size

    def get_backend(self, group: RankGroup | None = None) -> str:
        """Return ``"ahbm"``. Raises InputError without a process group, or if this rank is not in ``group``."""
        self._find_member("get_backend", group)
        return BACKEND

    def cooperative_yield(self) -> None:
        """Let other ranks run, and advance time to the next completion of any request in flight."""
        self._requests.give_way()

    def all_reduce(
        self,
        tensor: Operand,
        op: str | None = None,
        group: RankGroup | None = None,
        async_op: bool = False,
        *,
        elementwise: bool = False,
    ) -> Work | None:
        """Replace every element with the reduction of that element over all ranks.

        The algorithm configured in ccl.yaml runs if it accepts the layout of the tensor. Otherwise ``sip_allreduce``
        runs in its place, with one warning for each algorithm; with ``strict`` in ccl.yaml, InputError is raised
        instead. ``op`` None: the ``reduce_op`` of ccl.yaml, else the sum.

        The packaged default, ``intercube_allreduce``, accepts a tensor with one row per cube and also reduces over the
        cubes. ``elementwise``, which PyTorch does not have, selects ``sip_allreduce`` for any layout, with the sum
        unless ``op`` is set.
        """
        member = self._require_rank("all_reduce", group)
        stretch, reduction = find_stretch(member.rank, tensor), None if op is None else _check_op(op)
        return _finish(self._collectives.all_reduce(member, [stretch], reduction, elementwise=elementwise), async_op)

    def all_reduce_coalesced(
        self,
        tensors: Sequence[Operand],
        op: str = ReduceOp.SUM,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Reduce several tensors elementwise over ranks, as one collective."""
        name = "all_reduce_coalesced"
        member = self._require_rank(name, group)
        stretches = find_coalesced(name, member, tensors)
        return _finish(self._collectives.all_reduce(member, stretches, _check_op(op)), async_op)

    def broadcast(
        self, tensor: Operand, src: int, group: RankGroup | None = None, async_op: bool = False
    ) -> Work | None:
        """Overwrite the tensor of every rank with the tensor of rank ``src``."""
        member = self._require_rank("broadcast", group)
        stretch, root = find_stretch(member.rank, tensor), _check_rank(member, "src", src)
        return _finish(self._collectives.in_place(member, "broadcast", stretch, root), async_op)

    def reduce(
        self, tensor: Operand, dst: int, op: str = ReduceOp.SUM, group: RankGroup | None = None, async_op: bool = False
    ) -> Work | None:
        """Replace the tensor of rank ``dst`` with the reduction over all ranks; other ranks' tensors do not change."""
        member = self._require_rank("reduce", group)
        stretch, root = find_stretch(member.rank, tensor), _check_rank(member, "dst", dst)
        return _finish(self._collectives.in_place(member, "reduce", stretch, root, _check_op(op)), async_op)

    def scatter(
        self,
        tensor: Operand,
        scatter_list: Sequence[Operand] | None = None,
        src: int = 0,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Copy ``scatter_list[r]`` of rank ``src`` to the tensor of rank r; other ranks give no list."""
        return self._exchange_with_root("scatter", tensor, scatter_list, "src", src, group, async_op)

    def gather(
        self,
        tensor: Operand,
        gather_list: Sequence[Operand] | None = None,
        dst: int = 0,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Copy the tensor of rank r to ``gather_list[r]`` of rank ``dst``; other ranks give no list."""
        return self._exchange_with_root("gather", tensor, gather_list, "dst", dst, group, async_op)

    def all_gather(
        self,
        tensor_list: Sequence[Operand] | Operand,
        tensor: Operand,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Copy the tensor of each rank r to ``tensor_list[r]`` on every rank.

        If ``tensor_list`` is a tensor, the call is an all_gather_into_tensor.
        """
        return self._exchange_blocks("all_gather", tensor, tensor_list, None, group, async_op)

    def all_gather_into_tensor(
        self, output_tensor: Operand, input_tensor: Operand, group: RankGroup | None = None, async_op: bool = False
    ) -> Work | None:
        """Copy the input of rank r to block r of the output, which is as large as all inputs together."""
        return self._exchange_blocks("all_gather", input_tensor, output_tensor, None, group, async_op)

    def reduce_scatter(
        self,
        output: Operand,
        input_list: Sequence[Operand] | Operand,
        op: str = ReduceOp.SUM,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Set the output of rank r to the reduction of ``input_list[r]`` over all ranks.

        If ``input_list`` is a tensor, the call is a reduce_scatter_tensor.
        """
        return self._exchange_blocks("reduce_scatter", input_list, output, _check_op(op), group, async_op)

    def reduce_scatter_tensor(
        self,
        output: Operand,
        input: Operand,  # noqa: A002 - PyTorch's name
        op: str = ReduceOp.SUM,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Set the output of rank r to the reduction of block r of the input over all ranks."""
        return self._exchange_blocks("reduce_scatter", input, output, _check_op(op), group, async_op)

    def all_to_all(
        self,
        output_tensor_list: Sequence[Operand],
        input_tensor_list: Sequence[Operand],
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Copy ``input_tensor_list[r]`` of rank s to ``output_tensor_list[s]`` of rank r, for all r and s."""
        return self._exchange_blocks("all_to_all", input_tensor_list, output_tensor_list, None, group, async_op)

    def all_gather_into_tensor_coalesced(
        self,
        output_tensors: Sequence[Operand],
        input_tensors: Sequence[Operand],
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Call all_gather_into_tensor for each output and its input, as one collective."""
        return self._coalesce("all_gather", input_tensors, output_tensors, None, group, async_op)

    def reduce_scatter_tensor_coalesced(
        self,
        outputs: Sequence[Operand],
        inputs: Sequence[Operand],
        op: str = ReduceOp.SUM,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Call reduce_scatter_tensor for each output and its input, as one collective."""
        return self._coalesce("reduce_scatter", inputs, outputs, _check_op(op), group, async_op)

    def all_to_all_single(
        self,
        output: Operand,
        input: Operand,  # noqa: A002 - PyTorch's name
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: RankGroup | None = None,
        async_op: bool = False,
    ) -> Work | None:
        """Copy block r of the input of rank s to block s of the output of rank r.

        All blocks have one size, or the sizes of the splits: rows of a tensor, or elements of a TensorPart. If one rank
        gives splits, all ranks have to.
        """
        if output_split_sizes is None and input_split_sizes is None:
            return self._exchange_blocks("all_to_all", input, output, None, group, async_op)
        name = "all_to_all_single"
        member = self._require_rank(name, group)
        come, go = (
            split_rows(name, member, side, operand, sizes)
            for side, operand, sizes in (("input", input, input_split_sizes), ("output", output, output_split_sizes))
        )
        check_one_dtype(name, (*come, *go))
        return _finish(self._collectives.exchange(member, name, come, go), async_op)

    def barrier(
        self,
        group: RankGroup | None = None,
        async_op: bool = False,
        device_ids: object = None,
    ) -> Work | None:
        """Wait until all ranks have called barrier.

        ``device_ids`` is accepted for PyTorch programs and has no effect: a rank has one SIP.
        """
        return _finish(self._collectives.barrier(self._require_rank("barrier", group)), async_op)

    def send(self, tensor: Operand, dst: int, group: RankGroup | None = None) -> None:
        """Send to rank ``dst``; return when the tensor has arrived and may be overwritten."""
        self.isend(tensor, dst, group).wait()

    def recv(self, tensor: Operand, src: int, group: RankGroup | None = None) -> int:
        """Receive from rank ``src``, and return ``src``."""
        self.irecv(tensor, src, group).wait()
        return src

    def batch_isend_irecv(self, p2p_op_list: Sequence[BatchedMessage]) -> list[Work]:
        """Post the messages in order, each like a call of its ``op``, and return the Work of each message.

        Raises InputError for an ``op`` that is neither ``isend`` nor ``irecv``, before posting any.
        """
        for message in p2p_op_list:
            if message.op not in (self.isend, self.irecv):
                raise InputError(f"batch_isend_irecv: op={message.op!r}, must be isend or irecv of torch.distributed")
        return [message.op(message.tensor, message.peer, message.group) for message in p2p_op_list]

    def isend(self, tensor: Operand, dst: int, group: RankGroup | None = None) -> Work:
        """Send as ``send`` does, but return at once.

        The posted messages of a rank are in flight at the same time, in both directions: no order of posting can block
        another message. Messages from one rank to another arrive in order.
        """
        member = self._require_rank("isend", group)
        return self._start_message(member, tensor, member.rank, _check_rank(member, "dst", dst))

    def irecv(self, tensor: Operand, src: int, group: RankGroup | None = None) -> Work:
        """Receive as ``recv`` does, but return at once."""
        member = self._require_rank("irecv", group)
        return self._start_message(member, tensor, _check_rank(member, "src", src), member.rank)

    def _start_message(self, member: Member, tensor: Operand, src: int, dst: int) -> Work:
        if src == dst:
            raise InputError(f"rank {src} cannot send to itself")
        return self._collectives.message(member, find_stretch(member.rank, tensor), src, dst)

    def _exchange_blocks(
        self,
        name: str,
        inputs: Sequence[Operand] | Operand,
        outputs: Sequence[Operand] | Operand,
        op: str | None,
        group: RankGroup | None,
        async_op: bool,
    ) -> Work | None:
        member = self._require_rank(name, group)
        lists = [find_blocks(name, member, side) for side in (inputs, outputs)]
        check_apart(name, lists[1])
        if self.pes is not None and has_blocks_of_any_size(name, lists, member.size):
            check_one_dtype(name, (*lists[0], *lists[1]))
            inputs_by_rank = lists[0] if name == "all_to_all" else lists[0] * member.size
            return _finish(self._collectives.exchange(member, name, inputs_by_rank, lists[1]), async_op)
        check_fit(name, lists, member.size)
        return _finish(self._collectives.blocks(member, name, lists[0], lists[1], op), async_op)

    def _coalesce(
        self,
        name: str,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        op: str | None,
        group: RankGroup | None,
        async_op: bool,
    ) -> Work | None:
        label = f"{name}_coalesced"
        member = self._require_rank(label, group)
        come, go = (find_coalesced(label, member, side) for side in (inputs, outputs))
        if len(come) != len(go):
            raise InputError(f"{label}: {len(come)} inputs for {len(go)} outputs")
        for pair in zip(come, go, strict=True):
            check_fit(label, [[pair[0]], [pair[1]]], member.size)
        return _finish(self._collectives.coalesced_blocks(member, label, come, go, op), async_op)

    def _exchange_with_root(
        self,
        name: str,
        tensor: Operand,
        blocks: Sequence[Operand] | None,
        parameter: str,
        rank: int,
        group: RankGroup | None,
        async_op: bool,
    ) -> Work | None:
        """Scatter ``blocks`` of the root, or gather them there; ``tensor`` is this rank's end."""
        member = self._require_rank(name, group)
        root, end = _check_rank(member, parameter, rank), find_stretch(member.rank, tensor)
        if (member.rank == root) != bool(blocks):
            problem = f"gives {len(blocks)} tensors, but only rank {root} has a list" if blocks else "needs its list"
            raise InputError(f"{name}: rank {member.rank} {problem}")
        listed = find_blocks(name, member, blocks) if blocks else []
        for stretch in listed:
            if (stretch.size, stretch.dtype) != (end.size, end.dtype):
                raise InputError(
                    f"{name}: the list has {stretch.size} elements of {stretch.dtype} in {stretch.layout.name!r}, "
                    f"the tensor of rank {member.rank} {end.size} of {end.dtype}"
                )
        if name == "gather":
            check_apart(name, listed)
        at_root = [end if party == root else end.split([0])[0] for party in member.parties]
        sides = (listed, at_root) if name == "scatter" else (at_root, listed)
        return _finish(self._collectives.exchange(member, name, *sides, root=root), async_op)

    def _find_member(self, name: str, group: object) -> Member:
        """Return this rank as a member of its process group; outside a rank, the program in the group it created."""
        worker = self._workers.current
        process_group = self._groups.of(worker)
        if process_group is None:
            more = "" if worker.spawned else ". Only ranks call collectives; torch.multiprocessing.spawn runs ranks"
            raise InputError(
                f"{name}: {worker} has no process group; call torch.distributed.init_process_group('ahbm') first{more}"
            )
        return Member(process_group, worker.rank, _check_group(name, group, worker.rank, process_group.world_size))

    def _require_rank(self, name: str, group: object) -> Member:
        member, ranks = self._find_member(name, group), self._groups.world_size
        if not self._workers.current.spawned and ranks > 1:
            raise InputError(
                f"{name}: the program itself is none of the {ranks} ranks of its process group; call {name} in the "
                f"function that torch.multiprocessing.spawn(fn, args, nprocs={ranks}) runs"
            )
        return member


def _finish(work: Work, async_op: bool) -> Work | None:
    if async_op:
        return work
    work.wait()
    return None


def _check_op(op: str) -> str:
    if op not in tuple(ReduceOp):
        raise InputError(f"op={op!r}, must be one of {', '.join(ReduceOp)}")
    return str(ReduceOp(op))


def _check_rank(member: Member, parameter: str, rank: int) -> int:
    number = whole_number(rank)
    if number is None or number not in member.parties:
        ranks = f"0..{member.size - 1}" if member.among is None else ", ".join(map(str, member.parties))
        raise InputError(f"{parameter}={rank!r}: there are ranks {ranks}")
    return number


def _check_group(name: str, group: object, rank: int, world_size: int) -> RankGroup | None:
    """Return the group of a collective; None if it is all ranks."""
    if group is None:
        return None
    if not isinstance(group, RankGroup):
        raise InputError(f"{name}: group={group!r} is no group of ranks; make one with torch.distributed.new_group")
    if rank not in group.ranks:
        raise InputError(f"{name}: rank {rank} is not in the group of ranks {', '.join(map(str, group.ranks))}")
    return group if group.size < world_size else None
