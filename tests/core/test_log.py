"""The rows of the log: their bytes, and their columns."""

from __future__ import annotations

import sys

from kernbench.core.log import NONE, ROOT, WIDTH, By, Kind, Log

PS = 10**12  # beyond what 32 bits hold


def filled(n_rows: int) -> Log:
    """A log whose every row is closed and begins after the one before."""
    log, cause = Log(), ROOT
    for number in range(n_rows):
        row = log.open(log.part("part"), Kind.ISSUE, PS + number, cause)
        log.close(row, PS + number + 1)
        cause = row, By.ISSUE
    return log


def test_a_row_takes_at_most_120_bytes() -> None:
    n_rows = 10_000
    log = filled(n_rows)
    assert log.n_rows == n_rows
    assert sys.getsizeof(log.rows) <= 120 * n_rows


def test_columns_refer_to_rows_by_number() -> None:
    found = filled(3).columns()
    assert found.cause.tolist() == [NONE, 0, 1]
    assert found.kind.tolist() == [Kind.ISSUE] * 3
    assert found.end.tolist() == [PS + 1, PS + 2, PS + 3]
    assert not found.end.flags.writeable


def test_a_log_grows_while_somebody_has_columns() -> None:
    log = filled(2)
    found = log.columns()
    ends = found.end
    row = log.open(0, Kind.ISSUE, PS, ROOT)
    assert row == 2 * WIDTH
    assert ends.size == found.start.size == 2
