"""Nodes that decide: the head of a transfer is sent another way or held, and all that is behind it follows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from kernbench.transport import AT_ONCE, Junction, Network, Supply, Transfer

Decide = Callable[[Transfer, int], int]


def diamond(decide: Decide, *, express: bool = True, divides: bool = True) -> Network:
    """a -> b, and from there over c or d to e; also f -> b. 256 bytes per ns and 1 ns each; at b it is decided."""
    net = Network(packet_bytes=1024, express=express)
    net.trace_hops = True
    junction = Junction(decide, divides=divides)
    for src in ("a", "f"):
        net.link(src, "b", bw_gbs=256, overhead_ns=1, junction=junction)
    for ends in ("bc", "bd", "ce", "de"):
        net.link(*ends, bw_gbs=256, overhead_ns=1)
    return net


def over_d(net: Network, transfer: Transfer, hop: int) -> None:
    net.redirect(transfer, hop, (net.links["b", "d"], net.links["d", "e"]))


def test_a_held_head_goes_on_later() -> None:
    net = diamond(lambda transfer, hop: 3_000)
    transfer = net.send("abce", 2048)
    net.run()
    # Alone: 3 ns of overhead and 8 ns for 2048 bytes. Its head is at b after 1 ns and goes on 3 ns later.
    assert transfer.latency_ns == 3 + 8 + 3
    assert [hop.start_ps for hop in transfer.hops] == [0, 4_000, 5_000]


def test_a_hold_that_is_over_before_the_link_is_free_costs_nothing() -> None:
    net = diamond(lambda transfer, hop: 3_000 if transfer.serial else 0)
    first, second = net.send("fbce", 1024), net.send("abce", 1024)
    net.run()
    # Both heads are at b after 1 ns; the first has the link to c until 5 ns, the second is held until 4 ns.
    assert first.latency_ns == 3 + 4
    assert second.latency_ns == 5 + 2 + 4


def test_what_is_behind_a_held_head_waits_and_what_comes_by_another_link_does_not() -> None:
    net = diamond(lambda transfer, hop: 10_000 if transfer.serial == 0 else 0)
    held, behind, other = net.send("abce", 1024), net.send("abce", 1024), net.send("fbce", 1024)
    net.run()
    # held is at b after 1 ns, goes on at 11 ns. behind is there at 5 ns and goes on when held has left, at 15 ns.
    assert [t.latency_ns for t in (held, behind, other)] == [11 + 2 + 4, 15 + 2 + 4, 1 + 2 + 4]


def test_the_hold_of_a_transfer_begins_when_it_comes() -> None:
    net = diamond(lambda transfer, hop: 10_000)
    first, second = net.send("abce", 1024), net.send("abce", 1024)
    net.run()
    # They come 4 ns after each other, and go on so: 10 ns after that.
    assert [t.latency_ns for t in (first, second)] == [11 + 2 + 4, 15 + 2 + 4]


def test_it_is_decided_once_and_by_the_head() -> None:
    asked: list[tuple[int, int, int]] = []

    def decide(transfer: Transfer, hop: int) -> int:
        asked.append((net.clock.time, transfer.serial, hop))
        return 0

    net = diamond(decide)
    net.send("abce", 10_240)
    net.send("fbce", 100, at_ns=7.0)
    net.send("bce", 100)  # begins here
    net.send("ab", 100)  # ends here
    net.run()
    assert asked == [(1_000, 0, 1), (8_000, 1, 1)]


@pytest.mark.parametrize("express", [True, False])
def test_a_transfer_takes_the_other_way_with_all_its_packets(express: bool) -> None:
    def decide(transfer: Transfer, hop: int) -> int:
        if transfer.serial == 1:
            over_d(net, transfer, hop)
        return 0

    net = diamond(decide, express=express)
    sent = [net.send("abce", 4096), net.send("fbce", 4096)]
    net.run()
    # Neither meets the other: 3 ns and 4096 bytes at 256.
    assert [t.latency_ns for t in sent] == [19, 19]
    assert [hop.dst for hop in sent[1].hops] == ["b", "d", "e"]
    assert {ends: link.nbytes for ends, link in net.links.items()} == {
        ("a", "b"): 4096,
        ("f", "b"): 4096,
        ("b", "c"): 4096,
        ("b", "d"): 4096,
        ("c", "e"): 4096,
        ("d", "e"): 4096,
    }
    assert sent[1].source == "f"
    assert sent[1].destination == "e"
    assert sent[1].route.latency_ps(4096) == 19_000


def test_ways_may_be_of_different_lengths() -> None:
    def decide(transfer: Transfer, hop: int) -> int:
        net.redirect(transfer, hop, (net.links["b", "e"],))
        return 0

    net = diamond(decide)
    net.link("b", "e", bw_gbs=128, overhead_ns=5)
    transfer = net.send("abce", 2048)
    net.run()
    assert transfer.latency_ns == 1 + 5 + 16
    assert [(hop.src, hop.start_ps, hop.tail_ps) for hop in transfer.hops] == [("a", 0, 8_000), ("b", 1_000, 17_000)]


def test_packets_that_come_later_from_the_source_follow() -> None:
    def decide(transfer: Transfer, hop: int) -> int:
        over_d(net, transfer, hop)
        return 0

    net = diamond(decide)
    port, route = net.port("a"), net.route("abce")
    transfer = net.make(port, route, 2048)
    net.inject(transfer, Supply(0, 1, 0, AT_ONCE))
    net.run(until_ns=100.0)
    net.supply(transfer, Supply(1, 1, 100_000, AT_ONCE))
    net.run()
    assert transfer.delivered_ns == 100 + 3 + 4
    assert net.links["b", "d"].nbytes == net.links["d", "e"].nbytes == 2048
    assert net.links["b", "c"].nbytes == 0


def test_links_that_it_does_not_take_are_free_for_express_transfers_again() -> None:
    net = diamond(lambda transfer, hop: (over_d(net, transfer, hop), 0)[1])
    net.send("abce", 4096)
    net.run(until_ns=5.0)
    net.send("ce", 4096)
    net.run(until_ns=6.0)
    assert net.express.n_admitted == 1
    net.send("de", 4096)
    net.run()
    assert net.express.n_admitted == 1


def test_an_express_transfer_on_the_other_way_becomes_packets() -> None:
    net = diamond(lambda transfer, hop: (over_d(net, transfer, hop), 0)[1])
    before = net.send("de", 1 << 20)
    behind = net.send("abce", 1024)
    net.run()
    assert net.express.n_revoked == 1
    assert before.latency_ns == 1 + 4096 + 4  # they take turns
    assert behind.latency_ns < 20


def test_what_a_part_sees_of_a_link() -> None:
    seen: list[tuple[float, int]] = []

    def decide(transfer: Transfer, hop: int) -> int:
        link = net.links["b", "c"]
        seen.append((link.busy_until_ns, link.queued_bytes))
        return 0

    net = diamond(decide)
    net.send("abce", 1024)
    net.send("fbce", 2048)
    net.send("abce", 100, channel="other", at_ns=2.0)
    net.run()
    # Two heads come at 1 ns: the first finds nobody and gets the link until 5 ns; the second, and then its packet of
    # 1024 bytes, wait. The third comes at 5 ns, just before the link is granted again.
    assert seen == [(1.0, 0), (5.0, 0), (5.0, 1024)]


# --- any traffic ------------------------------------------------------------------------------------------------------


def mesh(size: int, decide: Decide, *, express: bool) -> Network:
    """Routers (x, y) with links to their neighbours, all of them junctions, and a source and a sink at each."""
    net = Network(packet_bytes=256, express=express)
    junctions = {f"{x},{y}": Junction(decide, divides=True) for x in range(size) for y in range(size)}
    for here, junction in junctions.items():
        x, y = map(int, here.split(","))
        for there in (f"{x + 1},{y}", f"{x},{y + 1}", f"{x - 1},{y}", f"{x},{y - 1}"):
            if there in junctions:
                net.link(here, there, bw_gbs=64, overhead_ns=1, junction=junctions[there])
        net.link(f"in {here}", here, bw_gbs=64, overhead_ns=1, fifo_bytes=1024, junction=junction)
        net.link(here, f"out {here}", bw_gbs=64, overhead_ns=0)
    return net


def over_grid(here: str, end: str, *, y_first: bool) -> list[str]:
    """The routers of a shortest way, along one axis and then along the other."""
    x, y = map(int, here.split(","))
    to_x, to_y = map(int, end.split(","))
    nodes = [here]
    while (x, y) != (to_x, to_y):
        if (y_first or x == to_x) and y != to_y:
            y += 1 if to_y > y else -1
        else:
            x += 1 if to_x > x else -1
        nodes.append(f"{x},{y}")
    return nodes


Held = dict[int, int]
"""By transfer: for how many ps its head was held in all"""


def run_at_random(seed: int, n: int, *, express: bool = True, size: int = 4) -> tuple[Network, list[Transfer], Held]:
    """``n`` random transfers that every router sends one way or the other, and holds now and then, at random."""
    random, chance = Random(f"traffic {seed}"), Random(f"choices {seed}")
    held: Held = {}

    def decide(transfer: Transfer, hop: int) -> int:
        here, end = transfer.route.links[hop].src, transfer.route.links[-1].src
        nodes = [*over_grid(here, end, y_first=chance.random() < 0.5), f"out {end}"]
        links = tuple(net.links[pair] for pair in pairwise(nodes))
        if links != transfer.route.links[hop:]:
            net.redirect(transfer, hop, links)
        hold = chance.choice((0, 0, 0, 1_000, 7_777))
        held[transfer.serial] = held.get(transfer.serial, 0) + hold
        return hold

    net = mesh(size, decide, express=express)
    sent = []
    for _ in range(n):
        start, end = (f"{random.randrange(size)},{random.randrange(size)}" for _ in range(2))
        nodes = [f"in {start}", *over_grid(start, end, y_first=False), f"out {end}"]
        sent.append(net.send(nodes, random.choice((32, 256, 1000, 5000)), random.randrange(300)))
    net.run()
    return net, sent, held


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_decided_all_bytes_arrive(seed: int) -> None:
    net, sent, _ = run_at_random(seed, 40)
    carried = dict.fromkeys(net.links, 0)
    for transfer in sent:
        assert transfer.delivered_ps - transfer.injected_ps >= transfer.route.latency_ps(transfer.nbytes)
        for link in transfer.route.links:
            carried[link.src, link.dst] += transfer.nbytes
    assert {ends: link.nbytes for ends, link in net.links.items()} == carried


@pytest.mark.parametrize("seed", range(6))
def test_two_runs_are_alike_with_express_transfers_and_without(seed: int) -> None:
    runs = [run_at_random(seed, 40, express=express)[1] for express in (True, True, False)]
    times = [[(t.head_ps, t.delivered_ps, t.destination) for t in sent] for sent in runs]
    assert times[0] == times[1] == times[2]


@pytest.mark.parametrize("seed", range(20))
def test_a_transfer_alone_takes_what_its_way_takes_and_its_holds(seed: int) -> None:
    _, (transfer,), held = run_at_random(seed, 1)
    alone_ps = transfer.route.latency_ps(transfer.nbytes)
    assert transfer.delivered_ps - transfer.injected_ps == alone_ps + held[transfer.serial]
