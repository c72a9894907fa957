"""Numbers as the page carries them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from web_support import numbers, read_page

from kernbench.web.packing import Pack, encode_row, encode_varints


@given(st.lists(st.integers(0, 2**62)))
def test_varints_round_trip(values: list[int]) -> None:
    assert list(numbers(encode_varints(values))) == values


def test_varints_take_no_negative_number() -> None:
    with pytest.raises(ValueError, match="-3"):
        encode_varints([1, -3])


@given(arrays(np.int64, st.integers(0, 40), elements=st.integers(0, 3)))
def test_sparse_rows_tell_where_what_is(row: np.ndarray) -> None:
    count, *pairs = encode_row(row).tolist()
    found, at = [0] * row.size, -1
    for skipped, value in zip(pairs[::2], pairs[1::2], strict=True):
        at += 1 + skipped
        found[at] = value
    assert (count, found) == (np.count_nonzero(row), row.tolist())


def test_sections_are_where_the_head_says() -> None:
    pack = Pack()
    pack.add("a", encode_varints([1, 2]))
    pack.add("b", encode_varints([300]))
    data = read_page(f'<script id="data">{pack.text({"version": "1"})}</script>')
    assert (data.head["version"], data.section("a"), data.section("b")) == ("1", [1, 2], [300])


def test_a_section_is_named_once() -> None:
    pack = Pack()
    pack.add("a", b"")
    with pytest.raises(ValueError, match="'a'"):
        pack.add("a", b"")
