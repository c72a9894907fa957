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
    return f"{each.path} {_few(each.a)} → {_few(each.b)}"


def _few(values: Sequence[Any]) -> str:
    return values_text(values) if len(values) <= 3 else f"{values_text(values[:2])}, …, {values_text(values[-1:])}"


def values_text(values: Sequence[Any]) -> str:
    """The values of a parameter on one side, as a file has them; ``absent`` where that side does not have it."""
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return ", ".join(texts) or "absent"


def _roofline(group: BoundGroup) -> str:
    a, b = group.bounds
    who = f"{group.pairs} point{'s' if group.pairs > 1 else ''}"
    what = f"bound by {a} in both" if a == b else f"bound by {a} in A and {b} in B"
    moved = (
        f"the bound of the longest launch moves by {group.bound.share:+.1%}, the launch by {group.launch.share:+.1%}"
    )
    return f"{who} {what}: {moved}"
