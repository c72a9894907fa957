"""The TLB keeps the pages used last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.policy.address.pe_mmu import Tlb


@pytest.mark.parametrize(
    ("entries", "pages", "hits"),
    [
        (1, [7, 7, 8, 7], [False, True, False, False]),
        (2, [1, 2, 1, 3, 1, 2], [False, False, True, False, True, False]),  # 3 takes the place of 2, used before 1
        (3, [1, 2, 3, 1, 2, 3], [False, False, False, True, True, True]),
        (2, [1, 2, 3, 1, 2, 3], [False] * 6),  # a round of one page more than fit finds none
    ],
)
def test_the_page_used_longest_ago_goes(entries: int, pages: list[int], hits: list[bool]) -> None:
    tlb = Tlb(entries)
    assert [tlb.look_up(page) for page in pages] == hits
    assert (tlb.hits, tlb.misses) == (hits.count(True), hits.count(False))


def test_nothing_is_there_once_it_is_cleared() -> None:
    tlb = Tlb(4)
    tlb.look_up(1)
    tlb.clear()
    assert not tlb.look_up(1)


@given(st.integers(1, 5), st.lists(st.integers(0, 7), max_size=40))
def test_a_page_is_there_if_few_others_came_since(entries: int, pages: list[int]) -> None:
    """By the definition of LRU: fewer than ``entries`` different ones since its last use."""
    tlb = Tlb(entries)
    for at, page in enumerate(pages):
        before = pages[:at]
        since = before[::-1].index(page) if page in before else None
        wanted = since is not None and len(set(before[at - since :])) < entries
        assert tlb.look_up(page) == wanted
