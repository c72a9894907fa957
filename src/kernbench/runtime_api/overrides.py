"""What ``path=value`` texts change, as ``--set`` takes them: the machine, the bench's parameters, or a front end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from kernbench.common.values import value
from kernbench.runtime_api.frontends import FRONTENDS

Part: TypeAlias = Literal["machine", "bench", "frontends"]
BENCH_PREFIX = "bench."
"""What a parameter of the bench begins with."""
FRONTEND_PREFIXES = tuple(f"{name}." for name in FRONTENDS)
"""What a setting of a front end begins with."""


@value(kw_only=True)
class OverrideTexts:
    """Texts by what they change, each kind in the order in which they were given."""

    machine: tuple[str, ...] = ()
    bench: tuple[str, ...] = ()
    frontends: tuple[str, ...] = ()


def part_of(path: str) -> Part:
    """Return what a path, or a text that begins with one, is of."""
    if path.startswith(BENCH_PREFIX):
        return "bench"
    return "frontends" if path.startswith(FRONTEND_PREFIXES) else "machine"


def split_overrides(texts: Iterable[str]) -> OverrideTexts:
    """Divide texts by what they change."""
    found: dict[Part, list[str]] = {"machine": [], "bench": [], "frontends": []}
    for text in texts:
        found[part_of(text)].append(text)
    return OverrideTexts(**{part: tuple(each) for part, each in found.items()})
