"""Rooflines as a chart: where launches lie below the roofs of the machine."""

from __future__ import annotations

import pytest

from kernbench.observe.roofline import Bound, Roofline, bound_of
from kernbench.observe.roofline_chart import RooflineChart, roofline_charts
from kernbench.topology.builder import resolve_topology
from kernbench.topology.graph import Graph

MACS = bound_of("GEMM", "sip0.cube0.pe0.pe_gemm", 262_144, "MACs", 4096.0)
BYTES = bound_of("HBM", "sip0.cube0.hbm0", 32_768, "bytes", 204.8)
MATH = bound_of("MATH", "sip0.cube0.pe0.pe_math", 8_192, "bytes", 256.0)
LINK = bound_of("NoC", "a → b", 65_536, "bytes", 256.0)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return resolve_topology("one-cube").topology_obj


def charts_of(graph: Graph, *bounds: Bound, measured_ps: int = 400_000) -> tuple[RooflineChart, ...]:
    return roofline_charts(
        graph, [("matmul", 3, Roofline(measured_ps=measured_ps, useful_macs=1.0, bounds=bounds, differences=()))]
    )


def test_a_point_is_work_over_bytes_and_over_time(graph: Graph) -> None:
    (chart,) = charts_of(graph, BYTES, MACS, LINK)
    (point,) = chart.points
    assert (chart.engine, chart.unit) == ("matrix unit", "MACs")
    assert (point.launch, point.request_id, point.memory) == ("matmul", 3, "HBM")
    assert point.intensity == 262_144 / 32_768
    assert point.rate == pytest.approx(262_144 / 400)


@pytest.mark.parametrize("bound", [MACS, BYTES])
def test_it_lies_as_far_below_a_roof_as_its_time_is_beyond_the_bound(graph: Graph, bound: Bound) -> None:
    """So a launch that takes no longer than a bound touches its roof."""
    ((point,),) = (chart.points for chart in charts_of(graph, BYTES, MACS, measured_ps=bound.ps))
    assert point.rate == pytest.approx(MACS.rate if bound is MACS else BYTES.rate * point.intensity)
    assert (point.roof, point.most) == ("HBM slice", pytest.approx(BYTES.rate * point.intensity))


def test_each_engine_has_a_chart(graph: Graph) -> None:
    charts = charts_of(graph, BYTES, MACS, MATH)
    assert [(chart.engine, chart.unit) for chart in charts] == [("matrix unit", "MACs"), ("MATH", "bytes")]


def test_without_arithmetic_the_roofs_are_shown(graph: Graph) -> None:
    (chart,) = charts_of(graph, BYTES, LINK)
    assert chart.points == ()
    assert {roof.rate for roof in chart.engine_roofs} == set(graph.spec.pe.gemm.macs_per_ns.values())


def test_roofs_are_those_of_the_types_that_launches_used(graph: Graph) -> None:
    (chart,) = charts_of(graph, BYTES, MACS)
    assert [(roof.name, roof.rate) for roof in chart.engine_roofs] == [("matrix unit, f16, bf16", 4096.0)]


def test_roofs_of_the_memories_are_those_of_the_machine(graph: Graph) -> None:
    (chart,) = charts_of(graph, BYTES, MACS)
    rates = {roof.resource: roof.rate for roof in chart.memory_roofs}
    assert list(rates) == ["HBM", "SRAM", "fetch"]
    assert rates["HBM"] == graph.spec.cube.slice_peak_gbs
    assert rates["fetch"] == graph.spec.pe.tcm.read_bw_gbs


def test_limits_enclose_points_and_corners(graph: Graph) -> None:
    (chart,) = charts_of(graph, BYTES, MACS, measured_ps=400_000_000)
    left, right, low, high = chart.limits
    (point,) = chart.points
    corners = [MACS.rate / roof.rate for roof in chart.memory_roofs]
    assert left < min(point.intensity, *corners)
    assert right > max(point.intensity, *corners)
    assert low < point.rate < MACS.rate < high
