"""The rows of transfers: how long something held each of them, what, and who had that."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from transport_scenarios import build, post, random_scenario

from kernbench.core.log import NONE
from kernbench.core.observed import Observed, link_of
from kernbench.transport import Network, Pace, Supply
from observed import watched

KIB = 1024


def star(fifo_packets: int = 8) -> tuple[Network, Observed]:
    """Two sources with a link each into a hub, one link from there to the sink: a KiB takes 4 ns, a link 2 ns."""
    net = Network(KIB)
    for src in ("s0", "s1"):
        net.link(src, "hub", bw_gbs=256.0, overhead_ns=2.0, fifo_bytes=fifo_packets * KIB)
    net.link("hub", "sink", bw_gbs=256.0, overhead_ns=2.0)
    return net, watched(net)


def of_link(tables: Observed, number: int) -> tuple[int, int, int]:
    """How long a transfer was held, by which link, behind which transfer."""
    row = tables.transfer(number)
    return row.end - row.start - row.zero_load, link_of(row.held_by), row.behind


def test_who_is_alone_is_held_by_nothing() -> None:
    net, tables = star()
    net.send(["s0", "hub", "sink"], 4 * KIB)
    net.run()
    assert of_link(tables, 0) == (0, NONE, NONE)
    assert tables.transfer(0).zero_load == 2_000 + 2_000 + 4 * 4_000


def test_two_that_share_a_link_hold_each_other() -> None:
    """Packets take turns at the hub: 0 1 0 1. The first transfer ends after three times 4 ns, the second after four."""
    net, tables = star()
    for src in ("s0", "s1"):
        net.send([src, "hub", "sink"], 2 * KIB)
    net.run()
    shared = net.links["hub", "sink"].index
    assert [of_link(tables, n) for n in (0, 1)] == [(4_000, shared, 1), (8_000, shared, 0)]


def test_who_waits_at_its_own_port_waits_for_its_first_link() -> None:
    net, tables = star()
    for _ in range(2):
        net.send(["s0", "hub", "sink"], 2 * KIB)
    net.run()
    assert of_link(tables, 1) == (8_000, net.links["s0", "hub"].index, 0)


def test_who_is_blocked_in_a_fifo_waits_for_who_stands_before_it() -> None:
    """One goes on to a slow end; another's packet behind its own waits for the FIFO, though its own end is free."""
    net, tables = star()
    net.link("hub", "slow", bw_gbs=25.6, overhead_ns=2.0)
    net.send(["s0", "hub", "slow"], 2 * KIB, channel="a")
    net.send(["s0", "hub", "sink"], KIB, channel="b")
    net.run()
    held, link, behind = of_link(tables, 1)
    # Sent as the second packet on the first link, 4 ns late. At the hub the first has left at 2 + 40 ns, so that it
    # goes at 42 instead of 2 ns, and is there after 2 + 4 ns more.
    assert (held, link, behind) == (40_000, net.links["hub", "sink"].index, 0)


def test_what_links_carry_is_kept_if_asked() -> None:
    net, tables = star()
    net.send(["s0", "hub", "sink"], 4 * KIB)
    net.run()
    carried = tables.carried()
    assert [column.tolist() for column in carried] == [[0, 0], [0, 2], [0, 2_000], [16_000, 18_000], [4 * KIB] * 2]


def test_a_source_without_a_memory_has_no_turn() -> None:
    """A supply slower than the links, from nobody who writes turns: the transfer is held, nobody knows by what."""
    net, tables = star()
    transfer = net.make(net.port("s0"), net.route(["s0", "hub", "sink"]), 2 * KIB)
    net.inject(transfer, Supply(0, 2, 0, Pace(10_000, 10_000)))
    net.run()
    assert of_link(tables, 0) == (20_000 - 8_000, net.links["s0", "hub"].index, NONE)


@given(st.integers(0, 1 << 32), st.booleans(), st.booleans())
def test_who_is_held_says_by_what(seed: int, cyclic: bool, express: bool) -> None:
    """A link of its own way, or of its port; who had it is another."""
    scenario = random_scenario(Random(seed), cyclic=cyclic)
    net = build(scenario.packet_bytes, scenario.wires, express=express)
    tables = watched(net)
    for send in scenario.sends:
        post(net, send)
    net.run()
    for number in range(tables.n_transfers):
        row = tables.transfer(number)
        held = row.end > row.start + row.zero_load
        assert held == (row.held_by != NONE)
        if held:
            route = net.watch.routes[row.route]
            assert link_of(row.held_by) in {link.index for link in route.links}
            assert row.behind != number
