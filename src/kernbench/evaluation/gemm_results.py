"""Hold the results of the GEMM evaluation: typed, as JSON and back, and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from kernbench.common.values import value
from kernbench.evaluation.gemm_shapes import GemmShape, TileSizes
from kernbench.evaluation.gemm_theory import Ideal
from kernbench.evaluation.outputs import TableValue, read_results, write_csv, write_json, write_parquet

DATA_FILE, CSV_FILE, PARQUET_FILE = "gemm_sweep.json", "gemm_sweep.csv", "gemm_sweep.parquet"
LOAD = "load"
"""The stage of operands that are staged whole, before the pipeline; its engine is ``DMA in``, as of streamed tiles."""
STAGES = (LOAD, "DMA in", "fetch", "GEMM", "MATH", "store", "DMA out")
"""The stages in the order of the pipeline."""


@value
class RunWindow:
    """From the first start to the last end, in ns since the kernel's start."""

    start_ns: float
    end_ns: float

    @property
    def ns(self) -> float:
        """Its length."""
        return self.end_ns - self.start_ns


@value(kw_only=True)
class Usage:
    """A stage or an engine of the PE: its records in the op-log, the ns in which at least one was under way, that as a
    share of the kernel's time, and its window."""

    name: str
    records: int
    busy_ns: float
    occupancy: float
    window: RunWindow


@value(kw_only=True)
class Verified:
    """The outcome of comparing the result with the host's product."""

    passed: bool
    elements: int
    max_abs_error: float


@value(kw_only=True)
class GemmRun:
    """One simulation. ``tile``: its sizes along (m, k, n); ``blocks``: of a product by blocks their sizes, as m×k×n;
    ``launch_ns``: control path included; ``sim_ns``: with the copies of the operands.

    ``pe``: the kernel; ``composite``: from the issue of the first tile to the end of the last.
    ``mac_utilisation``: the share of the kernel's time in which the matrix unit was busy; ``useful_efficiency``: the
    MACs of the product over what the unit could have done in that time. Both as measured.
    """

    shape: GemmShape
    variant: str
    dtype: str
    tile: TileSizes
    tiles: int
    blocks: str
    under_tile: bool
    sim_ns: float
    launch_ns: float
    pe: RunWindow
    composite: RunWindow
    stages: tuple[Usage, ...]
    engines: tuple[Usage, ...]
    mac_utilisation: float
    useful_efficiency: float
    ideal: Ideal
    records: int
    verified: Verified

    @property
    def beyond_ideal(self) -> float:
        """The time of the kernel beyond the ideal pipeline, as a share of that."""
        return self.pe.ns / self.ideal.ns - 1

    @property
    def title(self) -> str:
        """Such as ``32×64×32 ref_ref``."""
        return f"{self.shape} {self.variant}"


@value(kw_only=True)
class GemmSweep:
    """All runs on one machine; ``topology_hash`` is that of its resolved configuration."""

    topology_hash: str
    runs: tuple[GemmRun, ...]

    @property
    def shapes(self) -> tuple[GemmShape, ...]:
        """The shapes in order."""
        return tuple(dict.fromkeys(run.shape for run in self.runs))

    def of(self, shape: GemmShape) -> tuple[GemmRun, ...]:
        """The runs of a shape, one for each variant."""
        return tuple(run for run in self.runs if run.shape == shape)


_DOCUMENT = TypeAdapter(GemmSweep)


def sweep_document(sweep: GemmSweep) -> Any:
    """The results as plain data, as they are in the JSON file."""
    return _DOCUMENT.dump_python(sweep, mode="json")


def write_sweep(sweep: GemmSweep, folder: Path) -> None:
    """Write the results to ``folder``: everything as JSON, a row for each run as CSV and Parquet."""
    write_json(folder / DATA_FILE, sweep_document(sweep))
    rows = table_rows(sweep.runs)
    write_csv(folder / CSV_FILE, rows)
    write_parquet(folder / PARQUET_FILE, rows)


def read_sweep(folder: Path, made_by: str) -> GemmSweep:
    """The results in ``folder``. InputError, which names the command ``made_by``, when there are none."""
    return read_results(folder / DATA_FILE, made_by, _DOCUMENT, _incomplete)


def _incomplete(sweep: GemmSweep) -> str:
    """Say what the figures need that results lack; empty when nothing."""
    if not sweep.runs:
        return "there are no runs"
    for run in sweep.runs:
        if run.shape.macs <= 0 or run.pe.ns <= 0 or run.ideal.ns <= 0 or not run.stages or not run.ideal.floors:
            return f"run {run.title} has no size, no time, no stages or no ideal"
    return ""


def table_rows(runs: Iterable[GemmRun]) -> list[dict[str, TableValue]]:
    """A flat row for each run, all with the same columns."""
    return [_row(run) for run in runs]


def _row(run: GemmRun) -> dict[str, TableValue]:
    row: dict[str, TableValue] = {"m": run.shape.m, "k": run.shape.k, "n": run.shape.n, "variant": run.variant}
    row |= dict(zip(("tile_m", "tile_k", "tile_n"), run.tile, strict=True))
    row |= {"dtype": run.dtype, "tiles": run.tiles, "blocks": run.blocks, "under_tile": run.under_tile}
    row |= {"sim_ns": run.sim_ns, "launch_ns": run.launch_ns, "pe_ns": run.pe.ns}
    row |= {"composite_start_ns": run.composite.start_ns, "composite_end_ns": run.composite.end_ns}
    row |= {"ideal_ns": run.ideal.ns, "ideal_longest": run.ideal.longest, "ideal_utilisation": run.ideal.utilisation}
    row |= {"mac_utilisation": run.mac_utilisation, "useful_efficiency": run.useful_efficiency}
    used = {use.name: use for use in run.stages}
    for name in STAGES:
        use, column = used.get(name), name.lower().replace(" ", "_")
        row[f"{column}_records"] = use.records if use is not None else 0
        row[f"{column}_busy_ns"] = use.busy_ns if use is not None else 0.0
        row[f"{column}_occupancy"] = use.occupancy if use is not None else 0.0
    return row | {"passed": run.verified.passed, "max_abs_error": run.verified.max_abs_error}
