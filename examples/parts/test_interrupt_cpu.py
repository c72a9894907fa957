"""Orders and interrupts come to an M_CPU at given times: an order takes 100 ns here, an interrupt 10."""

import pytest
from interrupt_cpu import InterruptCpu

from kernbench.core.log import ROOT
from kernbench.messages.control import BarrierArrival, CubeOrder, MapOrder
from kernbench.messages.requests import TensorMapping
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology

CPU = "sip0.cube0.m_cpu"
OVERRIDES = (
    "cube.components.m_cpu.impl=interrupt_cpu.InterruptCpu",
    "cube.components.m_cpu.attrs={overhead_ns: 100, interrupt_ns: 10}",
)
ORDER = MapOrder(TensorMapping(name="t", va_base=1 << 32, nbytes=64, shards=()))


@pytest.fixture
def acted(monkeypatch):
    """The messages that the CPU has acted on: number and time in ns."""
    found = {}
    monkeypatch.setattr(
        InterruptCpu, "handle", lambda self, message: found.__setitem__(message.request_id, self.now_ns)
    )
    return found


def acts_at(acted, orders_ns, interrupts_ns):
    """When the CPU acts on what comes to it at these times: orders, then interrupts."""
    engine = GraphEngine(resolve_topology("default", OVERRIDES))
    machine = engine.machine

    def arrives(at_ns, src, message):
        begin_ps = round(at_ns * 1000) - machine.route(src, CPU).latency_ps(machine.header_bytes)
        machine.clock.call_at(begin_ps, lambda _: machine.send_control(src, CPU, message, ROOT))

    for number, at_ns in enumerate(orders_ns):
        arrives(at_ns, "sip0.io_cpu", CubeOrder(request_id=number, order=ORDER, pes=(0,), start_ps=0))
    for number, at_ns in enumerate(interrupts_ns, start=len(orders_ns)):
        arrives(at_ns, f"sip0.cube0.pe{number}.pe_cpu", BarrierArrival(request_id=number, pe=number, mates=(0, 1)))
    engine.run_until(2000)
    return [acted[number] for number in sorted(acted)]


def test_orders_take_turns(acted):
    assert acts_at(acted, (1000, 1010), ()) == [1100, 1200]


def test_an_interrupt_stops_an_order(acted):
    # 40 of 100 ns are done at 1040; two interrupts until 1060; 60 ns are left. The second order follows.
    assert acts_at(acted, (1000, 1010), (1040, 1045)) == [1120, 1220, 1050, 1060]


def test_an_interrupt_does_not_stop_an_interrupt(acted):
    assert acts_at(acted, (), (1000, 1003)) == [1010, 1020]
