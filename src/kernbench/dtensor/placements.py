"""Placements of a tensor over a mesh of ranks, the part that each rank has, and the steps between placements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from kernbench.common.errors import InputError, UnknownNameError
from kernbench.common.values import value
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.arrays import whole_number

REDUCTIONS = ("sum", "avg", "max", "min")


class Placement:
    """One of ``Shard``, ``Replicate`` and ``Partial``, which are asked what they are as PyTorch's."""

    __slots__ = ()

    def is_shard(self, dim: int | None = None) -> bool:
        """Return True when an axis is cut, and if ``dim`` is given, that one."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Return True when every rank has all."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Return True when every rank has a contribution, and if ``reduce_op`` is given, to that reduction."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@value
class Shard(Placement):
    """Axis ``dim`` is cut into chunks, one for each rank, as ``torch.chunk`` does; negative counts from behind.

    InputError for what is no whole number.
    """

    dim: int

    def __post_init__(self) -> None:
        if whole_number(self.dim) is None:
            raise InputError(f"Shard({self.dim!r}): the axis to cut is a whole number")

    def __str__(self) -> str:
        return f"Shard({self.dim})"


@value
class Replicate(Placement):
    """Every rank has all of it."""

    def __str__(self) -> str:
        return "Replicate()"


@value
class Partial(Placement):
    """Every rank has a contribution of the full shape, and the tensor is what ``reduce_op`` makes of them.

    UnknownNameError for another reduction than sum, avg, max, min.
    """

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op not in REDUCTIONS:
            raise UnknownNameError("reduce_op", self.reduce_op, REDUCTIONS)

    def __str__(self) -> str:
        return f"Partial({self.reduce_op})"


KINDS = (Shard, Replicate, Partial)
Placements: TypeAlias = tuple[Placement, ...]
"""One for each dim of a mesh."""


def in_words(placements: Sequence[Placement]) -> str:
    """Return placements as text."""
    return f"[{', '.join(map(str, placements))}]"


def check_placements(placements: Sequence[Placement], mesh_ndim: int, ndim: int) -> Placements:
    """Return a placement for each of ``mesh_ndim`` dims, with axes counted from the front.

    InputError for another number of placements, for anything else in the list, for axes that a tensor of ``ndim`` axes
    does not have, and for several reductions.
    """
    if not isinstance(placements, Sequence) or not all(isinstance(each, KINDS) for each in placements):
        raise InputError(f"placements={placements!r}: a list of Shard(dim), Replicate() or Partial(op)")
    if len(placements) != mesh_ndim:
        raise InputError(f"placements {in_words(placements)}: the mesh has {mesh_ndim} dims, and each has a placement")
    found = tuple(_from_front(each, ndim) if isinstance(each, Shard) else each for each in placements)
    reductions = {each.reduce_op for each in found if isinstance(each, Partial)}
    if len(reductions) > 1:
        raise InputError(f"placements {in_words(found)}: one tensor is reduced in one way")
    return found


def _from_front(placement: Shard, ndim: int) -> Shard:
    if not -ndim <= placement.dim < ndim:
        raise InputError(f"{placement}: the tensor has {ndim} ax{'i' if ndim == 1 else 'e'}s")
    return Shard(int(placement.dim) % ndim)


def chunk(extent: int, parts: int, which: int) -> tuple[int, int]:
    """Return the bounds of chunk ``which``.

    Each has ceil(extent / parts), the last ones the rest, which may be nothing.
    """
    size = -(-extent // parts)
    return min(which * size, extent), min((which + 1) * size, extent)


def local_window(
    shape: tuple[int, ...], placements: Placements, mesh_shape: Sequence[int], coordinate: Sequence[int]
) -> Window:
    """Return the part of a tensor of ``shape`` at a place in the mesh.

    A later dim of the mesh cuts what earlier ones left.
    """
    window = Window.whole(shape)
    for placement, parts, which in zip(placements, mesh_shape, coordinate, strict=True):
        if isinstance(placement, Shard):
            start, stop = window.bounds[placement.dim]
            first, last = chunk(stop - start, parts, which)
            window = window.along(placement.dim, start + first, start + last)
    return window


def empty_place(
    shape: tuple[int, ...], placements: Placements, mesh_shape: Sequence[int]
) -> tuple[tuple[int, ...], int] | None:
    """Return the first place in the mesh that gets nothing of the tensor, and the axis that is too short.

    None if there is no such place.
    """
    for place in product(*map(range, mesh_shape)):
        extents = local_window(shape, placements, mesh_shape, place).shape
        if 0 in extents:
            return place, extents.index(0)
    return None


def check_not_empty(shape: tuple[int, ...], placements: Placements, mesh_shape: Sequence[int]) -> None:
    """Raise InputError when a place in the mesh would get nothing: the machine has no tensors without elements."""
    found = empty_place(shape, placements, mesh_shape)
    if found is not None:
        place, axis = found
        raise InputError(
            f"shape {shape} with {in_words(placements)} on a mesh of {tuple(mesh_shape)}: chunks of axis {axis} leave "
            f"nothing for place {place}, and the machine has no tensors without elements; pad it, or Replicate()"
        )


FULL = Replicate()


@value
class Redistribution:
    """Along dim ``mesh_dim``, ``placements[mesh_dim]`` becomes ``target``; the others stay."""

    mesh_dim: int
    placements: Placements
    target: Placement

    @property
    def source(self) -> Placement:
        """The placement before the step."""
        return self.placements[self.mesh_dim]

    @property
    def result(self) -> Placements:
        """All placements behind the step."""
        return replace_placement(self.placements, self.mesh_dim, self.target)

    @property
    def whole(self) -> Placements:
        """All placements as if every rank along the dim had all that these ranks have together."""
        return replace_placement(self.placements, self.mesh_dim, FULL)

    @property
    def is_local(self) -> bool:
        """True when no rank needs anything of another."""
        return isinstance(self.source, Replicate) or (
            isinstance(self.source, Shard) and isinstance(self.target, Partial)
        )


def replace_placement(placements: Placements, mesh_dim: int, by: Placement) -> Placements:
    """Return the same placements with another one on one dim of the mesh."""
    return (*placements[:mesh_dim], by, *placements[mesh_dim + 1 :])


def plan_steps(source: Placements, target: Placements) -> list[Redistribution]:
    """Return the steps by which ``source`` becomes ``target``.

    A rank's part of an axis is a chunk of the chunk that earlier dims of the mesh left. So where one of those begins or
    ends to cut an axis, later dims that cut it are gathered first, from the last one on. Cutting what is there comes
    before everything else that it does not depend on: less is left to be sent.
    """
    found: list[Redistribution] = []
    now = source

    def go(mesh_dim: int, to: Placement) -> None:
        nonlocal now
        for via in (*_find_way(now[mesh_dim], to), to):
            found.append(Redistribution(mesh_dim, now, via))
            now = replace_placement(now, mesh_dim, via)

    for dim in reversed(range(len(now))):
        if _is_in_the_way(dim, now, target):
            go(dim, FULL)
    for first in (True, False):
        for dim, wanted in enumerate(target):
            cuts = isinstance(now[dim], Replicate) and isinstance(wanted, Shard)
            if now[dim] != wanted and (not first or (cuts and not _is_blocked(dim, wanted, now, target))):
                go(dim, wanted)
    return found


def count_sent_bytes(
    source: Placements, target: Placements, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]
) -> float:
    """Return about how many bytes a rank sends.

    It is the first rank, which has the largest chunks, and the algorithms of collectives are assumed.
    """
    return sum(_count_step_bytes(step, shape, itemsize, mesh_shape) for step in plan_steps(source, target))


def _count_step_bytes(
    step: Redistribution, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]
) -> float:
    ranks = mesh_shape[step.mesh_dim]
    whole = local_window(shape, step.whole, mesh_shape, [0] * len(mesh_shape))
    return _count_rounds(step) * prod(whole.shape) * itemsize * (ranks - 1) / ranks


def _count_rounds(step: Redistribution) -> float:
    """Return how often all data of the ranks of a step go round their ring."""
    if step.is_local:
        return 0
    if isinstance(step.source, Partial):
        return 2 if isinstance(step.target, Replicate) else 1
    # An all-to-all sends blocks of a chunk half round the ring on average.
    return 0.5 if isinstance(step.target, Shard) else 1


def _find_way(source: Placement, target: Placement) -> Iterator[Placement]:
    """Yield the placement in between where there is no direct way.

    Contributions to another reduction are made of the result.
    """
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
    """Return True while an earlier dim of the mesh is still to begin or end cutting the same axis."""
    return any(now[at] != target[at] and wanted in (now[at], target[at]) for at in range(dim))
