"""Parts that pace, on a whole machine; wires take no time, and what is on the way is summed where it is used."""

from __future__ import annotations

import sys
from math import inf
from random import Random
from types import ModuleType
from typing import Any

import pytest

from engine_support import hbm
from ideal_memory import IDEAL
from kernbench.common.errors import ConfigError, InputError, PartError
from kernbench.components.m_cpu import MCpu
from kernbench.components.passive import NocRouter, Ucie
from kernbench.components.pe_gemm import PeGemm
from kernbench.components.sram import Sram
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryReadMsg, PeDmaMsg
from kernbench.probe.cases import CASES
from kernbench.probe.measure import probe_case
from kernbench.probe.report import ProbeReport
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.transport import Packet, Transfer

PE, NEAR, NEXT, AWAY = "sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm7", "sip0.cube1.hbm7", "sip1.cube0.hbm0"
SIZES = (64, 4096, 1 << 20)


class Limiter(NocRouter):
    rate_gbs = 16.0


class ByProperty(NocRouter):
    @property
    def rate_gbs(self) -> float:
        return 16 if self.node.xy == (0, 0) else 64


class Always(NocRouter):
    def rate_gbs(self, now_ns: float) -> tuple[float, float]:  # type: ignore[override]
        return 16.0, inf


class Halves(NocRouter):
    """32 GB/s, and nothing, for 100 ns each."""

    def rate_gbs(self, now_ns: float) -> tuple[float, float]:  # type: ignore[override]
        turn = now_ns // 100
        return 32.0 * (turn % 2 == 0), 100 * (turn + 1)


class PortLimiter(Ucie):
    rate_gbs = 16


class Holding(NocRouter):
    """Its attribute is its own: links are as fast as ever."""

    def hold_ns(self, transfer: Transfer) -> float:
        return 5.0


class Budget(NocRouter):
    def __init__(self, node: Any, machine: Any) -> None:
        super().__init__(node, machine)
        self.free_ns = 0.0

    def hold_packet_ns(self, packet: Packet) -> float:
        self.free_ns = max(self.free_ns, self.now_ns) + packet.nbytes / 16
        return self.free_ns - self.now_ns


HERE = __name__


def machine(*overrides: str) -> Topology:
    return resolve_topology("default", ["ns_per_mm=0", *IDEAL, *overrides])


def routers(cls: type) -> str:
    return f"cube.components.noc_router.impl={HERE}.{cls.__name__}"


def stream(topology: Topology, src: str, dst: str, nbytes: int) -> tuple[float, float, int]:
    """How long bytes take from one part to another, what the closed form says, and the events of it."""
    machine = GraphEngine(topology, enable_data=False).machine
    route, delivered = machine.route(src, dst), list[Transfer]()
    machine.network.post(machine.network.port(src), route, nbytes, delivered.append, None)
    machine.clock.advance()
    return delivered[0].delivered_ps / 1000, route.latency_ps(nbytes) / 1000, machine.clock.n_events


# --- a number ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_limiter_by_hand(nbytes: int) -> None:
    # PE 0 to slice 7: 2 ns for each of two xbars, 1 for each of 7 routers; then all bytes at 16 GB/s.
    assert stream(machine(routers(Limiter)), PE, NEAR, nbytes) == (11 + nbytes / 16,) * 2 + (1,)


@pytest.mark.parametrize("nbytes", SIZES)
def test_twelve_routers_take_no_longer_than_one(nbytes: int) -> None:
    topology = machine(routers(Limiter), "cube.noc={w: 6, h: 6, link_bw_gbs: 256}")
    way = GraphEngine(topology).machine.route(PE, "sip0.cube0.hbm7")
    assert sum(link.src.rpartition(".")[2].startswith("r") for link in way.links) == 11
    plain, _, _ = stream(machine("cube.noc={w: 6, h: 6, link_bw_gbs: 256}"), PE, NEAR, nbytes)
    took, closed, events = stream(topology, PE, NEAR, nbytes)
    assert (took, closed, events) == (plain - nbytes / 256 + nbytes / 16, took, 1)


@pytest.mark.parametrize("nbytes", SIZES)
def test_two_ports_take_no_longer_than_one(nbytes: int) -> None:
    ports = f"sip.components.sip_port.impl={HERE}.PortLimiter"
    plain, _, _ = stream(machine(), PE, AWAY, nbytes)
    took, closed, _ = stream(machine(ports), PE, AWAY, nbytes)
    assert took == closed == plain - nbytes / 128 + nbytes / 16  # the link between SIPs has 128 GB/s


def test_a_rate_may_be_of_a_part_and_the_slowest_counts() -> None:
    took, closed, events = stream(machine(routers(ByProperty)), PE, NEAR, 4096)
    assert (took, closed, events) == (11 + 4096 / 16, took, 1)


@pytest.mark.parametrize("rate", [8, 16.5, 255])
def test_every_builtin_part_with_links_takes_a_rate_in_yaml(rate: float) -> None:
    topology = machine(f"cube.components.noc_router.attrs.rate_gbs={rate}")
    took, closed, events = stream(topology, PE, NEAR, 4096)
    assert (took, events) == (closed, 1)
    assert took == pytest.approx(11 + 4096 / rate, abs=0.004)


def test_a_rate_above_that_of_the_links_changes_nothing() -> None:
    assert stream(machine("cube.components.noc_router.attrs.rate_gbs=1000"), PE, NEAR, 4096) == (11 + 16,) * 2 + (1,)


def test_a_machine_without_rates_looks_as_ever() -> None:
    topology = resolve_topology("default")
    assert "rate_gbs" not in topology.resolved_yaml()
    assert topology.digest != resolve_topology("default", ["cube.components.xbar.attrs.rate_gbs=16"]).digest


def test_links_each_have_the_rate_and_each_direction_alone() -> None:
    engine = GraphEngine(machine(routers(Limiter)), enable_data=False)
    network, begin = engine.machine.network, 0
    ways = [("sip0.cube0.hbm7", PE), (PE, "sip0.cube0.hbm7"), ("sip0.cube0.pe5.pe_dma", "sip0.cube0.sram")]
    sent = [network.post(network.port(a), engine.machine.route(a, b), 1 << 16, lambda _: None, None) for a, b in ways]
    engine.machine.clock.advance()
    for transfer in sent:  # as if each were alone
        assert transfer.delivered_ps - begin == transfer.route.latency_ps(1 << 16)


def test_a_source_paces_what_it_sends() -> None:
    engine = GraphEngine(machine("cube.components.hbm_ctrl.attrs.rate_gbs=16"), enable_data=False)
    read = engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=4096)))
    # Set-up, there and back over the xbar, a header, the access, 4 KiB at 16 GB/s.
    assert read.t_end == 2 + 2 + 32 / 256 + 30 + 2 + 4096 / 16


def test_closed_forms_of_the_probe_hold_with_limiters() -> None:
    topology = resolve_topology(
        "default", ["cube.components.noc_router.attrs.rate_gbs=48", "cube.components.ucie.attrs.rate_gbs=20"]
    )
    for case in CASES[:10]:
        report = probe_case(topology, case, 4096)
        assert isinstance(report, ProbeReport)
        single = report.single
        assert single.breakdown.difference_ps == 0, case.name
        if case.name == "pe-far-cube-hbm":
            assert single.bottleneck_gbs == 20
            assert report.sustained.bottleneck_gbs == 20


@pytest.mark.parametrize("seed", range(6))
def test_express_or_not_takes_the_same_time(seed: int) -> None:
    rng = Random(seed)
    places = ("cube.components.noc_router", "cube.components.xbar", "cube.components.ucie", "sip.components.io_noc")
    rates = [f"{each}.attrs.rate_gbs={rng.choice((7, 16, 99.5, 250))}" for each in rng.sample(places, 2)]
    messages: list[Any] = [
        PeDmaMsg(
            pe=(0, rng.randrange(2), rng.randrange(8)),
            pa=hbm(rng.randrange(2), rng.randrange(2), rng.randrange(8)),
            nbytes=rng.choice((64, 1500, 20_000)),
            op=rng.choice(("read", "write")),
            repeat=3,
            outstanding=2,
        )
        for _ in range(12)
    ]
    messages += [MemoryReadMsg(pa=hbm(1, 1, 3), nbytes=5000)]
    ends, admitted = [], []
    for express in ("true", "false"):
        engine = GraphEngine(machine(*rates, "sip.cube_mesh={w: 2, h: 1}", f"transport.express={express}"))
        ends.append([engine.wait(handle).t_end for handle in [engine.submit(each) for each in messages]])
        admitted.append(engine.machine.network.express.n_admitted)
    assert ends[0] == ends[1]
    assert admitted[0] > 0 == admitted[1]


# --- by packets -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_rate_that_never_changes_takes_what_the_number_takes(nbytes: int) -> None:
    took, closed, events = stream(machine(routers(Always)), PE, NEAR, nbytes)
    assert took == 11 + nbytes / 16
    assert closed == 11 + nbytes / 256  # of the links' own bandwidth
    assert events >= -(-nbytes // 1024) * 10


def test_a_rate_that_changes_by_hand() -> None:
    # The first router is reached after 2 + 1 ns: 97 ns at 32 GB/s are 3,104 bytes. The others pass from 200 ns on; the
    # routers behind do the same a ns later each, at the same times of the clock, so what is left when they stop waits.
    took, _, _ = stream(machine(routers(Halves)), PE, "sip0.cube0.r1_0", 3_104)
    assert took == 3 + 97 + 1
    took, _, _ = stream(machine(routers(Halves)), PE, "sip0.cube0.r1_0", 3_104 + 992)
    assert took == 200 + 992 / 32 + 1


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_budget_of_packets_paces_and_adds_a_packet_a_part(nbytes: int) -> None:
    took, _, _ = stream(machine(routers(Budget)), PE, NEAR, nbytes)
    last = nbytes % 1024 or 1024
    assert took == 11 + nbytes / 16 + 6 * min(nbytes, 1024) / 16 + last / 256


def test_a_class_that_holds_says_itself_what_its_rate_is() -> None:
    topology = machine(routers(Holding), "cube.components.noc_router.attrs.rate_gbs=16")
    assert stream(topology, PE, NEAR, 4096)[:2] == (11 + 16 + 7 * 5, 11 + 16)


# --- slips ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, that YAML can name."""
    module = ModuleType("mine")
    module.__file__ = "mine.py"
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def far_read(topology: Topology) -> float:
    engine = GraphEngine(topology, enable_data=False)
    return engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 6), nbytes=64))).t_end


@pytest.mark.parametrize("rate", [0, -1, inf, float("nan"), "fast", True])
def test_a_number_that_is_no_rate_is_named(mine: ModuleType, rate: Any) -> None:
    mine.Wrong = type("Wrong", (NocRouter,), {"rate_gbs": rate, "__module__": "mine"})  # type: ignore[attr-defined]
    with pytest.raises(PartError, match=r"r\d_\d.*rate_gbs of mine.Wrong is .*, must be a number of GB/s, more"):
        far_read(machine("cube.components.noc_router.impl=mine.Wrong"))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (5.0, r"rate_gbs\(.*\) is 5.0, must be a rate in GB/s and the ns until which it holds"),
        ((-1, 1e6), r"the rate of rate_gbs\(.*\) is -1, must be a number of GB/s, at least 0"),
        ((5.0, 1.0), r"rate_gbs\(.*\) holds until 1.0, must be a later time in ns"),
        ((5.0, None), r"rate_gbs\(.*\) holds until None"),
        ((0, inf), "0 GB/s until inf ns: nothing would ever pass"),
    ],
)
def test_an_answer_that_is_no_rate_names_part_and_time(mine: ModuleType, answer: Any, message: str) -> None:
    mine.Wrong = type("Wrong", (NocRouter,), {"rate_gbs": lambda self, now_ns: answer, "__module__": "mine"})  # type: ignore[attr-defined]
    with pytest.raises(PartError, match=rf"sip0.cube0.r\d_\d \(mine.Wrong\) failed at [\d.]+ ns: .*{message}"):
        far_read(machine("cube.components.noc_router.impl=mine.Wrong"))


class Boom(NocRouter):
    def rate_gbs(self, now_ns: float) -> tuple[float, float]:  # type: ignore[override]
        raise KeyError("boom")


class BoomHold(NocRouter):
    def hold_packet_ns(self, packet: Packet) -> float:
        raise KeyError("boom")


class Minus(NocRouter):
    def hold_packet_ns(self, packet: Packet) -> float:
        return -1.0


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Boom, r"KeyError: 'boom' \(at .*test_limiters.py:\d+\)"),
        (BoomHold, r"KeyError: 'boom' \(at .*test_limiters.py:\d+\)"),
        (Minus, r"hold_packet_ns\(\) is -1.0, must be a number of ns, at least 0"),
    ],
)
def test_an_error_names_part_time_and_line_and_others_go_on(cls: type, message: str) -> None:
    engine = GraphEngine(machine(routers(cls)), enable_data=False)
    where = rf"sip0.cube0.r\d_\d \({HERE}.{cls.__name__}\) failed at [\d.]+ ns: .*{message}"
    for _ in range(2):
        with pytest.raises(PartError, match=where):
            engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 6), nbytes=3000)))
    # What does not pass the part is not concerned.
    near = engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=64))
    assert engine.wait(near).ok


@pytest.mark.parametrize(
    ("place", "base", "name"),
    [
        ("pe.components.pe_gemm", PeGemm, "rate_gbs"),
        ("cube.components.sram", Sram, "hold_packet_ns"),
        ("cube.components.m_cpu", MCpu, "hold_packet_ns"),
        ("cube.components.noc_router", NocRouter, "hold_packet"),
    ],
)
def test_what_a_place_never_calls_is_refused_by_name(mine: ModuleType, place: str, base: type, name: str) -> None:
    mine.Mine = type("Mine", (base,), {name: lambda self, packet: 1.0, "__module__": "mine"})  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=f"nothing calls {name} of mine.Mine at this place"):
        GraphEngine(machine(f"{place}.impl=mine.Mine"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pe.components.pe_ipcq.attrs.rate_gbs=5", "pe.components.pe_ipcq.attrs.rate_gbs: no link leaves this part"),
        ("pe.components.pe_gemm.attrs.rate_gbs=5", "unknown key 'rate_gbs'"),
        ("cube.components.xbar.attrs.rate_gbs=0", "found 0, must be greater than 0"),
        ("cube.components.xbar.attrs.rate_gbs=x", "found 'x', must be a plain number, in GB/s"),
    ],
)
def test_a_rate_in_yaml_that_cannot_be(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        machine(override)
