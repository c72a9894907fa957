"""Shapes as programs write them, and as they fit each other."""

from __future__ import annotations

from math import prod
from operator import index
from typing import TypeAlias

import numpy as np

from kernbench.common.errors import InputError

Shape: TypeAlias = tuple[int, ...]
Size: TypeAlias = int | tuple[int, ...] | list[int]


class ShapeError(InputError, ValueError):
    """Shapes that do not fit each other."""


def shape_of(size: tuple[Size, ...]) -> Shape:
    """The shape that ``zeros(2, 3)`` or ``zeros((2, 3))`` means."""
    extents = size[0] if len(size) == 1 and isinstance(size[0], tuple | list) else size
    try:
        return tuple(index(extent) for extent in extents)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"{extents!r} is no shape; write (2, 3)") from None


def completed(shape: Shape, size: int) -> Shape | None:
    """The shape with what its one -1 stands for; None unless it then has ``size`` elements."""
    rest = prod(extent for extent in shape if extent != -1)
    if shape.count(-1) == 1 and rest > 0 and size % rest == 0:
        shape = tuple(size // rest if extent == -1 else extent for extent in shape)
    return shape if min(shape, default=1) > 0 and prod(shape) == size else None


def broadcasts(shape: Shape, to: Shape) -> bool:
    """Whether an array of ``shape`` can be repeated to have shape ``to``, by NumPy's rule."""
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False
