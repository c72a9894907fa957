"""Launch collectives: every rank launches the kernel on the PEs of its own SIP, with a table of each PE's part."""

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
    """Return ``(cube, pe, in_offset, n_elem, out_offset, stride)`` of every shard and copy.

    All but ``n_elem`` are in bytes. For tensors of this layout, one for each rank, that follow each other in virtual
    addresses.
    """
    size = layout.dtype.itemsize
    lines = ((s.cube, s.pe, s.offset_bytes, s.nbytes // size, s.offset_bytes, layout.nbytes) for s in layout.shards)
    return tuple(value for line in lines for value in line)


def part_table(name: str, part: TensorLayout, whole: TensorLayout) -> tuple[int, ...]:
    """Return the same table where ``whole`` has a block for every rank, in order, each of the size of ``part``.

    InputError for layouts in which blocks are not behind each other in virtual addresses.
    """
    if not (_copies(part) and _copies(whole) and part.owners == whole.owners):
        _check_in_order(name, part, copies=True)
        _check_in_order(name, whole)
    return list_table(part)


def exchange_table(name: str, given: TensorLayout, taken: TensorLayout, ranks: int) -> tuple[int, ...]:
    """Return the same table for two tensors with a block for every rank.

    The PEs that own them share every block evenly.
    """
    size = given.dtype.itemsize
    stride = given.nbytes // ranks
    count = stride // size
    if _copies(given) and _copies(taken) and given.owners == taken.owners:
        shares = [(owner, (0, count)) for owner in given.owners]
    else:
        _check_in_order(name, given)
        _check_in_order(name, taken)
        each = -(-count // len(given.owners))
        shares = list(zip(given.owners, blocks(count, each), strict=False))
    lines = ((cube, pe, at * size, n, at * size, stride) for (_, cube, pe), (at, n) in shares)
    return tuple(value for line in lines for value in line)


def _copies(layout: TensorLayout) -> bool:
    """Return True when there are several shards and every one holds all of the tensor."""
    return len(layout.views) > 1 and all(view.window == layout.whole for view in layout.views)


def _check_in_order(name: str, layout: TensorLayout, *, copies: bool = False) -> None:
    if (layout.has_copies and not copies) or not layout.is_row_major:
        raise InputError(
            f"{name}: {layout.name} ({layout.dp}) does not lie in memory in the order of its elements, each once. A "
            f"tensor with a block for each rank is spread by row_wise, or both are replicated over the same PEs; for "
            f"any other layout give a list of tensors, one for each rank"
        )


ELEMENTWISE = "sip_allreduce"
"""What does an all-reduce with PyTorch's meaning, of any layout."""
BLOCK_COLUMNS = 6


@value
class Member:
    """A rank of a process group. ``among``: the ranks that a collective of it is among; all, unless given."""

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
        """The channel in which its collectives are counted."""
        return "all" if self.among is None else self.among

    def ring(self, spec: TopologySpec) -> SipRing:
        """Return its place in the ring over those ranks, in the form that kernels get."""
        if self.among is None:
            return self.group.ring_of(self.rank, spec)
        return ring_among(self.among.ranks, self.rank)


@value(kw_only=True)
class StartedCollective:
    """A collective as one rank starts it: the call, the kernel and its PEs, the tensors, and what becomes arguments.

    ``channel``, ``parties``: which ranks have to make the same call; those of the group, unless given. ``stream``: as a
    launch has it. ``writes``: whether it changes the tensors of this rank.
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
    """Starts collectives of process groups."""

    __slots__ = ("_memory", "_replaced", "_requests", "_spec")

    def __init__(self, spec: TopologySpec, memory: TensorMemory, requests: Requests) -> None:
        self._spec, self._memory, self._requests = spec, memory, requests
        self._replaced: set[tuple[str, str]] = set()

    def all_reduce(self, member: Member, tensor: TensorLayout, op: str | None = None) -> Work:
        """Start an all-reduce by the configured algorithm.

        If that does not accept the layout, reduce elementwise over ranks, with a warning. ``op`` None: as configured.
        InputError where nothing else may take the place of what is configured.
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
        """Start an all-reduce elementwise over ranks, whatever is configured."""
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
        """Start a broadcast or a reduce: every shard with its counterparts on the other SIPs."""
        call = CollectiveCall(
            name=name, operands=(CollectiveTensor.of(tensor),), details=(("root", root), *_name_op(op))
        )
        algorithm = member.group.algorithm_called(name)
        more = {"root": root} if op is None else {"root": root, "reduce_op": op}
        return self._start(member, _prepare_shards(call, algorithm, tensor.owners, tensor, **more))

    def message(self, member: Member, tensor: TensorLayout, src: int, dst: int) -> Work:
        """Start a message from ``src`` to ``dst``; the rank is one of them.

        What goes from one rank to another is a stream of launches: it uses a queue of its own, so that a PE has all
        messages of its rank under way side by side, however full a queue is.
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
        """Start a barrier: a token goes round, on PE 0 of cube 0."""
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
        given: Sequence[TensorLayout],
        taken: Sequence[TensorLayout],
        op: str | None = None,
    ) -> Work:
        """Start a collective from ``given`` to ``taken``.

        One or both have a block for every rank, in a list or in one tensor.
        """
        table = _block_table(name, given, taken, member.size)
        at_work = {table[at : at + 2] for at in range(0, len(table), BLOCK_COLUMNS)}
        call = CollectiveCall(
            name=name, operands=(CollectiveTensor.of(given[0]), CollectiveTensor.of(taken[0])), details=_name_op(op)
        )
        config = {"n_elem": sum(table[3::BLOCK_COLUMNS]), "shards": table, "dtype": given[0].dtype.name}
        operation = StartedCollective(
            call=call,
            algorithm=member.group.algorithm_called(name),
            pes=[(member.rank, cube, pe) for cube, pe in at_work],
            tensors=(*given, *taken),
            pointers=(self._join_pointers(given), self._join_pointers(taken)),
            config=config if op is None else config | {"reduce_op": op},
        )
        return self._start(member, operation)

    def _join_pointers(self, layouts: Sequence[TensorLayout]) -> LaunchArg:
        return layouts[0].argument if len(layouts) == 1 else self._memory.join(layouts)

    def _explain_refusal(self, member: Member, tensor: TensorLayout) -> str | None:
        """Return why the configured algorithm does not reduce a tensor; None when it does."""
        if member.among is not None:
            return f"it is over all ranks, and the call over ranks {', '.join(map(str, member.parties))}"
        try:
            member.group.algorithm.validator_fn(tensor, member.group.world_size, self._spec)
        except InputError as error:
            return str(error)
        except Exception as error:  # a validator of the user's says no in its own way
            return f"its validator raised {type(error).__name__}: {error}"
        return None

    def _replace(self, configured: Algorithm, refusal: str) -> None:
        """Warn once for each pair that ``ELEMENTWISE`` runs in place of what is configured."""
        config = configured.config
        told = f"all_reduce: the configured {config.name!r} cannot do this: {refusal}"
        hint = f"all_reduce(…, elementwise=True) asks for {ELEMENTWISE}"
        if config.strict:
            raise InputError(f"{told}; nothing may take its place (strict in ccl.yaml). {hint}")
        if (config.name, ELEMENTWISE) not in self._replaced:
            self._replaced.add((config.name, ELEMENTWISE))
            warnings.warn(f"{told}; {ELEMENTWISE} does it instead. {hint}", RuntimeWarning, stacklevel=4)

    def _start(self, member: Member, operation: StartedCollective) -> Work:
        """Enter the call in the group's book, then launch: early ranks' PEs wait for the others', in simulated time."""
        message = self._make_message(member, operation)
        parties, channel = operation.parties or member.parties, operation.channel or member.channel
        meeting = member.group.calls.enter(channel, member.rank, operation.call, parties)
        for layout in operation.tensors:
            # Other PEs may be at work on it, and PEs wait for none but their own.
            self._memory.settle(layout, writes=operation.writes)
        self._memory.map_on([(operation.tensors, message.targets)])
        handle = self._requests.submit(message, lambda: str(meeting))
        self._memory.uses.note(handle, (layout.key for layout in operation.tensors), writes=operation.writes)
        return Work((handle,), self._requests)

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
    """Return the operation that works on the shards of one tensor."""
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
    name: str, given: Sequence[TensorLayout], taken: Sequence[TensorLayout], world_size: int
) -> tuple[int, ...]:
    a, b = given[0], taken[0]
    if len(given) == len(taken) == 1 and world_size > 1:
        if a.size == b.size:
            return exchange_table(name, a, b, world_size)
        return part_table(name, *sorted((a, b), key=lambda each: each.size))
    wanted = CollectiveTensor.of(a)
    for other in (*given, *taken):
        if CollectiveTensor.of(other) != wanted:
            raise InputError(
                f"{name}: {a.name} ({a.dp}) and {other.name} ({other.dp}) differ in shape, dtype or layout"
            )
    return list_table(a)
