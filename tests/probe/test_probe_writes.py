"""The closed form of a write is exact, wherever it begins; it absorbs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kernbench.cli.probe_output import print_reports
from kernbench.engine.engine import GraphEngine
from kernbench.library.machines import load_machine
from kernbench.library.probes import Probe
from kernbench.messages.requests import PeCoord
from kernbench.probe.cases import HbmSlice, ProbeCase, ProbeFlow, Site
from kernbench.probe.closed_form import Breakdown, compute_closed_form
from kernbench.probe.measure import probe_case, run_once, spread_refresh
from kernbench.probe.report import ProbeReport
from kernbench.topology.builder import Topology

MakeMachine = Callable[..., Topology]

ROUND = 8 * 256
NEAR, FAR = HbmSlice(0, 0, 0), HbmSlice(0, 3, 3)
FORM = Breakdown(overhead_ps=7000, wire_ps=100, memory_ps=15000, drain_ps=16000)
ABOVE, BELOW = FORM.total_ps + 900, FORM.total_ps - 900


def write_by(topology: Topology, pe: PeCoord | None, at: HbmSlice, offset: int) -> ProbeFlow:
    site = Site(topology.topology_obj)
    flow = site.host_flow(at, reading=False) if pe is None else replace(site.pe_read(pe, at), reading=False)
    return replace(flow, pa=flow.pa + offset)


def both_ps(topology: Topology, flow: ProbeFlow, nbytes: int) -> tuple[int, int]:
    """What a transaction takes alone, and its closed form."""
    engine = GraphEngine(topology, enable_data=False)
    form = compute_closed_form(engine.machine, flow, nbytes).total_ps
    return run_once(engine, [flow], nbytes)[0].ps, form


@pytest.mark.parametrize("at", [NEAR, FAR])
@pytest.mark.parametrize("nbytes", [16 << 10, 64 << 10])
def test_large_writes_are_exact(machine: Topology, at: HbmSlice, nbytes: int) -> None:
    """Those fill the write queues: a far one comes when the buses can turn at once, a near one earlier."""
    measured, form = both_ps(machine, write_by(machine, (0, 0, 0), at, 0), nbytes)
    assert measured == form


SIZES = st.sampled_from([64, 4096, 16 << 10, 64 << 10]) | st.integers(1, 1 << 17)
WRITERS = st.sampled_from([None, (0, 0, 0), (0, 3, 3), (1, 0, 1)])
PLACES = st.builds(HbmSlice, st.integers(0, 1), st.integers(0, 3), st.integers(0, 3))


@given(pe=WRITERS, at=PLACES, offset=st.integers(0, 1 << 23), nbytes=SIZES)
def test_writes_are_exact(machine: Topology, pe: PeCoord | None, at: HbmSlice, offset: int, nbytes: int) -> None:
    measured, form = both_ps(machine, write_by(machine, pe, at, offset), nbytes)
    assert measured == form


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("cube.hbm.timing=hbm2",),
        ("cube.hbm.mapping=MOP4CLXOR",),
        ("cube.hbm.mapping=RoBaRaCoCh", "transport.express=false"),
        ("cube.hbm.timing=ideal", "cube.noc.link_bw_gbs=100"),
        ("transport.packet_bytes=256", "ns_per_mm=0.013", "pe.dma.setup_ns=3.7"),
    ],
)
def test_the_same_of_other_machines(make_machine: MakeMachine, overrides: tuple[str, ...]) -> None:
    topology = make_machine(*overrides)

    @settings(max_examples=60)
    @given(pe=WRITERS, at=PLACES, offset=st.integers(0, 1 << 23), nbytes=SIZES)
    def check(pe: PeCoord | None, at: HbmSlice, offset: int, nbytes: int) -> None:
        measured, form = both_ps(topology, write_by(topology, pe, at, offset), nbytes)
        assert measured == form

    check()


def test_a_write_after_a_pause_is_as_fast(machine: Topology) -> None:
    """It is the first at its slice, whatever has been elsewhere, and how long ago."""
    flow, nbytes = write_by(machine, (0, 0, 0), NEAR, 256), 64 << 10
    engine = GraphEngine(machine, enable_data=False)
    run_once(engine, [write_by(machine, (0, 0, 1), FAR, 0)], nbytes)
    assert run_once(engine, [flow], nbytes)[0].ps == both_ps(machine, flow, nbytes)[1]


# -- what a report says of it --


def test_waiting_for_others_is_queueing() -> None:
    assert FORM.with_measured(ABOVE) == replace(FORM, queue_ps=900)


def test_who_is_alone_waits_for_nobody() -> None:
    assert FORM.with_measured(ABOVE, alone=True) == replace(FORM, difference_ps=900)


@pytest.mark.parametrize("alone", [False, True])
def test_what_is_faster_did_not_wait(alone: bool) -> None:
    """It is no waiting, and no other part takes it: the parts of the closed form say what they said."""
    assert FORM.with_measured(BELOW, alone=alone) == replace(FORM, difference_ps=-900)


def test_a_difference_is_no_waiting_in_company_either() -> None:
    found = FORM.with_measured(ABOVE, alone=True).with_measured(ABOVE + 100)
    assert found == replace(FORM, difference_ps=900, queue_ps=100)


@pytest.mark.parametrize("latency_ps", [ABOVE, BELOW, FORM.total_ps, 0])
@pytest.mark.parametrize("alone", [False, True])
def test_parts_add_up_to_what_was_measured(latency_ps: int, alone: bool) -> None:
    found = FORM.with_measured(latency_ps, alone=alone)
    assert found.total_ps == latency_ps
    assert sum(ns for _, ns in found.parts_ns) == pytest.approx(latency_ps / 1000)


def report_of(topology: Topology, at: HbmSlice, offset: int, nbytes: int, pes: int = 1) -> ProbeReport:
    """What is said of writes of the first PEs of a cube, side by side in one slice."""
    flows = tuple(
        replace(write_by(topology, (0, 0, pe), at, offset + (pe << 20)), room_bytes=1 << 20) for pe in range(pes)
    )
    case = ProbeCase("pe-write", "PEs write", lambda site: flows)
    found = probe_case(topology, case, nbytes, details=True)
    assert isinstance(found, ProbeReport)
    return found


def printed(topology: Topology, report: ProbeReport, capsys: pytest.CaptureFixture[str]) -> str:
    print_reports(Console(width=120), Probe(load_machine(topology), report.single.nbytes, (report,)))
    return capsys.readouterr().out


def test_a_report_says_exact(machine: Topology, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(machine, FAR, ROUND, 16 << 10)
    document = json.loads(json.dumps(Probe(load_machine(machine), 16 << 10, (report,)).to_dict()))
    for single in (document["cases"][0]["transaction"], *document["cases"][0]["sweep"]):
        assert single["closed_form_is"] == "exact"
        assert single["closed_form_ns"] == single["latency_ns"]
        assert single["breakdown"]["difference_ns"] == single["breakdown"]["queue_ns"] == 0
    shown = printed(machine, report, capsys)
    assert "difference" not in shown


@pytest.mark.parametrize("mode", ["all-bank", "spread", "none"])
def test_a_report_says_how_it_was_refreshed(
    make_machine: MakeMachine, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With outages a transaction longer than tREFI would meet one: these are measured without."""
    machine = make_machine(f"cube.hbm.refresh={mode}", "sip.cube_mesh={w: 2, h: 2}")
    report = report_of(machine, FAR, ROUND, 1 << 20)
    single = report.single
    assert single.latency_ns > 3900
    assert single.latency_ps == single.closed_form_ps
    cases = "none" if mode == "none" else "spread"
    document = json.loads(json.dumps(Probe(load_machine(machine), 1 << 20, (report,)).to_dict()))
    assert document["refresh"] == {"machine": mode, "cases": cases}
    assert ("refresh: spread" in printed(machine, report, capsys)) == (mode == "all-bank")


def test_a_report_without_banks_has_no_refresh(make_machine: MakeMachine) -> None:
    machine = make_machine("cube.hbm.timing=ideal")
    document = Probe(load_machine(machine), 64, ()).to_dict()
    assert document["refresh"] == {"machine": None, "cases": None}


def test_only_refresh_of_all_banks_is_measured_otherwise(make_machine: MakeMachine) -> None:
    for mode in ("spread", "none"):
        machine = make_machine(f"cube.hbm.refresh={mode}")
        assert spread_refresh(machine) is machine
    machine = make_machine("cube.hbm.refresh=all-bank")
    evenly = spread_refresh(machine)
    assert evenly.digest == make_machine("cube.hbm.refresh=spread").digest
    assert machine.spec.cube.hbm.refresh_mode == "all-bank"


def test_a_report_of_several_tells_waiting(machine: Topology) -> None:
    """Each takes its closed form alone; what comes on top of that is waiting."""
    alone = report_of(machine, NEAR, 256, 64 << 10).single
    together = report_of(machine, NEAR, 256, 64 << 10, pes=2)
    single = together.single
    assert together.initiator == "sip0.cube0.pe0.pe_dma"
    assert single.breakdown.difference_ps == alone.breakdown.difference_ps == 0
    assert single.breakdown.queue_ps == single.latency_ps - alone.latency_ps > 0
