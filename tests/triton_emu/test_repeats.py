"""Which pieces of a long kernel are simulated."""

from __future__ import annotations

from math import prod

from kernbench.triton_emu.repeats import MOST_ELEMENTS, SAMPLES, RepeatedWork, Repeats


def pieces_of(n: int, size: int) -> list[tuple[tuple[int], tuple[int]]]:
    """Return the pieces of ``size`` elements of an array of ``n`` elements."""
    return [((at,), (min(size, n - at),)) for at in range(0, n, size)]


def test_the_first_tasks_of_a_kind_are_simulated() -> None:
    work = RepeatedWork()
    repeats = Repeats(work)
    pieces = pieces_of(5000, 1024)
    for at in range(SAMPLES + 3):
        assert repeats.choose(pieces, "kind") == (tuple(pieces) if at < SAMPLES else ())
    assert (work.simulated, work.left_out) == (SAMPLES * 5000, 3 * 5000)
    assert work.more == 3 / SAMPLES
    assert repeats.choose(pieces, "another kind") == tuple(pieces)


def test_the_first_pieces_of_a_long_task_are_simulated() -> None:
    work = RepeatedWork()
    n = 2 * MOST_ELEMENTS + 1000
    pieces = pieces_of(n, 3000)
    chosen = Repeats(work).choose(iter(pieces), "kind")
    assert chosen == tuple(pieces[: len(chosen)])
    n_chosen = sum(prod(extents) for _, extents in chosen)
    assert MOST_ELEMENTS <= n_chosen < MOST_ELEMENTS + 3000
    assert (work.simulated, work.left_out) == (n_chosen, n - n_chosen)


def test_programs_of_a_launch_share_its_work() -> None:
    work = RepeatedWork()
    for _ in range(2):
        repeats = Repeats(work)
        for _ in range(SAMPLES + 1):
            repeats.choose(pieces_of(100, 100), "kind")
    assert (work.simulated, work.left_out) == (2 * SAMPLES * 100, 2 * 100)
    assert RepeatedWork().more == 0
