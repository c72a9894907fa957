"""Transfers that meet: conservation, capacity, equal shares, ties, credits and deadlock."""

from __future__ import annotations

from itertools import permutations
from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_congestion import poisson_mesh
from transport_scenarios import Scenario, Send, Wire, build, carried, random_scenario, run

from kernbench.common.errors import TransportError
from kernbench.transport import Network, Pace, Supply
from observed import watched

EXPRESS = pytest.mark.parametrize("express", [True, False])
KIB = 1024


def star(n: int, packet: int = KIB, *, bw_gbs: float = 256.0, express: bool = True) -> Network:
    """Sources s0 … with a link each into a hub, and one link from there to the sink."""
    net = Network(packet, express=express)
    for i in range(n):
        net.link(f"s{i}", "hub", bw_gbs=bw_gbs, overhead_ns=2.0, fifo_bytes=8 * packet)
    net.link("hub", "sink", bw_gbs=bw_gbs, overhead_ns=2.0)
    return net


@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_bytes_are_conserved_and_no_link_exceeds_its_bandwidth(seed, cyclic, express) -> None:
    scenario = random_scenario(Random(seed), cyclic=cyclic, fed=0.3)
    outcome = run(scenario, express=express).outcome
    expected: dict[tuple[str, str], int] = {(w.src, w.dst): 0 for w in scenario.wires}
    for send in scenario.sends:
        for link in zip(send.nodes, send.nodes[1:], strict=False):
            expected[link] += send.nbytes
    assert {(a, b): nbytes for a, b, nbytes, _, _ in outcome.links} == expected
    end_ns = max(outcome.delivered_ps) / 1000
    start_ns = min(s.at_ps for s in scenario.sends) / 1000
    for wire, (_, _, nbytes, busy_ns, peak) in zip(scenario.wires, outcome.links, strict=True):
        assert busy_ns <= end_ns - start_ns + 0.001
        # Every packet's time is rounded to a picosecond, of which there may be as many as bytes.
        assert busy_ns == pytest.approx(nbytes / wire.bw_gbs, abs=(nbytes + 1) / 1000)
        assert wire.fifo_bytes is None or peak <= wire.fifo_bytes


@given(st.integers(0, 1 << 32), st.booleans())
def test_nobody_is_faster_than_alone(seed, cyclic) -> None:
    scenario = random_scenario(Random(seed), cyclic=cyclic)
    net = build(scenario.packet_bytes, scenario.wires)
    outcome = run(scenario, express=True).outcome
    for send, delivered in zip(scenario.sends, outcome.delivered_ps, strict=True):
        assert delivered - send.at_ps >= net.route(send.nodes).latency_ps(send.nbytes)


@given(st.integers(0, 1 << 32))
def test_reruns_are_identical(seed) -> None:
    scenario = random_scenario(Random(seed), fed=0.3)
    assert run(scenario, express=True) == run(scenario, express=True)


@EXPRESS
@pytest.mark.parametrize("n", [2, 3, 7])
def test_equal_flows_get_equal_shares_to_a_packet(n, express) -> None:
    net = star(n, express=express)
    flows = [net.send([f"s{i}", "hub", "sink"], 256 * KIB) for i in range(n)]
    net.run()
    done = [t.delivered_ns for t in flows]
    assert max(done) == pytest.approx(4.0 + n * 1024.0)
    assert max(done) - min(done) <= (n - 1) * 4.0 + 1e-9


def test_shares_are_equal_all_the_way() -> None:
    net = star(4)
    tables = watched(net)
    for i in range(4):
        net.send([f"s{i}", "hub", "sink"], 64 * KIB)
    for stop in range(50, 1000, 50):
        net.run(until_ns=float(stop))
        through = [nbytes for (src, _, _), (_, _, nbytes) in carried(net, tables).items() if src == "hub"]
        assert len(through) == 4
        assert max(through) - min(through) <= KIB


@EXPRESS
def test_two_slow_streams_merge_at_the_rate_of_the_link(express) -> None:
    net = star(2, express=express)
    packets, pace = 400, Pace(5000, 5000)  # 1 KiB every 5 ns: 204.8 GB/s
    streams = [net.make(net.port(f"s{i}"), net.route([f"s{i}", "hub", "sink"]), packets * KIB) for i in range(2)]
    for stream in streams:
        net.inject(stream, Supply(0, packets, 0, pace))
    net.run(until_ns=1500.0)
    link = net.links["hub", "sink"]
    assert link.nbytes / 1500.0 == pytest.approx(256.0, rel=0.01)
    net.run()
    first, second = (s.delivered_ns for s in streams)
    assert abs(first - second) <= 5.0
    assert 2 * packets * KIB / max(first, second) == pytest.approx(256.0, rel=0.01)


@EXPRESS
def test_a_slow_stream_leaves_the_rest_to_another(express) -> None:
    net = star(2, express=express)
    slow = net.make(net.port("s0"), net.route(["s0", "hub", "sink"]), 64 * KIB)
    net.inject(slow, Supply(0, 64, 0, Pace(16_000, 16_000)))  # 64 GB/s
    fast = net.send(["s1", "hub", "sink"], 192 * KIB)
    net.run()
    assert slow.latency_ns == pytest.approx(64 * 16 + 4, abs=8)
    assert fast.latency_ns == pytest.approx(1024 + 4, abs=8)


@EXPRESS
def test_small_messages_do_not_wait_behind_a_big_one(express) -> None:
    net = star(2, express=express)
    net.send(["s0", "hub", "sink"], 1_000_000)
    small = [net.send(["s1", "hub", "sink"], 4 * KIB, at_ns=100.0 * i + 50.0) for i in range(30)]
    net.run()
    waits = [t.latency_ns - t.route.latency_ps(4 * KIB) / 1000 for t in small]
    assert 12.0 <= fmean(waits) <= 18.0
    assert max(waits) <= 20.0


@EXPRESS
def test_two_channels_of_a_node_take_turns(express) -> None:
    net = star(1, express=express)
    big = net.send(["s0", "hub", "sink"], 100 * KIB)
    small = net.send(["s0", "hub", "sink"], 4 * KIB, at_ns=20.0, channel="queues")
    behind = net.send(["s0", "hub", "sink"], KIB, at_ns=20.0)
    net.run()
    assert small.latency_ns == pytest.approx(4.0 + 8 * 4.0, abs=4.0)
    assert behind.delivered_ns == pytest.approx(big.delivered_ns + 4.0)


def test_equal_times_are_ordered_by_input_and_not_by_the_order_of_the_calls() -> None:
    results = set()
    for order in permutations(range(4)):
        net = star(4)
        flows = {i: net.send([f"s{i}", "hub", "sink"], 3 * KIB) for i in order}
        net.run()
        results.add(tuple(flows[i].delivered_ps for i in range(4)))
    assert len(results) == 1
    assert list(results.pop()) == sorted({4000 + 4000 * k for k in range(9, 13)})


@given(st.integers(0, 1 << 32))
def test_the_order_in_which_transfers_are_made_changes_nothing(seed) -> None:
    rng = Random(seed)
    scenario = random_scenario(rng)
    # One transfer a node: two of one node at one time would queue in the order of the calls.
    sends = list({s.nodes[0]: Send(s.nodes, s.nbytes, s.at_ps) for s in scenario.sends}.values())
    expected = delivered_by_source(scenario, sends)
    rng.shuffle(sends)
    assert delivered_by_source(scenario, sends) == expected


def delivered_by_source(scenario: Scenario, sends: list[Send]) -> dict[str, int]:
    outcome = run(Scenario(scenario.packet_bytes, scenario.wires, tuple(sends)), express=True).outcome
    return {send.nodes[0]: at for send, at in zip(sends, outcome.delivered_ps, strict=True)}


@EXPRESS
def test_an_unbounded_fifo_reports_its_peak(express) -> None:
    net = Network(KIB, express=express)
    net.link("a", "b", bw_gbs=256.0, overhead_ns=0.0)
    net.link("b", "c", bw_gbs=64.0, overhead_ns=0.0)
    net.send(["a", "b", "c"], 64 * KIB)
    net.run()
    # 64 packets enter in 252 ns, in which 15 leave wholly at 16 ns each.
    assert net.links["a", "b"].peak_fifo_bytes == pytest.approx(49 * KIB, abs=KIB)


@EXPRESS
@pytest.mark.parametrize(("fifo_packets", "gbs"), [(1, 25.6), (2, 51.2), (5, 128.0), (12, 256.0)])
def test_credits_throttle_below_the_bandwidth_delay_product(fifo_packets, gbs, express) -> None:
    """A packet holds its FIFO space for the flight (36 ns) and the 4 ns that it takes to leave."""
    net = Network(KIB, express=express)
    net.link("a", "b", bw_gbs=256.0, overhead_ns=36.0, fifo_bytes=fifo_packets * KIB)
    net.link("b", "c", bw_gbs=256.0, overhead_ns=1.0)
    transfer = net.send(["a", "b", "c"], 600 * KIB)
    net.run()
    assert 600 * KIB / transfer.latency_ns == pytest.approx(gbs, rel=0.02)
    assert net.links["a", "b"].peak_fifo_bytes <= fifo_packets * KIB


@pytest.mark.parametrize(
    ("nbytes", "load", "tolerance"),
    [pytest.param(16 * KIB, 0.2, 0.01, marks=pytest.mark.slow), (16 * KIB, None, 0.02), (4 * KIB, 0.2, 0.03)],
)
def test_packets_of_256_and_1024_bytes_agree(nbytes, load, tolerance) -> None:
    """Below saturation and in a burst. Messages of few packets gain a little from coarse ones: they finish in turn."""
    coarse, fine = (
        fmean(fmean(mesh_latencies(seed, packet, nbytes, load)) for seed in (1, 2)) for packet in (1024, 256)
    )
    assert coarse == pytest.approx(fine, rel=tolerance)


def mesh_latencies(seed: int, packet: int, nbytes: int, load: float | None) -> list[int]:
    scenario = poisson_mesh(seed, packet, nbytes, load, messages=150)
    delivered = run(scenario, express=True).outcome.delivered_ps
    return [at - send.at_ps for at, send in zip(delivered, scenario.sends, strict=True)]


@EXPRESS
def test_a_cycle_of_full_fifos_is_reported(express) -> None:
    net = ring(fifo_bytes=2 * KIB, express=express)
    with pytest.raises(TransportError, match=r"4 transfers were not delivered.*n0 -> n1.*n1 -> n2.*unbounded FIFO"):
        net.run()
    relieved = ring(fifo_bytes=None, express=express)
    relieved.run()
    relieved.check_quiescent()


def ring(fifo_bytes: int | None, *, express: bool) -> Network:
    """Four nodes in a circle, each sending 64 KiB three links on; only the first FIFO can be unbounded."""
    net = Network(KIB, express=express)
    for i in range(4):
        bound = fifo_bytes if i == 0 else 2 * KIB
        net.link(f"n{i}", f"n{(i + 1) % 4}", bw_gbs=64.0, overhead_ns=4.0, fifo_bytes=bound)
    for i in range(4):
        net.send([f"n{(i + d) % 4}" for d in range(4)], 64 * KIB)
    return net


def test_a_link_is_granted_the_moment_it_is_free_and_not_before() -> None:
    wires = (Wire("s0", "hub", 1.0, 0.0), Wire("s1", "hub", 1.0, 0.0), Wire("hub", "sink", 1.0, 0.0))
    net = build(8, wires)
    first = net.send(["s0", "hub", "sink"], 8, at_ns=0.0)
    second = net.send(["s1", "hub", "sink"], 8, at_ns=1.0)
    net.run(until_ns=8.0)
    assert net.links["hub", "sink"].nbytes == 8
    net.run(until_ns=8.001)
    assert net.links["hub", "sink"].nbytes == 16
    net.run()
    assert (first.delivered_ps, second.delivered_ps) == (8_001, 16_001)
