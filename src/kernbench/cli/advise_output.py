"""Advice on a run, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from kernbench.cli.console import ReportLine, number, table, text
from kernbench.evaluation.advice import Advice
from kernbench.observe.path_resources import join_words


def advice_parts(found: Advice) -> Iterator[Table | ReportLine | None]:
    """Yield what faster resources give, then what the program could do differently."""
    if not found.machine and not found.program:
        yield "No resource that is 10 % faster gives 2 % of the time.", "bold"
    yield from (_machine(found), _program(found))


def _machine(found: Advice) -> Table | None:
    if not found.machine:
        return None
    made = table(
        "10 % faster, simulated  (both sides with refresh: spread)",
        text("resource"),
        *(number(name) for name in ("run ns", "of the run", "launch ns", "of the launch")),
        text("--set"),
    )
    for each in found.machine:
        made.add_row(
            join_words(each.resources),
            f"−{each.gained_ns:,.3f}",
            f"{each.run_share:.1%}",
            f"−{each.launch_gained_ps / 1000:,.3f}",
            f"{each.launch_share:.1%}",
            "\n".join(each.settings),
        )
    return made


def _program(found: Advice) -> Table | None:
    if not found.program:
        return None
    made = table(
        f"What the kernel {found.launch!r} could do differently  (not simulated)",
        text("change"),
        text("evidence"),
        number("at most"),
    )
    for each in found.program:
        made.add_row(each.what, each.evidence, f"{each.share:.1%}")
    return made
