"""How a tensor lies along one dim of a mesh of ranks, and which part of it a place in the mesh has."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
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
        """Whether an axis is cut, and if ``dim`` is given, that one."""
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        """Whether every rank has all."""
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        """Whether every rank has a contribution, and if ``reduce_op`` is given, to that reduction."""
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
    """As text."""
    return f"[{', '.join(map(str, placements))}]"


def checked(placements: Sequence[Placement], mesh_ndim: int, ndim: int) -> Placements:
    """One for each of ``mesh_ndim``, axes counted from the front.

    InputError for another number, what is no placement, axes that a tensor of ``ndim`` axes does not have, and
    several reductions.
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
    """Bounds of chunk ``which``: all have ceil(extent / parts), the last ones what is left, which may be nothing."""
    size = -(-extent // parts)
    return min(which * size, extent), min((which + 1) * size, extent)


def local_window(
    shape: tuple[int, ...], placements: Placements, mesh_shape: Sequence[int], coordinate: Sequence[int]
) -> Window:
    """The part of a tensor of ``shape`` at a place in the mesh; a later dim of the mesh cuts what earlier ones left."""
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
    """The first place in the mesh that gets nothing of the tensor, and the axis that is too short, if there is one."""
    for place in product(*map(range, mesh_shape)):
        extents = local_window(shape, placements, mesh_shape, place).shape
        if 0 in extents:
            return place, extents.index(0)
    return None


def check_not_empty(shape: tuple[int, ...], placements: Placements, mesh_shape: Sequence[int]) -> None:
    """InputError when a place in the mesh would get nothing: the machine has no tensors without elements."""
    found = empty_place(shape, placements, mesh_shape)
    if found is not None:
        place, axis = found
        raise InputError(
            f"shape {shape} with {in_words(placements)} on a mesh of {tuple(mesh_shape)}: chunks of axis {axis} leave "
            f"nothing for place {place}, and the machine has no tensors without elements; pad it, or Replicate()"
        )
