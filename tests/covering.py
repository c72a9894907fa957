"""Which parameters run by default; the others are slow."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def slow(*values: Any, **more: Any) -> Any:
    """Make one case of a ``parametrize`` slow."""
    return pytest.param(*values, marks=pytest.mark.slow, **more)


def sample(values: Iterable[Any], *by_default: Any) -> list[Any]:
    """Return all ``values``, for ``parametrize``; only those of ``by_default`` are not slow."""
    every = list(values)
    unknown = [each for each in by_default if each not in every]
    assert not unknown, f"{unknown} are none of {every}"
    return [each if each in by_default else slow(each) for each in every]


def covering(*axes: Iterable[Any]) -> list[Any]:
    """All combinations of these values, for ``parametrize``; only as many as have each value once are not slow.

    Each round through a short axis begins one value further, so that
    different values meet.
    """
    values = [list(axis) for axis in axes]
    by_default = {
        tuple((at + which * (at // len(axis))) % len(axis) for which, axis in enumerate(values))
        for at in range(max(map(len, values)))
    }
    return [
        pytest.param(
            *(axis[at] for axis, at in zip(values, place, strict=True)),
            marks=[pytest.mark.slow] * (place not in by_default),
        )
        for place in product(*(range(len(axis)) for axis in values))
    ]
