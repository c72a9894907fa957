"""The evaluation of collectives: what it simulates, what it writes, and what it refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from ccl_study_support import TORUS, machine, small_sweep, study

from kernbench.ccl.loading import find_packaged_file, load_ccl_config
from kernbench.common.errors import InputError, VerificationError
from kernbench.common.values import value
from kernbench.evaluation.ccl_fabrics import ALGORITHMS, INTERCUBE, OVER_SIPS, Fabric, document_of, fabrics, ring_of
from kernbench.evaluation.ccl_report import read_reference, report_ccl
from kernbench.evaluation.ccl_results import CclSweep
from kernbench.evaluation.ccl_runs import RingRun
from kernbench.topology.builder import Topology


@pytest.fixture
def sweep():
    return small_sweep()


def test_the_ways_of_joining_sips():
    assert [fabric.title for fabric in fabrics()] == [
        *("ring of 2", "ring of 4", "ring of 6"),
        *("torus 2×1", "torus 2×2", "torus 3×2"),
        *("mesh 2×1", "mesh 2×2", "mesh 3×2"),
    ]


def test_every_collective_both_ways_and_right(sweep):
    default = [point for point in sweep.collectives if point.buffer_kind == "tcm"]
    assert [(p.algorithm, p.fabric, p.nbytes) for p in default] == [
        (algorithm, fabric, nbytes)
        for algorithm in ALGORITHMS
        for fabric in (ring_of(2), TORUS)
        for nbytes in (64, 5000)
    ]
    assert all(point.passed and point.same for point in sweep.collectives)
    assert {(p.algorithm, p.fabric.sips): p.contributions for p in default} == {
        (INTERCUBE, 2): 4,
        (INTERCUBE, 4): 8,
        (OVER_SIPS, 2): 2,
        (OVER_SIPS, 4): 4,
    }


def test_the_control_path_is_as_long_whatever_the_size(sweep):
    """The launches of two SIPs differ in their kernels only."""
    small, large = sweep.curve(INTERCUBE, ring_of(2))
    assert small.direct.control_ns == pytest.approx(large.direct.control_ns, abs=0.001)
    assert 2 * small.direct.kernel_ns > large.direct.kernel_ns > 1.5 * small.direct.kernel_ns


def test_buffer_kinds(sweep):
    assert {point.buffer_kind for point in sweep.curve(INTERCUBE, ring_of(2), "hbm")} == {"hbm"}
    assert {(p.buffer_kind, p.senders) for p in sweep.buffers} == {
        (kind, senders) for kind in ("tcm", "sram", "hbm") for senders in (1, 8)
    }
    assert all(point.closed_ns is None for point in sweep.collectives if point.buffer_kind != "tcm")


def test_a_ring_takes_its_steps(sweep):
    for point in sweep.rings:
        theory = point.theory
        assert theory.oracle_ns == pytest.approx(
            2 * (point.ranks - 1) * (point.hop_ns + point.nbytes / point.ranks / 128)
        )
        assert abs(point.beyond_theory) < 0.15


def test_results_come_back_from_their_file(sweep, tmp_path):
    report_ccl().write(sweep, tmp_path)
    assert report_ccl().read(tmp_path, "a command") == sweep
    rows = [point.row for point in sweep.collectives]
    assert pq.read_table(tmp_path / "ccl_sweep.parquet").to_pylist() == rows
    for name, table in (("summary.csv", rows), ("ccl_ring.csv", [point.row for point in sweep.rings])):
        with (tmp_path / name).open(encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        assert found == [{key: "" if value is None else str(value) for key, value in row.items()} for row in table]


def test_wrong_numbers_are_named(sweep):
    first, *others = sweep.collectives
    wrong = replace(first, right=first.right - 1)
    with pytest.raises(VerificationError, match="results are wrong: intercube_allreduce, ring of 2, tcm, 64 bytes"):
        report_ccl().verify(replace(sweep, collectives=(wrong, *others)))


@pytest.mark.parametrize("sizes", [(6,), (0,), (-4,)])
def test_sizes_are_whole_elements(sizes):
    with pytest.raises(InputError, match=f"size {sizes[0]}: contributions are of f32"):
        study(sizes=sizes)


def test_the_machines_own_way_of_joining_sips_is_among_them():
    three = study(topology=machine("system.sips.count=3"))
    assert three.own == Fabric("ring_1d", 3, 3, 1)
    assert three.own in {run.fabric for run in three.collective_runs()}
    alone = study(topology=machine("system.sips.count=1"))
    assert {run.fabric for run in alone.collective_runs()} == {ring_of(2), TORUS}


@value
class Simulated:
    """A study that is simulated already."""

    topology: Topology
    results: CclSweep

    def run(self) -> CclSweep:
        return self.results


def evaluated(tmp_path, table):
    """The summary of a small evaluation beside a table."""
    table.write_text("size_bytes,latency_ns\n64,500\n5000,700\n")
    done = Simulated(machine(), replace(small_sweep(), own=ring_of(2), rings=()))
    return report_ccl(read_reference(str(table))).evaluate(done, str(tmp_path / "results"), "a command", {"jobs": 1})


def test_sizes_of_a_reference_are_simulated_on_the_machine_itself():
    runs = study(fabrics=(ring_of(2), TORUS), own_sizes=(128,)).collective_runs()
    assert {run.fabric.title for run in runs if 128 in run.sizes} == {"ring of 2"}


def test_everything_is_written(tmp_path):
    summary = evaluated(tmp_path, tmp_path / "reference.csv")
    folder = tmp_path / "results"
    assert set(summary.files) == {path.name for path in folder.iterdir()}
    assert len(list(folder.glob("*.png"))) == 4
    assert json.loads((folder / "provenance.json").read_text())["topology_hash"] == machine().digest
    with (folder / "ccl_reference.csv").open(encoding="utf-8") as file:
        assert [row["size_bytes"] for row in csv.DictReader(file)] == ["64", "5000"]
    assert any("reference.csv, largest error" in note for note in summary.notes)


@pytest.mark.slow
def test_everything_is_drawn_again_the_same(tmp_path):
    table, folder = tmp_path / "reference.csv", tmp_path / "results"
    summary = evaluated(tmp_path, table)
    figures = {path: path.read_bytes() for path in folder.glob("*.png")}
    assert report_ccl(read_reference(str(table))).redraw(str(folder), "a command").rows == summary.rows
    assert {path: path.read_bytes() for path in folder.glob("*.png")} == figures


def test_no_results_to_draw(tmp_path):
    with pytest.raises(InputError, match="write it with: a command"):
        report_ccl().redraw(str(tmp_path), "a command")


@pytest.mark.parametrize(
    "changes",
    [
        ("pe.math.bytes_per_ns=32", "pe.math.startup_ns=50"),
        ("pe.dma.setup_ns=20", "pe.components.pe_ipcq.attrs.overhead_ns=7"),
        ("system.links.sip_to_sip.bw_gbs=32", "ns_per_mm=0.05"),
        ("cube.links.xbar_to_hbm.bw_gbs=64", "cube.hbm.slices=4"),
    ],
)
def test_rings_are_as_long_as_their_terms_on_other_machines(changes):
    run = RingRun(
        machine=document_of(machine(*changes)), ccl=load_ccl_config(find_packaged_file()), ranks=2, sizes=(4096, 65536)
    )
    assert [abs(point.beyond_theory) < 0.15 for point in run.run()] == [True, True]
