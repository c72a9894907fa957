"""What holds for every case: sums, growth, determinism, bandwidth, fairness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from ideal_memory import IDEAL, SLICE_GBS
from kernbench.common.ids import sip_part
from kernbench.core.observed import Observed
from kernbench.engine.engine import GraphEngine
from kernbench.observe.statistics import link_traffic
from kernbench.probe.cases import CASES, Absent, ProbeFlow, Site, StreamPlan, dma_stream, find_case
from kernbench.probe.closed_form import compute_closed_form
from kernbench.probe.measure import probe_case, run_once, run_streams
from kernbench.probe.report import ProbeReport
from kernbench.topology.builder import Topology
from kernbench.transport import Link, Network
from observed import log_of, logged, watched

NAMES = [case.name for case in CASES]
# Refresh takes tRFC + tRP + tRCD + 0.7 tRC of every tREFI.
BESIDE_REFRESH_GBS = 204.8 * (1 - (350 + 16.3 + 19.4 + 0.7 * 45) / 3900)
ALONE = [name for name in NAMES if name != "pe-hotspot"]


def flows_of(machine: Topology, name: str) -> tuple[ProbeFlow, ...]:
    found = find_case(name).place(Site(machine.topology_obj))
    assert not isinstance(found, Absent)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_no_latency_is_below_its_closed_form(reports: dict[str, ProbeReport], name: str) -> None:
    report = reports[name]
    for single in (report.single, *report.sweep):
        assert single.latency_ps >= single.closed_form_ps


@pytest.mark.parametrize("name", ALONE)
def test_nothing_waits_where_nobody_competes(reports: dict[str, ProbeReport], name: str) -> None:
    for single in (reports[name].single, *reports[name].sweep):
        assert single.breakdown.queue_ps == 0
        assert single.latency_ps == single.closed_form_ps


@pytest.fixture(scope="module")
def ideal_hotspot(make_machine: Callable[..., Topology]) -> ProbeReport:
    """Eight PEs at a slice without banks."""
    found = probe_case(make_machine(*IDEAL), find_case("pe-hotspot"), details=True)
    assert isinstance(found, ProbeReport)
    return found


def test_competitors_wait(ideal_hotspot: ProbeReport) -> None:
    single = ideal_hotspot.single
    # Seven others each take 20 ns of the slice before the last one is done; the head start differs by the way.
    assert single.breakdown.queue_ps == pytest.approx(7 * 20_000, abs=20_000)


@pytest.mark.parametrize("name", NAMES)
def test_latency_and_utilisation_grow_with_size(reports: dict[str, ProbeReport], name: str) -> None:
    sweep = reports[name].sweep
    assert [step.nbytes for step in sweep] == [4096 << power for power in range(9)]
    for small, large in pairwise(sweep):
        assert small.latency_ps < large.latency_ps
        assert large.utilisation <= 1
        # Eight PEs that go through the banks of a slice side by side are slowed by each other's rows.
        assert small.utilisation < large.utilisation or name == "pe-hotspot"


def test_latency_grows_with_distance(reports: dict[str, ProbeReport]) -> None:
    order = ["pe-local-hbm", "pe-same-cube-hbm", "pe-adjacent-cube-hbm", "pe-far-cube-hbm", "pe-cross-sip-hbm"]
    for near, far in (*pairwise(order), ("h2d-local", "h2d-far"), ("d2h-local", "d2h-far")):
        assert reports[near].single.latency_ps < reports[far].single.latency_ps


@pytest.mark.parametrize(
    "name", ["h2d-local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pe-cross-sip-hbm", "pe-hotspot"))]
)
def test_a_repeated_run_is_identical(machine: Topology, reports: dict[str, ProbeReport], name: str) -> None:
    assert probe_case(machine, find_case(name), details=True) == reports[name]


@pytest.mark.parametrize("name", ALONE)
def test_a_stream_reaches_its_bottleneck(reports: dict[str, ProbeReport], name: str) -> None:
    stream = reports[name].sustained
    assert 0.95 <= stream.utilisation <= 1
    if name == "pe-local-hbm":
        assert stream.bottleneck_gbs == pytest.approx(BESIDE_REFRESH_GBS)


def test_without_banks_all_that_a_slice_gives_is_used(ideal_hotspot: ProbeReport) -> None:
    assert ideal_hotspot.sustained.bottleneck_gbs == pytest.approx(SLICE_GBS)
    assert 0.95 <= ideal_hotspot.sustained.utilisation <= 1


@pytest.mark.parametrize("name", NAMES)
def test_no_link_carries_more_than_its_bandwidth(machine: Topology, name: str) -> None:
    engine = GraphEngine(machine, enable_data=False)
    run_streams(engine, flows_of(machine, name), StreamPlan(nbytes=4096, transactions=40, outstanding=8))
    for link in link_traffic(engine.machine):
        assert link.utilisation <= 1
        assert link.nbytes <= link.bw_gbs * engine.now


def test_a_hotspot_is_fair(reports: dict[str, ProbeReport]) -> None:
    crowd = reports["pe-hotspot"].crowd
    assert crowd is not None
    assert crowd.fairness > 0.999
    assert min(crowd.rates_gbs) > 0.95 * max(crowd.rates_gbs)
    assert crowd.min_ns <= crowd.mean_ns <= crowd.max_ns


def test_all_local_streams_do_not_disturb_each_other(reports: dict[str, ProbeReport]) -> None:
    report = reports["pe-all-local"]
    assert report.sustained.effective_gbs >= 0.95 * 4 * BESIDE_REFRESH_GBS
    assert report.crowd is not None
    assert report.crowd.fairness == pytest.approx(1.0)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_equal_flows_get_equal_shares_of_a_link(n: int) -> None:
    packet = 1024
    net = Network(packet)
    for source in range(n):
        net.link(f"s{source}", "merge", bw_gbs=256.0, overhead_ns=1.0, fifo_bytes=4 * packet)
    net.link("merge", "end", bw_gbs=256.0, overhead_ns=1.0)
    tables = watched(net)
    for source in range(n):
        net.send([f"s{source}", "merge", "end"], 64 * packet)
    net.run()
    check_shares(granted(tables, net.links["merge", "end"]), n, packet)


def test_two_pes_of_a_corner_share_the_way_out(machine: Topology) -> None:
    site, engine = Site(machine.topology_obj), logged(machine, links=True)
    plan = StreamPlan(nbytes=1 << 16, transactions=1, outstanding=1)
    for pe in (0, 1):
        at = site.slices(0, [3])[pe]
        write = replace(site.pe_read((0, 0, pe), at), reading=False)
        engine.submit(dma_stream(write, (0, 0, pe), plan))
    engine.drain()
    tables, way = log_of(engine).seen.tables, engine.machine.network.links["sip0.cube0.xbar_NW", "sip0.cube0.r0_0"]
    check_shares(granted(tables, way), 2, 1024)


def granted(tables: Observed, link: Link) -> list[tuple[int, int]]:
    """(transfer, bytes) of every grant of a link."""
    carried = tables.carried()
    mine = carried.link == link.index
    return list(zip(carried.transfer[mine].tolist(), carried.nbytes[mine].tolist(), strict=True))


def check_shares(grants: list[tuple[int, int]], n: int, packet: int) -> None:
    """At any moment while all of them send, no flow is more than a packet ahead of another."""
    got = Counter({transfer: 0 for transfer, _ in grants})
    total = Counter[int]()
    for transfer, nbytes in grants:
        total[transfer] += nbytes
    assert len(total) == n
    for transfer, nbytes in grants:
        got[transfer] += nbytes
        if any(got[each] == total[each] for each in got):
            break
        # Packets are granted one at a time, so between two rounds the leaders are one ahead.
        assert max(got.values()) - min(got.values()) <= packet


def links_of(machine: Topology, name: str) -> list[tuple[str, str]]:
    engine = GraphEngine(machine, enable_data=False)
    run_once(engine, flows_of(machine, name)[:1], 4096)
    return [(link.src, link.dst) for link in link_traffic(engine.machine)]


@pytest.mark.parametrize("name", ["pe-local-hbm", "pe-all-local"])
def test_a_local_read_never_uses_the_mesh(machine: Topology, name: str) -> None:
    nodes = machine.topology_obj.nodes
    engine = GraphEngine(machine, enable_data=False)
    run_once(engine, flows_of(machine, name), 1 << 16)
    used = [(link.src, link.dst) for link in link_traffic(engine.machine)]
    assert used
    assert not [pair for pair in used if "noc_router" in {nodes[end].kind for end in pair}]


def test_a_far_read_does_use_the_mesh(machine: Topology) -> None:
    nodes = machine.topology_obj.nodes
    kinds = [{nodes[end].kind for end in pair} for pair in links_of(machine, "pe-same-cube-hbm")]
    assert {"noc_router"} in kinds


def test_a_cross_sip_read_crosses_both_io_chiplets(machine: Topology) -> None:
    used = links_of(machine, "pe-cross-sip-hbm")
    entered = {dst for _, dst in used}
    assert {sip_part(0, "io_noc"), sip_part(1, "io_noc")} <= entered
    assert not {"host", "switch"} & entered


@pytest.mark.parametrize("name", NAMES)
def test_the_hops_tell_the_same_time(reports: dict[str, ProbeReport], machine: Topology, name: str) -> None:
    rows = reports[name].trace
    heads = [row.tail_ps if row.leg == "memory" else row.head_ps for row in rows]
    assert heads == sorted(heads)
    assert rows[0].node == rows[-1].node == reports[name].initiator
    assert [row.node for row in rows if row.leg == "memory"] == [reports[name].memory]
    flow = next(f for f in flows_of(machine, name) if f.initiator == reports[name].initiator)
    alone = compute_closed_form(GraphEngine(machine, enable_data=False).machine, flow, 4096)
    assert rows[-1].tail_ps == alone.total_ps
