"""One transfer alone: the closed form, its first byte and its hops; and what a network refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transport_scenarios import BANDWIDTHS, OVERHEADS_NS, PACKET_BYTES, Wire, build

from kernbench.common.errors import TransportError
from kernbench.transport import AT_ONCE, Network, Pace, Supply, Transfer

EXPRESS = pytest.mark.parametrize("express", [True, False])


@st.composite
def chains(draw: st.DrawFn, deep_fifos: bool = True) -> tuple[int, tuple[Wire, ...]]:
    """A packet size and the links of one route, with FIFOs unbounded or as deep as the credit loop needs."""
    packet = draw(st.sampled_from(PACKET_BYTES))
    wires = []
    for i in range(draw(st.integers(1, 7))):
        bw, overhead = draw(st.sampled_from(BANDWIDTHS)), draw(st.sampled_from(OVERHEADS_NS))
        fifo = 4 * packet + int(2 * overhead * bw) + 1 if draw(st.booleans()) else None
        wires.append(Wire(f"n{i}", f"n{i + 1}", bw, overhead, fifo))
    return packet, tuple(wires)


def nodes_of(wires: tuple[Wire, ...]) -> list[str]:
    return [wires[0].src, *(w.dst for w in wires)]


def alone(packet: int, wires: tuple[Wire, ...], nbytes: int, *, express: bool, at_ns: float = 0.0) -> Transfer:
    net = build(packet, wires, express=express)
    transfer = net.send(nodes_of(wires), nbytes, at_ns=at_ns)
    net.run()
    return transfer


@EXPRESS
@given(chains(), st.integers(1, 40_000), st.integers(0, 10_000))
def test_alone_it_takes_its_overheads_and_its_bytes_over_the_bottleneck(express, chain, nbytes, at_ns) -> None:
    packet, wires = chain
    nbytes = min(nbytes, 60 * packet)
    transfer = alone(packet, wires, nbytes, express=express, at_ns=at_ns)
    expected_ns = sum(w.overhead_ns for w in wires) + nbytes / min(w.bw_gbs for w in wires)
    rounding_ns = transfer.packets * len(wires) / 1000
    assert transfer.latency_ns == pytest.approx(expected_ns, abs=rounding_ns)
    assert transfer.route.latency_ps(nbytes) == transfer.delivered_ps - transfer.injected_ps
    head_ns = transfer.head_ps / 1000 - at_ns
    assert head_ns == pytest.approx(sum(w.overhead_ns for w in wires), abs=rounding_ns)


@given(chains(), st.integers(1, 5000), st.integers(0, 5000))
def test_latency_grows_with_size_and_distance(chain, nbytes, more) -> None:
    packet, wires = chain
    nodes = nodes_of(wires)
    net = build(packet, wires)
    whole = net.route(nodes)
    assert whole.latency_ps(nbytes) <= whole.latency_ps(nbytes + more)
    ways = [net.route(nodes[:n]).latency_ps(nbytes) for n in range(2, len(nodes) + 1)]
    assert ways == sorted(ways)


@given(chains(), st.integers(1, 20), st.sampled_from(BANDWIDTHS))
def test_a_slow_source_is_one_more_bottleneck(chain, packets, source_gbs) -> None:
    packet, wires = chain
    nbytes = packets * packet
    net = build(packet, wires)
    step = round(packet * 1000 / source_gbs)
    transfer = net.make(net.port("n0"), net.route(nodes_of(wires)), nbytes)
    net.inject(transfer, Supply(0, packets, 0, Pace(step, step)))
    net.run()
    slowest = min(source_gbs, *(w.bw_gbs for w in wires))
    expected_ns = sum(w.overhead_ns for w in wires) + nbytes / slowest
    assert transfer.latency_ns == pytest.approx(expected_ns, abs=packets * (len(wires) + 1) / 1000)


@EXPRESS
@given(chains(), st.integers(1, 2000))
def test_hops_follow_one_another(express, chain, nbytes) -> None:
    packet, wires = chain
    hops = alone(packet, wires, nbytes, express=express).hops
    assert [(h.src, h.dst) for h in hops] == [(w.src, w.dst) for w in wires]
    for wire, (here, following) in zip(wires, pairwise(hops), strict=False):
        assert following.start_ps == here.start_ps + max(1, round(wire.overhead_ns * 1000))
        assert following.tail_ps >= here.tail_ps + wire.overhead_ns * 1000


def test_a_hop_in_figures() -> None:
    wires = (Wire("n0", "n1", 4.0, 5.0), Wire("n1", "n2", 2.0, 7.0))
    transfer = alone(16, wires, 40, express=False)
    # 16, 16 and 8 bytes: the first link is left after 10 ns, the second after 5 + 20.
    assert [(h.start_ps, h.tail_ps) for h in transfer.hops] == [(0, 10_000), (5_000, 25_000)]
    assert (transfer.head_ps, transfer.delivered_ps) == (12_000, 32_000)


def test_to_ask_how_long_it_takes_occupies_nothing() -> None:
    net = build(16, (Wire("a", "b", 4.0, 5.0), Wire("b", "c", 2.0, 7.0)))
    assert net.route(["a", "b", "c"]).latency_ps(40) == 32_000
    assert net.links["a", "b"].nbytes == 0


def test_route_is_made_once_and_profiles_are_kept() -> None:
    net = build(16, (Wire("a", "b", 4.0, 5.0),))
    route = net.route(["a", "b"])
    assert net.route(("a", "b")) is route
    assert route.timing.profile(40, AT_ONCE) is route.timing.profile(40, AT_ONCE)
    assert route.bottleneck_gbs == 4.0


def test_it_says_what_it_cannot_carry() -> None:
    net = Network(64)
    net.link("a", "b", bw_gbs=1.0, overhead_ns=1.0, fifo_bytes=64)
    with pytest.raises(TransportError, match="no link b -> a"):
        net.send(["b", "a"], 1)
    with pytest.raises(TransportError, match="source and a destination"):
        net.send(["a"], 1)
    with pytest.raises(TransportError, match="at least one byte, not 0"):
        net.send(["a", "b"], 0)
    with pytest.raises(TransportError, match="exists already"):
        net.link("a", "b", bw_gbs=1.0)
    with pytest.raises(TransportError, match="holds no packet of 64 bytes"):
        net.link("b", "c", bw_gbs=1.0, fifo_bytes=63)
    with pytest.raises(TransportError, match="bandwidth must be positive"):
        net.link("b", "c", bw_gbs=0.0)
    with pytest.raises(TransportError, match="packet_bytes must be at least 1"):
        Network(0)


def test_it_refuses_what_would_be_ambiguous() -> None:
    net = Network(64)
    net.link("a", "b", bw_gbs=1.0)
    net.link("b", "a", bw_gbs=1.0, index=7)
    with pytest.raises(TransportError, match="each link once: a -> b -> a -> b"):
        net.route(["a", "b", "a", "b"])
    with pytest.raises(TransportError, match="index 7 is in use"):
        net.link("b", "c", bw_gbs=1.0, index=7)


def test_the_past_cannot_be_changed_and_the_future_not_read() -> None:
    net = build(64, (Wire("a", "b", 1.0, 1.0),))
    transfer = net.send(["a", "b"], 8, at_ns=10.0)
    with pytest.raises(TransportError, match="not been delivered"):
        assert transfer.delivered_ns
    net.run(until_ns=30.0)
    assert (transfer.delivered_ns, transfer.latency_ns, net.now_ns) == (19.0, 9.0, 30.0)
    with pytest.raises(TransportError, match="in the past"):
        net.send(["a", "b"], 8, at_ns=29.0)


def test_hops_are_kept_only_on_demand() -> None:
    net = Network(64)
    net.link("a", "b", bw_gbs=1.0)
    transfer = net.send(["a", "b"], 8)
    net.run()
    with pytest.raises(TransportError, match="trace_hops"):
        assert transfer.hops
