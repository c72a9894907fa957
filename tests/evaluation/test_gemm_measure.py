"""What the GEMM evaluation reads off its runs, and what it makes of them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from gemm_support import machine

from kernbench.common.errors import InputError, VerificationError
from kernbench.evaluation.gemm_measure import GemmStudy
from kernbench.evaluation.gemm_report import GEMM_REPORT
from kernbench.evaluation.gemm_shapes import LARGEST, SHAPES, VARIANTS, GemmShape

SHAPE = GemmShape(40, 130, 20)  # 2 × 3 × 1 tiles, N below the tile
TILE = (32, 64, 32)


@pytest.fixture(scope="module")
def sweep():
    return GemmStudy(topology=machine(), shapes=(SHAPE, GemmShape(64, 64, 32))).run()


@pytest.fixture
def runs(sweep):
    return dict(zip(VARIANTS, sweep.of(SHAPE), strict=True))


def stage(run, name):
    return next(use for use in run.stages if use.name == name)


def test_the_shapes_of_the_evaluation():
    assert len(SHAPES) == 8
    assert SHAPES[-1] == LARGEST == GemmShape(512, 512, 512)
    assert LARGEST.tile_count(TILE) == 2048
    short = [tuple(extent < size for extent, size in zip((s.m, s.k, s.n), TILE, strict=True)) for s in SHAPES]
    assert all(any(each[axis] for each in short) for axis in range(3))
    assert [shape.under_tile(TILE) for shape in SHAPES] == [any(each) for each in short]


def test_tiles_cover_the_product():
    tiles = list(SHAPE.tiles(TILE))
    assert len(tiles) == SHAPE.tile_count(TILE) == 6
    assert sum(each.rows * each.steps * each.columns for each in tiles) == SHAPE.macs
    assert [each.last for each in tiles] == [False, False, True] * 2


def test_every_shape_and_variant_once_and_right(sweep):
    assert [(str(run.shape), run.variant) for run in sweep.runs] == [
        (shape, variant) for shape in ("40×130×20", "64×64×32") for variant in VARIANTS
    ]
    assert all(run.verified.passed and run.verified.elements == run.shape.m * run.shape.n for run in sweep.runs)
    assert [run.under_tile for run in sweep.runs] == [True] * 4 + [False] * 4


def test_records_of_each_stage(runs):
    counts = {name: {use.name: use.records for use in run.stages} for name, run in runs.items()}
    tiles = {"fetch": 6, "GEMM": 6, "store": 2, "DMA out": 2}
    assert counts["ref_ref"] == {"DMA in": 12} | tiles
    assert counts["load_ref"] == {"load": 1, "DMA in": 6} | tiles
    assert counts["load_load"] == {"load": 2} | tiles


def test_engines_are_stages_but_for_loads(runs):
    for run in runs.values():
        engines = {use.name: use for use in run.engines}
        by_dma = [use for use in run.stages if use.name in ("load", "DMA in")]
        assert engines["DMA in"].records == sum(use.records for use in by_dma)
        assert engines["DMA in"].busy_ns == pytest.approx(sum(use.busy_ns for use in by_dma))
        assert [use for use in run.stages if use not in by_dma] == [
            use for use in run.engines if use.name not in ("load", "DMA in")
        ]


def test_busy_times_and_shares(runs):
    for run in runs.values():
        gemm = stage(run, "GEMM")
        assert gemm.busy_ns == 6 * 16
        assert run.mac_utilisation == pytest.approx(6 * 16 / run.pe.ns) == pytest.approx(gemm.occupancy)
        assert run.useful_efficiency == pytest.approx(40 * 130 * 20 / 4096 / run.pe.ns)
        assert run.mac_utilisation <= run.ideal.utilisation
        assert stage(run, "fetch").busy_ns == pytest.approx(2 * (40 * 130 + 2 * 130 * 20) / 512, abs=0.003)


def test_windows_lie_in_one_another(runs):
    for run in runs.values():
        assert run.pe.start_ns == 0 < run.composite.start_ns < run.composite.end_ns == run.pe.end_ns
        assert run.pe.ns < run.launch_ns < run.sim_ns
        for use in run.stages:
            assert 0 <= use.window.start_ns < use.window.end_ns <= run.pe.end_ns
            assert use.busy_ns <= use.window.ns + 1e-9
    first_tile = runs["load_load"].composite.start_ns
    assert stage(runs["load_load"], "load").window.end_ns == first_tile


def test_results_come_back_from_their_file(sweep, tmp_path):
    GEMM_REPORT.write(sweep, tmp_path)
    assert GEMM_REPORT.read(tmp_path, "a command") == sweep


def test_one_row_a_run_in_every_table(sweep, tmp_path):
    GEMM_REPORT.write(sweep, tmp_path)
    rows = [run.row for run in sweep.runs]
    assert pq.read_table(tmp_path / "gemm_sweep.parquet").to_pylist() == rows
    with (tmp_path / "gemm_sweep.csv").open(encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == [{name: str(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "cannot be read"), ("{", "not JSON"), ('{"runs": []}', "not the results")]
)
def test_no_results_to_draw(tmp_path, text, problem):
    if text is not None:
        (tmp_path / "gemm_sweep.json").write_text(text)
    with pytest.raises(InputError, match=problem):
        GEMM_REPORT.redraw(str(tmp_path), "a command")


def test_wrong_numbers_are_named(sweep):
    first, *others = sweep.runs
    wrong = replace(first, verified=replace(first.verified, passed=False))
    with pytest.raises(VerificationError, match="1 of 8 results are wrong: 40×130×20 ref_ref"):
        GEMM_REPORT.verify(replace(sweep, runs=(wrong, *others)))


def test_operands_that_are_not_staged_whole():
    with pytest.raises(InputError, match="4096×1024×32 in f16"):
        GemmStudy(topology=machine(), shapes=(GemmShape(4096, 1024, 32),))


def test_everything_is_written_and_drawn_again_the_same(tmp_path):
    study = GemmStudy(topology=machine(), shapes=(GemmShape(32, 32, 32),), dtype="bf16")
    summary = GEMM_REPORT.evaluate(study, str(tmp_path / "a" / "b"), "a command", {"dtype": "bf16"})
    folder = tmp_path / "a" / "b"
    assert set(summary.files) == {path.name for path in folder.iterdir()}
    assert [row[0] for row in summary.rows] == ["32×32×32 *"] * 4
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["topology_hash"] == machine().digest
    assert provenance["parameters"] == {"dtype": "bf16"}
    assert {"kernbench_version", "machine", "date", "made_by"} <= set(provenance)
    figures = {path: path.read_bytes() for path in folder.glob("*.png")}
    assert len(figures) == 3
    for path in figures:
        path.unlink()
    assert GEMM_REPORT.redraw(str(folder), "a command").rows == summary.rows
    assert {path: path.read_bytes() for path in folder.glob("*.png")} == figures


def test_the_largest_has_a_figure_of_its_own(sweep, tmp_path):
    large = replace(sweep, runs=tuple(replace(run, shape=LARGEST) for run in sweep.of(SHAPE)))
    assert GEMM_REPORT.draw(large, tmp_path) == ("gemm_utilisation.png", "gemm_theory.png", "gemm_512.png")
