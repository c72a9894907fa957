"""Placements of a tensor over a mesh of ranks, the part of each rank, and the steps between placements."""

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
    """Base class of ``Shard``, ``Replicate`` and ``Partial``, with the queries of PyTorch."""

    __slots__ = ()

    def is_shard(self, dim: int | None = None) -> bool:
        """Return True if an axis is sharded; with ``dim``, if that axis is."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Return True if every rank has the complete tensor."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Return True if every rank has a contribution; with ``reduce_op``, if it is to that reduction."""
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@value
class Shard(Placement):
    """A split of axis ``dim`` into chunks, one for each rank, as in ``torch.chunk``.

    A negative axis counts from the end. Raises InputError if ``dim`` is not an integer.
    """

    dim: int

    def __post_init__(self) -> None:
        if whole_number(self.dim) is None:
            raise InputError(f"Shard({self.dim!r}): the axis to cut is a whole number")

    def __str__(self) -> str:
        return f"Shard({self.dim})"


@value
class Replicate(Placement):
    """A replica of the complete tensor on every rank."""

    def __str__(self) -> str:
        return "Replicate()"


@value
class Partial(Placement):
    """A contribution of the full shape on every rank; ``reduce_op`` combines the contributions to the tensor.

    Raises UnknownNameError for a reduction other than sum, avg, max, min.
    """

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op not in REDUCTIONS:
            raise UnknownNameError("reduce_op", self.reduce_op, REDUCTIONS)

    def __str__(self) -> str:
        return f"Partial({self.reduce_op})"


KINDS = (Shard, Replicate, Partial)
Placements: TypeAlias = tuple[Placement, ...]
"""A placement for each dim of a mesh."""


def in_words(placements: Sequence[Placement]) -> str:
    """Return placements as text for errors."""
    return f"[{', '.join(map(str, placements))}]"


def check_placements(placements: Sequence[Placement], mesh_ndim: int, ndim: int) -> Placements:
    """Return a placement for each of ``mesh_ndim`` dims, with non-negative axes.

    Raises InputError if there are not ``mesh_ndim`` placements, if an entry is no placement, and if Partial placements
    have different reductions. Also raises InputError for axes that a tensor of ``ndim`` axes does not have.
    """
    if not isinstance(placements, Sequence) or not all(isinstance(placement, KINDS) for placement in placements):
        raise InputError(f"placements={placements!r}: a list of Shard(dim), Replicate() or Partial(op)")
    if len(placements) != mesh_ndim:
        raise InputError(f"placements {in_words(placements)}: the mesh has {mesh_ndim} dims, and each has a placement")
    checked = tuple(
        _from_front(placement, ndim) if isinstance(placement, Shard) else placement for placement in placements
    )
    reductions = {placement.reduce_op for placement in checked if isinstance(placement, Partial)}
    if len(reductions) > 1:
        raise InputError(f"placements {in_words(checked)}: a tensor has one reduction only")
    return checked


def _from_front(placement: Shard, ndim: int) -> Shard:
    if not -ndim <= placement.dim < ndim:
        raise InputError(f"{placement}: the tensor has {ndim} ax{'i' if ndim == 1 else 'e'}s")
    return Shard(int(placement.dim) % ndim)


def chunk(extent: int, parts: int, which: int) -> tuple[int, int]:
    """Return the bounds of chunk ``which``.

    Chunks have ceil(extent / parts) elements; the last ones may have fewer, or none.
    """
    size = -(-extent // parts)
    return min(which * size, extent), min((which + 1) * size, extent)


def local_window(
    shape: tuple[int, ...], placements: Placements, mesh_shape: Sequence[int], coordinate: Sequence[int]
) -> Window:
    """Return the part of a tensor of ``shape`` at a place in the mesh.

    A later dim of the mesh splits the chunks of earlier dims.
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
    """Return the first place in the mesh without elements of the tensor, and the axis that is too short.

    The result is None if every place has elements.
    """
    for place in product(*map(range, mesh_shape)):
        extents = local_window(shape, placements, mesh_shape, place).shape
        if 0 in extents:
            return place, extents.index(0)
    return None


def check_not_empty(shape: tuple[int, ...], placements: Placements, mesh_shape: Sequence[int]) -> None:
    """Raise InputError if a place in the mesh would have no elements: the machine has no empty tensors."""
    empty = empty_place(shape, placements, mesh_shape)
    if empty is not None:
        place, axis = empty
        raise InputError(
            f"shape {shape} with {in_words(placements)} on a mesh of {tuple(mesh_shape)}: chunks of axis {axis} leave "
            f"nothing for place {place}, and the machine has no tensors without elements; pad it, or Replicate()"
        )


FULL = Replicate()


@value
class Redistribution:
    """A step that changes ``placements[mesh_dim]`` to ``target`` and no other placement."""

    mesh_dim: int
    placements: Placements
    target: Placement

    @property
    def source(self) -> Placement:
        """The placement before the step."""
        return self.placements[self.mesh_dim]

    @property
    def result(self) -> Placements:
        """The placements after the step."""
        return replace_placement(self.placements, self.mesh_dim, self.target)

    @property
    def whole(self) -> Placements:
        """The placements with dim ``mesh_dim`` replicated: a part then has the data of all ranks along that dim."""
        return replace_placement(self.placements, self.mesh_dim, FULL)

    @property
    def is_local(self) -> bool:
        """True if no rank needs data of another rank for the step."""
        return isinstance(self.source, Replicate) or (
            isinstance(self.source, Shard) and isinstance(self.target, Partial)
        )


def replace_placement(placements: Placements, mesh_dim: int, placement: Placement) -> Placements:
    """Return the placements with another placement on one dim of the mesh."""
    return (*placements[:mesh_dim], placement, *placements[mesh_dim + 1 :])


def plan_steps(source: Placements, target: Placements) -> list[Redistribution]:
    """Return the steps from ``source`` to ``target``.

    Each dim of the mesh that shards an axis splits the chunk that results from the earlier dims. Before an earlier dim
    starts or stops sharding an axis, the later dims that shard the axis are therefore gathered, the last one first.
    Sharding of replicated data comes before all independent steps, because fewer bytes are then sent.
    """
    steps: list[Redistribution] = []
    now = source

    def append_steps(mesh_dim: int, wanted: Placement) -> None:
        nonlocal now
        for via in (*_find_way(now[mesh_dim], wanted), wanted):
            steps.append(Redistribution(mesh_dim, now, via))
            now = replace_placement(now, mesh_dim, via)

    for dim in reversed(range(len(now))):
        if _is_in_the_way(dim, now, target):
            append_steps(dim, FULL)
    for first in (True, False):
        for dim, wanted in enumerate(target):
            cuts = isinstance(now[dim], Replicate) and isinstance(wanted, Shard)
            if now[dim] != wanted and (not first or (cuts and not _is_blocked(dim, wanted, now, target))):
                append_steps(dim, wanted)
    return steps


def count_sent_bytes(
    source: Placements, target: Placements, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]
) -> float:
    """Return an estimate of the bytes that a rank sends.

    The estimate is for the first rank, which has the largest chunks, and assumes the algorithms of the collectives.
    """
    return sum(_count_step_bytes(step, shape, itemsize, mesh_shape) for step in plan_steps(source, target))


def _count_step_bytes(
    step: Redistribution, shape: tuple[int, ...], itemsize: int, mesh_shape: tuple[int, ...]
) -> float:
    ranks = mesh_shape[step.mesh_dim]
    window = local_window(shape, step.whole, mesh_shape, [0] * len(mesh_shape))
    return _count_rounds(step) * prod(window.shape) * itemsize * (ranks - 1) / ranks


def _count_rounds(step: Redistribution) -> float:
    """Return how many times all data of a step's ranks travel round the ring of these ranks."""
    if step.is_local:
        return 0
    if isinstance(step.source, Partial):
        return 2 if isinstance(step.target, Replicate) else 1
    # In an all-to-all a block of a chunk travels half round the ring on average.
    return 0.5 if isinstance(step.target, Shard) else 1


def _find_way(source: Placement, target: Placement) -> Iterator[Placement]:
    """Yield the intermediate placement if there is no direct step.

    Contributions to another reduction are computed from the full tensor.
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
    """Return True while an earlier dim of the mesh still has to start or stop sharding the same axis."""
    return any(now[at] != target[at] and wanted in (now[at], target[at]) for at in range(dim))
