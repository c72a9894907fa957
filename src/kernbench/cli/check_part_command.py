"""``kernbench check-part``."""

from __future__ import annotations

import rich_click as click

from kernbench.cli.console import print_json, stdout
from kernbench.cli.options import output_options
from kernbench.cli.session import FAILED
from kernbench.library.part_checks import check_part
from kernbench.probe.part_suite import PartCheck


@click.command(name="check-part")
@click.argument("part", metavar="my_pkg.parts:Part")
@click.option(
    "--kind",
    "kinds",
    metavar="KIND",
    multiple=True,
    help="Check the part as KIND instead of its declared kinds (repeatable).",
)
@output_options
def command(part: str, kinds: tuple[str, ...], as_json: bool) -> int:
    """Check a part of your own on a small machine under standard traffic, one output line per check."""
    found = check_part(part, kinds, None if as_json else _print_check)
    if as_json:
        print_json(found.to_dict())
    return 0 if found.ok else FAILED


def _print_check(checked: PartCheck) -> None:
    verdict = "ok  " if checked.ok else "FAIL"
    about = checked.problem or checked.note
    line = f"{verdict}  {checked.kind}  {checked.name}{f': {about}' if about else ''}"
    stdout().print(line, soft_wrap=True)
