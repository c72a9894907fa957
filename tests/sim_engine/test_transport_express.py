"""The express path changes how much is computed and nothing of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from random import Random

import pytest
from transport_congestion import crowded_mesh, incast, poisson_mesh
from transport_scenarios import Outcome, Run, Scenario, Send, Wire, build, link_figures, random_scenario, run

from kernbench.sim_engine.transport import AT_ONCE, Supply

Make = Callable[[Random], Scenario]
KINDS: dict[str, Make] = {
    "bounded": random_scenario,
    "cyclic": partial(random_scenario, cyclic=True),
    "fed": partial(random_scenario, fed=0.5),
    "cyclic-fed": partial(random_scenario, cyclic=True, fed=0.5),
    "incast": incast,
    "mesh": crowded_mesh,
}
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
    admitted, revoked = compare(kind, range(40))
    assert admitted > 20 < revoked, "the fuzz has to exercise both ways through the network"


@pytest.mark.slow
@EACH_KIND
def test_express_equals_detailed_at_length(kind) -> None:
    compare(kind, range(40, 3000))


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
