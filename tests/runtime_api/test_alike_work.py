"""Numbers of values, and the report of launches that ranks make alike, by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest

from kernbench.engine.requests import RequestHandle
from kernbench.runtime_api.alike_work import AlikeWork


class Handle:
    """A launch with a number."""

    def __init__(self, request_id: int) -> None:
        self.request_id = request_id


def note(work: AlikeWork, rank: int, launch: int, name: str, operands: Sequence[int], written: int) -> None:
    """Note a launch of program ``name`` on the storages of a rank."""
    handle = cast("RequestHandle", Handle(launch))
    keys = [(rank, va) for va in (*operands, written)]
    work.note_launch((rank, name, handle), name, keys, {(rank, written)})


def are_alike(act: Callable[[AlikeWork, int], None]) -> bool:
    """Return whether a launch on storage 1 is alike on two ranks after ``act(work, rank)``."""
    work = AlikeWork()
    for rank in (0, 1):
        work.note_fresh((rank, 2))
        act(work, rank)
        note(work, rank, rank, "exp", [1], 2)
    report = work.report({0: (0, 10), 1: (0, 10)}, 0, 10, 0)
    return bool(report.alike)


def copied(*numbers: Any) -> Callable[[AlikeWork, int], None]:
    return lambda work, rank: work.note_bytes((rank, 1), 0, np.array(numbers[rank]), is_whole=True)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda work, rank: None, False),
        (lambda work, rank: work.note_fresh((rank, 1)), False),
        (lambda work, rank: work.note_unknown((rank, 1)), False),
        (copied([1, 2], [1, 2]), True),
        (copied([1, 2], [1, 3]), False),
        (lambda work, rank: work.note_bytes((rank, 1), rank, np.arange(2), is_whole=False), False),
        (lambda work, rank: work.note_collective("all_reduce", None, rank, [((rank, 1), True)]), True),
        (lambda work, rank: work.note_collective("all_gather", None, rank, [((rank, 1), True)]), True),
        (lambda work, rank: work.note_collective("broadcast", None, rank, [((rank, 1), True)]), True),
        (lambda work, rank: work.note_collective("all_reduce", None, rank, [((rank, 1), False)]), False),
        (lambda work, rank: work.note_collective("all_to_all", None, rank, [((rank, 1), True)]), False),
        (lambda work, rank: work.note_collective("reduce_scatter", None, rank, [((rank, 1), True)]), False),
        (lambda work, rank: work.note_collective("all_gather", rank, rank, [((rank, 1), True)]), False),
    ],
)
def test_values_are_equal_if_they_come_about_alike(act: Callable[[AlikeWork, int], None], expected: bool) -> None:
    assert are_alike(act) is expected


def test_shares_are_means_over_ranks() -> None:
    """Of 50 ps, each rank normalises for 10, and multiplies for 20 or 30. A launch of the initialisation lasts 7."""
    work = AlikeWork()
    for rank, launches in enumerate(((1, 2, 5), (3, 4, 6))):
        work.note_bytes((rank, 1), 0, np.ones(4), is_whole=True)
        work.note_unknown((rank, 2))
        work.note_fresh((rank, 3))
        note(work, rank, launches[2], "load", [1], 3)
        note(work, rank, launches[0], "norm", [1], 3)
        note(work, rank, launches[1], "mm", [3, 2], 3)
    times = {5: (0, 7), 6: (0, 7), 1: (10, 20), 2: (20, 40), 3: (10, 20), 4: (20, 50)}
    report = work.report(times, 10, 50, 5)
    assert (report.ranks, report.alike_share, report.collective_share) == (2, 20 / 100, 5 / 100)
    assert [(use.name, use.launches, use.ns) for use in report.alike] == [("norm", 2, 0.010)]
    assert str(report) == (
        "does not shrink with more ranks: 20.0% of the time is work that ranks do alike (norm 0.01 ns); "
        "collectives beside no kernel 5.0%"
    )


def test_without_ranks_there_is_nothing_to_report() -> None:
    report = AlikeWork().report({}, 0, 0, 0)
    assert report.is_empty
    assert report.ranks == 0
