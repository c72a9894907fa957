"""How a tensor lies along one dim of a mesh of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernbench.common.errors import InputError, UnknownNameError

REDUCTIONS = ("sum", "avg", "max", "min")


@dataclass(frozen=True, slots=True)
class Shard:
    """Axis ``dim`` is cut into chunks, one for each rank, as ``torch.chunk`` does; negative counts from behind."""

    dim: int

    def __str__(self) -> str:
        return f"Shard({self.dim})"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank has all of it."""

    def __str__(self) -> str:
        return "Replicate()"


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank has a contribution of the full shape, and the tensor is what ``reduce_op`` makes of them.

    UnknownNameError for another reduction than sum, avg, max, min.
    """

    reduce_op: str = "sum"

    def __post_init__(self) -> None:
        if self.reduce_op not in REDUCTIONS:
            raise UnknownNameError("reduce_op", self.reduce_op, REDUCTIONS)

    def __str__(self) -> str:
        return f"Partial({self.reduce_op})"


Placement: TypeAlias = Shard | Replicate | Partial
Placements: TypeAlias = tuple[Placement, ...]
"""One for each dim of a mesh."""


def told(placements: Sequence[Placement]) -> str:
    """As text."""
    return f"[{', '.join(map(str, placements))}]"


def checked(placements: Sequence[Placement], mesh_ndim: int, ndim: int) -> Placements:
    """One for each of ``mesh_ndim``, axes counted from the front.

    InputError for another number, what is no placement, axes that a tensor of ``ndim`` axes does not have, and
    several reductions.
    """
    if isinstance(placements, Placement) or not all(isinstance(each, Placement) for each in placements):
        raise InputError(f"placements={placements!r}: a list of Shard(dim), Replicate() or Partial(op)")
    if len(placements) != mesh_ndim:
        raise InputError(f"placements {told(placements)}: the mesh has {mesh_ndim} dims, and each has a placement")
    found = tuple(_from_front(each, ndim) if isinstance(each, Shard) else each for each in placements)
    reductions = {each.reduce_op for each in found if isinstance(each, Partial)}
    if len(reductions) > 1:
        raise InputError(f"placements {told(found)}: one tensor is reduced in one way")
    return found


def _from_front(placement: Shard, ndim: int) -> Shard:
    if not -ndim <= placement.dim < ndim:
        raise InputError(f"{placement}: the tensor has {ndim} ax{'i' if ndim == 1 else 'e'}s")
    return Shard(placement.dim % ndim)
