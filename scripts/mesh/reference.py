"""Comparison of the transport with a cycle-accurate mesh: reference values, values of the transport, and the gates.

The comparison is available as Markdown tables and as a figure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from kernbench.common.values import value
from mesh.load import (
    LoadPlan,
    LoadPoint,
    flow_shares,
    load_point,
    measure_full_load,
    saturation_load,
)
from mesh.network import MeshFlow, MeshSpec

SHARE_TOLERANCE = 0.02
LOW_LOAD, LOW_LOAD_TOLERANCE = 0.5, 0.05
# The specification demands 0.8. With 0.85, the next point of every curve is compared, too.
HIGH_LOAD, HIGH_LOAD_TOLERANCE = 0.85, 0.20
SATURATION_TOLERANCE = {"transpose": 0.05, "uniform": 0.10}


@value
class ReferencePoint:
    """One measurement of the reference: flits per node and cycle, and cycles."""

    offered: float
    latency_cycles: float
    accepted: float


@value
class ReferenceCurve:
    """Latency over load. ``saturation``: two loads. Between them, latency exceeds 3 times the zero-load latency."""

    k: int
    packet_flits: int
    traffic: str
    zero_load_cycles: float
    saturation: tuple[float, float]
    full_load_accepted: float
    points: tuple[ReferencePoint, ...]

    @property
    def saturation_load(self) -> float:
        """The middle of the two saturation loads."""
        return sum(self.saturation) / 2

    def spec(self, unit_flits: int | None = None) -> MeshSpec:
        """Return the mesh of the measurement."""
        return MeshSpec(self.k, self.packet_flits, unit_flits)


@value
class ReferenceFlows:
    """Flows that share a link, and the delivered flits per cycle of each flow in the reference."""

    name: str
    packet_flits: int
    flows: tuple[MeshFlow, ...]
    accepted: tuple[float, ...]


@value
class MeshReference:
    """The values of the reference. ``source``: the simulator that measured them."""

    source: str
    network: str
    curves: tuple[ReferenceCurve, ...]
    contention: tuple[ReferenceFlows, ...]


def load_reference(path: Path) -> MeshReference:
    """Read the reference from the JSON file ``path``."""
    data = json.loads(path.read_text())
    return MeshReference(
        data["source"], data["network"], tuple(map(_curve, data["curves"])), tuple(map(_flows, data["contention"]))
    )


def _curve(data: dict[str, Any]) -> ReferenceCurve:
    low, high = data["saturation_offered_at_3x_zero_load"]
    points = tuple(ReferencePoint(p["offered"], p["latency_cycles"], p["accepted"]) for p in data["curve"])
    return ReferenceCurve(
        data["k"],
        data["packet_flits"],
        data["traffic"],
        data["zero_load_cycles"],
        (low, high),
        data["accepted_at_offered_1"],
        points,
    )


def _flows(data: dict[str, Any]) -> ReferenceFlows:
    flows = tuple(MeshFlow(f["src"], f["dst"], f["offered"]) for f in data["flows"])
    return ReferenceFlows(data["name"], data["packet_flits"], flows, tuple(f["accepted"] for f in data["flows"]))


@value
class FigureCheck:
    """A reference value and the simulated value. ``tolerance``: share by which they may differ; None: no gate."""

    label: str
    reference: float
    measured: float
    tolerance: float | None
    unit: str

    @property
    def difference(self) -> float:
        """The difference relative to the reference."""
        return self.measured / self.reference - 1.0

    @property
    def holds(self) -> bool:
        """True if the difference is within the tolerance."""
        return self.tolerance is None or abs(self.difference) <= self.tolerance


def latency_tolerance(curve: ReferenceCurve, offered: float) -> float | None:
    """Return the latency tolerance at ``offered``; None where the reference is noisy and steep."""
    load = offered / curve.saturation_load
    if load <= LOW_LOAD:
        return LOW_LOAD_TOLERANCE
    return HIGH_LOAD_TOLERANCE if load <= HIGH_LOAD else None


@value
class CurveComparison:
    """A reference curve and the simulated curve at the same loads. Saturation values are None if not measured."""

    curve: ReferenceCurve
    points: tuple[LoadPoint, ...]
    saturation: tuple[float, float] | None
    full_load_accepted: float | None

    def latency_gates(self) -> Iterator[FigureCheck]:
        """Yield the latency check at each measured load."""
        reference = {p.offered: p for p in self.curve.points}
        for point in self.points:
            tolerance = latency_tolerance(self.curve, point.offered)
            expected = reference[point.offered].latency_cycles
            yield FigureCheck(f"latency at {point.offered:.3f}", expected, point.latency_cycles, tolerance, "cycles")

    def saturation_gates(self) -> Iterator[FigureCheck]:
        """Yield the checks of the saturation load and of the accepted throughput at full load."""
        tolerance = SATURATION_TOLERANCE[self.curve.traffic]
        if self.saturation is not None:
            measured = sum(self.saturation) / 2
            yield FigureCheck("load at 3 x zero load", self.curve.saturation_load, measured, tolerance, "flits")
        if self.full_load_accepted is not None:
            full = self.curve.full_load_accepted
            yield FigureCheck("accepted at 1.0", full, self.full_load_accepted, tolerance, "flits")


def compare_latency(curve: ReferenceCurve, plan: LoadPlan, highest_load: float = 1.0) -> CurveComparison:
    """Compare latencies at the loads of ``curve`` up to ``highest_load`` of its saturation."""
    offered = [p.offered for p in curve.points if p.offered <= highest_load * curve.saturation_load]
    points = tuple(load_point(curve.spec(), curve.traffic, o, plan) for o in offered)
    return CurveComparison(curve, points, None, None)


def compare_curve(
    curve: ReferenceCurve, plan: LoadPlan, resolution: float, unit_flits: int | None = None
) -> CurveComparison:
    """Compare latencies, saturation and accepted throughput with ``curve``. ``unit_flits``: as in MeshSpec."""
    spec = curve.spec(unit_flits)
    return CurveComparison(
        curve,
        tuple(load_point(spec, curve.traffic, p.offered, plan) for p in curve.points),
        saturation_load(spec, curve.traffic, plan, resolution),
        measure_full_load(spec, curve.traffic, plan),
    )


def compare_flows(case: ReferenceFlows, plan: LoadPlan) -> list[FigureCheck]:
    """Compare the share of each flow."""
    shares = flow_shares(MeshSpec(packet_flits=case.packet_flits), case.flows, plan)
    return [
        FigureCheck(
            f"{case.name}, {case.packet_flits} flits, {f.src} to {f.dst}", expected, share, SHARE_TOLERANCE, "flits"
        )
        for f, expected, share in zip(case.flows, case.accepted, shares, strict=True)
    ]


# Blue and vermilion of the Okabe-Ito palette: distinct for every type of colour blindness, and in grey.
REFERENCE_COLOUR = "#0072B2"
SIMULATED_COLOUR = "#D55E00"
LATENCY_TICKS = (20, 30, 50, 100, 200, 400, 800)


def title(comparison: CurveComparison) -> str:
    """Return the title of a comparison, such as ``uniform, 4-flit packets``."""
    curve = comparison.curve
    return f"{curve.traffic}, {curve.packet_flits}-flit packets"


def gate_table(gates: Iterable[FigureCheck]) -> str:
    """Return a Markdown table. A row without a tolerance is for information only."""
    lines = ["| figure | reference | kernbench | difference | gate |", "| --- | ---: | ---: | ---: | --- |"]
    return "\n".join(lines + [_row(gate) for gate in gates])


def _row(gate: FigureCheck) -> str:
    digits = 2 if gate.unit == "cycles" else 4
    allowed = "" if gate.tolerance is None else f"±{gate.tolerance:.0%} {'holds' if gate.holds else 'FAILS'}"
    return (
        f"| {gate.label} | {gate.reference:.{digits}f} | {gate.measured:.{digits}f} "
        f"| {gate.difference:+.1%} | {allowed} |"
    )


def comparison_tables(comparisons: Iterable[CurveComparison]) -> str:
    """Return a heading and a table of all checks per curve."""
    return "\n\n".join(
        f"### {title(c).capitalize()}\n\n{gate_table([*c.saturation_gates(), *c.latency_gates()])}" for c in comparisons
    )


def draw_mesh_latency(comparisons: Sequence[CurveComparison], path: Path) -> None:
    """Draw latency over offered load to the image ``path``, one panel per curve."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    columns = 2
    panels = figure.subplots(-(-len(comparisons) // columns), columns, squeeze=False).flat
    for axes, comparison in zip(panels, comparisons, strict=False):
        _draw_curve(axes, comparison)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.supxlabel("offered load (flits per node and cycle)", fontsize=10)
    figure.supylabel("mean latency (cycles)", fontsize=10)
    figure.savefig(path, dpi=200)


def _draw_gates(axes: Axes, comparison: CurveComparison) -> None:
    gated = [
        (p, t) for p in comparison.curve.points if (t := latency_tolerance(comparison.curve, p.offered)) is not None
    ]
    axes.fill_between(
        [p.offered for p, _ in gated],
        [p.latency_cycles * (1 - tolerance) for p, tolerance in gated],
        [p.latency_cycles * (1 + tolerance) for p, tolerance in gated],
        color=REFERENCE_COLOUR,
        alpha=0.15,
        linewidth=0,
        label="gate",
    )


def _draw_curve(axes: Axes, comparison: CurveComparison) -> None:
    _draw_gates(axes, comparison)
    reference, simulated = comparison.curve.points, comparison.points
    axes.plot(
        [p.offered for p in reference],
        [p.latency_cycles for p in reference],
        "o-",
        color=REFERENCE_COLOUR,
        markersize=5,
        linewidth=1.5,
        label="reference, cycle-accurate",
    )
    axes.plot(
        [p.offered for p in simulated],
        [p.latency_cycles for p in simulated],
        "s--",
        color=SIMULATED_COLOUR,
        markerfacecolor="white",
        markersize=5,
        linewidth=1.5,
        label="kernbench",
    )
    axes.axvline(
        comparison.curve.saturation_load, color="0.6", linewidth=1.0, linestyle=":", label="reference saturates"
    )
    axes.set_title(title(comparison), fontsize=10)
    axes.set_xlim(left=0.0)
    axes.set_yscale("log")
    axes.set_ylim(16, 800)
    axes.yaxis.set_major_locator(FixedLocator(LATENCY_TICKS))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(visible=True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
