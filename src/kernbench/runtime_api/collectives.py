"""Launch collectives: every rank launches the kernel on the PEs of its SIP, with a table of each PE's part."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from kernbench.ccl.loading import Algorithm
from kernbench.ccl.rings import SipRing, ring_among
from kernbench.common.errors import InputError
from kernbench.common.program_line import calling_line
from kernbench.common.values import value
from kernbench.kernels.shares import blocks
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, LaunchArg, LaunchStream, PeCoord
from kernbench.runtime_api.collective_calls import CallChannel, CollectiveCall, CollectiveTensor, RankGroup
from kernbench.runtime_api.layout import TensorLayout, shard_table
from kernbench.runtime_api.memory import TensorMemory
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.runtime_api.requests import Requests, Work
from kernbench.topology.spec import TopologySpec


def list_table(layout: TensorLayout) -> tuple[int, ...]:
    """Return ``(cube, pe, in_offset, n_elem, out_offset, stride)`` of every shard, replicas included.

    All numbers but ``n_elem`` are in bytes. The table is for tensors of this layout, one for each rank, at consecutive
    virtual addresses.
    """
    size = layout.dtype.itemsize
    lines = ((s.cube, s.pe, s.offset_bytes, s.nbytes // size, s.offset_bytes, layout.nbytes) for s in layout.shards)
    return tuple(value for line in lines for value in line)


def part_table(name: str, part: TensorLayout, full: TensorLayout) -> tuple[int, ...]:
    """Return the ``list_table`` of tensor ``part`` for a collective with ``full``: one block per rank, in rank order.

    A block of ``full`` has the size of ``part``. Raises InputError for layouts in which blocks are not at consecutive
    virtual addresses.
    """
    if not (_copies(part) and _copies(full) and part.owners == full.owners):
        _check_in_order(name, part, copies=True)
        _check_in_order(name, full)
    return list_table(part)


def exchange_table(name: str, inputs: TensorLayout, outputs: TensorLayout, ranks: int) -> tuple[int, ...]:
    """Return a table in the format of ``list_table`` for two tensors with a block for every rank.

    Every block is divided evenly among the PEs that own the tensors. Raises InputError as ``part_table`` does.
    """
    size = inputs.dtype.itemsize
    stride = inputs.nbytes // ranks
    count = stride // size
    if _copies(inputs) and _copies(outputs) and inputs.owners == outputs.owners:
        shares = [(owner, (0, count)) for owner in inputs.owners]
    else:
        _check_in_order(name, inputs)
        _check_in_order(name, outputs)
        share = -(-count // len(inputs.owners))
        shares = list(zip(inputs.owners, blocks(count, share), strict=False))
    lines = ((cube, pe, at * size, n, at * size, stride) for (_, cube, pe), (at, n) in shares)
    return tuple(value for line in lines for value in line)


def _copies(layout: TensorLayout) -> bool:
    """Return True when there are several shards and each holds the complete tensor."""
    return len(layout.views) > 1 and all(view.window == layout.whole for view in layout.views)


def _check_in_order(name: str, layout: TensorLayout, *, copies: bool = False) -> None:
    if (layout.has_copies and not copies) or not layout.is_row_major:
        raise InputError(
            f"{name}: {layout.name} ({layout.dp}) is not stored in the order of its elements, each once. Spread a "
            f"tensor with a block for each rank by row_wise, or replicate both tensors over the same PEs; for any "
            f"other layout give a list of tensors, one for each rank"
        )


ELEMENTWISE = "sip_allreduce"
"""The algorithm that reduces elementwise over ranks, as PyTorch does, for any layout."""
BLOCK_COLUMNS = 6


@value
class Member:
    """A rank of a process group. ``among``: the ranks of its collectives; None: all ranks."""

    group: ProcessGroup
    rank: int
    among: RankGroup | None = None

    @property
    def parties(self) -> Sequence[int]:
        """The ranks of its collectives."""
        return range(self.group.world_size) if self.among is None else self.among.ranks

    @property
    def size(self) -> int:
        """The number of ranks that take part."""
        return len(self.parties)

    @property
    def channel(self) -> CallChannel:
        """The channel that numbers its collectives."""
        return "all" if self.among is None else self.among

    def ring(self, spec: TopologySpec) -> SipRing:
        """Return the rank's place in the ring over the participating ranks, as an argument of kernels."""
        if self.among is None:
            return self.group.ring_of(self.rank, spec)
        return ring_among(self.among.ranks, self.rank)


@value(kw_only=True)
class StartedCollective:
    """A collective that one rank starts: the call, the kernel and its PEs, the tensors and the arguments.

    ``channel``, ``parties``: the ranks that have to make the same call; by default those of the group. ``stream``: the
    stream of the launch. ``writes``: the collective changes the tensors of this rank.
    """

    call: CollectiveCall
    algorithm: Algorithm
    pes: Collection[PeCoord]
    tensors: Sequence[TensorLayout] = ()
    pointers: Sequence[LaunchArg] = (None,)
    config: dict[str, Any]
    channel: CallChannel | None = None
    parties: Sequence[int] = ()
    stream: LaunchStream | None = None
    writes: bool = True


class Collectives:
    """The launcher of collectives, for all process groups."""

    __slots__ = ("_memory", "_replaced", "_requests", "_spec")

    def __init__(self, spec: TopologySpec, memory: TensorMemory, requests: Requests) -> None:
        self._spec, self._memory, self._requests = spec, memory, requests
        self._replaced: set[tuple[str, str]] = set()

    def all_reduce(self, member: Member, tensor: TensorLayout, op: str | None = None) -> Work:
        """Start an all-reduce by the configured algorithm.

        If the algorithm does not accept the layout, an elementwise reduction over ranks replaces it, with a warning.
        ``op`` None: the configured reduction. Raises InputError if the configuration forbids the replacement.
        """
        configured, refusal = member.group.algorithm, self._explain_refusal(member, tensor)
        op = op or configured.config.reduce_op
        if refusal is None:
            pes = tuple((member.rank, cube, pe) for cube, pe in configured.mapper_fn(self._spec, member.rank))
            return self._all_reduce(member, tensor, op, configured, pes)
        if configured.config.module == ELEMENTWISE and member.among is None:
            return self._all_reduce(member, tensor, op, configured, tensor.owners)
        self._replace(configured, refusal)
        return self._all_reduce(member, tensor, op, member.group.algorithm_called(ELEMENTWISE), tensor.owners)

    def all_reduce_elementwise(self, member: Member, tensor: TensorLayout, op: str) -> Work:
        """Start an all-reduce elementwise over ranks, regardless of the configured algorithm."""
        algorithm = member.group.algorithm_called(ELEMENTWISE)
        return self._all_reduce(member, tensor, op, algorithm, tensor.owners, ("elementwise", True))

    def _all_reduce(
        self,
        member: Member,
        tensor: TensorLayout,
        op: str,
        algorithm: Algorithm,
        pes: Collection[PeCoord],
        *details: tuple[str, object],
    ) -> Work:
        call = CollectiveCall(
            name="all_reduce", operands=(CollectiveTensor.of(tensor),), details=(("op", op), *details)
        )
        return self._start(member, _prepare_shards(call, algorithm, pes, tensor, reduce_op=op))

    def in_place(self, member: Member, name: str, tensor: TensorLayout, root: int, op: str | None = None) -> Work:
        """Start a broadcast or a reduce between each shard and the same shard on the other SIPs."""
        call = CollectiveCall(
            name=name, operands=(CollectiveTensor.of(tensor),), details=(("root", root), *_name_op(op))
        )
        algorithm = member.group.algorithm_called(name)
        more = {"root": root} if op is None else {"root": root, "reduce_op": op}
        return self._start(member, _prepare_shards(call, algorithm, tensor.owners, tensor, **more))

    def message(self, member: Member, tensor: TensorLayout, src: int, dst: int) -> Work:
        """Start this member's end of a message from ``src`` to ``dst``; the member's rank is one of the two.

        The messages from one rank to another form a stream of launches with its own queue. A PE thus has all messages
        of its rank in flight at once, even if one queue is full.
        """
        call = CollectiveCall(
            name="send_recv", operands=(CollectiveTensor.of(tensor),), details=(("src", src), ("dst", dst))
        )
        algorithm = member.group.algorithm_called("send_recv")
        operation = replace(
            _prepare_shards(call, algorithm, tensor.owners, tensor, src=src, dst=dst),
            channel=("send_recv", src, dst),
            parties=(src, dst),
            stream=LaunchStream(name=f"rank {src} to {dst}", count=2 * (self._spec.num_sips - 1)),
            writes=member.rank == dst,
        )
        return self._start(member, operation)

    def barrier(self, member: Member) -> Work:
        """Start a barrier: a token visits PE 0 of cube 0 of all ranks."""
        algorithm = member.group.algorithm_called("barrier")
        call = CollectiveCall(name="barrier")
        config = {"n_elem": 0}
        return self._start(
            member, StartedCollective(call=call, algorithm=algorithm, pes=[(member.rank, 0, 0)], config=config)
        )

    def blocks(
        self,
        member: Member,
        name: str,
        inputs: Sequence[TensorLayout],
        outputs: Sequence[TensorLayout],
        op: str | None = None,
    ) -> Work:
        """Start a collective from ``inputs`` to ``outputs``.

        At least one of the two has a block for every rank, in a list or in one tensor.
        """
        table = _block_table(name, inputs, outputs, member.size)
        at_work = {table[at : at + 2] for at in range(0, len(table), BLOCK_COLUMNS)}
        call = CollectiveCall(
            name=name, operands=(CollectiveTensor.of(inputs[0]), CollectiveTensor.of(outputs[0])), details=_name_op(op)
        )
        config = {"n_elem": sum(table[3::BLOCK_COLUMNS]), "shards": table, "dtype": inputs[0].dtype.name}
        operation = StartedCollective(
            call=call,
            algorithm=member.group.algorithm_called(name),
            pes=[(member.rank, cube, pe) for cube, pe in at_work],
            tensors=(*inputs, *outputs),
            pointers=(self._join_pointers(inputs), self._join_pointers(outputs)),
            config=config if op is None else config | {"reduce_op": op},
        )
        return self._start(member, operation)

    def _join_pointers(self, layouts: Sequence[TensorLayout]) -> LaunchArg:
        return layouts[0].argument if len(layouts) == 1 else self._memory.join(layouts)

    def _explain_refusal(self, member: Member, tensor: TensorLayout) -> str | None:
        """Return why the configured algorithm cannot reduce a tensor; None if it can."""
        if member.among is not None:
            return f"it runs over all ranks, the call over ranks {', '.join(map(str, member.parties))}"
        try:
            member.group.algorithm.validator_fn(tensor, member.group.world_size, self._spec)
        except InputError as error:
            return str(error)
        except Exception as error:  # a user's validator may raise anything
            return f"its validator raised {type(error).__name__}: {error}"
        return None

    def _replace(self, configured: Algorithm, refusal: str) -> None:
        """Warn that ``ELEMENTWISE`` replaces the configured algorithm, once for each algorithm."""
        config = configured.config
        refused = f"all_reduce: the configured {config.name!r} cannot do this: {refusal}"
        hint = f"all_reduce(…, elementwise=True) asks for {ELEMENTWISE}"
        if config.strict:
            raise InputError(f"{refused}; nothing may take its place (strict in ccl.yaml). {hint}")
        if (config.name, ELEMENTWISE) not in self._replaced:
            self._replaced.add((config.name, ELEMENTWISE))
            warnings.warn(f"{refused}; {ELEMENTWISE} does it instead. {hint}", RuntimeWarning, stacklevel=4)

    def _start(self, member: Member, operation: StartedCollective) -> Work:
        """Enter the call in the group's book, then launch.

        The PEs of early ranks wait in simulated time for the other ranks.
        """
        message = self._make_message(member, operation)
        parties, channel = operation.parties or member.parties, operation.channel or member.channel
        meeting = member.group.calls.enter(channel, member.rank, operation.call, parties)
        for layout in operation.tensors:
            # Other PEs may still use the tensor, and a PE waits for its own work only.
            self._memory.settle(layout, writes=operation.writes)
        posted = self._memory.map_on([(operation.tensors, message.targets)])
        handle = self._requests.submit(message, lambda: str(meeting))
        self._memory.uses.note(handle, (layout.key for layout in operation.tensors), writes=operation.writes)
        return Work((*posted, handle), self._requests)

    def _make_message(self, member: Member, operation: StartedCollective) -> KernelLaunchMsg:
        algorithm = operation.algorithm
        values = {"sips": member.ring(self._spec)} | operation.config
        more = algorithm.args_for(self._spec, sip_rank=member.rank, **values)
        pes = tuple(sorted(operation.pes))
        cubes, in_cube = len({pe[1] for pe in pes}), len({pe[2] for pe in pes})
        return KernelLaunchMsg(
            name=operation.call.name,
            kernel=KernelRef(name=algorithm.config.module, function=algorithm.kernel),
            algorithm=algorithm.config.name,
            args=(*operation.pointers, *more),
            targets=pes,
            grid=(in_cube, cubes, member.size),
            called_at=str(calling_line() or ""),
            stream=operation.stream,
        )


def _name_op(op: str | None) -> tuple[tuple[str, object], ...]:
    return () if op is None else (("op", op),)


def _prepare_shards(
    call: CollectiveCall, algorithm: Algorithm, pes: Collection[PeCoord], tensor: TensorLayout, **more: Any
) -> StartedCollective:
    """Return the operation on the shards of one tensor."""
    n_elem = max(shard.nbytes for shard in tensor.shards) // tensor.dtype.itemsize
    return StartedCollective(
        call=call,
        algorithm=algorithm,
        pes=pes,
        tensors=(tensor,),
        pointers=(tensor.argument,),
        config={"n_elem": n_elem, "shards": shard_table(tensor), "dtype": tensor.dtype.name, **more},
    )


def _block_table(
    name: str, inputs: Sequence[TensorLayout], outputs: Sequence[TensorLayout], world_size: int
) -> tuple[int, ...]:
    a, b = inputs[0], outputs[0]
    if len(inputs) == len(outputs) == 1 and world_size > 1:
        if a.size == b.size:
            return exchange_table(name, a, b, world_size)
        return part_table(name, *sorted((a, b), key=lambda layout: layout.size))
    wanted = CollectiveTensor.of(a)
    for other in (*inputs, *outputs):
        if CollectiveTensor.of(other) != wanted:
            raise InputError(
                f"{name}: {a.name} ({a.dp}) and {other.name} ({other.dp}) differ in shape, dtype or layout"
            )
    return list_table(a)
