"""Overrides ``path=value``, as ``--set`` takes them: of the machine, the bench's parameters, or a front end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from kernbench.common.values import value
from kernbench.runtime_api.frontends import FRONTENDS

OverrideTarget: TypeAlias = Literal["machine", "bench", "frontends"]
BENCH_PREFIX = "bench."
"""The prefix of the bench's parameters"""
FRONTEND_PREFIXES = tuple(f"{name}." for name in FRONTENDS)
"""The prefixes of the settings of front ends"""


@value(kw_only=True)
class OverrideTexts:
    """Overrides grouped by target, each group in input order."""

    machine: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()
    frontends: tuple[str, ...] = ()


def part_of(path: str) -> OverrideTarget:
    """Return the target of a path, or of a text that begins with a path."""
    if path.startswith(BENCH_PREFIX):
        return "bench"
    return "frontends" if path.startswith(FRONTEND_PREFIXES) else "machine"


def split_overrides(texts: Iterable[str]) -> OverrideTexts:
    """Group overrides by target."""
    by_target: dict[OverrideTarget, list[str]] = {"machine": [], "bench": [], "frontends": []}
    for text in texts:
        by_target[part_of(text)].append(text)
    return OverrideTexts(**{part: tuple(grouped) for part, grouped in by_target.items()})
