"""Check that each decision record has a status and a pair in Korean with the same status.

usage: python scripts/check_decisions.py [FOLDER]        (default: docs/decisions)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

DECISIONS = Path(__file__).parents[1] / "docs" / "decisions"
KOREAN = "ko"
STATUS = re.compile(r"Status: (accepted|superseded (?:in part )?by (?P<successor>\d{4}))")
FORMS = "Status: accepted, Status: superseded by NNNN, Status: superseded in part by NNNN"
HANGUL = re.compile("[가-힣]")


def find_problems(folder: Path) -> Iterator[str]:
    """Yield what is wrong with the records of a folder and their pairs in its folder ``ko``, a line each."""
    english, korean = ({path.name: path for path in each.glob("*.md")} for each in (folder, folder / KOREAN))
    numbers = {name[:4] for name in english}
    if not english:
        yield f"{folder}: no records here"
    for name in sorted(english.keys() - korean.keys()):
        yield f"{folder / KOREAN / name}: does not exist; write {english[name]} in Korean there"
    for name in sorted(korean.keys() - english.keys()):
        yield f"{korean[name]}: a record of this name is not in {folder}; rename it, or write that one"
    for name in sorted(english):
        status = status_line(english[name])
        found = STATUS.fullmatch(status)
        if found is None:
            yield f"{english[name]}:3: expected a line of the form {FORMS}; found {status!r}"
        elif found["successor"] not in {None, *numbers}:
            yield f"{english[name]}:3: there is no record {found['successor']}"
        if name in korean:
            yield from _find_differences(korean[name], status)


def _find_differences(korean: Path, status: str) -> Iterator[str]:
    if status_line(korean) != status:
        yield f"{korean}:3: found {status_line(korean)!r}; the record in English has {status!r}"
    if not HANGUL.search(korean.read_text(encoding="utf-8")):
        yield f"{korean}: is not in Korean"


def status_line(record: Path) -> str:
    """Return the third line of a record, which is below the title and an empty line."""
    lines = record.read_text(encoding="utf-8").splitlines()
    return lines[2] if len(lines) > 2 else ""


def main(arguments: list[str]) -> int:
    """Print the problems and return 1 when there are any."""
    problems = list(find_problems(Path(arguments[0]) if arguments else DECISIONS))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
