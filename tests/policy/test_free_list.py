"""The free list against a map of bytes: first fit from either end, merged holes, honest errors."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import AllocationError
from kernbench.policy.address.free_list import AddressExtent, FreeList

SIZE = 512


class ByteMap:
    """What a free list does, by looking at every byte."""

    def __init__(self, base: int, alignment: int, granule: int) -> None:
        self.base, self.alignment, self.granule = base, alignment, granule
        self.taken = [False] * SIZE

    def rounded(self, nbytes: int) -> int:
        return -(-nbytes // self.granule) * self.granule

    def find(self, nbytes: int, from_end: bool) -> int | None:
        """The lowest (in the lowest hole) or the highest aligned start where everything is free."""
        need = self.rounded(nbytes)
        places = [
            at
            for at in range(SIZE - need + 1)
            if (self.base + at) % self.alignment == 0 and not any(self.taken[at : at + need])
        ]
        return self.base + places[-1 if from_end else 0] if places else None

    def mark(self, start: int, nbytes: int, taken: bool) -> None:
        need, at = self.rounded(nbytes), start - self.base
        assert self.taken[at : at + need] == [not taken] * need
        self.taken[at : at + need] = [taken] * need

    def holes(self) -> list[AddressExtent]:
        edges = [0, *(i for i in range(1, SIZE) if self.taken[i] != self.taken[i - 1]), SIZE]
        return [AddressExtent(self.base + a, b - a) for a, b in pairwise(edges) if not self.taken[a]]


steps = st.lists(st.tuples(st.integers(-20, 120), st.booleans()), max_size=30)


@given(steps, st.sampled_from([1, 16, 64]), st.sampled_from([1, 32]), st.integers(0, 70))
def test_the_free_list_does_what_a_map_of_bytes_does(script, alignment, granule, base):
    space = FreeList("m", base, SIZE, alignment=alignment, granule=granule)
    bytes_, live = ByteMap(base, alignment, granule), {}
    for size, from_end in script:
        if size <= 0 and live:
            start = sorted(live)[size % len(live)]
            bytes_.mark(start, live[start], taken=False)
            space.free(start, live.pop(start))
        elif size > 0:
            place = bytes_.find(size, from_end)
            if place is None:
                with pytest.raises(AllocationError, match=f"m: asked for {size} bytes; {space.free_bytes} of {SIZE}"):
                    space.alloc(size, from_end=from_end)
            else:
                assert space.alloc(size, from_end=from_end) == place
                bytes_.mark(place, size, taken=True)
                live[place] = size
        assert list(space.holes) == bytes_.holes()
        assert space.free_bytes == bytes_.taken.count(False)
        assert space.live == tuple(AddressExtent(s, n) for s, n in sorted(live.items()))
        assert space.largest_hole.nbytes == max((h.nbytes for h in space.holes), default=0)


def test_a_free_joins_the_holes_on_both_sides():
    space = FreeList("m", 10, 40)
    a, b, c = (space.alloc(10) for _ in range(3))
    space.free(a, 10)
    space.free(c, 10)
    assert space.holes == (AddressExtent(10, 10), AddressExtent(30, 20))
    space.free(b, 10)
    assert space.holes == (AddressExtent(10, 40),)


def test_an_empty_space_has_no_hole():
    space = FreeList("m", 64, 0)
    assert (space.holes, space.free_bytes, space.largest_hole) == ((), 0, AddressExtent(64, 0))
    with pytest.raises(AllocationError, match="0 of 0 bytes are free, the largest hole has 0"):
        space.alloc(1)


@pytest.mark.parametrize("nbytes", [0, -1])
def test_the_least_is_one_byte(nbytes):
    with pytest.raises(AllocationError, match=f"cannot allocate {nbytes} bytes"):
        FreeList("m", 0, 64).alloc(nbytes)
