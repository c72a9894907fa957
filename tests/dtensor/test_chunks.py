"""Which part of a tensor a place in the mesh has."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import InputError
from kernbench.dtensor import Replicate, Shard
from kernbench.dtensor.placements import check_not_empty, chunk, local_window


@pytest.mark.parametrize(
    ("extent", "parts", "sizes"),
    [(8, 4, [2, 2, 2, 2]), (7, 4, [2, 2, 2, 1]), (9, 4, [3, 3, 3, 0]), (5, 4, [2, 2, 1, 0]), (1, 3, [1, 0, 0])],
)
def test_chunks_are_those_of_torch(extent, parts, sizes):
    bounds = [chunk(extent, parts, at) for at in range(parts)]
    assert [stop - start for start, stop in bounds] == sizes
    assert [start for start, _ in bounds] == np.minimum(np.arange(parts) * sizes[0], extent).tolist()


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([Shard(0), Shard(1), Replicate()])), min_size=1, max_size=2),
)
def test_every_element_is_at_as_many_places_as_copies_say(shape, dims):
    mesh, placements = zip(*dims, strict=True)
    times = np.zeros(shape, int)
    for place in product(*map(range, mesh)):
        times[local_window(shape, placements, mesh, place).index] += 1
    assert np.all(times == prod(n for n, each in dims if isinstance(each, Replicate)))


def test_a_later_dim_cuts_what_earlier_ones_left():
    def windows(shape):
        return [local_window(shape, (Shard(0), Shard(0)), (2, 2), at).bounds[0] for at in product((0, 1), (0, 1))]

    assert windows((7,)) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert windows((6,)) == [(0, 2), (2, 3), (3, 5), (5, 6)]


def test_a_place_without_elements_is_an_error():
    check_not_empty((7, 3), (Shard(0),), (4,))
    with pytest.raises(InputError, match=r"chunks of axis 1 leave nothing for place \(3,\)"):
        check_not_empty((7, 3), (Shard(1),), (4,))
    with pytest.raises(InputError, match="no tensors without elements"):
        check_not_empty((9,), (Shard(0),), (4,))
