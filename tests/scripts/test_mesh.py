"""The transport as the reference mesh: traffic and network first, then the gates against the cycle-accurate figures."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from covering import sample
from kernbench.common.errors import UnknownNameError
from mesh.load import LoadPlan, load_point, measure_full_load, saturation_load, simulate
from mesh.network import (
    PATTERNS,
    MeshFlow,
    MeshSpec,
    build_mesh,
    flow_traffic,
    messages,
    pattern_traffic,
    xy_route,
    xy_routers,
)
from mesh.reference import (
    CurveComparison,
    FigureCheck,
    ReferenceCurve,
    compare_curve,
    compare_flows,
    compare_latency,
    comparison_tables,
    draw_mesh_latency,
    gate_table,
    latency_tolerance,
    load_reference,
)

REFERENCE = load_reference(Path(__file__).parents[1] / "data" / "mesh.json")
QUICK = LoadPlan(warmup_cycles=600, cycles=2000, messages=3000, seeds=(1, 2))
# At full load there are thousands of messages in a thousand cycles.
FULL = LoadPlan(warmup_cycles=500, cycles=1000, messages=1, seeds=(1,))


def list_cases(cases, name, slow=()):
    """Return all cases. Packets of one flit are slow: they take longest to simulate."""
    return [
        pytest.param(
            c,
            id=f"{name(c)}-{c.packet_flits}",
            marks=[pytest.mark.slow] * (c.packet_flits == 1 or name(c) in slow),
        )
        for c in cases
    ]


EACH_CURVE = pytest.mark.parametrize("curve", list_cases(REFERENCE.curves, lambda c: c.traffic))
EACH_CASE = pytest.mark.parametrize("case", list_cases(REFERENCE.contention, lambda c: c.name))


def failing(gates: list[FigureCheck]) -> list[FigureCheck]:
    return [gate for gate in gates if not gate.holds]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("k", [2, 4, 5])
def test_a_pattern_sends_every_message_somewhere(pattern, k) -> None:
    assert PATTERNS[pattern](k).sum(axis=1) == pytest.approx(np.ones(k * k))


def test_patterns_are_what_the_field_calls_them() -> None:
    def target(pattern: str, node: int) -> int:
        return int(PATTERNS[pattern](4)[node].argmax())

    assert target("transpose", 1) == 4
    assert target("bit-complement", 0) == 15
    assert target("tornado", 0) == 1
    assert target("neighbour", 3) == 0
    assert target("hotspot", 0) == 10


def test_an_unknown_pattern_is_named() -> None:
    with pytest.raises(UnknownNameError, match=r"'spiral'.*uniform"):
        pattern_traffic(MeshSpec(), "spiral", 0.1)


def test_the_row_comes_before_the_column() -> None:
    assert xy_routers(4, 1, 14) == [1, 2, 6, 10, 14]
    assert xy_route(4, 5, 4) == ("s5", "r5", "r4", "d4")
    assert xy_route(4, 5, 5) == ("s5", "r5", "d5")


def test_theory_of_the_patterns() -> None:
    spec = MeshSpec()
    uniform, transpose = (pattern_traffic(spec, name, 1.0) for name in ("uniform", "transpose"))
    assert uniform.zero_load_cycles(spec) == pytest.approx(7 + 5 * 2.5)
    assert uniform.busiest_link(spec) == pytest.approx(1.0)
    assert transpose.busiest_link(spec) == pytest.approx(3.0)


def test_sources_offer_what_they_should_and_the_same_every_time() -> None:
    spec = MeshSpec(packet_flits=4)
    traffic = flow_traffic(spec, (MeshFlow(0, 2, 0.4), MeshFlow(7, 3, 0.8)))
    sent = list(islice(messages(spec, traffic, seed=5), 3000))
    assert sent == list(islice(messages(spec, traffic, seed=5), 3000))
    assert {(s, d) for _, s, d in sent} == {(0, 2), (7, 3)}
    cycles = sent[-1][0]
    for source, rate in ((0, 0.1), (7, 0.2)):
        assert sum(s == source for _, s, _ in sent) / cycles == pytest.approx(rate, rel=0.1)


def test_who_offers_nothing_sends_nothing() -> None:
    spec = MeshSpec()
    assert not list(messages(spec, pattern_traffic(spec, "uniform", 0.0), seed=5))


@pytest.mark.parametrize("flits", [1, 4])
@pytest.mark.parametrize("unit", [None, 1])
def test_zero_load_is_exact_for_every_pair(flits, unit) -> None:
    spec = MeshSpec(packet_flits=flits, unit_flits=unit)
    net = build_mesh(spec)
    for k, (src, dst) in enumerate((s, d) for s in range(16) for d in range(16)):
        transfer = net.send(xy_route(4, src, dst), flits, at_ns=1000.0 * k)
        net.run()
        assert transfer.latency_ns == 7 + 5 * spec.hops(src, dst) + flits - 1


def test_light_load_costs_few_events() -> None:
    """At a light load a message costs less than three events; by packets it would be one for each of 4.5 links."""
    spec, plan = MeshSpec(packet_flits=4), replace(QUICK, messages=500)
    run = simulate(spec, pattern_traffic(spec, "uniform", 0.05), plan, seed=1)
    assert run == simulate(spec, pattern_traffic(spec, "uniform", 0.05), plan, seed=1)
    assert run.events < 3 * 16 * 0.0125 * (plan.warmup_cycles + plan.cycles)


@pytest.mark.parametrize("curve", list_cases(REFERENCE.curves, lambda c: c.traffic, slow=("transpose",)))
def test_latency_up_to_the_knee(curve) -> None:
    """Against the reference and against theory: its own lightest points are short runs, up to 2 % off the mean."""
    compared = compare_latency(curve, QUICK, highest_load=0.85)
    assert not failing(list(compared.latency_gates()))
    zero = pattern_traffic(curve.spec(), curve.traffic, 1.0).zero_load_cycles(curve.spec())
    lightest = compared.points[0]
    assert lightest.latency_cycles == pytest.approx(zero, abs=5 * lightest.error_cycles + 0.02 * zero)


@EACH_CURVE
def test_what_arrives_at_full_load(curve) -> None:
    accepted = measure_full_load(curve.spec(), curve.traffic, FULL)
    assert accepted < 1.0
    assert not failing(list(CurveComparison(curve, (), None, accepted).saturation_gates()))


@pytest.mark.parametrize(
    "curve", list_cases([c for c in REFERENCE.curves if c.packet_flits == 4], lambda c: c.traffic, slow=("uniform",))
)
def test_saturation_by_latency(curve) -> None:
    """Instead of a search: below 3 x zero load at the lower edge of the gate, above it at the upper edge."""
    spec = curve.spec()
    limit = 3 * pattern_traffic(spec, curve.traffic, 1.0).zero_load_cycles(spec)
    tolerance = 0.05 if curve.traffic == "transpose" else 0.1
    edges = [curve.saturation_load * (1 + sign * tolerance) for sign in (-1, 1)]
    below, above = (load_point(spec, curve.traffic, edge, QUICK).latency_cycles for edge in edges)
    assert below < limit < above


@EACH_CASE
def test_flows_share_a_link(case) -> None:
    assert not failing(compare_flows(case, replace(QUICK, cycles=10_000)))


@pytest.mark.parametrize("pattern", sample(["bit-complement", "tornado", "neighbour", "hotspot"], "tornado", "hotspot"))
def test_other_patterns_carry_what_they_offer_below_their_bound(pattern) -> None:
    spec = MeshSpec(packet_flits=4)
    full = pattern_traffic(spec, pattern, 1.0)
    offered = 0.4 / max(1.0, full.busiest_link(spec), float(full.destinations.sum(axis=0).max()))
    point = load_point(spec, pattern, offered, QUICK)
    assert point.accepted == pytest.approx(offered, rel=0.06)
    assert full.zero_load_cycles(spec) - 1 < point.latency_cycles < 2 * full.zero_load_cycles(spec)


@pytest.mark.parametrize("cycles", sample((1000, 400), 400))
def test_deeper_fifos_carry_more(cycles) -> None:
    plan = replace(FULL, cycles=cycles)
    accepted = [measure_full_load(MeshSpec(fifo_flits=f), "uniform", plan) for f in (8, 32)]
    assert 0.5 < accepted[0] < accepted[1] < 1.0


@pytest.mark.slow
@EACH_CURVE
def test_whole_curve(curve) -> None:
    plan = LoadPlan(warmup_cycles=3000, cycles=8000, messages=10_000)
    compared = compare_curve(curve, plan, resolution=0.004)
    assert not failing([*compared.latency_gates(), *compared.saturation_gates()])


def test_saturation_is_bracketed() -> None:
    plan = replace(QUICK, cycles=1500, messages=1, drain_cycles=2000, seeds=(1,))
    low, high = saturation_load(MeshSpec(packet_flits=4), "transpose", plan, resolution=0.13)
    assert (low, high) == (0.25, 0.375)


def curve_of(*, saturation: float = 0.7) -> ReferenceCurve:
    return replace(REFERENCE.curves[0], saturation=(saturation, saturation))


def test_gates_tighten_with_distance_from_saturation() -> None:
    curve = curve_of(saturation=0.8)
    assert [latency_tolerance(curve, offered) for offered in (0.4, 0.41, 0.64, 0.7)] == [0.05, 0.2, 0.2, None]
    assert FigureCheck("x", 10.0, 10.4, 0.05, "cycles").holds
    assert not FigureCheck("x", 10.0, 9.4, 0.05, "cycles").holds
    assert FigureCheck("x", 10.0, 99.0, None, "cycles").holds


def test_a_report_shows_what_fails(tmp_path) -> None:
    table = gate_table(
        [FigureCheck("latency", 10.0, 12.0, 0.05, "cycles"), FigureCheck("share", 0.5, 0.5, 0.02, "flits")]
    )
    assert "| latency | 10.00 | 12.00 | +20.0% | ±5% FAILS |" in table
    assert "| share | 0.5000 | 0.5000 | +0.0% | ±2% holds |" in table
    compared = compare_latency(REFERENCE.curves[1], replace(QUICK, cycles=200, messages=50), highest_load=0.2)
    assert "### Uniform, 4-flit packets" in comparison_tables([compared])
    draw_mesh_latency([compared], tmp_path / "mesh.png")
    assert (tmp_path / "mesh.png").read_bytes().startswith(b"\x89PNG")
