"""A point that a journal has twice: what was found first stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.evaluation.sweep_journal import JOURNAL_FILE, begin_journal, resume_journal
from kernbench.evaluation.sweep_point import PointOutcome

IDENTITY = {"grid": {"bench.m": [32, 48]}}
FIRST, AGAIN = (PointOutcome(0, {"status": "ok", "sim_ns": ns}, 1.0) for ns in (100.0, 200.0))
OTHER = PointOutcome(1, {"status": "ok", "sim_ns": 300.0}, 1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / JOURNAL_FILE


def write(path: Path, *outcomes: PointOutcome) -> None:
    with begin_journal(path, IDENTITY, 2) as journal:
        journal.append(outcomes)


def test_of_two_lines_of_a_point_the_first_holds(path: Path, tmp_path: Path) -> None:
    """Two sweeps that went on with copies of one folder leave such a journal when they are put together.

    Who has read the point before must find the same figures after the next resume.
    """
    write(path, FIRST, OTHER)
    second = tmp_path / "second"
    write(second, AGAIN)
    path.write_bytes(path.read_bytes() + second.read_bytes().splitlines(keepends=True)[1])
    with resume_journal(path, IDENTITY, 2) as journal:
        assert journal.finished == {0: FIRST, 1: OTHER}


def test_a_point_that_is_there_is_not_found_anew(path: Path) -> None:
    """A chunk that a lost worker had finished may come twice: the file and the table keep the first outcome."""
    with begin_journal(path, IDENTITY, 2) as journal:
        journal.append([FIRST])
        before = path.read_bytes()
        journal.append([AGAIN])
        assert path.read_bytes() == before
        journal.append([AGAIN, OTHER])
        assert journal.finished == {0: FIRST, 1: OTHER}
    with resume_journal(path, IDENTITY, 2) as journal:
        assert journal.finished == {0: FIRST, 1: OTHER}
