"""Results of the GEMM evaluation: runs, each as a table row."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.evaluation.gemm_shapes import GemmShape, TileSizes
from kernbench.evaluation.gemm_theory import Ideal
from kernbench.evaluation.outputs import TableValue

LOAD = "load"
"""The stage that loads operands before the pipeline. Its engine is ``DMA in``, as for streamed tiles."""
STAGES = (LOAD, "DMA in", "fetch", "GEMM", "MATH", "store", "DMA out")
"""The stages in pipeline order"""


@value
class RunWindow:
    """The time from the first start to the last end, in ns since the kernel's start."""

    start_ns: float
    end_ns: float

    @property
    def ns(self) -> float:
        """The length in ns."""
        return self.end_ns - self.start_ns


@value(kw_only=True)
class Usage:
    """The usage of a stage or an engine of the PE: its op-log records, busy time, share of the kernel time, and window.

    The busy time is the time in ns during which at least one record is in flight.
    """

    name: str
    records: int
    busy_ns: float
    occupancy: float
    window: RunWindow


@value(kw_only=True)
class Verified:
    """The comparison of a run's result with the product that the host computes."""

    passed: bool
    elements: int
    max_abs_error: float


@value(kw_only=True)
class GemmRun:
    """The measurements of one simulation.

    ``tile``: tile sizes along (m, k, n). ``blocks``: block sizes of a product by blocks, as m×k×n. ``launch_ns``: time
    including the control path. ``sim_ns``: time including the copies of the operands. ``pe``: window of the kernel.
    ``composite``: window from the issue of the first tile to the end of the last. ``mac_utilisation``: share of the
    kernel time with a busy matrix unit. ``useful_efficiency``: MACs of the product over the MACs that the unit could do
    in the kernel time. Both shares are measured.
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
        """The kernel time beyond the ideal pipeline, as a share of the ideal."""
        return self.pe.ns / self.ideal.ns - 1

    @property
    def title(self) -> str:
        """The title, such as ``32×64×32 ref_ref``."""
        return f"{self.shape} {self.variant}"

    @property
    def passed(self) -> bool:
        """True if the product equals the host's product."""
        return self.verified.passed

    @property
    def row(self) -> dict[str, TableValue]:
        """The run as a table row."""
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
    """The runs on one machine. ``topology_hash``: hash of its resolved configuration."""

    topology_hash: str
    runs: tuple[GemmRun, ...]

    @property
    def shapes(self) -> tuple[GemmShape, ...]:
        """The shapes, in order."""
        return tuple(dict.fromkeys(run.shape for run in self.runs))

    def of(self, shape: GemmShape) -> tuple[GemmRun, ...]:
        """Return the runs of a shape, one per variant."""
        return tuple(run for run in self.runs if run.shape == shape)
