"""Tests of the check of words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from kernbench.common.imports import import_file

ROOT = Path(__file__).parents[1]
SCRIPT = import_file(ROOT / "scripts" / "check_words.py", "the script")

CODE = '''"""Which rows are bound."""

def publish(rows, what, *, own=1):
    """Return the rows."""
    for each in rows:
        found = each
    return found

def _hide(given):
    """Nobody is told."""
'''
PAGE = f"""# A heading that nobody counts

- An item of a list. {"word " * 26}end.
- The second item.

| a table | {"that is very wide " * 9} |

```text
{"code that is wide, which nobody minds " * 4}
```

See {"a line " * 14}[link](page.md).
"""


def find(folder: Path, files: Mapping[str, str]) -> list[tuple[str, int]]:
    """Return the figure and the line of each finding in files with these texts."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return [
        (finding.figure, finding.line) for finding in SCRIPT.survey_files([folder / name for name in files]).findings
    ]


def test_names_and_docstrings_of_code(tmp_path: Path) -> None:
    findings = find(tmp_path, {"a.py": CODE})
    assert sorted(findings) == [
        ("clause first", 1),
        ("old word", 10),
        ("old word", 10),
        *[("vague name", line) for line in (3, 3, 5, 6, 9)],
        ("vague parameter", 3),
        ("vague parameter", 3),
    ]


def test_sentences_and_lines_of_a_page(tmp_path: Path) -> None:
    findings = find(tmp_path, {"a.md": PAGE})
    assert sorted(findings) == [("long sentence", 3), ("long sentence", 12), ("wide line", 3), ("wide line", 12)]


def test_shares_count_what_they_are_shares_of(tmp_path: Path) -> None:
    find(tmp_path, {"src/kernbench/core/a.py": CODE, "a.md": "One two three. Four five.\n"})
    survey = SCRIPT.survey_files([tmp_path / "src/kernbench/core/a.py", tmp_path / "a.md"])
    assert survey.names == {"core": 6}
    assert survey.room_shares() == {"core": pytest.approx(100 * 5 / 6)}
    assert survey.figures["words of a sentence in docs, mean"] == 2.5
    assert survey.figures["words of the pages in docs"] == 5
    assert survey.figures["old words in 1,000 words"] == pytest.approx(1000 * 2 / 15)


def test_a_limit_is_kept_and_falls(tmp_path: Path) -> None:
    find(tmp_path, {"a.md": "One two three.\n"})
    survey = SCRIPT.survey_files([tmp_path / "a.md"])
    words = "words of the pages in docs"
    assert not list(SCRIPT.find_problems(survey, (SCRIPT.Limit(words, 3, 0),)))
    assert not list(SCRIPT.find_problems(survey, (SCRIPT.Limit(words, 5, 2),)))
    assert "is above the limit of 2" in next(SCRIPT.find_problems(survey, (SCRIPT.Limit(words, 2, 0),)))
    assert "lower it" in next(SCRIPT.find_problems(survey, (SCRIPT.Limit(words, 6, 2),)))


def test_the_command_lists_places_and_refuses_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find(tmp_path, {"a.py": CODE})
    assert SCRIPT.main([str(tmp_path)]) == 0
    assert f"{tmp_path / 'a.py'}:5: vague name: each" in capsys.readouterr().out
    assert SCRIPT.main([str(tmp_path / "b")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
