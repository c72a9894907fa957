"""What the sanitizer has found, as a table."""

from __future__ import annotations

from rich.table import Table

from kernbench.cli.console import number, table, text
from kernbench.common.ids import cube_part
from kernbench.common.units import format_size
from kernbench.messages.requests import PeCoord
from kernbench.observe.sanitizer import Finding


def tabulate_findings(findings: tuple[Finding, ...]) -> Table:
    """Tabulate what the sanitizer has found."""
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
