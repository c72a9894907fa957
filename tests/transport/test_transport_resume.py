"""Packets that nobody disturbs any more go on as express transfers, at the same times."""

from __future__ import annotations

from random import Random

import pytest
from transport_scenarios import Feed, Run, Scenario, Send, Wire, build, link_figures, random_disturbances, run

from kernbench.transport import Pace, Supply

PACKET = 16
SLOW = Pace(6000, 6000)
"""A packet in 6 ns: each takes 4 ns on the links of a chain"""


def chain(hops: int, overhead_ns: float = 5.0, fifo_bytes: int | None = None) -> tuple[Wire, ...]:
    """Links n0 -> n1 -> ... of 4 ns a packet, and one into each node and one out of it."""
    wires = [Wire(f"n{i}", f"n{i + 1}", 4.0, overhead_ns, fifo_bytes) for i in range(hops)]
    sides = [
        Wire(*ends, 4.0, overhead_ns) for i in range(hops + 1) for ends in ((f"in{i}", f"n{i}"), (f"n{i}", f"out{i}"))
    ]
    return (*wires, *sides)


def nodes(hops: int) -> tuple[str, ...]:
    return tuple(f"n{i}" for i in range(hops + 1))


def supplied(hops: int, packets: int, at_ps: int = 0, channel: str = "", called_ps: int | None = None) -> Send:
    """A stream whose bytes come one packet after another from ``at_ps`` on; it is sent at ``called_ps``."""
    feed = Feed(at_ps if called_ps is None else called_ps, Supply(0, packets, at_ps, SLOW))
    return Send(nodes(hops), packets * PACKET, feed.at_ps, channel, (feed,))


def same_as_packets(scenario: Scenario) -> Run:
    """Run with and without the express path; nothing differs but the events."""
    found, detailed = run(scenario, express=True), run(scenario, express=False)
    assert found.outcome == detailed.outcome
    assert found.events < detailed.events
    return found


@pytest.mark.parametrize("hops", [1, 2, 8, 23])
@pytest.mark.parametrize("stream", ["at once", "supplied"])
def test_a_stream_that_was_disturbed_goes_on_express(hops, stream) -> None:
    """The disturbance costs packets; what comes after costs none, however much it is."""
    events = []
    for packets in (500, 4000):
        long = supplied(hops, packets) if stream == "supplied" else Send(nodes(hops), packets * PACKET, 0)
        crossing = Send((f"in{hops - 1}", f"n{hops - 1}", f"n{hops}"), 8 * PACKET, 100_000)
        found = same_as_packets(Scenario(PACKET, chain(hops), (long, crossing)))
        assert (found.revoked, found.resumed) == (1, 1)
        events.append(found.events)
    assert events[0] == events[1] <= 500 + 25 * hops * hops


def test_one_that_begins_in_company_goes_express_when_it_is_alone() -> None:
    company = Send(("in1", "n1", "n2", "n3"), 40 * PACKET, 0)
    found = same_as_packets(Scenario(PACKET, chain(3), (company, Send(nodes(3), 2000 * PACKET, 10_000))))
    assert found.resumed == 1
    assert found.events < 1000


def test_every_disturbance_has_its_price_and_no_more() -> None:
    hops, times = 3, 10
    long = supplied(hops, 3000)
    small = [Send(("in1", "n1", "n2", "out2"), PACKET, 1_000_000 + n * 1_500_000) for n in range(times)]
    found = same_as_packets(Scenario(PACKET, chain(hops), (long, *small)))
    assert (found.revoked, found.resumed) == (times, times)
    assert found.events < times * 50


def test_transfers_that_follow_each_other_resume_together() -> None:
    """A row of four packets each, of which the next are promised before one is over: no moment finds the port empty."""
    row = [supplied(2, 4, n * 24_000, called_ps=max(0, n - 3) * 24_000) for n in range(300)]
    crossing = Send(("in1", "n1", "n2"), PACKET, 1_000_000)
    found = same_as_packets(Scenario(PACKET, chain(2), (*row, crossing)))
    assert found.resumed >= 2
    assert found.events < 300 + 80


def test_who_never_is_alone_stays_packets() -> None:
    both = (Send(("in0", "n0", "n1", "n2"), 500 * PACKET, 0), Send(nodes(2), 500 * PACKET, 0))
    scenario = Scenario(PACKET, chain(2), both)
    found, detailed = run(scenario, express=True), run(scenario, express=False)
    assert found.outcome == detailed.outcome
    assert found.resumed == 0
    assert found.events <= 1.02 * detailed.events


def test_fifos_that_hold_too_little_keep_it_packets() -> None:
    """The link is longer than its FIFO: credits hold the stream up, so that no closed form tells its course."""
    scenario = Scenario(PACKET, chain(2, 20.0, 2 * PACKET), (Send(nodes(2), 300 * PACKET, 0),))
    found = run(scenario, express=True)
    assert (found.admitted, found.resumed) == (0, 0)
    assert found.outcome == run(scenario, express=False).outcome


def test_a_source_that_catches_up_is_not_taken_for_one_that_has_all() -> None:
    """Held up for long, it has more bytes than it could send, and sends them as fast as the link does for a while."""
    company = Send(("in0", "n0", "n1"), 60 * PACKET, 100_000)
    found = same_as_packets(Scenario(PACKET, chain(1), (supplied(1, 1000), company)))
    assert found.resumed == 1


@pytest.mark.parametrize("at_ps", [1_000_000, 1_000_001, 1_003_000, 1_005_999])
def test_one_that_has_resumed_can_be_cut_short_again(at_ps) -> None:
    """Turns at a memory: promises are taken back and given anew, with and without a disturbance before."""
    more = 180 + (at_ps > 1_000_000)
    feeds = (
        Feed(0, Supply(0, 400, 0, SLOW)),
        Feed(at_ps, keep=more),
        Feed(at_ps + 90_000, Supply(more, 2, at_ps + 90_000, SLOW)),
        Feed(at_ps + 120_000, Supply(more + 2, 398 - more, at_ps + 120_000, Pace(5001, 2000))),
    )
    long = Send(nodes(3), 400 * PACKET - 5, 0, feeds=feeds)
    crossing = Send(("in2", "n2", "n3"), 2 * PACKET, 100_000)
    found = same_as_packets(Scenario(PACKET, chain(3), (long, crossing), (200.0, at_ps / 1000, 1100.0, 1500.0)))
    assert found.resumed == 2
    assert same_as_packets(Scenario(PACKET, chain(3), (long,))).resumed == 1


def test_figures_are_those_of_the_packets_at_any_moment() -> None:
    """While it is express, then packets, then express again."""
    nets = [build(PACKET, chain(4), express=express) for express in (True, False)]
    for net in nets:
        net.send(nodes(4), 60 * PACKET)
        net.send(("in3", "n3", "n4"), 2 * PACKET, at_ns=31.0)
    seen = set()
    for stop in range(320):
        for net in nets:
            net.run(until_ns=stop / 1.0)
        assert link_figures(nets[0]) == link_figures(nets[1])
        seen.add((nets[0].express.n_revoked, nets[0].express.n_resumed))
    assert seen == {(0, 0), (1, 0), (1, 1)}


def test_looking_at_figures_changes_no_event() -> None:
    """Somebody who asks for the figures of links is no disturbance."""
    for seed in range(40):
        scenario = random_disturbances(Random(f"figures {seed}"))
        quiet = Scenario(scenario.packet_bytes, scenario.wires, scenario.sends)
        assert run(scenario, express=True).outcome.delivered_ps == run(quiet, express=True).outcome.delivered_ps
