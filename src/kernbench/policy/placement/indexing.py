"""NumPy indices on a tensor that lies in shards: the window to fetch and what is left to do on it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index as as_integer
from typing import Any, SupportsIndex

import numpy as np

from kernbench.policy.placement.geometry import Window

_Bounds = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Selection:
    """``tensor[index]`` is ``fetched[rest]``, where ``fetched`` is what ``window`` holds.

    ``dense``: every element of the window is selected once, so that storing to it need not fetch first.
    """

    window: Window
    rest: tuple[Any, ...]
    dense: bool


def select(index: Any, shape: tuple[int, ...]) -> Selection:
    """The smallest window that holds ``tensor[index]`` of a tensor of ``shape``, and the index that remains.

    Integers, slices with any step, ``...`` and None narrow the window; arrays and lists of indices take the whole
    tensor. IndexError as NumPy raises it, also for an integer out of range.
    """
    parts = index if isinstance(index, tuple) else (index,)
    if not all(_is_basic(part) for part in parts):
        return Selection(Window.whole(shape), parts, dense=False)
    _raise_as_numpy(parts, shape)
    return _basic(_without_ellipsis(parts, len(shape)), shape)


def _basic(parts: tuple[Any, ...], shape: tuple[int, ...]) -> Selection:
    bounds: list[_Bounds] = []
    rest: list[Any] = []
    for part in parts:
        if part is None:
            rest.append(None)
            continue
        extent = shape[len(bounds)]
        bound, remaining = _sliced(part, extent) if isinstance(part, slice) else _picked(part, extent)
        bounds.append(bound)
        rest.append(remaining)
    dense = all(not isinstance(part, slice) or part.step in {1, -1} for part in rest)
    return Selection(Window(tuple(bounds)), tuple(rest), dense)


def _is_basic(part: object) -> bool:
    if isinstance(part, bool | np.bool_):
        return False
    # An array of one integer is an index that NumPy treats as an array.
    integer = isinstance(part, SupportsIndex) and not isinstance(part, np.ndarray)
    return integer or part is None or part is Ellipsis or isinstance(part, slice)


def _raise_as_numpy(parts: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    # A broadcast byte has the shape and no memory: NumPy itself judges the index.
    np.broadcast_to(np.int8(0), shape)[parts]


def _without_ellipsis(parts: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    full = (slice(None),)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    named = sum(part is not None and part is not Ellipsis for part in parts)
    return (*parts[:at], *full * (rank - named), *parts[at + 1 :])


def _picked(part: SupportsIndex, extent: int) -> tuple[_Bounds, int]:
    at = as_integer(part) % extent
    return (at, at + 1), 0


def _sliced(part: slice, extent: int) -> tuple[_Bounds, slice]:
    chosen = range(extent)[part]
    if not chosen:
        return (0, 0), slice(0, 0, 1)
    low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1])
    # Counted from the window's own corner the first element chosen is at its start, or at its end going down.
    return (low, high + 1), slice(None, None, chosen.step)
