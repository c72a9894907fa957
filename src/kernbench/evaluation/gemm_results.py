"""Hold the results of the GEMM evaluation: runs, each a row of a table."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.evaluation.gemm_shapes import GemmShape, TileSizes
from kernbench.evaluation.gemm_theory import Ideal
from kernbench.evaluation.outputs import TableValue

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

    @property
    def passed(self) -> bool:
        """True if the product is what the host computed."""
        return self.verified.passed

    @property
    def row(self) -> dict[str, TableValue]:
        """Return it as a row of a table."""
        row: dict[str, TableValue] = {"m": self.shape.m, "k": self.shape.k, "n": self.shape.n, "variant": self.variant}
        row |= dict(zip(("tile_m", "tile_k", "tile_n"), self.tile, strict=True))
        row |= {"dtype": self.dtype, "tiles": self.tiles, "blocks": self.blocks, "under_tile": self.under_tile}
        row |= {"sim_ns": self.sim_ns, "launch_ns": self.launch_ns, "pe_ns": self.pe.ns}
        row |= {"composite_start_ns": self.composite.start_ns, "composite_end_ns": self.composite.end_ns}
        row |= {"ideal_ns": self.ideal.ns, "ideal_longest": self.ideal.longest}
        row |= {"ideal_utilisation": self.ideal.utilisation, "mac_utilisation": self.mac_utilisation}
        row["useful_efficiency"] = self.useful_efficiency
        used = {use.name: use for use in self.stages}
        for name in STAGES:
            use, column = used.get(name), name.lower().replace(" ", "_")
            row[f"{column}_records"] = 0 if use is None else use.records
            row[f"{column}_busy_ns"] = 0.0 if use is None else use.busy_ns
            row[f"{column}_occupancy"] = 0.0 if use is None else use.occupancy
        return row | {"passed": self.passed, "max_abs_error": self.verified.max_abs_error}


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
