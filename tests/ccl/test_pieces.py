"""Parts of a rank's data: who has the elements that are left over."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.pieces import split_evenly
from kernbench.kernels.shares import part
from kernbench.messages.steps import Chunk


def test_the_first_parts_have_what_is_left_over() -> None:
    assert split_evenly(Chunk(10, 11, 1), 4) == [Chunk(10, 3, 1), Chunk(13, 3, 1), Chunk(16, 3, 1), Chunk(19, 2, 1)]


def test_parts_may_be_empty_only_at_the_end() -> None:
    assert [each.size for each in split_evenly(Chunk(0, 2), 4)] == [1, 1, 0, 0]


@given(offset=st.integers(0, 100), size=st.integers(0, 1000), parts=st.integers(1, 40))
def test_a_part_is_the_share_of_its_program(offset: int, size: int, parts: int) -> None:
    """Tensors are placed, and kernels take their share, by this rule; a schedule's part of a tensor is the same one."""
    found = split_evenly(Chunk(offset, size), parts)
    assert [(each.offset - offset, each.size) for each in found] == [part(size, parts, which) for which in range(parts)]
    assert all(before.offset + before.size == after.offset for before, after in pairwise(found))
    assert sum(each.size for each in found) == size
