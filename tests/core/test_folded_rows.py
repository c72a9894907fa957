"""Gaps of folded rows, and condensed copies of a log."""

from __future__ import annotations

from array import array
from random import Random

import numpy as np
import pytest

from kernbench.core.folding import Gaps, release
from kernbench.core.log import (
    CAUSE,
    END,
    KIND,
    LAUNCH,
    NONE,
    PARENT,
    ROOT,
    START,
    WIDTH,
    By,
    FoldedLaunch,
    Kind,
    Log,
)

N = 200


@pytest.mark.parametrize("seed", range(5))
def test_gaps_are_sets_of_numbers(seed):
    random, gaps, folded = Random(seed), Gaps(), dict[int, int]()
    for _ in range(4):
        free = [number for number in range(N) if number not in folded and number not in folded.values()]
        chosen = sorted(random.sample(free, 20))
        stand_ins = [random.choice((NONE, chosen[0])) for _ in chosen[1:]]
        gaps.add(np.array(chosen[1:]), np.array(stand_ins))
        folded |= dict(zip(chosen[1:], stand_ins, strict=True))
    assert gaps.n_rows == len(folded) == sum(gaps.contain(np.arange(N)))
    assert set(np.flatnonzero(gaps.contain(np.arange(N)))) == folded.keys()
    rest = gaps.list_rest(N)
    assert sorted([*rest, *folded]) == list(range(N))
    places = {number: place for place, number in enumerate(rest.tolist())}
    expected = [places.get(folded.get(number, number), NONE) for number in range(N)]
    assert gaps.renumber(N)(np.arange(N)).tolist() == expected
    assert set(np.flatnonzero(gaps.concern(np.arange(N)))) == {*folded, *folded.values()} - {NONE}


def test_nothing_is_in_no_gaps():
    gaps = Gaps()
    assert not gaps
    assert not gaps.contain(np.arange(3)).any()
    assert gaps.renumber(3)(np.array([NONE, 2])).tolist() == [NONE, 2]


def test_release_changes_no_row_outside_of_the_gaps():
    width, n = 14, 20_000
    rows = array("q", range(1, 1 + width * n))
    release(rows, width, np.array([[0, 5_000, 12_001], [3_000, 5_001, 19_999]]))
    table = np.asarray(rows).reshape(n, width)
    rest = np.ones(n, np.bool_)
    for first, end in ((0, 3_000), (5_000, 5_001), (12_001, 19_999)):
        rest[first:end] = False
    assert (table[rest] == np.arange(1, 1 + width * n).reshape(n, width)[rest]).all()


def log_of_two_launches() -> Log:
    """Two launches after each other on one device, with three rows on it each and one of the host before."""
    log = Log()
    cause = ROOT
    for launch in (0, 1):
        begin = 100 * launch
        request = log.requests[launch] = log.open(log.part("host"), Kind.REQUEST, begin, cause, launch=launch)
        cause = request, By.HOST
        for kind, start in ((Kind.CONTROL, 10), (Kind.LAUNCH, 20), (Kind.DMA_READ, 30)):
            row = log.open(
                log.part("part"), kind, begin + start, cause, launch=launch, parent=request, read=start, end=begin + 40
            )
            cause = row, By.OPERAND
        log.close(request, begin + 50, row)
        log.on_device[launch] = begin + 10, begin + 40
    return log


def test_one_row_stands_for_a_launch():
    log = log_of_two_launches()
    first = log.requests[0]
    assert log.fold([FoldedLaunch(0, "io_cpu", 10, 40)]) == {0}
    condensed = log.condense()
    columns = condensed.columns()
    assert [Kind(kind).name for kind in columns.kind[:3]] == ["REQUEST", "PASSED", "REQUEST"]
    assert (columns.start[1], columns.end[1], condensed.parts[columns.part[1]]) == (10, 40, "io_cpu")
    assert (columns.cause[1], columns.parent[1], columns.cause[2]) == (0, 0, 1)
    assert columns.last[0] == 1
    assert condensed.requests == {0: first, 1: 2 * WIDTH}
    assert log.n_unfolded == condensed.n_rows == log.n_rows - 2
    assert log.n_folded_records == 1
    assert [log.is_folded(row * WIDTH) for row in range(5)] == [False, False, True, True, False]
    assert condensed.originals is not None
    assert condensed.originals.tolist() == [0, 1, 4, 5, 6, 7]


def test_rows_that_follow_a_folded_one_keep_their_indices():
    log = log_of_two_launches()
    before = list(log.rows[log.requests[1] :])
    log.fold([FoldedLaunch(0, "io_cpu", 10, 40)])
    assert list(log.rows[log.requests[1] :]) == before


def test_a_launch_with_an_open_row_is_not_folded():
    log = log_of_two_launches()
    log.rows[log.requests[0] + 2 * WIDTH + END] = NONE
    launches = [FoldedLaunch(0, "io_cpu", 10, 40), FoldedLaunch(1, "io_cpu", 110, 140)]
    assert log.fold(launches) == {1}


def test_pieces_have_all_rows_and_whole_launches():
    log = log_of_two_launches()
    log.open(log.part("part"), Kind.RAW, 300, ROOT, end=310)
    pieces = list(log.divide(4))
    assert [sorted(set(piece.column(LAUNCH).tolist())) for piece in pieces] == [[NONE], [0], [1]]
    assert sum(piece.n_rows for piece in pieces) == log.n_rows
    assert [piece.rows[PARENT + 2 * WIDTH] for piece in pieces[1:]] == [0, 0]
    assert pieces[2].rows[CAUSE] == NONE
    assert list(log.divide(100)) == [log]
    ((launch, of_launch),) = log.extract([1])
    assert (launch, of_launch.column(KIND).tolist()) == (1, [Kind.REQUEST, Kind.CONTROL, Kind.LAUNCH, Kind.DMA_READ])
    assert of_launch.column(START).tolist() == [100, 110, 120, 130]


def test_gaps_end_at_each_row_between_them():
    """A row that stays would lose its memory if two gaps became one. Gaps of different stand-ins are one."""
    first, end = Gaps().add(np.array([1, 2, 4, 5, 6, 9]), np.array([NONE, NONE, NONE, 0, 0, 0]))
    assert list(zip(first.tolist(), end.tolist(), strict=True)) == [(1, 3), (4, 7), (9, 10)]
