"""From one list of placements to another: steps, each along one dim of the mesh, and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from kernbench.common.values import value
from kernbench.dtensor.placements import Partial, Placement, Placements, Replicate, Shard, local_window

FULL = Replicate()


@value
class Redistribution:
    """Along dim ``mesh_dim``, ``placements[mesh_dim]`` becomes ``target``; the others stay."""

    mesh_dim: int
    placements: Placements
    target: Placement

    @property
    def source(self) -> Placement:
        """What it was."""
        return self.placements[self.mesh_dim]

    @property
    def result(self) -> Placements:
        """All placements behind the step."""
        return replaced(self.placements, self.mesh_dim, self.target)

    @property
    def whole(self) -> Placements:
        """All placements as if every rank along the dim had all that these ranks have together."""
        return replaced(self.placements, self.mesh_dim, FULL)

    @property
    def is_local(self) -> bool:
        """Whether no rank needs anything of another."""
        return isinstance(self.source, Replicate) or (
            isinstance(self.source, Shard) and isinstance(self.target, Partial)
        )


def replaced(placements: Placements, mesh_dim: int, by: Placement) -> Placements:
    """The same with another placement on one dim of the mesh."""
    return (*placements[:mesh_dim], by, *placements[mesh_dim + 1 :])


def plan_steps(source: Placements, target: Placements) -> list[Redistribution]:
    """How ``source`` becomes ``target``.

    A rank's part of an axis is a chunk of the chunk that earlier dims of the mesh left. So where one of those begins or
    ends to cut an axis, later dims that cut it are gathered first, from the last one on. Cutting what is there comes
    before everything else that it does not depend on: less is left to be sent.
    """
    found: list[Redistribution] = []
    now = source

    def go(mesh_dim: int, to: Placement) -> None:
        nonlocal now
        for via in (*_way(now[mesh_dim], to), to):
            found.append(Redistribution(mesh_dim, now, via))
            now = replaced(now, mesh_dim, via)

    for dim in reversed(range(len(now))):
        if _is_in_the_way(dim, now, target):
            go(dim, FULL)
    for first in (True, False):
        for dim, wanted in enumerate(target):
            cuts = isinstance(now[dim], Replicate) and isinstance(wanted, Shard)
            if now[dim] != wanted and (not first or (cuts and not _is_blocked(dim, wanted, now, target))):
                go(dim, wanted)
    return found


def sent_bytes(
    source: Placements, target: Placements, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]
) -> float:
    """What a rank sends, about: the first, which has the largest chunks, by the algorithms of collectives."""
    return sum(_step_bytes(step, shape, itemsize, mesh_shape) for step in plan_steps(source, target))


def _step_bytes(step: Redistribution, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]) -> float:
    ranks = mesh_shape[step.mesh_dim]
    whole = local_window(shape, step.whole, mesh_shape, [0] * len(mesh_shape))
    return _rounds(step) * prod(whole.shape) * itemsize * (ranks - 1) / ranks


def _rounds(step: Redistribution) -> float:
    """How often all that the ranks of a step have together goes round their ring."""
    if step.is_local:
        return 0
    if isinstance(step.source, Partial):
        return 2 if isinstance(step.target, Replicate) else 1
    # An all-to-all sends blocks of a chunk half round the ring on average.
    return 0.5 if isinstance(step.target, Shard) else 1


def _way(source: Placement, target: Placement) -> Iterator[Placement]:
    """What lies between where there is no direct way: contributions to another reduction are made of the result."""
    if isinstance(target, Partial) and (
        isinstance(source, Partial) or (isinstance(source, Shard) and target.reduce_op != "sum")
    ):
        yield FULL


def _is_in_the_way(dim: int, now: Placements, target: Placements) -> bool:
    cut = now[dim]
    return isinstance(cut, Shard) and any(
        now[before] != target[before] and cut in (now[before], target[before]) for before in range(dim)
    )


def _is_blocked(dim: int, wanted: Placement, now: Placements, target: Placements) -> bool:
    """Whether an earlier dim of the mesh is still to begin or end cutting the same axis."""
    return any(now[at] != target[at] and wanted in (now[at], target[at]) for at in range(dim))
