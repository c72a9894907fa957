"""Parts of a rank's data: who has the elements that are left over."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kernbench.ccl.pieces import messages_of, split_evenly
from kernbench.ccl.rings import half_a_hop, order_of_use
from kernbench.kernels.shares import part
from kernbench.messages.steps import Chunk, load, receive, send, store


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


FAR = messages_of("avg", 64, far=True)
"""Messages of sixteen f32, by PEs that share a link to the memory"""


def test_far_pes_store_a_piece_after_its_last_step() -> None:
    pieces = FAR.pieces(Chunk(0, 32))
    steps = [*(load(i, piece) for i, piece in enumerate(pieces)), receive("W", 16), FAR.add(0, "W"), *FAR.finish(0, 2)]
    stored = FAR.store_all([*steps, send("E", 0)], enumerate(pieces))
    assert [step.does for step in stored] == ["load", "load", "store", "receive", "reduce", "scale", "store", "send"]
    later = FAR._replace(far=False).store_all(steps, enumerate(pieces))
    assert later == [*steps, *(store(i, piece) for i, piece in enumerate(pieces))]


@given(length=st.integers(1, 30), ranks=st.integers(2, 6))
def test_far_pes_load_pieces_to_send_and_to_add_in_turn(length: int, ranks: int) -> None:
    parts = [range(at * length, (at + 1) * length) for at in range(ranks)]
    order = order_of_use(parts, FAR)
    assert sorted(order) == list(range(ranks * length))
    lead = half_a_hop(FAR)
    for numbers in parts:
        assert list(filter(numbers.__contains__, order)) == list(numbers)
    for i in parts[1]:  # before a piece is added to a message, the pieces that are sent until then
        sent = min(length, i - length + lead + 1)
        assert order.index(sent - 1) < order.index(i)
