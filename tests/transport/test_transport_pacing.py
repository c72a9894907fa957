"""Rates that change with time, and holds of packets: by hand, against plain links, and at random."""

from __future__ import annotations

from math import floor
from random import Random

import pytest
from transport_scenarios import Outcome, Scenario, link_figures, post, random_messages, random_scenario

from kernbench.common.errors import TransportError
from kernbench.common.units import transfer_ps
from kernbench.core.clock import NEVER
from kernbench.transport import Junction, Network, Packet, RateStretch, Transfer, VaryingRate

HALF_NS, ON_GBS = 4_000, 64.0


def blinking(now_ps: int) -> RateStretch:
    """Nothing for 4 ns, 64 GB/s for 4 ns, and so on."""
    turn = now_ps // HALF_NS
    return RateStretch(ON_GBS if turn % 2 else 0.0, (turn + 1) * HALF_NS)


# --- a rate -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nbytes", "start_ps", "end_ps"),
    [
        (64, 4_000, 5_000),
        (64, 0, 5_000),  # it stands still until 4 ns
        (256, 4_000, 8_000),  # all that passes in 4 ns
        (257, 4_000, 12_016),  # a byte more waits for the next 4 ns
        (64, 7_500, 12_500),  # 32 bytes before the stop, 32 after it
        (1024, 0, 32_000),
    ],
)
def test_bytes_take_what_the_rates_of_their_time_give_them(nbytes: int, start_ps: int, end_ps: int) -> None:
    assert VaryingRate(blinking).end_ps(nbytes, start_ps, 256.0) == end_ps


def test_a_link_is_no_faster_than_itself() -> None:
    assert VaryingRate(blinking).end_ps(64, 4_000, 32.0) == 6_000
    assert VaryingRate(lambda _: RateStretch(1e6, NEVER)).end_ps(1024, 500, 256.0) == 4_500


def test_a_rate_is_asked_for_once_for_all_links() -> None:
    asked: list[int] = []

    def ask(now_ps: int) -> RateStretch:
        asked.append(now_ps)
        return blinking(now_ps)

    rate = VaryingRate(ask)
    for start in (5_000, 5_000, 6_000, 7_000, 7_999):
        rate.end_ps(64, start, 256.0)
    assert asked == [5_000, 8_000, 12_000]
    rate.end_ps(64, 100_500, 256.0)  # what was in between is nobody's affair
    assert asked == [5_000, 8_000, 12_000, 100_500]


@pytest.mark.parametrize(
    ("stretch", "message"),
    [
        (RateStretch(0.0, NEVER), "the rate is 0 GB/s for ever"),
        (RateStretch(5.0, 1_000), "at 1000 ps ends at 1000 ps, must end later"),
    ],
)
def test_a_rate_that_lets_nothing_pass_is_found_out(stretch: RateStretch, message: str) -> None:
    with pytest.raises(TransportError, match=message):
        VaryingRate(lambda _: stretch).end_ps(64, 1_000, 256.0)


def test_a_rate_that_stays_zero_in_small_steps_is_found_out() -> None:
    with pytest.raises(TransportError, match="100,000 times in a row"):
        VaryingRate(lambda now: RateStretch(0.0, now + 1)).end_ps(64, 0, 256.0)


@pytest.mark.parametrize("seed", range(20))
def test_any_rate_carries_its_integral(seed: int) -> None:
    rng = Random(seed)
    ends, gbs, now = [], [], 0
    for _ in range(300):
        now += rng.randint(1, 5_000)
        ends.append(now)
        gbs.append(rng.choice((0.0, 1.0, 16.0, 37.3, 300.0)))

    def ask(now_ps: int) -> RateStretch:
        at = next((at for at, end in enumerate(ends) if end > now_ps), None)
        return RateStretch(8.0, NEVER) if at is None else RateStretch(gbs[at], ends[at])

    def carried(start: int, end: int) -> float:
        total, at = 0.0, start
        while at < end:
            found = ask(at)
            until = min(end, found.until_ps)
            total += (until - at) * min(found.gbs, 128.0) / 1000
            at = until
        return total

    rate, start = VaryingRate(ask), 0
    for _ in range(40):
        start += rng.randint(0, 20_000)
        nbytes = rng.choice((1, 64, 1024))
        end = rate.end_ps(nbytes, start, 128.0)
        assert carried(start, end + 1) >= nbytes - 1e-6
        assert carried(start, max(start, end - 1)) <= nbytes + 1e-6


# --- on a network -----------------------------------------------------------------------------------------------------


def outcome(scenario: Scenario, *, paced: bool, held: bool, express: bool = False) -> Outcome:
    """A run where every node says its links' own rate, as one that changes, or holds every packet for no time."""
    net = Network(scenario.packet_bytes, express=express)
    net.trace_hops = True
    rates = {wire.src: VaryingRate(lambda now: RateStretch(1e9, NEVER)) for wire in scenario.wires}
    junction = Junction(lambda transfer, hop: 0, divides=False, hold_packet=lambda packet: 0)
    for wire in scenario.wires:
        net.link(
            wire.src,
            wire.dst,
            bw_gbs=wire.bw_gbs,
            overhead_ns=wire.overhead_ns,
            fifo_bytes=wire.fifo_bytes,
            rate=rates[wire.src] if paced else None,
            junction=junction if held else None,
        )
    transfers = [post(net, send) for send in scenario.sends]
    net.run()
    delivered, heads = (tuple(getattr(t, name) for t in transfers) for name in ("delivered_ps", "head_ps"))
    return Outcome(delivered, heads, tuple(t.hops for t in transfers), link_figures(net), (), {})


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("make", [random_scenario, random_messages])
def test_a_rate_that_is_the_links_own_and_holds_of_no_time_change_nothing(make: type, seed: int) -> None:
    scenario = make(Random(f"pacing {seed}"), fed=0.3)
    plain = outcome(scenario, paced=False, held=False)
    assert outcome(scenario, paced=True, held=False) == plain
    assert outcome(scenario, paced=False, held=True, express=True) == plain
    assert outcome(scenario, paced=True, held=True, express=True) == plain


def mixed(seed: int, *, express: bool) -> tuple[Outcome, int]:
    """A run in which some nodes say rates that change, some hold packets, and all others let express transfers pass."""
    rng = Random(f"mixed {seed}")
    scenario = random_scenario(rng, fed=0.3) if seed % 2 else random_messages(rng, fed=0.3)
    net = Network(scenario.packet_bytes, express=express)
    net.trace_hops = True
    nodes = sorted({wire.src for wire in scenario.wires})
    step_ps = rng.choice((700, 5_000, 20_000))

    def ask(now_ps: int) -> RateStretch:
        turn = now_ps // step_ps
        return RateStretch((64.0, 0.0, 3.7)[turn % 3], (turn + 1) * step_ps)

    def hold(packet: Packet) -> int:
        return (packet.transfer.serial + packet.nbytes) % 3 * step_ps

    rates = {node: VaryingRate(ask) for node in rng.sample(nodes, 1)}
    junctions = {
        node: Junction(lambda transfer, hop: transfer.serial % 2 * 333, divides=False, hold_packet=hold)
        for node in rng.sample(nodes, 1)
    }
    for wire in scenario.wires:
        net.link(
            wire.src,
            wire.dst,
            bw_gbs=wire.bw_gbs,
            overhead_ns=wire.overhead_ns,
            fifo_bytes=wire.fifo_bytes,
            rate=rates.get(wire.src),
            junction=junctions.get(wire.dst),
        )
    transfers = [post(net, send) for send in scenario.sends]
    stops = []
    for stop in scenario.stops_ns:
        net.run(until_ns=stop)
        stops.append(link_figures(net))
    net.run()
    delivered, heads = (tuple(getattr(t, name) for t in transfers) for name in ("delivered_ps", "head_ps"))
    found = Outcome(delivered, heads, tuple(t.hops for t in transfers), link_figures(net), tuple(stops), {})
    return found, net.express.n_admitted


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 80), marks=pytest.mark.slow)], ids=["few", "many"])
def test_express_transfers_beside_limiters_are_exact(seeds: range) -> None:
    admitted = 0
    for seed in seeds:
        express, n_admitted = mixed(seed, express=True)
        assert express == mixed(seed, express=False)[0], seed
        admitted += n_admitted
    assert admitted > 0


def chain(
    *, parts: int = 2, fifo_bytes: int | None = 4096, gbs: float = 256.0, **about: VaryingRate | Junction
) -> Network:
    """A source, nodes with limiters, a sink; 1 ns a hop."""
    net = Network(packet_bytes=1024)
    net.trace_hops = True
    rate, junction = about.get("rate"), about.get("junction")
    for at in range(parts + 1):
        net.link(
            f"n{at}",
            f"n{at + 1}",
            bw_gbs=gbs if at else 256.0,
            overhead_ns=1.0,
            fifo_bytes=fifo_bytes,
            rate=rate if at and isinstance(rate, VaryingRate) else None,
            junction=junction if at < parts and isinstance(junction, Junction) else None,
        )
    return net


@pytest.mark.parametrize("nbytes", [64, 4096, 1 << 20])
@pytest.mark.parametrize("parts", [1, 2, 12])
def test_streams_through_limiters_in_series_run_at_the_slowest_rate(parts: int, nbytes: int) -> None:
    way = [f"n{at}" for at in range(parts + 2)]
    own = chain(parts=parts, gbs=16.0, fifo_bytes=None)
    said = chain(parts=parts, rate=VaryingRate(lambda _: RateStretch(16.0, NEVER)))
    for net in (own, said):
        sent = net.send(way, nbytes)
        net.run()
        assert sent.latency_ns == parts + 1 + nbytes / 16
    assert own.express.n_admitted == 1
    assert said.express.n_admitted == 0


def test_events_grow_by_packets_and_hops_only() -> None:
    net = chain(parts=12, rate=VaryingRate(lambda now: RateStretch(16.0, now + 10_000)))
    net.send([f"n{at}" for at in range(14)], 1 << 20)
    net.run()
    assert net.clock.n_events == 1 + 1024 * 13 + 1023  # and a call that injects: one link is slower than those before


def test_a_hold_begins_when_the_turn_of_a_packet_has_come() -> None:
    asked: list[tuple[int, int]] = []

    def hold(packet: Packet) -> int:
        asked.append((net.clock.time, packet.nbytes))
        assert (packet.link.src, packet.link.dst) == ("n1", "n2")
        return 10_000

    net = chain(parts=1, junction=Junction(lambda transfer, hop: 0, divides=False, hold_packet=hold))
    first, second = net.send(["n0", "n1", "n2"], 2048), net.send(["n0", "n1", "n2"], 100)
    net.run()
    # The head is at n1 after 1 ns. Packets go on 10 ns after each other, whenever they came.
    assert asked == [(1_000, 1024), (11_000, 1024), (21_000, 100)]
    assert [t.latency_ns for t in (first, second)] == [21 + 4 + 1, 31 + 0.391 + 1]


def test_one_budget_serves_all_links() -> None:
    free = [0]

    def hold(packet: Packet) -> int:
        now = net.clock.time
        free[0] = max(free[0], now) + transfer_ps(packet.nbytes, 16.0)
        return free[0] - now

    net = Network(packet_bytes=1024)
    junction = Junction(lambda transfer, hop: 0, divides=False, hold_packet=hold)
    for name in "ab":
        net.link(name, "hub", bw_gbs=256.0, fifo_bytes=4096, junction=junction)
        net.link("hub", f"to {name}", bw_gbs=256.0)
    sent = [net.send([name, "hub", f"to {name}"], 64 << 10) for name in "ab"]
    net.run()
    # Both share 16 GB/s, packet by packet: 8,192 ns for 128 KiB, of which the other's last packet takes 64.
    assert sorted(round(t.latency_ns) for t in sent) == [8_192 - 64 + 4, 8_192 + 4]


@pytest.mark.parametrize("seed", range(10))
def test_holds_keep_the_order_of_each_link_and_all_bytes(seed: int) -> None:
    rng, entered = Random(seed), []

    def hold(packet: Packet) -> int:
        entered.append((packet.transfer.route.links[0].src, packet.transfer.serial))
        return rng.choice((0, 0, 1_500, 9_000))

    net = Network(packet_bytes=256)
    junction = Junction(lambda transfer, hop: rng.choice((0, 0, 4_000)), divides=False, hold_packet=hold)
    for name in "abc":
        net.link(name, "hub", bw_gbs=64.0, overhead_ns=1.0, fifo_bytes=1024, junction=junction)
    net.link("hub", "sink", bw_gbs=64.0, overhead_ns=1.0)
    sent = [net.send([rng.choice("abc"), "hub", "sink"], rng.randint(1, 3000)) for _ in range(30)]
    net.run()
    assert net.links["hub", "sink"].nbytes == sum(t.nbytes for t in sent)
    for name in "abc":
        serials = [serial for source, serial in entered if source == name]
        assert serials == sorted(serials)
        mine = [t for t in sent if t.source == name]
        assert [t.delivered_ps for t in mine] == sorted(t.delivered_ps for t in mine)
    assert len(entered) == sum(floor((t.nbytes - 1) / 256) + 1 for t in sent)


def test_where_a_rate_or_a_hold_cannot_be_had_nothing_is_stuck() -> None:
    def fail(_: object) -> RateStretch:
        raise ValueError("boom")

    failing: list[tuple[Network, list[Transfer]]] = []
    for net in (
        chain(parts=1, rate=VaryingRate(fail)),
        chain(parts=1, junction=Junction(lambda transfer, hop: 0, divides=False, hold_packet=fail)),  # type: ignore[arg-type]
    ):
        failing.append((net, [net.send(["n0", "n1", "n2"], 3000), net.send(["n0", "n1", "n2"], 100)]))
    for net, sent in failing:
        raised = 0
        while net.undelivered:
            try:
                net.run()
            except ValueError:
                raised += 1
        assert raised == 4  # once a packet
        assert all(t.delivered_ps < NEVER for t in sent)
