"""What the registered benches took, beside the last committed figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

COMMITTED = Path(__file__).with_name("figures.json")
RESULTS = Path("results/benches")


def fastest_s(benchmark: BenchmarkFixture) -> float | None:
    """Return the seconds of the fastest round; None where nothing is timed (``--benchmark-disable``)."""
    return None if benchmark.stats is None else benchmark.stats.stats.min


def note_rates(benchmark: BenchmarkFixture, **rates: Callable[[float], float]) -> None:
    """Note what follows from the seconds of the fastest round; nothing where nothing is timed."""
    seconds = fastest_s(benchmark)
    if seconds is not None:
        benchmark.extra_info |= {name: rate(seconds) for name, rate in rates.items()}


@dataclass(frozen=True)
class Figures:
    """What a bench took: seconds of this machine, simulated ns, events.

    None for an evaluation, which simulates on machines of its own.
    """

    wall_s: float
    sim_ns: float | None
    events: int | None


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
            ns = "–" if now.sim_ns is None else f"{now.sim_ns:,.3f}"
            fired = "–" if now.events is None else f"{now.events:,}"
            lines.append(f"| {name} | {now.wall_s:.2f} | {wall} | {ns} | {sim} | {fired} | {events} |")
        return lines


def _change(now: float | None, before: float | None) -> str:
    if now == before:
        return "–" if now is None else "same"
    return f"{now / before - 1:+.2%}" if now and before else f"from {before}"


def committed() -> dict[str, Figures]:
    """The figures of benches/figures.json."""
    if not COMMITTED.exists():
        return {}
    return {name: Figures(**each) for name, each in json.loads(COMMITTED.read_text(encoding="utf-8")).items()}
