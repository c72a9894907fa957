"""What a transfer costs in events. A change that makes the transport dearer fails here, a slow machine does not."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_congestion import crowded_mesh, incast
from transport_scenarios import Scenario, Send, Wire, random_scenario, run

from kernbench.transport import Network

MOST_PER_PACKET_HOP = 2.75


def chain(bandwidths: list[float], packet: int = 16) -> tuple[tuple[Wire, ...], tuple[str, ...]]:
    wires = tuple(Wire(f"n{i}", f"n{i + 1}", bw, 5.0) for i, bw in enumerate(bandwidths))
    return wires, ("n0", *(w.dst for w in wires))


@given(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=8), st.integers(1, 50))
def test_alone_a_packet_costs_an_event_a_hop(bandwidths, packets) -> None:
    wires, nodes = chain(sorted(bandwidths))
    scenario = Scenario(16, wires, (Send(nodes, 16 * packets, 0),))
    assert run(scenario, express=False).events == scenario.packet_hops == packets * len(bandwidths)


@given(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=8), st.integers(1, 50))
def test_alone_each_slower_link_adds_one_a_packet(bandwidths, packets) -> None:
    wires, nodes = chain(bandwidths)
    scenario = Scenario(16, wires, (Send(nodes, 16 * packets, 0),))
    slower = sum(bw < min(bandwidths[:i]) for i, bw in enumerate(bandwidths) if i)
    assert run(scenario, express=False).events == scenario.packet_hops + slower * (packets - 1)


@given(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=1, max_size=8), st.integers(1, 50))
def test_express_costs_one_event(bandwidths, packets) -> None:
    wires, nodes = chain(bandwidths)
    assert run(Scenario(16, wires, (Send(nodes, 16 * packets, 0),)), express=True).events == 1


@pytest.mark.parametrize("send_calls", [0, 1])
def test_an_injection_by_send_costs_one_more(send_calls) -> None:
    net = Network(16)
    net.link("a", "b", bw_gbs=1.0)
    if send_calls:
        net.send(["a", "b"], 160)
    else:
        net.inject(net.make(net.port("a"), net.route(["a", "b"]), 160))
    net.run()
    assert net.clock.n_events == 1 + send_calls


def test_transfers_that_follow_each_other_stay_express() -> None:
    wires, nodes = chain([4.0] * 4)
    scenario = Scenario(16, wires, tuple(Send(nodes, 160, 0) for _ in range(20)))
    assert run(scenario, express=True).events == 20


@pytest.mark.parametrize("sources", [2, 7])
def test_an_incast_costs_an_arrival_and_a_turn_a_packet(sources) -> None:
    """At the shared link a packet arrives and waits for its turn; on its own link each costs one event."""
    wires = (*(Wire(f"s{i}", "hub", 64.0, 2.0, 256) for i in range(sources)), Wire("hub", "sink", 64.0, 2.0))
    scenario = Scenario(64, wires, tuple(Send((f"s{i}", "hub", "sink"), 64 * 50, 0) for i in range(sources)))
    assert run(scenario, express=False).events <= 1.6 * scenario.packet_hops


def dearest(make, seeds: range) -> float:
    """The most events per packet and hop of any of these runs, express or not."""
    scenarios = [make(Random(seed)) for seed in seeds]
    return max(run(s, express=express).events / s.packet_hops for s in scenarios for express in (True, False))


@pytest.mark.parametrize("make", [incast, crowded_mesh])
def test_contention_has_its_price_and_no_more(make) -> None:
    assert dearest(make, range(8)) <= 1.9


def test_any_traffic_stays_below_the_bound() -> None:
    assert dearest(lambda rng: random_scenario(rng, fed=0.3), range(25)) <= MOST_PER_PACKET_HOP


@pytest.mark.slow
@pytest.mark.parametrize("make", [incast, crowded_mesh, random_scenario, lambda rng: random_scenario(rng, fed=0.7)])
def test_any_traffic_stays_below_the_bound_at_length(make) -> None:
    assert dearest(make, range(8, 2000)) <= MOST_PER_PACKET_HOP
