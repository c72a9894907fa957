"""What changed between two results and why, in sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kernbench.evaluation.compare_results import NOTHING, BoundGroup, Compared, Differing


def verdict(found: Compared) -> tuple[str, ...]:
    """What changed and why, in sentences."""
    return tuple(_sentences(found))


def _sentences(found: Compared) -> Iterator[str]:
    count = f" over {len(found.pairs)} points" if len(found.pairs) > 1 else ""
    yield f"B takes {found.time.ns:+,.3f} ns ({found.time.share:+.1%}){count}"
    if found.differing:
        yield "what differs: " + "; ".join(_said(each) for each in found.differing)
    else:
        yield "no parameter differs"
    if found.stages and found.time.ns:
        most = found.stages[0]
        part = most.parts[0]
        own = f", most of it {part.name} ({part.ns:+,.3f} ns)" if len(most.parts) > 1 else ""
        yield f"the stage that changed most: {most.name}, {most.ns:+,.3f} ns of {found.time.ns:+,.3f}{own}"
    for group in found.groups:
        if NOTHING not in group.bounds:
            yield _roofline(group)


def _said(each: Differing) -> str:
    return f"{each.path} {_values(each.a)} → {_values(each.b)}"


def _values(values: Sequence[Any]) -> str:
    shown = [json.dumps(value) if not isinstance(value, str) else value for value in values]
    return ", ".join(shown if len(shown) <= 3 else [*shown[:2], "…", shown[-1]])


def _roofline(group: BoundGroup) -> str:
    a, b = group.bounds
    who = f"{group.pairs} point{'s' if group.pairs > 1 else ''}"
    what = f"bound by {a} in both" if a == b else f"bound by {a} in A and {b} in B"
    moved = (
        f"the bound of the longest launch moves by {group.bound.share:+.1%}, the launch by {group.launch.share:+.1%}"
    )
    return f"{who} {what}: {moved}"
