"""The express path changes how much is computed and nothing of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from random import Random

import pytest
from transport_congestion import crowded_mesh, incast, poisson_mesh
from transport_scenarios import (
    Feed,
    Outcome,
    Run,
    Scenario,
    Send,
    Wire,
    build,
    link_figures,
    random_disturbances,
    random_messages,
    random_scenario,
    run,
)

from kernbench.transport import AT_ONCE, Pace, Supply

Make = Callable[[Random], Scenario]
KINDS: dict[str, Make] = {
    "bounded": random_scenario,
    "cyclic": partial(random_scenario, cyclic=True),
    "fed": partial(random_scenario, fed=0.5),
    "cyclic-fed": partial(random_scenario, cyclic=True, fed=0.5),
    "messages": random_messages,
    "messages-fed": partial(random_messages, fed=0.2),
    "incast": incast,
    "mesh": crowded_mesh,
    "disturbances": random_disturbances,
}
SEEDS = {"incast": 30, "mesh": 10}
EACH_KIND = pytest.mark.parametrize("kind", list(KINDS))


def both(scenario: Scenario) -> tuple[Run, Run]:
    return run(scenario, express=True), run(scenario, express=False)


def differences(one: Outcome, other: Outcome) -> list[str]:
    return [f.name for f in fields(Outcome) if getattr(one, f.name) != getattr(other, f.name)]


def compare(kind: str, seeds: range) -> tuple[int, int]:
    admitted = revoked = 0
    for seed in seeds:
        express, detailed = both(KINDS[kind](Random(f"{kind} {seed}")))
        assert not differences(express.outcome, detailed.outcome), f"seed {seed}"
        admitted += express.admitted
        revoked += express.revoked
    return admitted, revoked


@EACH_KIND
def test_express_equals_detailed(kind) -> None:
    admitted, revoked = compare(kind, range(SEEDS.get(kind, 20)))
    assert admitted > 20 < revoked, "the fuzz has to exercise both ways through the network"


@pytest.mark.slow
@EACH_KIND
def test_express_equals_detailed_at_length(kind) -> None:
    compare(kind, range(SEEDS.get(kind, 20), 3000))


@pytest.mark.parametrize("load", [0.02, 0.2])
def test_express_equals_detailed_on_a_mesh(load) -> None:
    express, detailed = both(poisson_mesh(3, 256, 4096, load, messages=150))
    assert not differences(express.outcome, detailed.outcome)
    assert express.events < detailed.events


def line(n: int, fifo_bytes: int | None = None) -> tuple[Wire, ...]:
    return tuple(Wire(f"n{i}", f"n{i + 1}", 4.0, 5.0, fifo_bytes) for i in range(n))


def test_transfers_made_in_another_order_than_they_come_keep_their_order() -> None:
    """Two wait at one port and a third turns both into packets: they queue as they came."""
    nodes = ("n0", "n1", "n2")
    late_first = (Send(nodes, 64, 1000), Send(nodes, 640, 0), Send(("n1", "n2"), 64, 2000))
    express, detailed = both(Scenario(16, line(2), late_first))
    assert express.revoked == 2
    assert not differences(express.outcome, detailed.outcome)
    late, early, _ = express.outcome.delivered_ps
    assert early < late


def test_a_second_transfer_joins_when_it_follows_on_every_link() -> None:
    nodes = tuple(f"n{i}" for i in range(4))
    follows = Scenario(16, line(3), (Send(nodes, 64, 0), Send(nodes, 64, 0), Send(nodes, 64, 0)))
    assert run(follows, express=True).revoked == 0
    crossing = Scenario(16, line(3), (Send(nodes, 64, 0), Send(("n2", "n3"), 64, 0)))
    assert run(crossing, express=True).revoked == 1


def test_it_is_refused_when_a_fifo_could_overflow() -> None:
    fast_to_slow = (Wire("a", "b", 64.0, 0.0, 128), Wire("b", "c", 1.0, 0.0))
    small, large = (Scenario(16, fast_to_slow, (Send(("a", "b", "c"), n, 0),)) for n in (128, 160))
    assert run(small, express=True).admitted == 1
    assert run(large, express=True).admitted == 0
    assert run(large, express=True).outcome == run(large, express=False).outcome


@pytest.mark.parametrize("fifo_packets", [None, 7, 6, 5, 1])
def test_messages_in_a_row_go_express_if_the_fifos_hold_them(fifo_packets) -> None:
    """Twelve of a packet each, 4 ns apart, which are 24 ns in the first FIFO: six at once."""
    wires = (Wire("n0", "n1", 4.0, 20.0, fifo_packets and 16 * fifo_packets), *line(3)[1:])
    express, detailed = both(Scenario(16, wires, (Send(("n0", "n1", "n2", "n3"), 16, 0),) * 12, (11.0, 30.0)))
    assert not differences(express.outcome, detailed.outcome)
    assert (express.revoked == 0) == (fifo_packets is None or fifo_packets >= 6)
    assert detailed.outcome.links[0][4] == 16 * min(fifo_packets or 6, 6)


@pytest.mark.parametrize("stop_ns", [29.0, 31.0, 33.0])
def test_who_has_passed_a_link_leaves_the_packets_there_alone(stop_ns) -> None:
    """The first is still under way when others go by packets where it was, and the figures are looked at."""
    wires = (Wire("a", "b", 4.0, 5.0, 32), Wire("b", "c", 1.0, 5.0), Wire("c", "d", 4.0, 100.0))
    sends = (
        Send(("a", "b", "c", "d"), 16, 0),
        Send(("a", "b", "c"), 160, 30_000),  # more than the FIFO holds
        Send(("a", "b", "c"), 16, 32_000, "other"),
    )
    express, detailed = both(Scenario(16, wires, sends, (stop_ns,)))
    assert express.admitted == 1
    assert not differences(express.outcome, detailed.outcome)


def test_who_has_left_a_port_leaves_the_packets_there_alone() -> None:
    """The first is still under way when the port waits for the last byte of a slow packet."""
    wires = (*line(2), Wire("n2", "n3", 4.0, 100.0))
    slow = Pace(40_000, 40_000)
    feeds = (Feed(30_000, Supply(0, 1, 30_000, slow)), Feed(31_000, Supply(1, 1, 70_000, slow)))
    in_parts = (Feed(90_000, Supply(0, 1, 90_000, AT_ONCE)), Feed(91_000, Supply(1, 1, 91_000, AT_ONCE)))
    sends = (
        Send(("n0", "n1", "n2", "n3"), 16, 0),
        Send(("n0", "n1"), 32, 30_000, feeds=feeds),
        Send(("n0", "n1"), 32, 90_000, feeds=in_parts),
    )
    express, detailed = both(Scenario(16, wires, sends, (80.0,)))
    assert express.admitted == 1
    assert not differences(express.outcome, detailed.outcome)


def test_figures_may_be_looked_at_when_something_is_delivered() -> None:
    seen: list[list[tuple[str, str, int, float, int]]] = []
    for express in (True, False):
        net = build(16, line(3), express=express)
        seen.append([])
        for nodes, nbytes in ((("n0", "n1", "n2", "n3"), 16), (("n0", "n1"), 100), (("n2", "n3"), 16)):
            net.send(nodes, nbytes, done=lambda _, net=net, to=seen[-1]: to.extend(link_figures(net)))
        net.run()
    assert seen[0] == seen[1]


def test_statistics_are_those_of_the_packets_at_any_moment() -> None:
    nets = [build(16, line(3), express=express) for express in (True, False)]
    for net in nets:
        net.send([f"n{i}" for i in range(4)], 100)
    for stop in range(50):
        for net in nets:
            net.run(until_ns=float(stop))
        assert link_figures(nets[0]) == link_figures(nets[1])


def test_what_is_promised_for_later_goes_express_too() -> None:
    net = build(16, line(2))
    transfer = net.make(net.port("n0"), net.route(["n0", "n1", "n2"]), 64)
    net.inject(transfer, Supply(0, 4, 7000, AT_ONCE))
    net.run()
    assert net.express.n_admitted == 1
    assert transfer.delivered_ps == 7000 + transfer.route.latency_ps(64)


def test_a_revoked_transfer_is_delivered_once() -> None:
    net = build(16, line(2))
    delivered = []
    net.send(["n0", "n1", "n2"], 160, done=delivered.append)
    net.send(["n1", "n2"], 160, at_ns=12.0, done=delivered.append)
    net.run()
    assert net.express.n_revoked == 1
    assert [t.serial for t in sorted(delivered, key=lambda t: t.serial)] == [0, 1]
    assert net.undelivered == 0
