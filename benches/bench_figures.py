"""What the registered benches took, beside the last committed figures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

COMMITTED = Path(__file__).with_name("figures.json")
RESULTS = Path("results/benches")


@dataclass(frozen=True)
class Figures:
    """What a bench took: seconds of this machine, simulated ns, events."""

    wall_s: float
    sim_ns: float
    events: int


class FigureBook:
    """The figures of this session, by bench."""

    def __init__(self) -> None:
        self.taken: dict[str, Figures] = {}

    def table(self, before: dict[str, Figures]) -> list[str]:
        """This session beside ``before``, as Markdown."""
        lines = ["| bench | wall s | before | simulated ns | change | events | change |", "| --- |" + " ---: |" * 6]
        for name, now in self.taken.items():
            old = before.get(name)
            wall, sim, events = (
                ("new", "new", "new")
                if old is None
                else (f"{old.wall_s:.2f}", _change(now.sim_ns, old.sim_ns), _change(now.events, old.events))
            )
            lines.append(
                f"| {name} | {now.wall_s:.2f} | {wall} | {now.sim_ns:,.3f} | {sim} | {now.events:,} | {events} |"
            )
        return lines


def _change(now: float, before: float) -> str:
    if now == before:
        return "same"
    return f"{now / before - 1:+.2%}" if before else f"from {before:g}"


def committed() -> dict[str, Figures]:
    """The figures of benches/figures.json."""
    if not COMMITTED.exists():
        return {}
    return {name: Figures(**each) for name, each in json.loads(COMMITTED.read_text(encoding="utf-8")).items()}
