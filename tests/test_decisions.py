"""Tests of the check that decision records are in two languages, and of the records themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kernbench.common.imports import import_file

ROOT = Path(__file__).parents[1]
SCRIPT = import_file(ROOT / "scripts" / "check_decisions.py", "the script")
GOOD = {
    "0001-links.md": "# Links\n\nStatus: superseded by 0002\n\nWhy.\n",
    "0002-packets.md": "# Packets\n\nStatus: accepted\n\nWhy.\n",
    "ko/0001-links.md": "# 링크\n\nStatus: superseded by 0002\n\n이유.\n",
    "ko/0002-packets.md": "# 패킷\n\nStatus: accepted\n\n이유.\n",
}


def find_problems(folder: Path, changes: Mapping[str, str | None]) -> list[str]:
    """Return the problems of good records after ``changes``: the text of a file, or None to leave it out."""
    for name, text in {**GOOD, **changes}.items():
        if text is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    return list(SCRIPT.find_problems(folder))


def test_records_of_kernbench_are_in_two_languages() -> None:
    assert not list(SCRIPT.find_problems(ROOT / "docs" / "decisions"))


def test_good_records_have_no_problems(tmp_path: Path) -> None:
    assert find_problems(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ko/0002-packets.md": None}, "ko/0002-packets.md: does not exist; write"),
        ({"0002-packets.md": None, "0001-links.md": GOOD["0002-packets.md"]}, "a record of this name is not in"),
        ({"ko/0002-packets.md": GOOD["ko/0001-links.md"]}, "found 'Status: superseded by 0002'; the record in English"),
        ({"ko/0002-packets.md": GOOD["0002-packets.md"]}, "is not in Korean"),
        ({"0002-packets.md": "# Packets\n\nWhy.\n"}, "0002-packets.md:3: expected a line of the form Status: accepted"),
        ({"0002-packets.md": "# Packets\n"}, "found ''"),
        ({"0001-links.md": GOOD["0001-links.md"].replace("0002", "0009")}, "there is no record 0009"),
    ],
)
def test_each_problem_is_named(tmp_path: Path, changes: Mapping[str, str | None], words: str) -> None:
    assert any(words in problem for problem in find_problems(tmp_path, changes))


def test_exit_code_and_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert SCRIPT.main([]) == 0
    assert SCRIPT.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path}: no records here\n"
