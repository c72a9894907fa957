"""``kernbench run`` of an evaluation bench."""

from __future__ import annotations

import json

import pytest

from compiled import SPREAD

GEMM = ("run", "--bench", "milestone-1h-gemm", "--set", "bench.shapes=[[32, 32, 32]]")
SMALL = ("--set", "system.sips.count=1", "--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1")


def test_a_summary_and_files_that_are_drawn_again(kernbench, tmp_path):
    ran = kernbench(*GEMM, *SMALL)
    assert ran.code == 0
    rows = [line.split() for line in ran.out.splitlines() if line.startswith("32×32×32 *")]
    assert [row[2] for row in rows] == ["ref_ref", "load_ref", "load_load", "blocked"]
    assert all(row[-1] == "PASS" for row in rows)
    assert "in results/milestone-1h-gemm: gemm_sweep.json" in ran.out
    figure = tmp_path / "results" / "milestone-1h-gemm" / "gemm_theory.png"
    before = figure.read_bytes()
    figure.unlink()
    again = kernbench(*GEMM, *SMALL, "--render-only")
    assert again.code == 0
    assert figure.read_bytes() == before
    assert again.out.partition("* under-tile")[0] == ran.out.partition("* under-tile")[0]


def test_the_machine_reaches_the_simulations_and_json_is_one_document(kernbench, tmp_path):
    usual = json.loads(kernbench(*GEMM, *SMALL, "--set", SPREAD, "--out", "usual", "--json").out)
    late = "pe.components.pe_cpu.attrs.launch_ns=105"
    ran = kernbench(*GEMM, *SMALL, "--set", SPREAD, "--set", late, "--out", "here", "--json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert document["digest"] == document["results"]["topology_hash"]
    assert [run["pe"]["end_ns"] for run in document["results"]["runs"]] == pytest.approx(
        [run["pe"]["end_ns"] + 100 for run in usual["results"]["runs"]]
    )
    assert set(document["files"]) == {path.name for path in (tmp_path / "here").iterdir()}
    config = tmp_path / "here" / "topology.resolved.yaml"
    compiled = kernbench("topology", "--topology", str(config), "--format", "json")
    assert json.loads(compiled.out)["digest"] == document["digest"]


def test_nothing_to_draw(kernbench):
    ran = kernbench(*GEMM, *SMALL, "--out", "here", "--render-only")
    assert ran.code == 2
    assert "write it with: kernbench run --bench milestone-1h-gemm" in ran.err


@pytest.mark.parametrize(
    "options", [("--explain",), ("--sanitize",), ("--trace", "x.json"), ("--op-log", "x.jsonl"), ("--max-sim-ns", "9")]
)
def test_options_for_one_simulation(kernbench, options):
    ran = kernbench(*GEMM, *options)
    assert ran.code == 2
    assert f"{options[0]}: for one simulation; milestone-1h-gemm is an evaluation" in ran.err


@pytest.mark.parametrize("options", [("--out", "here"), ("--render-only",)])
def test_other_benches_write_no_results(kernbench, options):
    ran = kernbench("run", "--bench", "gemm-single-pe", *options)
    assert ran.code == 2
    assert f"{options[0]}: for an evaluation; gemm-single-pe is one simulation" in ran.err
