"""Launch collectives: every rank launches the kernel on the PEs of its SIP, with a table of each PE's part."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace

from kernbench.ccl.loading import Algorithm
from kernbench.common.errors import InputError
from kernbench.common.program_line import calling_line
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, LaunchArg, LaunchStream, PeCoord
from kernbench.runtime_api.collective_calls import CollectiveCall, CollectiveTensor
from kernbench.runtime_api.collective_operations import (
    ELEMENTWISE,
    Member,
    StartedCollective,
    name_op,
    prepare_blocks,
    prepare_exchange,
    prepare_shards,
    prepare_stretches,
)
from kernbench.runtime_api.collective_pes import CollectivePes, policy_pes
from kernbench.runtime_api.collective_tables import BLOCK_COLUMNS, Stretch, block_table
from kernbench.runtime_api.folding import LaunchFolder
from kernbench.runtime_api.launch import Alike, Launch
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.long_collectives import LongCollectives
from kernbench.runtime_api.memory import TensorMemory
from kernbench.runtime_api.requests import Requests, Work
from kernbench.topology.spec import TopologySpec


class Collectives:
    """The launcher of collectives, for all process groups.

    A collective runs on the PEs that own its tensors. With ``pes`` it runs on some of those, selected by its bytes, and
    always has the meaning of PyTorch. ``long``: simulate only a part of long collectives that PEs divide among
    themselves.
    """

    __slots__ = ("_folder", "_long", "_memory", "_pes", "_replaced", "_requests", "_spec")

    def __init__(
        self,
        spec: TopologySpec,
        memory: TensorMemory,
        requests: Requests,
        folder: LaunchFolder,
        pes: CollectivePes | None = None,
        long: LongCollectives | None = None,
    ) -> None:
        self._spec, self._memory, self._requests, self._folder = spec, memory, requests, folder
        self._pes, self._long = pes, long
        self._replaced: set[tuple[str, str]] = set()

    def on(self, pes: CollectivePes) -> Collectives:
        """Return a launcher that runs collectives on ``pes``."""
        return Collectives(self._spec, self._memory, self._requests, self._folder, pes, self._long)

    @property
    def pes(self) -> CollectivePes | None:
        """The PEs that run collectives; None: those that own the tensors."""
        return self._pes

    def all_reduce(
        self, member: Member, stretches: Sequence[Stretch], op: str | None = None, *, elementwise: bool = False
    ) -> Work:
        """Start an all-reduce by the configured algorithm, or of several stretches, or ``elementwise`` over ranks.

        If the algorithm does not accept the layout, an elementwise reduction over ranks replaces it, with a warning.
        ``op`` None: the configured reduction. Raises InputError if the configuration forbids the replacement.
        """
        pes = self._pes_for("all_reduce", stretches)
        if pes is not None:
            name = "all_reduce" if len(stretches) == 1 else "all_reduce_coalesced"
            return self._start(member, prepare_stretches(member, name, stretches, pes, reduce_op=op or "sum"))
        tensor = stretches[0].layout
        if elementwise:
            algorithm = member.group.algorithm_called(ELEMENTWISE)
            return self._all_reduce(member, tensor, op or "sum", algorithm, tensor.owners, ("elementwise", True))
        configured, refusal = member.group.algorithm, self._explain_refusal(member, tensor)
        op = op or configured.config.reduce_op
        if refusal is None:
            at_work = tuple((member.rank, cube, pe) for cube, pe in configured.mapper_fn(self._spec, member.rank))
            return self._all_reduce(member, tensor, op, configured, at_work)
        if configured.config.module == ELEMENTWISE and member.among is None:
            return self._all_reduce(member, tensor, op, configured, tensor.owners)
        self._replace(configured, refusal)
        return self._all_reduce(member, tensor, op, member.group.algorithm_called(ELEMENTWISE), tensor.owners)

    def _pes_for(self, name: str, stretches: Sequence[Stretch]) -> CollectivePes | None:
        """Return the PEs that divide the stretches among themselves; None: each PE works on its own shards.

        Raises InputError if the PEs cannot divide the stretches, because elements are not stored in order.
        """
        if self._pes is None and len(stretches) == 1 and stretches[0].is_whole:
            return None
        for stretch in stretches:
            stretch.check_in_order(name)
        return self._pes or policy_pes(stretches[0].layout.dp, self._spec)

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
        return self._start(member, prepare_shards(call, algorithm, pes, tensor, reduce_op=op))

    def in_place(self, member: Member, name: str, stretch: Stretch, root: int, op: str | None = None) -> Work:
        """Start a broadcast or a reduce between each shard and the same shard on the other SIPs."""
        more = {"root": root} if op is None else {"root": root, "reduce_op": op}
        pes = self._pes_for(name, [stretch])
        if pes is not None:
            return self._start(member, prepare_stretches(member, name, [stretch], pes, **more))
        tensor = stretch.layout
        call = CollectiveCall(
            name=name, operands=(CollectiveTensor.of(tensor),), details=(("root", root), *name_op(op))
        )
        algorithm = member.group.algorithm_called(name)
        return self._start(member, prepare_shards(call, algorithm, tensor.owners, tensor, **more))

    def message(self, member: Member, stretch: Stretch, src: int, dst: int) -> Work:
        """Start this member's end of a message from ``src`` to ``dst``; the member's rank is one of the two.

        The messages from one rank to another form a stream of launches with its own queue. A PE thus has all messages
        of its rank in flight at once, even if one queue is full.
        """
        pes = self._pes_for("send_recv", [stretch])
        if pes is not None:
            operation = prepare_stretches(member, "send_recv", [stretch], pes, src=src, dst=dst)
        else:
            tensor = stretch.layout
            ends = (("src", src), ("dst", dst))
            call = CollectiveCall(name="send_recv", operands=(CollectiveTensor.of(tensor),), details=ends)
            algorithm = member.group.algorithm_called("send_recv")
            operation = prepare_shards(call, algorithm, tensor.owners, tensor, src=src, dst=dst)
        operation = replace(
            operation,
            channel=("send_recv", src, dst),
            parties=(src, dst),
            stream=LaunchStream(name=f"rank {src} to {dst}", count=2 * (self._spec.num_sips - 1)),
            writes=member.rank == dst,
        )
        return self._start(member, operation)

    def barrier(self, member: Member) -> Work:
        """Start a barrier: a token visits one PE of all ranks, by default PE 0 of cube 0."""
        algorithm = member.group.algorithm_called("barrier")
        cube, pe = self._pes.within(0)[0] if self._pes else (0, 0)
        operation = StartedCollective(
            call=CollectiveCall(name="barrier"),
            algorithm=algorithm,
            pes=[(member.rank, cube, pe)],
            config={"n_elem": 0} | ({"shards": (cube, pe, 0, 0)} if self._pes else {}),
        )
        return self._start(member, operation)

    def exchange(
        self,
        member: Member,
        name: str,
        inputs: Sequence[Stretch],
        outputs: Sequence[Stretch],
        root: int | None = None,
    ) -> Work:
        """Start an exchange in which ``inputs[i]`` goes to the i-th rank, and ``outputs[i]`` comes from it.

        Either list may be empty. ``root``: the rank that sends or receives all blocks.
        """
        stretches = (*inputs, *outputs)
        for stretch in stretches:
            stretch.check_in_order(name)
        pes = self._pes or policy_pes(stretches[0].layout.dp, self._spec)
        return self._start(member, prepare_exchange(member, name, inputs, outputs, pes, root=root))

    def blocks(
        self,
        member: Member,
        name: str,
        inputs: Sequence[Stretch],
        outputs: Sequence[Stretch],
        op: str | None = None,
    ) -> Work:
        """Start a collective from ``inputs`` to ``outputs``.

        At least one of the two has a block for every rank, in a list or in one tensor.
        """
        if self._pes is None and all(stretch.is_whole for stretch in (*inputs, *outputs)):
            come, go = ([stretch.layout for stretch in side] for side in (inputs, outputs))
            return self._start(member, self._prepare_whole_blocks(member, name, come, go, op))
        if name == "all_to_all":
            return self.exchange(member, name, _list_blocks(inputs, member.size), _list_blocks(outputs, member.size))
        return self.coalesced_blocks(member, name, inputs, outputs, op)

    def coalesced_blocks(
        self,
        member: Member,
        name: str,
        inputs: Sequence[Stretch],
        outputs: Sequence[Stretch],
        op: str | None = None,
    ) -> Work:
        """Start an all-gather or a reduce-scatter of stretches; pairs of one input and one output run as one kernel."""
        for stretch in (*inputs, *outputs):
            stretch.check_in_order(name)
        pes = self._pes or policy_pes(inputs[0].layout.dp, self._spec)
        more = {} if op is None else {"reduce_op": op}
        return self._start(member, prepare_blocks(member, name, inputs, outputs, pes, **more))

    def _prepare_whole_blocks(
        self,
        member: Member,
        name: str,
        inputs: Sequence[TensorLayout],
        outputs: Sequence[TensorLayout],
        op: str | None,
    ) -> StartedCollective:
        table = block_table(name, inputs, outputs, member.size)
        at_work = {table[at : at + 2] for at in range(0, len(table), BLOCK_COLUMNS)}
        call = CollectiveCall(
            name=name, operands=(CollectiveTensor.of(inputs[0]), CollectiveTensor.of(outputs[0])), details=name_op(op)
        )
        config = {"n_elem": sum(table[3::BLOCK_COLUMNS]), "shards": table, "dtype": inputs[0].dtype.name}
        return StartedCollective(
            call=call,
            algorithm=member.group.algorithm_called(name),
            pes=[(member.rank, cube, pe) for cube, pe in at_work],
            tensors=(*inputs, *outputs),
            pointers=(self._join_pointers(inputs), self._join_pointers(outputs)),
            config=config if op is None else config | {"reduce_op": op},
        )

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
        operation = operation if self._long is None else self._long.shorten(operation)
        message = self._make_message(member, operation)
        parties, channel = operation.parties or member.parties, operation.channel or member.channel
        meeting = member.group.calls.enter(channel, member.rank, operation.call, parties)
        if self._long is not None and operation.more:
            message = self._long.observe(message, meeting, operation.more)
        for layout in operation.tensors:
            # Other PEs may still use the tensor, and a PE waits for its own work only.
            self._memory.settle(layout, writes=operation.writes)
        for layout in operation.inputs:
            self._memory.settle(layout, writes=False)
        posted = self._memory.map_on([((*operation.tensors, *operation.inputs), message.targets)])
        handle = self._requests.submit(message, lambda: str(meeting))
        alike = Alike((message.algorithm, message.kernel.name))  # a schedule is decided by its name and its arguments
        self._folder.note([Launch(message, (*operation.tensors, *operation.inputs), alike)], [handle])
        self._memory.uses.note(handle, (layout.key for layout in operation.tensors), writes=operation.writes)
        self._memory.uses.note(handle, (layout.key for layout in operation.inputs), writes=False)
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


def _list_blocks(stretches: Sequence[Stretch], n: int) -> Sequence[Stretch]:
    """Return a block for each of ``n`` ranks: the items of a list, or equal parts of one stretch."""
    return stretches if len(stretches) == n else stretches[0].split([stretches[0].size // n] * n)
