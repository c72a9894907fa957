"""Parts as users write them from docs/parts.md: each changes simulated time as computed by hand, each slip is named.

Wires take no time here, cubes have one router, and everything that is on the way is listed where it is summed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import Field

from kernbench.cli.main import main
from kernbench.common.errors import ConfigError, InputError, PartError, SimulationDeadlock, UnsupportedError
from kernbench.components.m_cpu import MCpu
from kernbench.components.memory import Memory, MemoryAccess
from kernbench.components.passive import NocRouter
from kernbench.di.part import PartAttrs
from kernbench.engine.engine import GraphEngine
from kernbench.messages.control import CubeOrder, PartOrder
from kernbench.messages.requests import MemoryWriteMsg, PartMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.component import ThinkingPart
from kernbench.topology.builder import resolve_topology

SMALL = (
    "ns_per_mm=0",
    "system.sips={count: 1, topology: ring_1d}",
    "sip.cube_mesh={w: 1, h: 1}",
    "cube.noc={w: 1, h: 1, link_bw_gbs: 256}",
)
SCRATCH = "sip0.cube0.scratch"
HBM = PhysAddr.pe_hbm_addr(0, 0, 0, 0, 0, 6 << 30).encode()
FAR_HBM = PhysAddr.pe_hbm_addr(0, 0, 0, 7, 0, 6 << 30).encode()
LINKS = "links: [{to: r0_0, bw_gbs: 64}]"

Make = Callable[..., GraphEngine]


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, that YAML can name."""
    module = ModuleType("my_parts")
    monkeypatch.setitem(sys.modules, "my_parts", module)
    return module


@pytest.fixture
def engine(mine: ModuleType) -> Make:
    """A small machine with a class of the user's, which an override names."""

    def make(cls: type, *overrides: str) -> GraphEngine:
        vars(mine)[cls.__name__] = cls
        return GraphEngine(resolve_topology("default", [*SMALL, *overrides]))

    return make


def router(cls: type, attrs: str = "overhead_ns: 1") -> str:
    return f"cube.components.noc_router={{kind: noc_router, impl: my_parts.{cls.__name__}, attrs: {{{attrs}}}}}"


def m_cpu(cls: type) -> str:
    return f"cube.components.m_cpu.impl=my_parts.{cls.__name__}"


def scratch(cls: type, more: str = "bytes: 1MiB") -> str:
    return f"cube.extra.scratch={{impl: my_parts.{cls.__name__}, {LINKS}, {more}}}"


def dma_ns(engine: GraphEngine, pa: int, nbytes: int, op: Any = "read") -> float:
    begin = engine.now
    return round(engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=nbytes, op=op))).t_end - begin, 6)


def ask_ns(engine: GraphEngine, part: str = SCRATCH) -> float:
    begin = engine.now
    return round(engine.wait(engine.submit(PartMsg(part=part, content="go"))).t_end - begin, 6)


def fill(engine: GraphEngine) -> Any:
    return engine.submit(MemoryWriteMsg(pa=HBM, nbytes=64, pattern=b"x"))


# --- a token bucket at a router ---------------------------------------------------------------------------------------


class BucketAttrs(NocRouter.Attrs):  # type: ignore[name-defined,misc]
    rate_gbs: float = Field(default=16.0, gt=0)
    burst_bytes: int = Field(default=4096, ge=0)


class TokenBucket(NocRouter):
    """Lets ``rate_gbs`` pass, and ``burst_bytes`` at once after a pause."""

    Attrs = BucketAttrs

    def __init__(self, node: Any, machine: Any) -> None:
        super().__init__(node, machine)
        self.attrs = self.attrs_as(BucketAttrs)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.tokens, self.counted_ns = float(self.attrs.burst_bytes), self.now_ns

    def hold_ns(self, transfer: Any) -> float:
        earned = (self.now_ns - self.counted_ns) * self.attrs.rate_gbs
        self.tokens = min(self.tokens + earned, self.attrs.burst_bytes) - transfer.nbytes
        self.counted_ns = self.now_ns
        return max(0.0, -self.tokens / self.attrs.rate_gbs)


class TestTokenBucket:
    def writes_ns(self, engine: GraphEngine, n: int = 1) -> list[float]:
        """How long PE 0 takes to write 4 KiB to the slice of another corner, several times."""
        return [dma_ns(engine, FAR_HBM, 4096, "write") for _ in range(n)]

    def bucket_ns(self, engine: Make, burst: int, n: int = 1) -> list[float]:
        attrs = f"overhead_ns: 1, rate_gbs: 16, burst_bytes: {burst}"
        return self.writes_ns(engine(TokenBucket, router(TokenBucket, attrs)), n)

    def test_what_is_within_the_burst_passes(self, engine: Make) -> None:
        usual = self.writes_ns(GraphEngine(resolve_topology("default", SMALL)))
        assert self.bucket_ns(engine, burst=8192) == usual

    def test_what_is_beyond_waits_for_tokens(self, engine: Make) -> None:
        (usual,) = self.writes_ns(GraphEngine(resolve_topology("default", SMALL)))
        # 3072 bytes are missing: 192 ns at 16 GB/s. The acknowledgement comes so long after the data that there are
        # tokens for its 32 bytes.
        assert self.bucket_ns(engine, burst=1024) == [usual + 192]

    def test_nothing_is_saved_up_without_a_burst(self, engine: Make) -> None:
        (usual,) = self.writes_ns(GraphEngine(resolve_topology("default", SMALL)))
        # 4096 bytes take 256 ns of tokens, the 32 of the acknowledgement 2 more; each time anew.
        assert self.bucket_ns(engine, burst=0, n=2) == [usual + 256 + 2] * 2


# --- an M_CPU that goes for coffee ------------------------------------------------------------------------------------


class CoffeeCpu(MCpu):
    """After every ten orders it is away for 1 µs."""

    def run(self) -> Any:
        orders = 0
        while True:
            message = yield self.inbox.get()
            yield self.wait_ns(self.handling_ns(message))
            self.handle(message)
            orders += isinstance(message, CubeOrder)
            if isinstance(message, CubeOrder) and orders % 10 == 0:
                yield self.wait_ns(1000)


class TestCoffee:
    def test_a_break_of_a_microsecond(self, engine: Make) -> None:
        # The CPU is at nothing else: order 11 is sent when order 10 is answered, and waits for what is left of 1 µs.
        plain, with_break = GraphEngine(resolve_topology("default", SMALL)), engine(CoffeeCpu, m_cpu(CoffeeCpu))
        took = {}
        for name, each in (("plain", plain), ("break", with_break)):
            ends = [0.0, *(each.wait(fill(each)).t_end for _ in range(11))]
            took[name] = [round(b - a, 6) for a, b in pairwise(ends)]
        one = took["plain"][0]
        assert took["plain"] == [one] * 11
        assert took["break"][:10] == [one] * 10
        # One fill takes `one`, of which the order is handled 5 ns at the CPU; the next order is there `one` later: the
        # break has 1000 - (one - 5) ns to go.
        assert took["break"][10] == one + 1000 - (one - 5)


# --- a scratch memory beside the SRAM ---------------------------------------------------------------------------------


class ScratchAttrs(PartAttrs):
    latency_ns: float = Field(default=12.0, ge=0)
    bw_gbs: float = Field(default=32.0, gt=0)


class Scratch(Memory):
    """1 MiB beside the SRAM."""

    Attrs = ScratchAttrs

    def serve(self, access: MemoryAccess) -> float:
        attrs = self.attrs_as(ScratchAttrs)
        return attrs.latency_ns + access.nbytes / attrs.bw_gbs


class TestScratch:
    # The way: xbar 2, router 1, and back. Links of 64 GB/s at the scratch: 0.5 ns for a header, 64 for 4096 bytes.
    def test_a_read(self, engine: Make) -> None:
        found = engine(Scratch, scratch(Scratch))
        pa, nbytes = found.addresses_of(SCRATCH)
        assert nbytes == 1 << 20
        # Set-up 2, way 3 + 0.5, latency 12, 4096 bytes at 32 GB/s 128, way 3 + 64.
        assert dma_ns(found, pa, 4096) == 2 + 3.5 + 12 + 128 + 67

    def test_a_write(self, engine: Make) -> None:
        found = engine(Scratch, scratch(Scratch, "bytes: 1MiB, attrs: {latency_ns: 20, bw_gbs: 64}"))
        pa, _ = found.addresses_of(SCRATCH)
        # Set-up 2, way 3 + 64, latency 20, 4096 bytes at 64 GB/s 64, way 3 + 0.5.
        assert dma_ns(found, pa, 4096, "write") == 2 + 67 + 20 + 64 + 3.5

    def test_the_cli_runs_on_such_a_machine(self, mine: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
        vars(mine)["Scratch"] = Scratch
        overrides = [part for each in (*SMALL, scratch(Scratch)) for part in ("--set", each)]
        product = ("--set", "bench.m=32", "--set", "bench.k=64", "--set", "bench.n=32")
        assert main(["topology", "-v", *overrides]) == 0
        assert "my_parts.Scratch" in capsys.readouterr().out
        assert main(["run", "--bench", "gemm-single-pe", *overrides, *product]) == 0


# --- parts that think, of kinds of their own --------------------------------------------------------------------------


class Monitor(ThinkingPart):
    """Notes what it is told; the host gets its answer in 30 ns, and a monitor beside this one a hint."""

    def run(self) -> Any:
        self.told: list[object] = []
        while True:
            message = yield self.inbox.get()
            yield self.wait_ns(30)
            if isinstance(message, PartOrder):
                self.told.append(message.content)
                self.answer(message)
                for each in (each for each in self.neighbours if each.endswith(".b")):
                    self.send(each, 64, ("hint", message.content))
            else:
                self.told.append(message)


class TestThinking:
    def test_the_host_asks_and_is_answered(self, engine: Make) -> None:
        found = engine(Monitor, scratch(Monitor, "kind: monitor"))
        # Switch 5, PCIe 20, hub 1, UCIe 8 + 8, router 1, and a header of 32 bytes at 64 GB/s 0.5; the same way back.
        assert ask_ns(found) == 43.5 + 30 + 43.5

    def test_parts_tell_each_other(self, engine: Make) -> None:
        more = "cube.extra.b={kind: monitor, impl: my_parts.Monitor, links: [{to: scratch, bw_gbs: 8, overhead_ns: 4}]}"
        found = engine(Monitor, scratch(Monitor, "kind: monitor"), more)
        part = found.machine.component("sip0.cube0.b")
        assert isinstance(part, Monitor)
        ask_ns(found)
        found.drain()
        assert part.told == [("hint", "go")]

    def test_every_pe_may_have_one(self, engine: Make) -> None:
        found = engine(Monitor, "pe.extra.m={kind: monitor, impl: my_parts.Monitor, links: [{to: xbar, bw_gbs: 64}]}")
        near = ask_ns(found, "sip0.cube0.pe0.m")
        assert near == ask_ns(found, "sip0.cube0.pe7.m")

    def test_only_extra_parts_are_told_things(self, engine: Make) -> None:
        found = engine(Monitor, scratch(Monitor, "kind: monitor"))
        with pytest.raises(UnsupportedError, match=r"PartMsg: sip0\.cube0\.sram is not in cube\.extra or pe\.extra"):
            ask_ns(found, "sip0.cube0.sram")


# --- what a trace shows of them ---------------------------------------------------------------------------------------

BENCH = """
from kernbench.messages.requests import PartMsg

def stores(x_ptr, ptr, *, tl):
    tl.store(ptr, tl.load(x_ptr, 16, "f32"))

def run(torch):
    torch.launch("stores", stores, torch.zeros(16), torch.map_memory("sip0.cube0.scratch"))
    torch.wait(torch.submit(PartMsg(part="sip0.cube0.watch")))
"""


def test_a_trace_has_their_rows(mine: ModuleType, tmp_path: Path) -> None:
    vars(mine).update(Scratch=Scratch, Monitor=Monitor)
    (tmp_path / "bench.py").write_text(BENCH)
    watch = "cube.extra.watch={impl: my_parts.Monitor, links: [{to: r0_0, bw_gbs: 64}]}"
    sets = [part for each in (*SMALL, scratch(Scratch), watch) for part in ("--set", each)]
    trace = tmp_path / "trace.json"
    assert main(["run", "--bench", str(tmp_path / "bench.py"), "--trace", str(trace), *sets]) == 0
    events = json.loads(trace.read_text())["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {rows[e["pid"], e["tid"]]: (e["name"], round(e["dur"] * 1000, 3)) for e in events if e["ph"] == "X"}
    assert found[SCRATCH] == ("write store", 12 + 64 / 32)
    assert found["watch"] == ("PartOrder", 30.0)


# --- every way to be wrong --------------------------------------------------------------------------------------------


def holding(what: Any) -> type:
    return type("Holding", (NocRouter,), {"hold_ns": lambda self, transfer: what(self)})


def serving(what: Any) -> type:
    return type("Serving", (Memory,), {"serve": lambda self, access: what(self)})


def thinking(what: Any, base: type = ThinkingPart) -> type:
    def run(self: Any) -> Any:
        while True:
            yield self.inbox.get()
            yield what(self)

    return type("Thinking", (base,), {"run": run})


def raises(self: Any) -> Any:
    return {}[3]


def text(self: Any) -> Any:
    return "soon"


def negative(self: Any) -> Any:
    return -1.0


def negative_wait(self: Any) -> Any:
    return self.wait_ns(-1)


def no_event(self: Any) -> Any:
    yield 5


def too_late(self: Any) -> Any:
    yield self.env.event()


LINE = r"\((at|its class is at) .*test_parts_by_users\.py"
WRONG = [
    (holding(raises), r"failed at 5 ns: KeyError: 3", PartError),
    (holding(negative), r"failed at 5 ns: .*is -1\.0, must be a number of ns", PartError),
    (holding(text), r"failed at 5 ns: .*is 'soon', must be a number of ns", PartError),
    (serving(raises), r"scratch \(my_parts\.Serving\) failed at 5\.5 ns: KeyError: 3", PartError),
    (serving(negative), r"failed at 5\.5 ns: .*is -1\.0, must be a number of ns", PartError),
    (serving(no_event), r"failed at 5\.5 ns: it yielded 5, which is no event", PartError),
    (serving(too_late), r"scratch: has not answered a ReadRequest from sip0\.cube0\.pe0\.pe_dma", SimulationDeadlock),
    (thinking(raises), r"scratch \(my_parts\.Thinking\) failed at 43\.5 ns: KeyError: 3", PartError),
    (thinking(negative_wait), r"failed at 43\.5 ns: wait_ns\(-1\): a time is a number of ns, at least 0", PartError),
    (thinking(text), r"failed at 43\.5 ns: it yielded 'soon', which is no event to wait for", PartError),
    (thinking(lambda self: self.wait_ns(1)), r"scratch: has not answered the PartOrder of request", SimulationDeadlock),
    (thinking(raises, MCpu), r"m_cpu \(my_parts\.Thinking\) failed at .* ns: KeyError: 3", PartError),
    (thinking(lambda self: self.wait_ns(1), MCpu), r"m_cpu: has not answered the CubeOrder", SimulationDeadlock),
]


@pytest.mark.parametrize(("cls", "said", "error"), WRONG)
def test_a_slip_is_named(engine: Make, cls: type, said: str, error: type[Exception]) -> None:
    if issubclass(cls, NocRouter):
        found = engine(cls, router(cls))
        act = lambda: dma_ns(found, FAR_HBM, 64)  # noqa: E731
    elif issubclass(cls, MCpu):
        found = engine(cls, m_cpu(cls))
        act = lambda: found.wait(fill(found))  # noqa: E731
    elif issubclass(cls, Memory):
        found = engine(cls, scratch(cls))
        act = lambda: dma_ns(found, found.addresses_of(SCRATCH)[0], 64)  # noqa: E731
    else:
        found = engine(cls, scratch(cls, "kind: mine"))
        act = lambda: ask_ns(found)  # noqa: E731
    with pytest.raises(error, match=said) as caught:
        act()
    if error is PartError:
        assert caught.match(LINE)


REFUSED = [
    (thinking(raises, NocRouter), router, r"r0_0 \(noc_router\): nothing calls run of my_parts\.Thinking"),
    (
        type("Sometimes", (Memory,), {"serve": lambda self, access: 1.0}),
        lambda cls: scratch(cls, "kind: mine"),
        r"scratch \(mine\): nothing calls serve of my_parts\.Sometimes at this place: it has no addresses; give it",
    ),
    (
        type(
            "Deciding", (Memory,), {"serve": lambda self, access: 1.0, "forward": lambda self, transfer, ways: ways[0]}
        ),
        scratch,
        r"scratch \(scratch\): nothing calls forward of my_parts\.Deciding",
    ),
    (type("Plain", (ThinkingPart,), {"accept": lambda self, msg, done: None}), scratch, "nothing calls accept of"),
]


@pytest.mark.parametrize(("cls", "place", "said"), REFUSED)
def test_what_nobody_calls_is_refused(engine: Make, cls: type, place: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        engine(cls, place(cls))


class Unmade(ThinkingPart):
    def __init__(self, node: Any, machine: Any) -> None:
        super().__init__(node, machine)
        raises(self)


def test_an_extra_part_that_cannot_be_made_is_named(engine: Make) -> None:
    with pytest.raises(PartError, match=r"scratch \(my_parts\.Unmade\) failed at 0 ns: KeyError: 3 \(at .*\.py:\d+\)"):
        engine(Unmade, scratch(Unmade, "kind: mine"))


def test_a_part_in_a_pe_that_never_answers_hides_no_kernel(engine: Make) -> None:
    cls = serving(too_late)
    found = engine(cls, "pe.extra.pad={impl: my_parts.Serving, bytes: 64KiB, links: [{to: pe_dma, bw_gbs: 64}]}")
    with pytest.raises(SimulationDeadlock) as caught, RuntimeContext(found) as torch:
        torch.launch("stores", stores, torch.zeros(16), torch.map_memory("sip0.cube0.pe0.pad"))
    text = str(caught.value)
    assert "no queue is involved: sip0.cube0.pe0.pad: has not answered a WriteData from sip0.cube0.pe0.pe_dma" in text
    assert "  sip0.cube0.pe0: kernel 'stores' waits for its commands to end" in text


def stores(x_ptr: int, ptr: int, *, tl: Any) -> None:
    tl.store(ptr, tl.load(x_ptr, 16, "f32"))


def test_an_unknown_attribute_is_refused(engine: Make) -> None:
    with pytest.raises(ConfigError, match=r"attrs\.latncy_ns: unknown key 'latncy_ns'; did you mean 'latency_ns'\?"):
        engine(Scratch, scratch(Scratch, "bytes: 1MiB, attrs: {latncy_ns: 3}"))
