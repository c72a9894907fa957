"""What a part defines is called at its place, or refused when the machine is wired."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from functools import partial, partialmethod
from inspect import getattr_static
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from one_program import ALL_REDUCE, SMALL, host_copies, products, queues, traffic

from kernbench.cli.main import main
from kernbench.common.errors import InputError, IpcqDeadlock, KernbenchError, UnsupportedError, notes_of
from kernbench.components.passive import NocRouter
from kernbench.components.pe_cpu import SerialCpu
from kernbench.components.pe_gemm import PeGemm
from kernbench.components.pe_math import PeMath
from kernbench.components.pe_tcm import PeTcm
from kernbench.di.part import CALLED, COMPONENT_CALLS, KINDS, OTHER_CALLS, called_at
from kernbench.di.registry import REGISTRY, Registry
from kernbench.engine import engine as engine_module
from kernbench.engine import part_check
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Component
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology, resolve_topology

pytestmark = pytest.mark.filterwarnings("ignore:all_reduce. the configured")

PLACES = {
    "host": "system",
    "switch": "system",
    **dict.fromkeys(("pcie_ep", "io_cpu", "io_noc", "sip_port"), "sip"),
    **dict.fromkeys(("noc_router", "xbar", "hbm_ctrl", "ucie", "m_cpu", "sram"), "cube"),
    **dict.fromkeys([kind for kind in KINDS if kind.startswith("pe_")], "pe"),
}
"""The section of each kind; ``ucie`` is also in ``sip``."""


SECTIONS = dict(resolve_topology("default").spec)


def builtin(kind: str) -> type[Component]:
    spec = dict(SECTIONS[PLACES[kind]].components)[kind]
    found = REGISTRY.lookup(spec.impl)
    assert issubclass(found, Component)
    return found


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, that YAML can name."""
    module = ModuleType("my_parts")
    monkeypatch.setitem(sys.modules, "my_parts", module)
    return module


def machine_with(mine: ModuleType, **classes: type) -> Topology:
    """The small machine with classes of the user's at these places."""
    for kind, cls in classes.items():
        setattr(mine, f"My_{kind}", cls)
    impls = [f"{PLACES[kind]}.components.{kind}.impl=my_parts.My_{kind}" for kind in classes]
    return resolve_topology("default", [*SMALL, *impls])


# --- what the table says is what happens ------------------------------------------------------------------------------


def counting(kind: str, calls: dict[str, set[str]]) -> type[Component]:
    """The builtin class of a kind, noting which of its methods and properties are asked for."""
    base = builtin(kind)

    def noting(name: str, inherited: Any) -> Any:
        def noted(self: Component, *args: Any) -> Any:
            calls[kind].add(name)
            return inherited.fget(self) if isinstance(inherited, property) else inherited(self, *args)

        return property(noted) if isinstance(inherited, property) else noted

    names = (COMPONENT_CALLS | OTHER_CALLS) & set(dir(base))
    usual = {name: getattr_static(base, name) for name in sorted(names)}
    if "serve" in usual:  # a builtin memory is not asked
        usual["serve"] = lambda self, access: 30.0
    return type(f"Counting_{kind}", (base,), {name: noting(name, each) for name, each in usual.items()})


def never_comes(t_ptr: int, *, tl: Any) -> None:
    """Waits for a message that nobody sends."""
    tl.recv("E", 16, "f32")


def by_blocks(torch: RuntimeContext[Any]) -> None:
    """A product by blocks."""
    x, y = torch.ones(64, 64, dtype="f32"), torch.empty(64, 64, dtype="f32")
    torch.launch("product", "gemm_composite", x, x, y, 64, 64, 64, "f32", "blocked")


def launch_what_never_ends(engine: GraphEngine) -> None:
    with RuntimeContext(engine) as torch:
        torch.install_ipcq("ring_allreduce_tcm")
        torch.launch("never", never_comes, torch.zeros(4))


def test_places_call_what_the_table_says(mine: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "check_parts", lambda nodes: None)
    calls: dict[str, set[str]] = defaultdict(set)
    engine = GraphEngine(machine_with(mine, **{kind: counting(kind, calls) for kind in PLACES}))
    with RuntimeContext(engine) as torch:
        for step in (host_copies, partial(products, dtype="f32"), by_blocks, queues, traffic, *ALL_REDUCE):
            step(torch)
    with pytest.raises(IpcqDeadlock):  # it gives up what is under way
        launch_what_never_ends(engine)
    assert set(PLACES) == set(CALLED) == set(KINDS)
    assert {kind: tuple(sorted(calls[kind])) for kind in PLACES} == {kind: called_at(kind) for kind in PLACES}


# --- what nothing calls -----------------------------------------------------------------------------------------------


class Receiving(NocRouter):
    def receive(self, message: object, transfer: object) -> None:
        """Nobody delivers anything to a router."""


class Running(NocRouter):
    def run(self) -> Any:
        while True:
            yield self.clock.timeout(5)


class StartsItself(NocRouter):
    def __init__(self, node: Any, machine: Any) -> None:
        super().__init__(node, machine)
        self.clock.process(self.run())

    def run(self) -> Any:
        yield self.clock.timeout(5)


class OtherName(NocRouter):
    def drain(self) -> Any:
        yield self.clock.timeout(5)


class Deciding(NocRouter):
    def forward(self, transfer: object, ways: Any) -> Any:
        return ways[0]


class OtherAsync(NocRouter):
    async def drain(self) -> Any:
        yield 5


class OtherPartial(NocRouter):
    def _draining(self, ns: float) -> Any:
        yield ns

    drain = partialmethod(_draining, 5.0)


class Mixin:
    process = None


class Mixed(Mixin, NocRouter):
    """It gets the name from elsewhere."""


class Serial(SerialCpu):
    """A CPU's way to take messages, where none come."""


class Serving(NocRouter):
    def serve(self, access: object) -> float:
        """A router is no memory."""
        return 5.0


class ChoosingByItself(Component):
    """It is asked by the builtin class of a router only."""

    def forward(self, transfer: object, ways: Any) -> Any:
        return ways[0]


def accepting(kind: str) -> type[Component]:
    return type("Accepting", (builtin(kind),), {"accept": lambda self, msg, done: None})


def with_overhead(kind: str) -> type[Component]:
    return type("Overhead", (builtin(kind),), {"overhead_ns": property(lambda self: 5.0)})


IN_TRANSIT = ("switch", "pcie_ep", "io_noc", "ucie", "sip_port", "noc_router", "xbar")
ENGINES = ("pe_scheduler", "pe_fetch_store", "pe_gemm", "pe_math", "pe_tcm", "pe_mmu")
REFUSED = [
    ("noc_router", Serving, "serve"),
    ("noc_router", type("Misnamed", (NocRouter,), {"hold": lambda self, transfer: 5.0}), "hold"),
    ("noc_router", Receiving, "receive"),
    ("io_noc", Receiving, "receive"),
    ("noc_router", Running, "run"),
    ("noc_router", StartsItself, "run"),
    ("noc_router", OtherName, "drain"),
    ("noc_router", OtherAsync, "drain"),
    ("noc_router", OtherPartial, "drain"),
    ("hbm_ctrl", type("Choosing", (builtin("hbm_ctrl"),), {"forward": Deciding.forward}), "forward"),
    ("m_cpu", type("Holding", (builtin("m_cpu"),), {"hold_ns": lambda self, transfer: 0.0}), "hold_ns"),
    *((kind, type("InTurn", (builtin(kind),), {"handles_serially": True}), "handles_serially") for kind in IN_TRANSIT),
    ("xbar", type("Plain", (Component,), {"receive": None}), "receive"),
    ("noc_router", Mixed, "process"),
    ("switch", Serial, "receive"),
    ("noc_router", type("Ps", (NocRouter,), {"overhead_ps": property(lambda self: 5)}), "overhead_ps"),
    ("pe_math", type("Run", (PeMath,), {"run": lambda self: None}), "run"),
    ("pe_gemm", type("Submit", (PeGemm,), {"submit": lambda self, op: None}), "submit"),
    ("pe_tcm", type("Write", (PeTcm,), {"write": lambda self, message, transfer: None}), "write"),
    ("hbm_ctrl", type("Time", (builtin("hbm_ctrl"),), {"time_ps": lambda self, access: 1}), "time_ps"),
    *((kind, accepting(kind), "accept") for kind in PLACES if kind not in {"host", "pe_dma"}),
    *((kind, with_overhead(kind), "overhead_ns") for kind in ENGINES),
]


@pytest.mark.parametrize(("kind", "cls", "name"), REFUSED)
def test_what_nothing_calls_is_refused(mine: ModuleType, kind: str, cls: type, name: str) -> None:
    topology = machine_with(mine, **{kind: cls})
    with pytest.raises(InputError) as caught:
        GraphEngine(topology)
    wanted = f"({kind}): nothing calls {name} of my_parts.My_{kind} at this place; called here: "
    assert f"{wanted}{', '.join(called_at(kind))}" in str(caught.value)


def test_what_only_the_builtin_class_calls_needs_that(mine: ModuleType) -> None:
    topology = machine_with(mine, noc_router=ChoosingByItself)
    said = (
        r"nothing calls forward of my_parts\.My_noc_router: derive it from the builtin class of noc_router, which does"
    )
    with pytest.raises(InputError, match=said):
        GraphEngine(topology)


@pytest.mark.parametrize("kind", ["m_cpu", "sram"])
def test_a_process_that_nobody_starts_is_refused(mine: ModuleType, kind: str) -> None:
    cls = type("Runs", (Component,), {"Attrs": builtin(kind).Attrs, "run": Running.run})
    with pytest.raises(
        InputError, match=rf"\({kind}\): nothing starts run of my_parts\.My_{kind}: derive it from .*Think"
    ):
        GraphEngine(machine_with(mine, **{kind: cls}))


def test_all_of_a_machine_is_refused_at_once(mine: ModuleType) -> None:
    topology = machine_with(mine, noc_router=Receiving, pe_math=accepting("pe_math"))
    with pytest.raises(InputError) as caught:
        GraphEngine(topology)
    assert [line.split(" ")[0] for line in str(caught.value).split("\n")] == [
        "sip0.cube0.r0_0",
        "sip0.cube0.pe0.pe_math",
    ]


def test_a_registered_class_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    for name in REGISTRY.known_impls():
        found = REGISTRY.lookup(name)
        registry.register(name, kind=REGISTRY.kinds_of(found))(found)
    registry.register("mine.router", kind="noc_router")(Receiving)
    monkeypatch.setattr(part_check, "REGISTRY", registry)
    topology = resolve_topology("default", [*SMALL, "cube.components.noc_router.impl=mine.router"], registry)
    with pytest.raises(InputError, match=r"nothing calls receive of mine\.router"):
        GraphEngine(topology)


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_the_command_line_says_so(
    mine: ModuleType, as_json: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    vars(mine)["Router"] = Receiving
    impl = "cube.components.noc_router.impl=my_parts.Router"
    small = [part for text in (*SMALL, impl) for part in ("--set", text)]
    # The probe case never passes a router.
    assert main(["probe", "--case", "pe-local-hbm", *small, *as_json]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing calls receive of my_parts.Router" in err
    assert "Traceback" not in err


# --- what cannot be made, or says no time -----------------------------------------------------------------------------


@dataclass
class Fields(NocRouter):
    """Its fields are the arguments of ``__init__``."""

    extra_ns: float = 5.0


class Unfinished(NocRouter, ABC):
    @abstractmethod
    def arbitrate(self) -> None:
        """A base for others."""


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (
            Fields,
            r"my_parts\.My_noc_router is made by My_noc_router\(node, machine\), but .* \(extra_ns: 'float' = 5\.0\)",
        ),
        (Unfinished, "my_parts.My_noc_router is abstract: it has to define arbitrate"),
    ],
)
def test_a_class_that_cannot_be_made_is_refused(mine: ModuleType, cls: type, said: str) -> None:
    topology = machine_with(mine, noc_router=cls)
    with pytest.raises(InputError, match=rf"sip0\.cube0\.r0_0 \(noc_router\): {said}"):
        GraphEngine(topology)


def nanoseconds(self: Component) -> float:
    """A method, where a property is asked for."""
    return 5.0


@pytest.mark.parametrize("kind", ["m_cpu", "pe_ipcq"])
def test_an_overhead_of_a_cpu_is_looked_at_too(mine: ModuleType, kind: str) -> None:
    machine = GraphEngine(machine_with(mine, **{kind: type("Odd", (builtin(kind),), {"overhead_ns": -5.0})})).machine
    node = next(node.id for node in machine.graph.nodes.values() if node.kind == kind)
    with pytest.raises(UnsupportedError, match=rf"{node}: overhead_ns of my_parts\.My_{kind} is -5\.0, must be"):
        machine.component(node)


@pytest.mark.parametrize("value", ["5 ns", None, -5.0, math.nan, math.inf, nanoseconds])
def test_an_overhead_that_is_no_time_names_its_part(mine: ModuleType, value: object) -> None:
    cls = type("Odd", (NocRouter,), {"overhead_ns": value})
    machine = GraphEngine(machine_with(mine, noc_router=cls)).machine
    with pytest.raises(
        UnsupportedError, match=r"cube0\.r1_0: overhead_ns of my_parts\.My_noc_router is .* number of ns"
    ):
        machine.route("sip0.cube0.r0_0", "sip0.cube0.r1_0")


def sets_overhead(self: Component, node: Any, machine: Any) -> None:
    """Not how it is done: ``overhead_ns`` is a property."""
    Component.__init__(self, node, machine)
    self.overhead_ns = 5.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "own",
    [{"__init__": sets_overhead}, {"__init__": lambda self, *of: None}, {"overhead_ns": property(lambda self: 1 / 0)}],
)
def test_what_the_code_of_a_part_fails_with_says_which_it_was(mine: ModuleType, own: dict[str, Any]) -> None:
    machine = GraphEngine(machine_with(mine, noc_router=type("Odd", (NocRouter,), own))).machine
    with pytest.raises((AttributeError, ZeroDivisionError)) as caught:
        machine.route("sip0.cube0.r0_0", "sip0.cube0.r1_0")
    assert [*notes_of(caught.value)] == ["in sip0.cube0.r1_0, which is my_parts.My_noc_router"]


@pytest.mark.parametrize(
    ("base", "own", "said"),
    [
        (PeGemm, {"tile_ps": lambda self, element: -1}, "times that parts give are whole ps and not negative"),
        (PeGemm, {"tile_ps": lambda self, element: 7.5}, "times that parts give are whole ps and not negative"),
        (Component, {}, r"derive it from kernbench\.components\.pe_gemm\.PeGemm"),
    ],
)
def test_an_engine_that_is_none(mine: ModuleType, base: type, own: dict[str, Any], said: str) -> None:
    topology = machine_with(mine, pe_gemm=type("Odd", (base,), own))
    with pytest.raises(KernbenchError, match=said), RuntimeContext(GraphEngine(topology)) as torch:
        products(torch, "f32")


def test_an_overhead_may_be_a_plain_number(mine: ModuleType) -> None:
    engine = GraphEngine(machine_with(mine, noc_router=type("Plain", (NocRouter,), {"overhead_ns": np.float32(7.5)})))
    ends = "sip0.cube0.r0_0", "sip0.cube0.r1_0"
    engine.machine.route(*ends)
    wire_ns = engine.machine.graph.edge(*ends).length_mm * engine.machine.spec.ns_per_mm
    assert engine.machine.network.links[ends].overhead_ps == round(1000 * (7.5 + wire_ns))


# --- what is fine -----------------------------------------------------------------------------------------------------


class Helping(NocRouter):
    """What it adds for itself is nobody's business."""

    limit = 3

    @property
    def overhead_ns(self) -> float:
        return super().overhead_ns + sum(self.delays()) + self._more()

    def delays(self) -> Any:
        yield from range(self.limit)

    def _more(self) -> int:
        return len(list(self._hidden()))

    def _hidden(self) -> Any:
        yield 1

    def blocked(self) -> tuple[str, ...]:
        return ("a remark",)

    def statistics(self) -> dict[str, int]:
        return {}


class OwnTime(Component):
    def receive(self, message: object, transfer: object) -> None:
        raise AssertionError(self.time_ps(3))

    def time_ps(self, nbytes: int) -> int:
        """A helper of its own, whatever others call so."""
        return nbytes


class Counted(builtin("pe_dma")):  # type: ignore[misc]
    """Takes note of the queue messages for its TCM."""

    written = 0

    def write(self, message: Any, transfer: Any) -> None:
        type(self).written += 1
        super().write(message, transfer)


def test_helpers_are_welcome(mine: ModuleType) -> None:
    engine = GraphEngine(machine_with(mine, noc_router=Helping, hbm_ctrl=OwnTime))
    assert engine.component("sip0.cube0.r0_0").overhead_ns == 1 + 0 + 1 + 2 + 1


def test_a_dma_sees_the_messages_for_its_tcm(mine: ModuleType) -> None:
    with RuntimeContext(GraphEngine(machine_with(mine, pe_dma=Counted))) as torch:
        ALL_REDUCE[0](torch)
    assert Counted.written > 0
