"""Every walk along the causes of a run ends, at its begin: also where nothing is as on the packaged machine."""

from __future__ import annotations

import pytest

from explained_runs import BENCHES, explain_bench, random_explained_run
from kernbench.core.log import Kind
from kernbench.observe.critical_path import OWN_PART
from kernbench.observe.critical_path_model import MOST_STEPS, PathChain, PathPart, PathPlace
from kernbench.topology.builder import resolve_topology

QUICK = {
    "attention": 3,
    "ccl-allreduce": 33,
    "gemm-single-pe": 1,
    "hello-send": 3,
    "ipcq-allreduce": 5,
    "matmul-composite": 4,
    "qkv-gemm": 7,
    "va-offset-verify": 1,
}
"""A seed of each bench that is small"""
SEEDS = 40


@pytest.mark.parametrize("name", QUICK)
def test_a_small_run_is_explained_to_its_begin(name: str) -> None:
    run = random_explained_run(name, QUICK[name])
    assert run is not None
    assert [*run.untraced()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_runs_on_random_machines_are_explained_to_their_begins(name: str) -> None:
    runs = [run for seed in range(SEEDS) if (run := random_explained_run(name, seed)) is not None]
    assert len(runs) > SEEDS / 2
    assert [line for run in runs for line in run.untraced()] == []


@pytest.mark.parametrize("n_elem", [1, 2, 7])
def test_a_path_that_goes_on_at_the_doorbell_of_another_message(n_elem: int) -> None:
    params = ("bench.algorithm=ring_allreduce_sram", f"bench.n_elem={n_elem}")
    run = explain_bench("ipcq-allreduce", resolve_topology(), params, params)
    assert [*run.untraced()] == []
    assert run.explanation.verdict.sentence


def test_transfers_that_are_behind_one_another_where_the_path_has_come_to_its_floor() -> None:
    machine = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=2")
    run = explain_bench("tp-mlp", resolve_topology(None, machine), (), machine)
    assert [*run.untraced()] == []


def test_every_kind_of_row_has_its_part_of_a_path() -> None:
    assert set(OWN_PART) == set(Kind)


def test_a_walk_goes_on_back_in_time_or_at_a_new_place() -> None:
    chain = PathChain(0, 100, {-1: 10})
    assert chain.come_to(PathPlace(14))
    assert chain.come_to(PathPlace(14, "start")), "another place of the row, at the same instant"
    chain.back_to(90, PathPart.GEMM)
    assert chain.come_to(PathPlace(14)), "an earlier instant"
    assert not chain.come_to(PathPlace(14)), "a circle"
    assert (chain.at_ps, chain.steps[-1].part) == (0, PathPart.UNTRACED)


def test_a_walk_has_an_end_although_time_goes_back() -> None:
    rows = {7: 2, 8: 1}
    chain = PathChain(0, 1000, rows, launch_id=7)
    places = 0
    while chain.come_to(PathPlace(14)):
        places += 1
        chain.back_to(chain.at_ps - 1, PathPart.GEMM)
        chain.launch_id = 8 if places > 3 else 7
    assert places == MOST_STEPS * sum(rows.values())
    assert (chain.at_ps, chain.steps[-1].part) == (0, PathPart.UNTRACED)
