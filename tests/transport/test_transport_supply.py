"""Sources that make their bytes available over time: stretches, open ends, and promises taken back."""

from __future__ import annotations

import pytest
from transport_scenarios import Wire, build

from kernbench.common.errors import TransportError
from kernbench.transport import AT_ONCE, Network, Pace, Supply, Transfer

EXPRESS = pytest.mark.parametrize("express", [True, False])
NODES = ["a", "b", "c"]
PACKET = 16


def network(express: bool) -> Network:
    """Two links of 4 ns a packet and 5 ns of overhead."""
    return build(PACKET, (Wire("a", "b", 4.0, 5.0), Wire("b", "c", 4.0, 5.0)), express=express)


def injected(net: Network, packets: int, supply: Supply | None, *, open_ended: bool = False) -> Transfer:
    transfer = net.make(net.port("a"), net.route(NODES), packets * PACKET)
    net.inject(transfer, supply, open_ended=open_ended)
    return transfer


@EXPRESS
@pytest.mark.parametrize(("pace_ps", "drain_ns"), [(0, 40), (3000, 40), (4000, 40), (9000, 90)])
def test_a_source_is_the_bottleneck_only_when_it_is_slower(pace_ps, drain_ns, express) -> None:
    net = network(express)
    transfer = injected(net, 10, Supply(0, 10, 0, Pace(pace_ps, pace_ps)))
    net.run()
    assert transfer.latency_ns == 10 + drain_ns


@EXPRESS
def test_the_last_packet_has_a_time_of_its_own(express) -> None:
    net = network(express)
    transfer = injected(net, 3, Supply(0, 3, 0, Pace(9000, 30_000)))
    net.run()
    assert transfer.latency_ns == 10 + 2 * 9 + 30


@EXPRESS
def test_bytes_that_come_later_are_sent_later(express) -> None:
    net = network(express)
    transfer = injected(net, 4, Supply(0, 2, 0, AT_ONCE))
    net.run(until_ns=100.0)
    assert net.links["a", "b"].nbytes == 2 * PACKET
    net.supply(transfer, Supply(2, 2, 100_000, AT_ONCE))
    net.run()
    assert transfer.delivered_ns == 100 + 10 + 8


@EXPRESS
def test_an_open_transfer_waits_and_those_behind_it_too(express) -> None:
    net = network(express)
    first = injected(net, 2, None, open_ended=True)
    behind = injected(net, 2, None)
    net.run(until_ns=50.0)
    assert net.links["a", "b"].nbytes == 0
    net.supply(first, Supply(0, 2, 50_000, AT_ONCE))
    net.run()
    assert (first.delivered_ns, behind.delivered_ns) == (68.0, 76.0)


@EXPRESS
def test_what_is_never_supplied_is_reported(express) -> None:
    net = network(express)
    injected(net, 2, Supply(0, 1, 0, AT_ONCE))
    with pytest.raises(TransportError, match="1 transfers were not delivered; packets wait at: their sources"):
        net.run()


@EXPRESS
def test_a_promise_can_be_cut_short_and_given_anew(express) -> None:
    net = network(express)
    transfer = injected(net, 10, Supply(0, 10, 0, Pace(10_000, 10_000)))
    net.run(until_ns=25.0)
    net.curtail(transfer, 4)
    net.run(until_ns=60.0)
    assert net.links["a", "b"].nbytes == 4 * PACKET
    net.supply(transfer, Supply(4, 6, 60_000, Pace(10_000, 10_000)))
    net.run()
    assert transfer.delivered_ns == 60 + 60 + 10
    assert net.links["b", "c"].nbytes == 10 * PACKET


@EXPRESS
def test_a_whole_promise_can_be_taken_back(express) -> None:
    net = network(express)
    transfer = injected(net, 3, Supply(0, 3, 40_000, AT_ONCE))
    net.run(until_ns=20.0)
    net.curtail(transfer, 0)
    net.supply(transfer, Supply(0, 3, 80_000, AT_ONCE))
    net.run()
    assert transfer.delivered_ns == 80 + 10 + 12
