"""Compare the collectives that ranks call: the k-th collective of all ranks of a group has to be the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import field
from typing import TypeAlias

from kernbench.common.errors import InputError, RunError
from kernbench.common.values import state, value
from kernbench.runtime_api.layout import TensorLayout


@value
class RankGroup:
    """A group of ranks, made by ``torch.distributed.new_group``.

    ``ranks`` are in ascending order and take part in the group's collectives. The group has no state and no queues:
    every PE has queues to the same PE of all other SIPs. Groups of the same ranks are equal.
    """

    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def rank_of(self, rank: int) -> int:
        """Return the position of a rank in the group; -1 for a rank that is not in it."""
        return self.ranks.index(rank) if rank in self.ranks else -1


def group_of(ranks: Iterable[int] | None, world_size: int) -> RankGroup:
    """Return the group of ``ranks``, by default of all.

    Raises InputError for no ranks, a repeated rank and a rank that does not exist.
    """
    chosen = tuple(sorted(range(world_size) if ranks is None else ranks))
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(world_size)):
        raise InputError(f"new_group({list(chosen)}): give some of the ranks 0..{world_size - 1}, each once")
    return RankGroup(chosen)


CallChannel: TypeAlias = Hashable
"""A separately counted sequence of calls: collectives of all ranks or of a group, or messages between two ranks."""
ShardPlaces: TypeAlias = tuple[tuple[int, int, int, int], ...]
Splits: TypeAlias = tuple[tuple[int, ...], ...]
"""The elements that a rank sends to each rank, and those that it receives from each; empty if the call has no blocks"""


class CollectiveMismatch(RunError):  # noqa: N818 - the name describes the event
    """An error of ranks that call different collectives where they have to call the same."""


@value(kw_only=True)
class CollectiveTensor:
    """The properties of a collective's tensor that must be the same on every rank.

    ``places``: (cube, pe, offset, bytes) of each shard. ``policy``: the placement policy in the program; different
    policies may result in the same places.
    """

    shape: tuple[int, ...]
    dtype: str
    places: ShardPlaces
    policy: str = field(compare=False)

    @classmethod
    def of(cls, layout: TensorLayout) -> CollectiveTensor:
        """Return the description of a tensor."""
        shards = layout.shards
        places = tuple((shard.cube, shard.pe, shard.offset_bytes, shard.nbytes) for shard in shards)
        return cls(shape=layout.shape, dtype=layout.dtype.name, places=places, policy=str(layout.dp))

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@value(kw_only=True)
class CollectiveCall:
    """A collective call of one rank. ``details``: the reduction, the root and similar arguments.

    ``splits``: the sizes of blocks, which must agree between each two ranks.
    """

    name: str
    operands: tuple[CollectiveTensor, ...] = ()
    details: tuple[tuple[str, object], ...] = ()
    splits: Splits = field(default=(), compare=False)

    def __str__(self) -> str:
        return (
            f"{self.name}({', '.join([*map(str, self.operands), *(f'{key}={value}' for key, value in self.details)])})"
        )

    def describe_beside(self, other: CollectiveCall) -> str:
        """Return the call as text; the text includes layouts only if it would otherwise equal the text of ``other``."""
        if str(self) != str(other):
            return str(self)
        return f"{self} of {', '.join(operand.policy for operand in self.operands)}"


@state
class RankMeeting:
    """One collective: the call of the first rank that arrived, and the ranks ``here`` that have made the call.

    ``splits``: the sizes of the blocks of each of these ranks. ``begun_ps``: when their launches began on the SIPs, if
    the collective is simulated in part.
    """

    call: CollectiveCall
    number: int
    parties: Sequence[int]
    here: list[int] = field(default_factory=list)
    splits: dict[int, Splits] = field(default_factory=dict)
    begun_ps: list[int] = field(default_factory=list)

    def find_unequal_block(self, rank: int, splits: Splits) -> str | None:
        """Return a block of ``rank`` whose sender and receiver expect different sizes, as text; None without one."""
        at = {party: index for index, party in enumerate(self.parties)}
        for peer, theirs in (self.splits | {rank: splits}).items():
            for (src, sends), (dst, receives) in (((rank, splits), (peer, theirs)), ((peer, theirs), (rank, splits))):
                sent, received = sends[0][at[dst]], receives[1][at[src]]
                if sent != received:
                    return f"rank {src} sends {sent} elements to rank {dst}, which receives {received} from it"
        return None

    def __str__(self) -> str:
        """Return the call and the ranks that have yet to make it, as text."""
        missing = [rank for rank in self.parties if rank not in self.here]
        who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} never joined"
        return f"{self.call}, number {self.number}" + (f", which {who}" if missing else "")


class CallBook:
    """The collectives that some ranks have called and other ranks have yet to call."""

    __slots__ = ("_broken", "_counts", "_open")

    def __init__(self) -> None:
        self._counts: dict[tuple[CallChannel, int], int] = {}
        self._open: dict[tuple[CallChannel, int], RankMeeting] = {}
        self._broken: CollectiveMismatch | None = None

    @property
    def is_even(self) -> bool:
        """True when all ranks have made the same calls, and no call waits for a rank."""
        return not self._open and self._broken is None

    def enter(self, channel: CallChannel, rank: int, call: CollectiveCall, parties: Sequence[int]) -> RankMeeting:
        """Record the next call of ``rank`` in ``channel``; ``parties`` are the ranks that have to make the same call.

        Raises CollectiveMismatch if an earlier rank called another collective. Every later call raises the same error:
        the program then ends with it, even if a ``finally`` block calls further collectives.
        """
        if self._broken is not None:
            raise self._broken
        number = self._counts.get((channel, rank), 0)
        self._counts[channel, rank] = number + 1
        meeting = self._open.setdefault((channel, number), RankMeeting(call, number, parties))
        if meeting.call != call:
            self._broken = _make_mismatch(meeting, rank, call)
            raise self._broken
        if call.splits:
            unequal = meeting.find_unequal_block(rank, call.splits)
            if unequal is not None:
                self._broken = CollectiveMismatch(f"collective number {number}, {call}: {unequal}")
                raise self._broken
            meeting.splits[rank] = call.splits
        meeting.here.append(rank)
        if len(meeting.here) == len(parties):
            del self._open[channel, number]
        return meeting


def _make_mismatch(meeting: RankMeeting, rank: int, call: CollectiveCall) -> CollectiveMismatch:
    first = f"rank {meeting.here[0]} called {meeting.call.describe_beside(call)}"
    return CollectiveMismatch(
        f"collective number {meeting.number} is not the same on all ranks: {first}, "
        f"rank {rank} called {call.describe_beside(meeting.call)}"
    )
