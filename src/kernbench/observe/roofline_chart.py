"""Rooflines of launches as a chart: achieved rate over arithmetic intensity, below the roofs of the machine.

Work and bytes are those of the busiest instances, as in ``Roofline``. The ratio of a roof to a launch's rate therefore
equals the ratio of the launch's time to the bound of the resource with that roof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernbench.common.values import value
from kernbench.observe.roofline import Bound, Roofline
from kernbench.topology import resources as of
from kernbench.topology.cube_spec import SramAttrs
from kernbench.topology.graph import Graph
from kernbench.topology.hbm_refresh import slice_pace

ENGINES = {of.GEMM: "matrix unit", of.MATH: "MATH"}
"""Arithmetic resources, each with a chart, and their names in the chart"""

MARGIN = 2.0
"""The factor by which the axes extend beyond the outermost point or corner of a roof"""
LEAST_HEIGHT = 0.02
"""The lower end of the rates shown, at most this share of the highest roof"""


@value
class Roof:
    """A rate that no launch exceeds: units of work per ns of an engine, or bytes per ns of a memory."""

    resource: str
    name: str
    rate: float


@value
class ChartPoint:
    """A launch and a memory that it used: ``intensity`` in work per byte, ``rate`` in work per ns.

    ``roof`` is the lower of the engine's roof and the memory's roof at this intensity, and ``most`` its rate there.
    """

    launch: str
    request_id: int
    memory: str
    intensity: float
    rate: float
    roof: str
    most: float


@value
class RooflineChart:
    """The launches that used an engine; ``unit`` is the unit of its work."""

    engine: str
    unit: str
    engine_roofs: tuple[Roof, ...]
    memory_roofs: tuple[Roof, ...]
    points: tuple[ChartPoint, ...]

    @property
    def limits(self) -> tuple[float, float, float, float]:
        """The least and the largest intensity and rate to show, including all points and the corners of the roofs."""
        flat = [roof.rate for roof in self.engine_roofs]
        corners = [rate / roof.rate for rate in flat for roof in self.memory_roofs]
        across = [*corners, *(point.intensity for point in self.points)]
        up = [max(flat) * LEAST_HEIGHT, *flat, *(point.rate for point in self.points)]
        return min(across) / MARGIN**2, max(across) * MARGIN**2, min(up) / MARGIN, max(up) * MARGIN


def roofline_charts(graph: Graph, launches: Sequence[tuple[str, int, Roofline]]) -> tuple[RooflineChart, ...]:
    """Return a chart for each engine that one of ``launches`` (name, request, roofline) used.

    Return one empty chart if the launches used no engine.
    """
    charts = [_chart(graph, resource, launches) for resource in ENGINES]
    return tuple(chart for chart in charts if chart.points) or tuple(charts[:1])


def _chart(graph: Graph, resource: str, launches: Iterable[tuple[str, int, Roofline]]) -> RooflineChart:
    memories = _memory_roofs(graph)
    points: list[ChartPoint] = []
    rates: set[float] = set()
    for name, request_id, roofline in launches:
        bounds = {bound.resource: bound for bound in roofline.bounds}
        work = bounds.get(resource)
        if work is not None:
            rates.add(work.rate)
            points += [
                _point(name, request_id, roofline, work, bounds[memory.resource], memory)
                for memory in memories
                if memory.resource in bounds
            ]
    unit = "MACs" if resource == of.GEMM else "bytes"
    return RooflineChart(ENGINES[resource], unit, _engine_roofs(graph, resource, rates), memories, tuple(points))


def _point(name: str, request_id: int, roofline: Roofline, work: Bound, moved: Bound, memory: Roof) -> ChartPoint:
    rate, intensity = work.amount * 1000 / roofline.measured_ps, work.amount / moved.amount
    most, roof = min((work.rate, ENGINES[work.resource]), (intensity * memory.rate, memory.name))
    return ChartPoint(name, request_id, memory.resource, intensity, rate, roof, most)


def _engine_roofs(graph: Graph, resource: str, used: set[float]) -> tuple[Roof, ...]:
    """Return the roofs of the rates that launches ``used``, or all roofs if they used none.

    The matrix unit has a roof for each rate, which depends on the type of the operands.
    """
    pe = graph.spec.pe
    if resource == of.MATH:
        return (Roof(resource, "MATH", pe.math.bytes_per_ns),)
    types: dict[float, list[str]] = {}
    for element, rate in pe.gemm.macs_per_ns.items():
        types.setdefault(rate, []).append(element)
    return tuple(
        Roof(resource, f"matrix unit, {', '.join(types[rate])}", rate)
        for rate in sorted(types, reverse=True)
        if rate in used or not used
    )


def _memory_roofs(graph: Graph) -> tuple[Roof, ...]:
    """Return the roofs of an HBM slice, of the fastest SRAM and of a PE's TCM."""
    srams = [graph.sram_bw_gbs(node.id) for node in graph.nodes.values() if isinstance(node.attrs, SramAttrs)]
    return (
        Roof(of.HBM, "HBM slice", slice_pace(graph.spec.cube).gbs),
        *(Roof(of.SRAM, "SRAM", rate) for rate in (max(srams, default=0.0),) if rate),
        Roof(of.FETCH, "TCM reads", graph.spec.pe.tcm.read_bw_gbs),
    )
