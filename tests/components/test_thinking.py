"""Parts that think: users' CPUs change simulated time as computed by hand, and what is wrong with one is said of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import simpy
from one_program import SMALL, host_copies, products

from causes import check_causes
from compiled import SPREAD
from kernbench.cli.main import main
from kernbench.common.errors import (
    KernbenchError,
    LimitReached,
    PartError,
    SimulationDeadlock,
    UnsupportedError,
    notes_of,
)
from kernbench.components.host import Host
from kernbench.components.io_cpu import IoCpu
from kernbench.components.m_cpu import MCpu
from kernbench.components.pe_gemm import PeGemm
from kernbench.core.log import By
from kernbench.engine import thinking
from kernbench.engine.engine import GraphEngine
from kernbench.engine.requests import Limits
from kernbench.engine.thinking import Inbox
from kernbench.messages.control import CubeOrder, PeOrder, Report
from kernbench.messages.requests import KernelLaunchMsg, KernelRef, MemoryWriteMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.component import ThinkingPart
from kernbench.topology.builder import resolve_topology
from kernbench.topology.cube_spec import MCpuAttrs

HBM = PhysAddr.pe_hbm_addr(0, 0, 0, 0, 0, 6 << 30).encode()
SECTIONS = {"m_cpu": "cube", "io_cpu": "sip", "host": "system", "pe_gemm": "pe"}


@pytest.fixture
def engine_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., GraphEngine]:
    """The small machine with classes of the user's at these places."""
    module = ModuleType("my_cpus")
    monkeypatch.setitem(sys.modules, "my_cpus", module)

    def make(*, limits: Limits | None = None, **classes: type) -> GraphEngine:
        for kind, cls in classes.items():
            setattr(module, f"My_{kind}", cls)
        impls = [f"{SECTIONS[kind]}.components.{kind}.impl=my_cpus.My_{kind}" for kind in classes]
        return GraphEngine(resolve_topology("default", [*SMALL, SPREAD, *impls]), limits=limits)

    return make


def fill(engine: GraphEngine, at: int = 0) -> Any:
    """Ask the M_CPU of the first cube to fill 64 bytes: one message for it."""
    return engine.submit(MemoryWriteMsg(pa=HBM + 64 * at, nbytes=64, pattern=b"x"))


def fills_ns(engine: GraphEngine, n: int) -> list[float]:
    """How long ``n`` fills take, one after another."""
    ends = [engine.wait(fill(engine, at)).t_end for at in range(n)]
    return [end - begin for begin, end in zip([0.0, *ends], ends, strict=False)]


# --- what users write -------------------------------------------------------------------------------------------------


class CoffeeByTime(MCpu):
    """Every tenth message has to wait for the CPU's coffee."""

    taken = 0

    def handling_ns(self, message: object) -> float:
        self.taken += 1
        return super().handling_ns(message) + (1000 if self.taken % 10 == 0 else 0)


class CoffeeByLoop(MCpu):
    """It goes for coffee when it has handled ten messages."""

    def run(self) -> Any:
        self.taken = 0
        while True:
            message = yield self.inbox.get()
            yield self.wait_ns(self.overhead_ns)
            self.handle(message)
            self.taken += 1
            if self.taken % 10 == 0:
                yield self.wait_ns(1000)


class CoffeeIoCpu(IoCpu):
    """The same at the IO_CPU, which sees two messages a fill: the order, and the report."""

    taken = 0

    def handling_ns(self, message: object) -> float:
        self.taken += 1
        return super().handling_ns(message) + (1000 if self.taken % 10 == 0 else 0)


def test_a_break_before_every_tenth_message(engine_with: Callable[..., GraphEngine]) -> None:
    usual, coffee = fills_ns(engine_with(), 25), fills_ns(engine_with(m_cpu=CoffeeByTime), 25)
    late = [round(b - a, 3) for a, b in zip(usual, coffee, strict=True)]
    assert late == [1000.0 if at in (9, 19) else 0.0 for at in range(25)]


def test_a_break_at_the_io_cpu(engine_with: Callable[..., GraphEngine]) -> None:
    """Two messages a fill: the tenth is the report of the fifth."""
    usual, coffee = fills_ns(engine_with(), 12), fills_ns(engine_with(io_cpu=CoffeeIoCpu), 12)
    late = [round(b - a, 3) for a, b in zip(usual, coffee, strict=True)]
    assert late == [1000.0 if at in (4, 9) else 0.0 for at in range(12)]


def test_a_break_after_ten_messages_delays_what_comes_meanwhile(engine_with: Callable[..., GraphEngine]) -> None:
    """The break begins when the tenth order is handled, which is ``handled`` after its submission.

    The eleventh is submitted when the tenth has come back, and would be handled ``handled`` later too: it finds the CPU
    at its break, which ends 1000 ns after it began, and takes its time (5 ns) then.
    """
    engine = engine_with(m_cpu=CoffeeByLoop)
    usual = fills_ns(engine_with(), 1)[0]
    handled = _handled_ns(engine_with())
    late = fills_ns(engine, 12)
    arrival_of_eleventh = usual + handled - 5
    assert late[:10] == pytest.approx([usual] * 10)
    assert late[10] == pytest.approx(usual + (handled + 1000 - arrival_of_eleventh))
    assert late[11] == pytest.approx(usual)


def _handled_ns(engine: GraphEngine) -> float:
    """When the M_CPU has handled the order of the first fill: the end of the row of that message."""
    engine.wait(fill(engine))
    columns = engine.machine.log.columns()
    names = [str(engine.machine.log.whats[what]) if what >= 0 else "" for what in columns.what]
    return next(end for end, name in zip(columns.end, names, strict=True) if name == "CubeOrder") / 1000


class Interrupted(MCpu):
    """Reports are interrupts: they go before orders that wait."""

    def run(self) -> Any:
        self.order_of_work: list[str] = []
        while True:
            self.inbox.items.sort(key=lambda message: not isinstance(message, Report))
            message = yield self.inbox.get()
            yield self.wait_ns(20)
            self.order_of_work.append(type(message).__name__)
            self.handle(message)


def nothing(*, tl: Any) -> None:
    """A kernel that is over at once."""


def test_interrupts_go_first(engine_with: Callable[..., GraphEngine]) -> None:
    """Two orders to launch come 20 ns apart or less, and fills behind them: the PEs' reports overtake the fills."""
    engine = engine_with(m_cpu=Interrupted)
    with RuntimeContext(engine) as torch:
        x = torch.zeros(4)
        part = engine.component("sip0.cube0.m_cpu")
        assert isinstance(part, Interrupted)
        part.order_of_work.clear()
        torch.launch("nothing", lambda ptr, *, tl: None, x, async_op=True)
        handles = [fill(engine, at) for at in range(20)]
        for handle in handles:
            engine.wait(handle)
    work = part.order_of_work
    assert work[0] == "CubeOrder"
    assert "Report" in work[1:20], "the report of the kernel overtakes fills that wait"


class TwoHands(MCpu):
    """Two processes share the work, and a core that a simpy.Resource stands for."""

    def run(self) -> Any:
        core = simpy.Resource(self.env, capacity=1)
        yield self.process(self.hand(core)) & self.process(self.hand(core))

    def hand(self, core: simpy.Resource) -> Any:
        while True:
            message = yield self.inbox.get()
            with core.request() as turn:
                yield turn
                yield self.wait_ns(self.overhead_ns)
            self.handle(message)


def test_two_processes_that_share_a_core_take_as_long_as_one(engine_with: Callable[..., GraphEngine]) -> None:
    def all_at_once(engine: GraphEngine) -> float:
        handles = [fill(engine, at) for at in range(8)]
        return max(engine.wait(handle).t_end for handle in handles)

    assert all_at_once(engine_with(m_cpu=TwoHands)) == all_at_once(engine_with())


class Mine(ThinkingPart):
    """From scratch: an M_CPU that knows nothing of PEs and says that all is done."""

    Attrs = MCpuAttrs
    handles_serially = True

    def run(self) -> Any:
        while True:
            order = yield self.inbox.get()
            yield self.wait_ns(7.5 + self.random.random() / 1000)
            self.answer(order)


def test_a_part_from_scratch(engine_with: Callable[..., GraphEngine]) -> None:
    """No bytes are written, and the CPU takes 7.5 ns and up to a ps."""
    engine = engine_with(m_cpu=Mine)
    handled = _handled_ns(engine)
    assert handled == pytest.approx(_handled_ns(engine_with()) - 5 + 7.5, abs=0.002)
    assert fills_ns(engine_with(m_cpu=Mine), 5) == fills_ns(engine_with(m_cpu=Mine), 5)


class Patient(ThinkingPart):
    """It waits for a report or for the end of its patience, and takes out of turn what fits."""

    Attrs = MCpuAttrs
    handles_serially = True

    def run(self) -> Any:
        self.waited = 0
        while True:
            get = self.inbox.get(lambda message: isinstance(message, CubeOrder))
            came = yield get | self.wait_ns(30)
            if get not in came:
                get.cancel()
                self.waited += 1
                if self.waited == 2:
                    yield self.inbox.get(lambda message: False)
                continue
            self.answer(came[get])


def test_a_wait_with_an_end(engine_with: Callable[..., GraphEngine]) -> None:
    engine = engine_with(m_cpu=Patient)
    engine.wait(fill(engine))
    part = engine.component("sip0.cube0.m_cpu")
    engine.drain()
    assert isinstance(part, Patient)
    assert part.waited == 2
    with pytest.raises(SimulationDeadlock, match=r"m_cpu: has not taken the CubeOrder of request 1 from sip0\.io_cpu"):
        engine.wait(fill(engine))


# --- inboxes ----------------------------------------------------------------------------------------------------------


def test_an_inbox_gives_what_fits() -> None:
    env = simpy.Environment()
    inbox, got = Inbox(env), []

    def take(fits: Callable[[Any], bool] | None, name: str) -> Any:
        found = yield inbox.get(fits)
        got.append((env.now, name, found))

    for fits, name in ((lambda n: n > 5, "large"), (None, "any"), (lambda n: n == 1, "one")):
        env.process(take(fits, name))
    env.run(until=1)
    for number in (3, 1, 7, 8):
        inbox.deliver(number)
    env.run(until=2)
    assert got == [(1, "any", 3), (1, "one", 1), (1, "large", 7)]
    assert inbox.items == [8]

    def put() -> Any:
        yield inbox.put(9)
        found = yield inbox.get(lambda n: n == 9)
        got.append((env.now, "put", found))

    env.process(put())
    env.run()
    assert got[-1] == (2, "put", 9)
    assert inbox.items == [8]


# --- what is wrong ----------------------------------------------------------------------------------------------------


class Wrong(ThinkingPart):
    """Takes an order, and does something wrong 3 ns later."""

    Attrs = MCpuAttrs
    handles_serially = True

    def run(self) -> Any:
        while True:
            order = yield self.inbox.get()
            yield self.wait_ns(3)
            yield from self.err(order)

    def err(self, order: Any) -> Iterator[Any]:
        raise NotImplementedError


class Raises(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        raise KeyError("no such channel")


class YieldsFive(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        yield 5


class YieldsOthers(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        yield simpy.Environment().timeout(5)


class WaitsNegative(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        yield self.wait_ns(-1)


class WaitsNan(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        yield self.wait_ns(math.nan)


class Helps(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        yield self.process(_raising_later(self))


def _raising_later(part: ThinkingPart) -> Any:
    yield part.wait_ns(0)
    raise ValueError("in a helper")


class AnswersTwice(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        self.answer(order)
        self.answer(order)
        yield self.wait_ns(0)


class SaysNoError(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        self.answer(order, error="no good")  # type: ignore[arg-type]
        yield self.wait_ns(0)


class Ticks(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        while True:
            yield self.wait_ns(0)


class Unknown(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        yield self.machine.route(self.node.id, "nowhere")


WRONG = [
    (Raises, 'raise KeyError("no such channel")', "KeyError: 'no such channel'"),
    (YieldsFive, "yield 5", "it yielded 5, which is no event to wait for: yield self.inbox.get(), self.wait_ns(5)"),
    (YieldsOthers, "yield simpy.Environment().timeout(5)", "an event of another SimPy environment: make it with self"),
    (WaitsNegative, "yield self.wait_ns(-1)", "wait_ns(-1): a time is a number of ns, at least 0 and finite"),
    (WaitsNan, "yield self.wait_ns(math.nan)", "wait_ns(nan): a time is a number of ns"),
    (Helps, 'raise ValueError("in a helper")', "ValueError: in a helper"),
    (AnswersTwice, "self.answer(order)", "no component waits for an answer to the CubeOrder of request 0"),
    (SaysNoError, 'self.answer(order, error="no good")  # type: ignore[arg-type]', "answer(error='no good'): give an"),
    (Ticks, "yield self.wait_ns(0)", "it has waited 1,000 times in a row, and no message came or went"),
    (Unknown, 'yield self.machine.route(self.node.id, "nowhere")', "nowhere"),
]


@pytest.mark.parametrize(("cls", "code", "said"), WRONG, ids=[cls.__name__ for cls, *_ in WRONG])
def test_what_is_wrong_is_said_of_the_part(
    engine_with: Callable[..., GraphEngine], cls: type, code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinking, "MOST_WAITS", 1000)
    engine = engine_with(m_cpu=cls)
    others = fill(engine), fill(engine, 1)
    with pytest.raises(PartError) as caught:
        engine.wait(others[1])
    text, arrival = str(caught.value), _handled_ns(engine_with()) - 5
    assert text.startswith(f"sip0.cube0.m_cpu (my_cpus.My_m_cpu) failed at {arrival + 3:.12g} ns: ")
    assert said in text
    file, line = text.removesuffix(")").rpartition("(at ")[2].split(":")
    with open(file) as source:
        assert source.read().splitlines()[int(line) - 1].strip() == code
    assert [handle.completion().error for handle in others] == [caught.value] * 2
    assert engine.now == pytest.approx(arrival + 3)


class NoGenerator(Wrong):
    def run(self) -> Any:
        return None


class Returns(Wrong):
    def run(self) -> Any:
        order = yield self.inbox.get()
        self.answer(order)


class RaisesInReceive(Wrong):
    def receive(self, message: object, transfer: object) -> None:
        raise RuntimeError("not today")


class RaisesInTime(MCpu):
    def handling_ns(self, message: object) -> float:
        return 1 / 0


class RaisesInHandle(MCpu):
    def handle(self, message: object) -> None:
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (NoGenerator, "run() of my_cpus.My_m_cpu is no generator: it has to yield the events it waits for"),
        (Returns, "the CubeOrder of request 1 arrived after run() had ended: take messages in an endless loop"),
        (RaisesInReceive, "RuntimeError: not today"),
        (RaisesInTime, "ZeroDivisionError: division by zero"),
        (RaisesInHandle, "RuntimeError: not today"),
    ],
)
def test_whatever_is_called_of_it(engine_with: Callable[..., GraphEngine], cls: type, said: str) -> None:
    engine = engine_with(m_cpu=cls)
    with pytest.raises(PartError, match=r"^sip0\.cube0\.m_cpu \(my_cpus\.My_m_cpu\) failed at ") as caught:
        fills_ns(engine, 2)
    assert said in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


class Silent(Wrong):
    """It takes orders and answers none."""

    def err(self, order: Any) -> Iterator[Any]:
        yield self.wait_ns(1)


def test_a_part_that_never_answers_is_named(engine_with: Callable[..., GraphEngine]) -> None:
    engine = engine_with(m_cpu=Silent)
    wanted = r"no queue is involved: sip0\.cube0\.m_cpu: has not answered the CubeOrder of request 0 from sip0\.io_cpu"
    with pytest.raises(SimulationDeadlock, match=wanted):
        engine.wait(fill(engine))


@pytest.mark.parametrize("pe", [(2, 0, 0), (0, 2, 0), (1, 1, 2)])
def test_a_request_for_nobody_is_refused_where_it_is_submitted(
    engine_with: Callable[..., GraphEngine], pe: tuple[int, int, int]
) -> None:
    engine = engine_with()
    kernel = KernelRef(name="nothing", function=nothing)
    with pytest.raises(
        UnsupportedError, match=rf"targets sip{pe[0]}\.cube{pe[1]}\.pe{pe[2]}: there are 2 SIPs of 2 cubes of 2"
    ):
        engine.submit(KernelLaunchMsg(name="nowhere", kernel=kernel, args=(), targets=((0, 0, 0), pe)))
    assert engine.now == 0


class RefusesAtOnce(Host):
    """A host of the user's that fails where a request is submitted."""

    def accept(self, msg: Any, done: Any) -> None:
        raise RuntimeError("closed")


def test_a_request_is_checked_where_it_is_submitted(engine_with: Callable[..., GraphEngine]) -> None:
    engine = engine_with(host=RefusesAtOnce)
    with pytest.raises(PartError, match=r"^host \(my_cpus\.My_host\) failed at 0 ns: RuntimeError: closed \(at .*py:"):
        fill(engine)
    assert engine.handles[0].done


# --- after it ---------------------------------------------------------------------------------------------------------


class FailsOnce(MCpu):
    """The fifth message is too much for it, in all its life."""

    seen = 0

    def handle(self, message: object) -> None:
        type(self).seen += 1
        if type(self).seen == 5:
            raise RuntimeError("too much")
        super().handle(message)


def copies_and_products(engine: GraphEngine) -> object:
    with RuntimeContext(engine) as torch:
        host_copies(torch)
        return products(torch, "f32")


def test_the_machine_can_be_used_after_a_part_has_failed(engine_with: Callable[..., GraphEngine]) -> None:
    FailsOnce.seen = 0
    engine = engine_with(m_cpu=FailsOnce)
    with pytest.raises(PartError, match="too much"):
        copies_and_products(engine)
    fresh = engine_with(m_cpu=FailsOnce)
    begin = engine.now
    assert copies_and_products(engine) == copies_and_products(fresh)
    assert engine.now - begin == pytest.approx(fresh.now)


def receives(*, tl: Any) -> None:
    """It waits for what another launch sends."""
    tl.recv("W", (4,), "f32")


def sends(*, tl: Any) -> None:
    tl.send("E", tl.zeros((4,), "f32"))


def never_ends(*, tl: Any) -> None:
    tl.recv("E", (4,), "f32")


def launch(engine: GraphEngine, kernel: Callable[..., object], pe: int) -> Any:
    ref = KernelRef(name=kernel.__name__, function=kernel)
    return engine.submit(KernelLaunchMsg(name=ref.name, kernel=ref, args=(), targets=((0, 0, pe),)))


def test_what_was_not_given_up_is_still_answered(engine_with: Callable[..., GraphEngine]) -> None:
    engine = engine_with()
    with RuntimeContext(engine) as torch:
        torch.install_ipcq("ring_allreduce_tcm", world_size_override=4)
        waiting, given_up = launch(engine, receives, 1), launch(engine, never_ends, 0)
        engine.run_until(engine.now + 2000)
        engine.abandon([given_up])
        assert not waiting.done
        launch(engine, sends, 0)
        assert engine.wait(waiting).ok


class Forgets(MCpu):
    """It counts from where ``run`` begins."""

    def run(self) -> Any:
        self.counted = 0
        self.drawn = self.random.random()
        yield from super().run()

    def handle(self, message: object) -> None:
        self.counted += 1
        super().handle(message)


def test_run_begins_anew_when_the_machine_is_cleared(engine_with: Callable[..., GraphEngine]) -> None:
    engine = engine_with(m_cpu=Forgets)
    engine.wait(fill(engine))
    part = engine.component("sip0.cube0.m_cpu")
    assert isinstance(part, Forgets)
    counted, drawn = part.counted, part.drawn
    engine.abandon([fill(engine, 1)])
    engine.drain()
    assert (counted, part.counted) == (1, 0)
    assert part.drawn == drawn
    engine.wait(fill(engine, 2))
    assert part.counted == 1


class TicksSlowly(Wrong):
    def err(self, order: Any) -> Iterator[Any]:
        while True:
            yield self.wait_ns(1)


def test_a_run_that_is_stopped_names_the_part_that_never_rests(engine_with: Callable[..., GraphEngine]) -> None:
    """Once for 3 ns when the order has come, then for each of the ns from there to the limit, which is included."""
    arrival = _handled_ns(engine_with()) - 5
    engine = engine_with(m_cpu=TicksSlowly, limits=Limits(sim_ns=arrival + 5000))
    with pytest.raises(LimitReached) as caught:
        engine.wait(fill(engine))
    wanted = "events; sip0.cube0.m_cpu (my_cpus.My_m_cpu) has waited 4,999 times since its last message"
    assert str(caught.value).endswith(wanted)


class NegativeTiles(PeGemm):
    def tile_ps(self, element: Any) -> int:
        return -5


def test_an_error_of_nobodys_code_says_which_parts_are_users(engine_with: Callable[..., GraphEngine]) -> None:
    with pytest.raises(KernbenchError, match="times that parts give are whole ps and not negative") as caught:
        copies_and_products(engine_with(pe_gemm=NegativeTiles))
    assert [*notes_of(caught.value)] == ["users' parts in this machine: my_cpus.My_pe_gemm (pe_gemm)"]


class Unmade(MCpu):
    def __init__(self, node: Any, machine: Any) -> None:
        raise RuntimeError("not made")


def test_a_part_that_cannot_be_made_is_named(engine_with: Callable[..., GraphEngine]) -> None:
    with pytest.raises(RuntimeError, match="not made") as caught:
        fills_ns(engine_with(m_cpu=Unmade), 1)
    assert "in sip0.cube0.m_cpu, which is my_cpus.My_m_cpu" in notes_of(caught.value)


class Staggered(MCpu):
    """It orders PEs one after another, 2 ns apart."""

    def run(self) -> Any:
        while True:
            message = yield self.inbox.get()
            yield self.wait_ns(self.overhead_ns)
            if not isinstance(message, CubeOrder) or not message.pes:
                self.handle(message)
                continue
            self.gather(message, len(message.pes))
            for pe in message.pes:
                order = PeOrder(
                    request_id=message.request_id,
                    order=message.order,
                    start_ps=message.start_ps,
                    mates=message.pes,
                    start_row=message.start_row,
                )
                self.tell(f"{self.node.id.removesuffix('m_cpu')}pe{pe}.pe_cpu", order)
                yield self.wait_ns(2)


@pytest.mark.parametrize("cls", [CoffeeByLoop, CoffeeByTime, Interrupted, TwoHands, Staggered])
def test_what_users_cpus_do_has_a_cause(engine_with: Callable[..., GraphEngine], cls: type) -> None:
    engine = engine_with(m_cpu=cls)
    copies_and_products(engine)
    assert check_causes(engine.machine)[By.ORDER] > 20


@pytest.mark.parametrize("explain", [(), ("--explain",)])
def test_the_command_line_says_so(
    engine_with: Callable[..., GraphEngine], explain: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    engine_with(m_cpu=Raises)  # the module is there
    impl = "cube.components.m_cpu.impl=my_cpus.My_m_cpu"
    assert main(["run", "--bench", "hello-send", "--set", impl, *explain]) == 1
    err = capsys.readouterr().err
    assert "error: sip0.cube0.m_cpu (my_cpus.My_m_cpu) failed at " in err
    assert "Traceback" not in err


def test_a_part_without_run_says_so(engine_with: Callable[..., GraphEngine]) -> None:
    engine = engine_with(m_cpu=type("Empty", (ThinkingPart,), {"Attrs": MCpuAttrs, "handles_serially": True}))
    with pytest.raises((PartError, NotImplementedError, UnsupportedError), match=r"has no run\(\)"):
        engine.wait(fill(engine))
