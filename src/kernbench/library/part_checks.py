"""Contract checks of a user's part, on a small machine under standard traffic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernbench.common.values import value
from kernbench.probe.part_suite import PartCheck
from kernbench.probe.part_suite import check_part as make_checks
from kernbench.result.table import LINE, Table, TableColumn


@value(repr=False, eq=False)
class PartReport:
    """The results of the checks of a part, in order."""

    part: str
    checks: tuple[PartCheck, ...]

    @property
    def ok(self) -> bool:
        """True if every check passes."""
        return all(check.ok for check in self.checks)

    @property
    def verdict(self) -> str:
        """The number of passed checks, as text."""
        return f"{self.part}: {sum(check.ok for check in self.checks)} of {len(self.checks)} checks hold"

    @property
    def table(self) -> Table[PartCheck]:
        """A row for each check."""
        return Table("checks", self.checks, _CHECKS)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that ``kernbench check-part --json`` prints."""
        return {"part": self.part, "checks": self.table.to_dicts()}

    def __repr__(self) -> str:
        wrong = (f"  {check.kind}  {check.name}: {check.problem}" for check in self.checks if not check.ok)
        return "\n".join(line[:LINE] for line in (self.verdict, *wrong))

    def _repr_html_(self) -> str:
        return self.table.to_html()


_CHECKS: tuple[TableColumn[PartCheck], ...] = (
    TableColumn("kind", "the kind of place"),
    TableColumn("check", "the rule", lambda row: row.name),
    TableColumn("ok", "whether the part keeps the rule"),
    TableColumn("problem", "the reason of a failure"),
    TableColumn("note", "the measured values"),
)


def check_part(part: str, kinds: Sequence[str] = (), on_check: Callable[[PartCheck], None] | None = None) -> PartReport:
    """Check a part as each of ``kinds``, by default as each kind that the part declares.

    ``part``: a registered name, ``my_pkg.parts:Part`` or ``file.py:Part``. ``on_check`` is called after each check.
    Raises InputError if ``part`` does not name a part, and for unknown kinds.
    """
    checks = []
    for checked in make_checks(part, kinds):
        checks.append(checked)
        if on_check is not None:
            on_check(checked)
    return PartReport(part, tuple(checks))
