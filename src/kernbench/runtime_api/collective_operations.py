"""Collectives of one rank, ready to launch: the call, the kernel, its PEs and its tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kernbench.ccl.loading import Algorithm
from kernbench.ccl.rings import SipRing, ring_among
from kernbench.common.values import value
from kernbench.messages.requests import LaunchArg, LaunchStream, PeCoord
from kernbench.runtime_api.collective_calls import CallChannel, CollectiveCall, CollectiveTensor, RankGroup, Splits
from kernbench.runtime_api.collective_pes import CollectivePes
from kernbench.runtime_api.collective_tables import (
    BLOCK_COLUMNS,
    EXCHANGE_COLUMNS,
    STRETCH_COLUMNS,
    Stretch,
    exchanged_blocks,
    pointer_to,
    starts_of,
    stretch_table,
    strided_table,
)
from kernbench.runtime_api.layout import TensorLayout, shard_table
from kernbench.runtime_api.process_group import ProcessGroup
from kernbench.topology.spec import TopologySpec

ELEMENTWISE = "sip_allreduce"
"""The algorithm that reduces elementwise over ranks, as PyTorch does, for any layout."""
EXCHANGE = "exchange"
"""The algorithm by which each rank sends a block of any size to each other rank."""


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


@value
class CountColumns:
    """The numbers of elements in a table of a collective's configuration, called ``key``, with ``columns`` columns.

    They are in the columns ``of_elements``.
    """

    key: str
    columns: int
    of_elements: tuple[int, ...]


@value(kw_only=True)
class StartedCollective:
    """A collective that one rank starts: the call, the kernel and its PEs, the tensors and the arguments.

    ``channel``, ``parties``: the ranks that have to make the same call; by default those of the group. ``stream``: the
    stream of the launch. ``writes``: the collective changes the ``tensors`` of this rank. It only reads ``inputs``.
    ``counts``: the numbers of elements in the configuration; None if PEs work on their own shards. ``more``: how often
    the elements that are simulated fit the rest, whose time passes.
    """

    call: CollectiveCall
    algorithm: Algorithm
    pes: Collection[PeCoord]
    tensors: Sequence[TensorLayout] = ()
    inputs: Sequence[TensorLayout] = ()
    pointers: Sequence[LaunchArg] = (None,)
    config: dict[str, Any]
    channel: CallChannel | None = None
    parties: Sequence[int] = ()
    stream: LaunchStream | None = None
    writes: bool = True
    counts: CountColumns | None = None
    more: float = 0.0


def name_op(op: str | None) -> tuple[tuple[str, object], ...]:
    return () if op is None else (("op", op),)


def prepare_shards(
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


def prepare_stretches(
    member: Member, name: str, stretches: Sequence[Stretch], pes: CollectivePes, **details: object
) -> StartedCollective:
    """Return an operation in place on stretches, which are divided among PEs as if they were one."""
    table = stretch_table(stretches, pes)
    return StartedCollective(
        call=_call_of(name, stretches, pes, details),
        algorithm=member.group.algorithm_called(ELEMENTWISE if name.startswith("all_reduce") else name),
        pes=_pes_at_work(member, table, STRETCH_COLUMNS),
        tensors=_layouts_of(stretches),
        pointers=(pointer_to(stretches),),
        config=_configure(stretches, pes, table, sum(table[3::STRETCH_COLUMNS]), details),
        counts=CountColumns("shards", STRETCH_COLUMNS, (3,)),
    )


def prepare_blocks(
    member: Member,
    name: str,
    inputs: Sequence[Stretch],
    outputs: Sequence[Stretch],
    pes: CollectivePes,
    **details: object,
) -> StartedCollective:
    """Return an all-gather or a reduce-scatter, or several as one.

    The gathered or scattered tensors have a block for each rank. Or a list has these blocks, for one tensor.
    """
    gathers = name.startswith("all_gather")
    parts, blocks = (inputs, outputs) if gathers else (outputs, inputs)
    listed = len(blocks) > len(parts)
    table = strided_table(inputs, outputs, parts, pes, listed=listed)
    config = _configure(parts, pes, table, sum(table[3::BLOCK_COLUMNS]), details)
    return StartedCollective(
        call=_call_of(name, parts, pes, details),
        algorithm=member.group.algorithm_called("all_gather" if gathers else "reduce_scatter"),
        pes=_pes_at_work(member, table, BLOCK_COLUMNS),
        tensors=_layouts_of(outputs),
        inputs=_layouts_of(inputs),
        pointers=(pointer_to(inputs), pointer_to(outputs)),
        config=config | ({"block_starts": starts_of(blocks)} if listed else {}),
        counts=CountColumns("shards", BLOCK_COLUMNS, (3,)),
    )


def prepare_exchange(
    member: Member,
    name: str,
    inputs: Sequence[Stretch],
    outputs: Sequence[Stretch],
    pes: CollectivePes,
    *,
    root: int | None = None,
) -> StartedCollective:
    """Return an exchange of blocks: ``inputs`` and ``outputs`` have one for each rank, or are empty.

    With ``root`` all blocks come from this rank or go to it, and have one size.
    """
    dtype = (*inputs, *outputs)[0].dtype
    table = exchanged_blocks(inputs, outputs, member.parties, pes)
    lines = [table[at : at + EXCHANGE_COLUMNS] for at in range(0, len(table), EXCHANGE_COLUMNS)]
    places = dict.fromkeys((line[0], line[1]) for line in lines) or {pes.within(0)[0]: None}
    splits: Splits = tuple(tuple(stretch.size for stretch in side) or (0,) * member.size for side in (inputs, outputs))
    details: dict[str, object] = {} if root is None else {"root": root}
    size = () if root is None else (max(max(side) for side in splits),)
    call = CollectiveCall(
        name=name,
        operands=(CollectiveTensor(shape=size, dtype=dtype.name, places=pes.places, policy=f"PEs {pes}"),),
        details=tuple(details.items()),
        splits=splits,
    )
    shards = tuple(number for place in places for number in (*place, 0, 1, 0, 0))
    return StartedCollective(
        call=call,
        algorithm=member.group.algorithm_called(EXCHANGE),
        pes=[(member.rank, *place) for place in places],
        tensors=_layouts_of(outputs),
        inputs=_layouts_of(inputs),
        pointers=(pointer_to(inputs), pointer_to(outputs)),
        config={"n_elem": 1, "shards": shards, "dtype": dtype.name, "blocks": table},
        counts=CountColumns("blocks", EXCHANGE_COLUMNS, (4, 6)),
    )


def _call_of(
    name: str, stretches: Sequence[Stretch], pes: CollectivePes, details: Mapping[str, object]
) -> CollectiveCall:
    named = tuple(("op" if key == "reduce_op" else key, detail) for key, detail in details.items())
    return CollectiveCall(name=name, operands=tuple(stretch.describe(pes) for stretch in stretches), details=named)


def _pes_at_work(member: Member, table: Sequence[int], columns: int) -> list[PeCoord]:
    places = dict.fromkeys((table[at], table[at + 1]) for at in range(0, len(table), columns))
    return [(member.rank, cube, pe) for cube, pe in places]


def _layouts_of(stretches: Sequence[Stretch]) -> tuple[TensorLayout, ...]:
    return tuple({stretch.layout.key: stretch.layout for stretch in stretches}.values())


def _configure(
    stretches: Sequence[Stretch], pes: CollectivePes, table: tuple[int, ...], n_elem: int, details: Mapping[str, object]
) -> dict[str, Any]:
    config = {"n_elem": n_elem, "shards": table, "dtype": stretches[0].dtype.name, **details}
    return config if pes.are_owners else config | {"far": True}
