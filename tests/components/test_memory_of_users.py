"""Memories of users: what ``serve`` says, on a whole machine; times are summed by hand in comments."""

from __future__ import annotations

from typing import Any

import pytest
import simpy

from engine_support import hbm, two_cubes
from kernbench.common.errors import InputError, PartError, SimulationDeadlock
from kernbench.components.hbm_ctrl import HbmCtrl
from kernbench.components.memory import Memory, MemoryAccess
from kernbench.components.sram import Sram
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Component
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.bench_registry import known_benches
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.topology.builder import Topology

# To the slice of its corner and back it is 2 ns each way for the xbar, after 2 ns of DMA set-up; a header of 32 bytes
# takes 0.125 ns at 256 GB/s, and 4 KiB take 16 ns. Wires take no time here.
AROUND_NS = 2 + 2 + 0.125 + 16 + 2


class Forty(HbmCtrl):
    def serve(self, access: MemoryAccess) -> float:
        return 40


class FromScratch(Memory):
    def serve(self, access: MemoryAccess) -> float:
        return 40.0


class Waiting(HbmCtrl):
    def serve(self, access: MemoryAccess) -> Any:
        yield self.wait_ns(10)
        yield self.process(self._refresh())

    def _refresh(self) -> Any:
        yield self.wait_ns(30)


class OneAtATime(HbmCtrl):
    def __init__(self, node: Any, machine: Any) -> None:
        super().__init__(node, machine)
        self.array = simpy.Resource(self.env)

    def serve(self, access: MemoryAccess) -> Any:
        with self.array.request() as turn:
            yield turn
            yield self.wait_ns(40)


class ByRun(HbmCtrl):
    """A part that thinks, in the place of a memory."""

    def run(self) -> Any:
        while True:
            request = yield self.inbox.get()
            yield self.wait_ns(40)
            self.answer(request)


def with_memory(cls: type, kind: str = "hbm_ctrl") -> Topology:
    return two_cubes("ns_per_mm=0", f"cube.components.{kind}.impl={__name__}.{cls.__name__}")


def traffic(cls: type, op: str, *pes: int) -> list[float]:
    """When PEs of a corner have read or written 4 KiB of their slice each, all from time 0 on, in ns."""
    engine = GraphEngine(with_memory(cls), enable_data=False)
    messages = [PeDmaMsg(pe=(0, 0, pe), pa=hbm(0, 0, 0, pe * 4096), nbytes=4096, op=op) for pe in pes]  # type: ignore[arg-type]
    return [engine.wait(handle).t_end for handle in [engine.submit(each) for each in messages]]


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("cls", [Forty, FromScratch, Waiting, OneAtATime, ByRun])
def test_an_access_alone(cls: type, op: str) -> None:
    assert traffic(cls, op, 0) == [AROUND_NS + 40]


@pytest.mark.parametrize(
    ("cls", "second_ns"),
    [
        (Forty, 16),  # at once; the answers leave one after another
        (OneAtATime, 40),
        (ByRun, 40),
    ],
)
def test_two_reads_at_once(cls: type, second_ns: float) -> None:
    assert traffic(cls, "read", 0, 1) == [AROUND_NS + 40, AROUND_NS + 40 + second_ns]


class Noting(Sram):
    asked: list[tuple[float, MemoryAccess]]

    def serve(self, access: MemoryAccess) -> float:
        self.asked.append((self.now_ns, access))
        return 0


def test_what_it_is_asked() -> None:
    Noting.asked = []
    engine = GraphEngine(with_memory(Noting, "sram"), enable_data=False)
    pa = PhysAddr.cube_sram_addr(0, 0, 0, 512).encode()
    for op in ("read", "write"):
        engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=4096, op=op)))  # type: ignore[arg-type]
    (read_ns, read), (written_ns, write) = Noting.asked
    assert read == MemoryAccess(pa=pa, rows=1, row_bytes=4096, stride=0, write=False, requester="sip0.cube0.pe0.pe_dma")
    assert (write.write, write.nbytes, write.pa) == (True, 4096, pa)
    sram = engine.machine.route("sip0.cube0.pe0.pe_dma", "sip0.cube0.sram")
    back = engine.machine.route("sip0.cube0.sram", "sip0.cube0.pe0.pe_dma")
    # A read's request has come, a write's last byte has.
    assert 1000 * read_ns == 2000 + sram.latency_ps(32)
    assert 1000 * (written_ns - read_ns) == back.latency_ps(4096) + 2000 + sram.latency_ps(4096)


class Late(Sram):
    def serve(self, access: MemoryAccess) -> float:
        return 300


def test_rings_of_queues_and_numbers() -> None:
    """Messages of queues are committed by it, and kernels read what they should."""
    usual, late = (
        run_bench(
            topology=two_cubes(*overrides),
            bench_fn=next(bench for bench in known_benches() if bench.name == "ipcq-allreduce"),
            params=("bench.algorithm=ring_allreduce_sram", "bench.n_elem=64"),
        )
        for overrides in ((), (f"cube.components.sram.impl={__name__}.Late",))
    )
    assert usual.ok
    assert late.ok
    # Every rank of a ring of 8 passes a tile on 7 times: it is written to an SRAM each time, and read from there.
    assert late.sim_ns - usual.sim_ns > 7 * 2 * 250


# --- what can be wrong ------------------------------------------------------------------------------------------------


class Nothing(Sram):
    def serve(self, access: MemoryAccess) -> Any:
        return None


class Negative(Sram):
    def serve(self, access: MemoryAccess) -> float:
        return -1


class Raising(Sram):
    def serve(self, access: MemoryAccess) -> float:
        return 1 / (access.nbytes - 4096)


class Number(Sram):
    def serve(self, access: MemoryAccess) -> Any:
        yield 5


class Both(Sram):
    def serve(self, access: MemoryAccess) -> Any:
        yield self.wait_ns(0)
        return 5


class Empty(Memory):
    """It has no serve."""


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (Nothing, "serve() is None, must be a number of ns, at least 0"),
        (Negative, "serve() is -1, must be a number of ns, at least 0"),
        (Raising, "ZeroDivisionError: "),
        (Number, "it yielded 5, which is no event to wait for"),
        (Both, "serve() yields and returns a value; a generator must wait for its duration"),
        (Empty, "NotImplementedError: Empty must define serve(access), the duration of an access"),
    ],
)
def test_what_is_wrong_names_part_time_and_line(cls: type, said: str) -> None:
    engine = GraphEngine(with_memory(cls, "sram"), enable_data=False)
    pa = PhysAddr.cube_sram_addr(0, 0, 0, 0).encode()
    with pytest.raises(PartError) as caught:
        engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=4096)))
    text = str(caught.value)
    assert text.startswith(f"sip0.cube0.sram ({__name__}.{cls.__name__}) failed at 11.125 ns: {said}")
    assert f"at {__file__}:" in text


class Forgetting(Sram):
    def serve(self, access: MemoryAccess) -> Any:
        yield self.env.event()


def test_one_that_never_answers_is_named() -> None:
    engine = GraphEngine(with_memory(Forgetting, "sram"), enable_data=False)
    handle = engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=PhysAddr.cube_sram_addr(0, 0, 0, 0).encode(), nbytes=64))
    with pytest.raises(SimulationDeadlock, match=r"sip0\.cube0\.sram: has not answered a ReadRequest from"):
        engine.wait(handle)


class NoMemory(Component):
    def serve(self, access: MemoryAccess) -> float:
        return 5


class Former(Sram):
    def time_ps(self, access: Any) -> int:
        return 5


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (NoMemory, "nothing calls serve of .*NoMemory: derive it from the builtin class of sram, which does"),
        (Former, "nothing calls time_ps of .*Former at this place; called here: .*serve"),
    ],
)
def test_what_nobody_would_ask_is_refused(cls: type, said: str) -> None:
    with pytest.raises(InputError, match=said):
        GraphEngine(with_memory(cls, "sram"))


def test_what_was_under_way_is_forgotten_and_it_serves_again() -> None:
    engine = GraphEngine(with_memory(OneAtATime), enable_data=False)
    message = PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, 0), nbytes=4096)
    engine.wait(engine.submit(message))
    for part in engine.machine.components:
        part.reset()
    start = engine.now
    assert engine.wait(engine.submit(message)).t_end - start == pytest.approx(AROUND_NS + 40)
