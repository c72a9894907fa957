"""Which part of the work a program takes."""

from collections.abc import Iterator
from typing import Any


def share(n: int, tl: Any, split: bool = True) -> tuple[int, int]:
    """First and number of this program's elements of ``n`` that are split over cubes, then PEs, as tensors are placed.

    All of them when nothing is ``split``: where tensors are replicated every program makes its own copy.
    """
    if not split:
        return 0, n
    cube_first, in_cube = part(n, tl.num_programs(1), tl.program_id(1))
    first, count = part(in_cube, tl.num_programs(0), tl.program_id(0))
    return cube_first + first, count


def blocks(n: int, size: int, first: int = 0) -> Iterator[tuple[int, int]]:
    """Start and number of the elements of each block of ``first`` .. ``first + n``; the last may have fewer."""
    for at in range(0, n, size):
        yield first + at, min(size, n - at)


def part(n: int, parts: int, which: int) -> tuple[int, int]:
    """First and number of elements of part ``which``: the first ``n % parts`` parts have one more."""
    size, more = divmod(n, parts)
    return which * size + min(which, more), size + (which < more)
