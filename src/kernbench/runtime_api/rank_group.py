"""Some of the ranks of a process group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernbench.common.errors import InputError


@dataclass(frozen=True, slots=True)
class RankGroup:
    """What ``torch.distributed.new_group`` makes: collectives of it are among its ``ranks``, in ascending order.

    It has no state and no queues of its own: every PE has queues to its like on all SIPs. Groups of the same ranks are
    one and the same.
    """

    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    def rank_of(self, rank: int) -> int:
        """The how-manieth of the group a rank is; -1 for one that is not in it."""
        return self.ranks.index(rank) if rank in self.ranks else -1


def group_of(ranks: Iterable[int] | None, world_size: int) -> RankGroup:
    """The group of ``ranks``, of all without any; InputError for none, for one twice, for one that does not exist."""
    chosen = tuple(sorted(range(world_size) if ranks is None else ranks))
    if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(world_size)):
        raise InputError(f"new_group({list(chosen)}): some of the ranks 0..{world_size - 1}, each once")
    return RankGroup(chosen)
