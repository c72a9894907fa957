"""A tensor under another shape, where its shards allow it: nothing moves, and no time passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import numpy as np

from kernbench.policy.placement.dp import DPPolicy, PlacementError
from kernbench.policy.placement.geometry import Window
from kernbench.policy.placement.views import ShardView
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.shapes import Shape

KINDS = ("row_wise", "column_wise", "replicate")
Place: TypeAlias = Callable[[DPPolicy], tuple[ShardView, ...]]
Elements: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""Elements of a tensor in an order: the number of the first, then (how many, how far apart), from inside to outside."""


def reshaped(layout: TensorLayout, shape: Shape, place: Place) -> TensorLayout | None:
    """The same elements in the same order under ``shape``; None when a shard is no box of that.

    It has the policy that puts every element where it lies, if there is one; else it keeps ``dp`` and the shape that
    this splits. ``place``: the shards that a policy makes of a tensor of ``shape``.
    """
    held = [_elements(view.window, layout.shape) for view in layout.views]
    windows = [_window(elements, shape) for elements in held]
    views = tuple(ShardView(view.spec, new) for view, new in zip(layout.views, windows, strict=True) if new is not None)
    if len(views) < len(windows):
        return None
    fitting = (policy for policy in _policies(layout.dp) if _places(place, policy) == views)
    policy = next(fitting, None)
    if policy is None:
        return replace(layout, shape=shape, views=views, made_as=layout.made_as or layout.shape)
    return replace(layout, shape=shape, views=views, dp=policy, made_as=None)


def _policies(given: DPPolicy) -> Iterator[DPPolicy]:
    """The policies over the same cubes and PEs, the given one first."""
    yield given
    for cube, pe in product(KINDS, KINDS):
        yield replace(given, cube=cube, pe=pe)


def _places(place: Place, policy: DPPolicy) -> tuple[ShardView, ...]:
    try:
        return place(policy)
    except PlacementError:
        return ()


def _elements(window: Window, shape: Shape) -> Elements:
    """What a window of a tensor holds; axes that make one run are taken together, so that the shape does not matter."""
    first, step = 0, 1
    runs: list[tuple[int, int]] = []
    for (start, stop), extent in zip(reversed(window.bounds), reversed(shape), strict=True):
        first += start * step
        count = stop - start
        if runs and step == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * count, runs[-1][1])
        elif count > 1:
            runs.append((count, step))
        step *= extent
    return first, tuple(runs)


def _window(elements: Elements, shape: Shape) -> Window | None:
    """The window of a tensor of ``shape`` that holds these; None when they are no box."""
    first, runs = elements
    counts = [1] * len(shape)
    axis, stride = len(shape) - 1, 1
    for run, step in runs:
        count = run
        while axis >= 0 and (stride < step or shape[axis] == 1):
            stride *= shape[axis]
            axis -= 1
        while axis >= 0 and count > 1:
            counts[axis] = min(count, shape[axis])
            count = -(-count // counts[axis])
            stride *= shape[axis]
            axis -= 1
    corner = [int(at) for at in np.unravel_index(first, shape)]
    window = Window(tuple((at, at + count) for at, count in zip(corner, counts, strict=True)))
    inside = all(stop <= extent for (_, stop), extent in zip(window.bounds, shape, strict=True))
    return window if inside and _elements(window, shape) == elements else None
