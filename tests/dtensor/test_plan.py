"""From placements to placements: the steps, played with arrays."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.dtensor import Partial, Replicate, Shard
from kernbench.dtensor.placements import Redistribution, count_sent_bytes, empty_place, local_window, plan_steps

KINDS = (Shard(0), Shard(1), Replicate(), Partial(), Partial("max"))
R, P, S0, S1 = Replicate(), Partial(), Shard(0), Shard(1)


def shape_at(shape, placements, mesh, place):
    return local_window(shape, placements, mesh, place).shape


def check_step(step: Redistribution, shape, mesh):
    """Along its dim, the ranks have chunks of one whole, before and behind."""
    for place in product(*map(range, mesh)):
        whole = local_window(shape, step.whole, mesh, place)
        for placements in (step.placements, step.result):
            kind = placements[step.mesh_dim]
            mine = local_window(shape, placements, mesh, place)
            if isinstance(kind, Shard):
                ranks, at = mesh[step.mesh_dim], place[step.mesh_dim]
                alone = local_window(whole.shape, (kind,), (ranks,), (at,))
                assert alone == mine.within(whole)
            else:
                assert mine == whole
    assert empty_place(shape, step.result, mesh) is None


@given(
    st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=2), st.tuples(st.integers(1, 12), st.integers(1, 12))
)
def test_steps_lead_there_and_each_is_among_the_ranks_of_one_dim(data, mesh, shape):
    source, target = (data.draw(st.tuples(*(st.sampled_from(KINDS[:4]) for _ in mesh))) for _ in range(2))
    if empty_place(shape, source, mesh) is not None or empty_place(shape, target, mesh) is not None:
        return
    now = source
    for step in plan_steps(source, target):
        assert step.placements == now
        check_step(step, shape, mesh)
        now = step.result
    assert now == target


def told(source, target):
    return [(step.mesh_dim, str(step.source), str(step.target)) for step in plan_steps(source, target)]


def test_nothing_is_to_be_done_for_the_same_placements():
    assert told((S0, R), (S0, R)) == []


def test_later_cuts_of_an_axis_are_gathered_before_an_earlier_one_changes():
    assert told((S0, S0), (R, S0)) == [
        (1, "Shard(0)", "Replicate()"),
        (0, "Shard(0)", "Replicate()"),
        (1, "Replicate()", "Shard(0)"),
    ]
    assert told((R, S0), (S0, S0)) == [
        (1, "Shard(0)", "Replicate()"),
        (0, "Replicate()", "Shard(0)"),
        (1, "Replicate()", "Shard(0)"),
    ]


def test_what_is_there_is_cut_before_it_is_reduced():
    assert told((P, R), (R, S1)) == [(1, "Replicate()", "Shard(1)"), (0, "Partial(sum)", "Replicate()")]
    assert told((S0, R), (S1, S0)) == [(0, "Shard(0)", "Shard(1)"), (1, "Replicate()", "Shard(0)")]


def test_another_reduction_is_of_the_result():
    assert told((P,), (Partial("max"),)) == [
        (0, "Partial(sum)", "Replicate()"),
        (0, "Replicate()", "Partial(max)"),
    ]


@pytest.mark.parametrize(
    ("source", "target", "times"),
    [(S0, R, 3 / 4), (P, R, 6 / 4), (P, S0, 3 / 4), (S0, S1, 3 / 8), (R, S0, 0), (R, P, 0), (S0, P, 0)],
)
def test_costs(source, target, times):
    assert count_sent_bytes((source,), (target,), (8, 8), 4, (4,)) == pytest.approx(256 * times)


def test_a_dim_of_one_rank_costs_nothing():
    assert count_sent_bytes((P, S0), (R, R), (8, 8), 4, (1, 1)) == 0


def test_smaller_parts_cost_less():
    both = count_sent_bytes((P, S0), (R, S0), (8, 8), 4, (2, 2))
    assert both == count_sent_bytes((P, R), (R, S0), (8, 8), 4, (2, 2)) == pytest.approx(128)
    assert np.isclose(count_sent_bytes((P, R), (R, R), (8, 8), 4, (2, 2)), 256)
