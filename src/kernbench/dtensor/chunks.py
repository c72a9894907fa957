"""Which part of a tensor a place in the mesh has: ``torch.chunk``, dim after dim of the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from kernbench.common.errors import InputError
from kernbench.dtensor.placements import Placements, Shard, told
from kernbench.policy.placement.geometry import Window


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
            f"shape {shape} with {told(placements)} on a mesh of {tuple(mesh_shape)}: chunks of axis {axis} leave "
            f"nothing for place {place}, and the machine has no tensors without elements; pad it, or Replicate()"
        )
