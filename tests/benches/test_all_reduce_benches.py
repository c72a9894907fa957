"""The all-reduce benches on several machines, layouts and algorithms, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiled import compiled
from covering import sample, slow
from kernbench.benches import ccl_allreduce
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_registry import known_benches
from kernbench.runtime_api.bench_runner import BenchResult, run_bench

SMALL = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=2")
SIPS = {
    "ring of 2": ("system.sips.count=2",),
    "ring of 3": ("system.sips.count=3",),
    "torus of 4": ("system.sips.count=4", "system.sips.topology=torus_2d"),
    "mesh of 4": ("system.sips.count=4", "system.sips.topology=mesh_2d_no_wrap"),
    "3x2": ("system.sips.count=6", "system.sips.topology=torus_2d", "system.sips.w=3", "system.sips.h=2"),
    "one": ("system.sips.count=1",),
}


def run(name: str, *params: str, machine: tuple[str, ...] = SMALL, ccl: str | None = None) -> BenchResult:
    bench = next(each for each in known_benches() if each.name == name)
    result = run_bench(
        topology=compiled(*machine),
        bench_fn=bench,
        engine_factory=lambda topology, _: GraphEngine(topology),
        params=params,
        verify=True,
        ccl=ccl,
    )
    if result.error is not None:
        raise result.error
    return result


def test_every_cube_of_the_default_machine_ends_with_48() -> None:
    result = run("ccl-allreduce", machine=())
    assert result.value == "intercube_allreduce (ws=2): 32 OK"
    assert {each.name for each in result.comparisons} == {"rank0", "rank1"}
    assert result.ok


@pytest.mark.parametrize("fabric", sample(SIPS, "ring of 3", "torus of 4", "one"))
def test_ranks_on_every_fabric(fabric: str) -> None:
    machine = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1", *SIPS[fabric])
    result = run("ccl-allreduce", "bench.n_elem=100", machine=machine)
    sips = compiled(*machine).spec.num_sips
    assert result.value == f"intercube_allreduce (ws={sips}): {2 * sips} OK"


@pytest.mark.parametrize("op", sample(["max", "min", "avg"], "avg"))
def test_other_reductions(op: str) -> None:
    assert run("ccl-allreduce", f"bench.op={op}").value == "intercube_allreduce (ws=2): 8 OK"


@pytest.mark.parametrize(
    ("algorithm", "validator"), [("ring_allreduce", "single_shard_per_rank"), ("sip_allreduce", "multi_pe_sip_local")]
)
def test_another_algorithm_of_ccl_yaml(tmp_path: Path, algorithm: str, validator: str) -> None:
    path = tmp_path / "ccl.yaml"
    topology = "ring_1d" if algorithm == "ring_allreduce" else "none"
    entry = f"mine: {{ module: {algorithm}, topology: {topology}, validator: {validator}, n_elem: 33 }}"
    path.write_text(f"defaults: {{ algorithm: mine }}\nalgorithms:\n  {entry}\n")
    assert run("ccl-allreduce", ccl=str(path)).value == "mine (ws=2): 2 OK"


RING = "{ module: ring_allreduce, topology: ring_1d, %s }"


def with_ccl(folder: Path, entry: str, defaults: str = "") -> str:
    path = folder / "ccl.yaml"
    path.write_text(f"defaults: {{ {defaults} }}\nalgorithms:\n  mine: {entry}\n")
    return str(path)


def test_the_line_names_what_ran_in_place_of_what_is_configured(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def refuse(tensor, world_size, topology):\n    raise ValueError('not today')\n")
    ccl = with_ccl(tmp_path, RING % "validator: mine.refuse")
    says = "the configured 'mine' cannot do this: its validator raised ValueError: not today; sip_allreduce does it"
    with pytest.warns(RuntimeWarning, match=says):
        result = run("ccl-allreduce", ccl=ccl)
    assert result.value == "sip_allreduce (ws=2): 2 OK"


def test_an_algorithm_over_every_pe_counts_their_contributions(tmp_path: Path) -> None:
    entry = "{ module: hierarchical_allreduce, topology: hierarchical_3level, mapper: all_pes, %s }"
    ccl = with_ccl(tmp_path, entry % "validator: multi_pe_sip_local, reduce_op: avg")
    two_cubes = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1")
    assert run("ccl-allreduce", machine=two_cubes, ccl=ccl).value == "mine (ws=2): 32 OK"


@pytest.mark.parametrize(
    ("op", "given"),
    [("max", ""), ("max", "bench.op=sum"), slow("min", ""), slow("avg", "")],
)
def test_the_configured_reduction_is_expected_unless_another_is_asked_for(tmp_path: Path, op: str, given: str) -> None:
    ccl = with_ccl(tmp_path, RING % f"reduce_op: {op}")
    assert run("ccl-allreduce", *filter(None, [given]), ccl=ccl).ok
    assert run("ipcq-allreduce", "bench.algorithm=mine", "bench.world_size=4", ccl=ccl).ok


def test_raw_queues_take_the_size_of_the_file(tmp_path: Path) -> None:
    ccl = with_ccl(tmp_path, RING % "n_elem: 17")
    result = run("ipcq-allreduce", "bench.algorithm=mine", ccl=ccl)
    assert sum(each.elements for each in result.comparisons) == 8 * 17


@pytest.mark.parametrize(
    ("algorithm", "world_size", "rows"),
    [
        ("ring_allreduce_tcm", "8", 8),
        slow("ring_allreduce_sram", "8", 8),
        slow("ring_allreduce_sram", "32", 32),
        ("ring_allreduce_hbm", "3", 3),
        slow("ring_allreduce_rs_ag", "16", 16),
        ("ring_allreduce_rs_ag", "8", 8),
        ("mesh_allreduce_4", "null", 4),
        ("tree_allreduce_7", "null", 7),
        ("hierarchical_allreduce", "16", 16),
        ("intercube_allreduce", "null", 8),
        ("ring_allreduce_tcm", "2", 2),
    ],
)
def test_raw_queues(algorithm: str, world_size: str, rows: int) -> None:
    result = run("ipcq-allreduce", f"bench.algorithm={algorithm}", f"bench.world_size={world_size}", "bench.n_elem=50")
    assert str(result.value).startswith(f"{algorithm} (ws=")
    assert sum(each.elements for each in result.comparisons) == rows * 50
    assert result.ok


def test_a_line_for_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ccl_allreduce, "reduce_values", lambda *_: 7.0)
    result = run("ccl-allreduce")
    assert result.value == "[FAIL] intercube_allreduce (ws=2): got mean=12, expected=7"
    assert not result.ok


def test_ranks_that_fill_no_cube_are_refused() -> None:
    with pytest.raises(Exception, match=r"world_size=12: 12 PEs of SIP 0 take part and do not fill complete cubes"):
        run("ipcq-allreduce", "bench.world_size=12")
