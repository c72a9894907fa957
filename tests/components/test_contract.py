"""What every registered component owes the machine, whatever its kind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compiled import compiled
from kernbench.common.errors import UnsupportedError
from kernbench.di.registry import REGISTRY
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Component, Machine, Outcome
from kernbench.messages.requests import HostMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr

TOPOLOGY = compiled()
NODES = TOPOLOGY.topology_obj.nodes
SAMPLES = [next(n for n in NODES.values() if n.kind == kind) for kind in dict.fromkeys(n.kind for n in NODES.values())]


class Nonsense:
    """A message that no part understands."""


def unused(outcome: Outcome) -> None:
    raise AssertionError("a request that nobody serves cannot be over")


@pytest.fixture
def machine() -> Machine:
    return Machine(TOPOLOGY.topology_obj)


def test_every_kind_of_the_machine_is_sampled() -> None:
    assert {node.kind for node in SAMPLES} == set(REGISTRY.known_kinds())


def test_every_builtin_is_used_by_the_default_machine() -> None:
    builtin = {impl for impl in REGISTRY.known_impls() if impl.startswith("builtin.")}
    assert builtin == {node.impl for node in SAMPLES}


@pytest.mark.parametrize("node", SAMPLES, ids=lambda node: node.kind)
class TestContract:
    def test_is_made_once_and_knows_its_node(self, node, machine: Machine) -> None:
        part = machine.component(node.id)
        assert machine.component(node.id) is part
        assert isinstance(part, Component)
        assert part.node is node

    def test_overhead_is_what_the_yaml_says(self, node, machine: Machine) -> None:
        part = machine.component(node.id)
        assert part.overhead_ns == node.overhead_ns
        assert part.overhead_ps == round(1000 * node.overhead_ns)

    def test_refuses_what_it_does_not_understand(self, node, machine: Machine) -> None:
        part = machine.component(node.id)
        src = "sip0.cube0.r0_0" if node.kind != "noc_router" else "sip0.cube0.xbar_NW"
        transfer = machine.network.make(machine.network.port(src), machine.route("host", "sip0.io_cpu"), 1)

        def handled() -> None:
            part.receive(Nonsense(), transfer)
            machine.clock.advance()  # CPUs look at a message when its turn comes

        with pytest.raises(UnsupportedError, match=node.id):
            handled()
        with pytest.raises(UnsupportedError, match=node.id):
            part.accept(HostMsg(), unused)

    def test_waits_for_nothing_when_nothing_happens(self, node, machine: Machine) -> None:
        assert machine.component(node.id).blocked() == ()


# --- a user's own component -------------------------------------------------------------------------------------------

SLOW_ROUTER = '''
from kernbench.components.passive import NocRouter

class SlowRouterAttrs(NocRouter.Attrs):
    factor: float = 3.0

class SlowRouter(NocRouter):
    """A router that takes several times as long."""
    Attrs = SlowRouterAttrs

    @property
    def overhead_ns(self) -> float:
        return self.attrs_as(SlowRouterAttrs).factor * super().overhead_ns
'''


def far_read_ns(*overrides: str) -> tuple[float, int]:
    """Latency of a read across a cube, and the routers on the way there."""
    engine = GraphEngine(compiled(*overrides))
    pa = PhysAddr.pe_hbm_addr(0, 0, 0, 7, 0, 6 << 30).encode()
    done = engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=4096)))
    way = engine.machine.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm7").links
    return done.t_end, sum(engine.topology.topology_obj.nodes[link.dst].kind == "noc_router" for link in way)


def test_a_router_of_the_users_own_changes_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_routers.py").write_text(SLOW_ROUTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_routers", raising=False)
    impl = "cube.components.noc_router.impl=my_routers.SlowRouter"
    usual, routers = far_read_ns()
    slow, _ = far_read_ns(impl)
    slower, _ = far_read_ns(impl, "cube.components.noc_router.attrs.factor=10")
    assert slow - usual == pytest.approx(2 * routers * 2)  # there and back, 2 ns more each
    assert slower - usual == pytest.approx(2 * routers * 9)
