"""``kernbench check-part``."""

from __future__ import annotations

import rich_click as click

from kernbench.cli.console import Json, print_json, stdout
from kernbench.cli.options import debug_option, json_option
from kernbench.cli.session import FAILED
from kernbench.probe.part_suite import PartCheck, check_part


@click.command(name="check-part")
@click.argument("part", metavar="my_pkg.parts:Part")
@click.option("--kind", "kinds", metavar="KIND", multiple=True, help="The place it is for.  [default: what it says]")
@json_option
@debug_option
def command(part: str, kinds: tuple[str, ...], as_json: bool) -> int:
    """Check a part on a small machine under standard traffic, and print a line for each check."""
    console = stdout()
    found: list[PartCheck] = []
    for checked in check_part(part, kinds):
        found.append(checked)
        if not as_json:
            console.print(_line(checked), soft_wrap=True)
    if as_json:
        rows: list[Json] = [
            {"kind": each.kind, "check": each.name, "ok": each.ok, "problem": each.problem, "note": each.note}
            for each in found
        ]
        print_json({"part": part, "checks": rows})
    return 0 if all(each.ok for each in found) else FAILED


def _line(checked: PartCheck) -> str:
    verdict = "ok  " if checked.ok else "FAIL"
    about = checked.problem or checked.note
    return f"{verdict}  {checked.kind}  {checked.name}{f': {about}' if about else ''}"
