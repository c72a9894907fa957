"""Print the extras of a report: output of kernels and, when asked for, where time went and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from kernbench.cli.console import Json, number, show, table, text
from kernbench.common.ids import cube_part
from kernbench.common.late import late
from kernbench.common.units import format_size
from kernbench.common.values import value
from kernbench.engine.records import PrintedLine
from kernbench.messages.requests import PeCoord

if TYPE_CHECKING:
    from kernbench.evaluation.advice import Advice
    from kernbench.observe.sanitizer import Finding, Party
    from kernbench.runtime_api.run_explanation import RunExplanation

EXPLANATION = "kernbench.cli.explain_output"
ADVICE = "kernbench.cli.advise_output"

WRONG = ("unwritten", "copies", "race", "slot", "message")
"""Findings that make a run fail; a wait for scratch only costs time."""


@value
class Extras:
    """``printed`` by kernels; the rest is None when it was not asked for.

    ``explanation``: of a run that was observed; ``explains``: with its tables, not its verdict alone.
    """

    printed: tuple[PrintedLine, ...] = ()
    explanation: RunExplanation | None = None
    explains: bool = False
    advice: Advice | None = None
    findings: tuple[Finding, ...] | None = None


def is_wrong(extras: Extras) -> bool:
    """Tell whether a finding makes numbers depend on chance."""
    return any(finding.kind in WRONG for finding in extras.findings or ())


def print_extras(console: Console, extras: Extras) -> None:
    """Print the extras that a run has."""
    for line in extras.printed:
        console.print(str(line), soft_wrap=True, markup=False, highlight=False)
    if extras.printed:
        console.print()
    if extras.explanation is not None and extras.explains:
        late(EXPLANATION, "print_explanation")(console, extras.explanation)
    if extras.advice is not None:
        late(ADVICE, "print_advice")(console, extras.advice)
    if extras.findings is not None:
        show(console, _findings(extras.findings))
        for finding in extras.findings:
            console.print(str(finding), style="bold red" if finding.kind in WRONG else "yellow", soft_wrap=True)
        if not extras.findings:
            console.print("sanitizer: nothing found", style="green")
        console.print()


def extras_document(extras: Extras) -> dict[str, Json]:
    """Return the extras that a run has as entries of its document."""
    found: dict[str, Json] = {}
    if extras.printed:
        found["printed"] = [
            {"time_ns": each.time_ns, "pe": list(each.pe), "line": each.line, "text": each.text}
            for each in extras.printed
        ]
    if extras.explanation is not None and extras.explains:
        found["explanation"] = late(EXPLANATION, "explanation_document")(extras.explanation)
    if extras.advice is not None:
        found["advice"] = late(ADVICE, "advice_document")(extras.advice)
    if extras.findings is not None:
        found["findings"] = [_finding(each) for each in extras.findings]
    return found


def _findings(findings: tuple[Finding, ...]) -> Table:
    made = table(
        "Sanitizer",
        text("finding"),
        text("kernel"),
        text("line"),
        text("PE"),
        text("tensor"),
        *(number(name) for name in ("bytes", "from ns", "to ns", "times")),
    )
    for each in findings:
        made.add_row(
            each.kind,
            each.kernel or "host",
            _lines(each),
            _pes(each),
            each.tensor or each.space,
            format_size(each.nbytes),
            f"{each.t_start_ns:,.3f}",
            f"{each.t_end_ns:,.3f}",
            f"{each.count:,}",
        )
    return made


def _lines(finding: Finding) -> str:
    sides = (finding.side, finding.other) if finding.other is not None else (finding.side,)
    return " × ".join(f"{side.line} {side.action}" if side.line else side.action for side in sides)


def _pes(finding: Finding) -> str:
    sides = (finding.side, finding.other) if finding.other is not None else (finding.side,)
    return " × ".join(dict.fromkeys(_pe(side.pe) for side in sides))


def _pe(pe: PeCoord | None) -> str:
    return "host" if pe is None else cube_part(pe[0], pe[1], f"pe{pe[2]}")


def _finding(each: Finding) -> Json:
    return {
        "kind": each.kind,
        "message": each.message,
        "space": each.space,
        "tensor": each.tensor,
        "address": each.address,
        "nbytes": each.nbytes,
        "count": each.count,
        "side": _side(each.side),
        "other": None if each.other is None else _side(each.other),
        "owners": [list(pe) for pe in each.owners],
    }


def _side(side: Party) -> Json:
    return {
        "action": side.action,
        "kernel": side.kernel,
        "line": side.line,
        "file": side.file,
        "pe": None if side.pe is None else list(side.pe),
        "writes": side.writes,
        "t_start_ns": side.t_start_ns,
        "t_end_ns": side.t_end_ns,
    }
