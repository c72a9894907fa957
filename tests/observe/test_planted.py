"""A bottleneck that was planted: the verdict names it, and advice has it first."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import pytest
import simpy

from interventions import Experiment, spread
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.common.data_policy import DataPolicy
from kernbench.components.hbm_ctrl import HbmCtrl
from kernbench.components.memory import MemoryAccess
from kernbench.evaluation.advice import advise_program
from kernbench.observe.verdict import VerdictKind
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import Bench, load_bench
from kernbench.runtime_api.prepared_run import PreparedRun
from kernbench.sim_engine.component import Machine
from kernbench.topology.builder import Topology
from kernbench.topology.graph import Node

ROWS = DPPolicy(pe="row_wise", num_cubes=1)
STREAMED = "bench.variant=ref_ref"


def small_commands(torch: Any) -> None:
    def small(x: int, *, tl: Any) -> None:
        for at in range(32):
            tl.store(x + 128 * at, tl.load(x + 128 * at, 64, "f16"))

    torch.launch("small", small, torch.zeros(2048, dtype="f16"))


def few_slots(torch: Any) -> None:
    """A ring with one slot: the sender waits for the credit of each message."""

    def push(x: int, n: int, *, tl: Any) -> None:
        for _ in range(8):
            if tl.program_id(0) == 0:
                tl.send("E", tl.load(x, n, "f16"))
            else:
                message = tl.recv("W", n, "f16")
                tl.store(x + n * 2, message)
                del message

    settings = {**resolve_algorithm_config(load_ccl_config(), "ring_allreduce_tcm"), "n_slots": 1}
    torch.install_ipcq(settings, world_size_override=2)
    x = torch.zeros(2, 1024, dtype="f16", dp=DPPolicy(pe="row_wise", num_cubes=1, num_pes=2))
    torch.launch("push", push, x, 1024)


def hot_slice(torch: Any) -> None:
    """All PEs of a cube read what lies in one slice."""

    def read(_: int, x: int, n: int, *, tl: Any) -> None:
        for at in range(8):
            tl.load(x + at * n * 2, n, "f16")

    x, everyone = torch.zeros(8 * 4096, dtype="f16"), torch.zeros(8, 64, dtype="f16", dp=ROWS)
    torch.launch("read", read, everyone, x, 4096)


def late_rank(torch: Any) -> None:
    """Rank 1 works for long before it comes to the sum."""

    def program(rank: int) -> None:
        torch.distributed.init_process_group("ahbm")
        torch.ahbm.set_device(rank)
        x = torch.zeros(1024, dtype="f16")
        for _ in range(6 * rank):
            torch.launch("work", work, x)
        torch.distributed.all_reduce(x)
        torch.distributed.destroy_process_group()

    def work(x: int, *, tl: Any) -> None:
        for _ in range(32):
            tl.store(x, tl.load(x, 1024, "f16"))

    torch.multiprocessing.spawn(program, nprocs=2)


def far_reads(torch: Any) -> None:
    """The PEs of a cube read what lies in the next one."""

    def read(_: int, x: int, n: int, *, tl: Any) -> None:
        at = x + (8 + tl.program_id(0)) * n * 2
        for _ in range(4):
            tl.load(at, n, "f16")

    x = torch.zeros(16 * 4096, dtype="f16", dp=DPPolicy(cube="row_wise", num_cubes=2, pe="row_wise"))
    torch.launch("read", read, torch.zeros(8, 64, dtype="f16", dp=ROWS), x, 4096)


class OnePort(HbmCtrl):
    """A memory that works on one access at a time, at 16 GB/s."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.port = simpy.Resource(self.env)

    def serve(self, access: MemoryAccess) -> Generator[simpy.Event, object, None]:
        with self.port.request() as turn:
            yield turn
            yield self.wait_ns(access.nbytes / 16)


def named(program: str | Callable[[Any], None]) -> Bench:
    return (
        load_bench(program)
        if isinstance(program, str)
        else Bench(name=program.__name__, description="planted", function=program)
    )


PLANTED = [
    pytest.param("matmul-composite", (STREAMED,), ("pe.dma.setup_ns=200",), "DMA set-up", id="set-up"),
    pytest.param(small_commands, (), ("pe.components.pe_cpu.attrs.issue_ns=100",), "command issue", id="issue"),
    pytest.param(
        "ipcq-allreduce", (), ("cube.components.noc_router.attrs.overhead_ns=100",), "router overhead", id="routers"
    ),
    pytest.param(hot_slice, (), (), "HBM", id="one slice"),
    # 4 KiB of space behind a link come back after 80 ns: 51 GB/s, where the links have 128 and more.
    pytest.param(far_reads, (), ("cube.components.ucie.attrs.overhead_ns=80",), "UCIe overhead", id="space of a FIFO"),
    pytest.param(
        "hello-send", (), ("sip.components.io_cpu.attrs.overhead_ns=500",), "control path CPUs", id="control path"
    ),
]


def prepare(bench: Bench, machine: Topology, params: tuple[str, ...] = ()) -> PreparedRun:
    """The inputs of a run that stores no data."""
    return PreparedRun(bench=bench, machine=machine, params=params, data=DataPolicy(keep=False))


@pytest.mark.parametrize(("program", "params", "machine", "resource"), PLANTED)
def test_it_is_named_and_comes_first(
    program: str | Callable[[Any], None], params: tuple[str, ...], machine: tuple[str, ...], resource: str
) -> None:
    found = Experiment(named(program), spread("default", *machine), params)
    assert found.launch.verdict.resources == (resource,)
    assert resource in found.launch.verdict.sentence
    assert resource in found.explained.verdict.sentence
    advice = advise_program(prepare(named(program), found.machine, params), workers=1)
    assert advice.machine[0].resources == (resource,)
    assert 0.02 <= advice.machine[0].share <= 0.1


def test_the_link_of_the_host() -> None:
    slow = spread("default", *(f"system.links.{name}.bw_gbs=1" for name in ("host_to_switch", "switch_to_sip")))
    found = Experiment(load_bench("matmul-composite"), slow)
    assert found.explained.verdict.sentence.startswith("copies 9")
    assert "(host link 9" in found.explained.verdict.sentence
    advice = advise_program(prepare(load_bench("matmul-composite"), slow), workers=1)
    assert advice.machine[0].resources == ("host link",)
    assert advice.machine[0].settings == tuple(
        f"system.links.{name}.bw_gbs=1.1" for name in ("host_to_switch", "switch_to_sip")
    )


def test_slots_of_a_queue() -> None:
    assert "of the time waits for slots of queues" in Experiment(named(few_slots), spread()).launch.verdict.sentence


def test_a_rank_that_is_late() -> None:
    found = Experiment(named(late_rank), spread())
    sum_ = next(each for each in found.explained.launches if each.name.startswith("all_reduce"))
    assert "waits for rank 1" in found.explained.verdict.sentence
    assert "of the time waits for rank 1" in sum_.verdict.sentence


def test_a_memory_of_ones_own_is_named_and_its_port_is_its_queue() -> None:
    machine = spread("default", f"cube.components.hbm_ctrl.impl={__name__}.OnePort")
    found = Experiment(load_bench("matmul-composite"), machine, (STREAMED,))
    name = f"hbm_ctrl ({__name__}.OnePort)"
    assert found.launch.verdict.resources == (name,)
    assert found.launch.verdict.share > 0.9
    queued = {each.part for each in found.launch.shares if each.resource == name}
    assert {str(part) for part in queued} >= {"memory queue", "memory service"}


@pytest.mark.parametrize(
    ("params", "machine", "tied"),
    [
        (("bench.variant=load_load",), (), ("GEMM", "fetch")),
        (
            ("bench.variant=load_load", "bench.m=256", "bench.n=256", "bench.k=64", "bench.epilogue=relu"),
            ("pe.math.startup_ns=0", "pe.math.bytes_per_ns=128"),
            ("GEMM", "fetch", "MATH"),
        ),
    ],
)
def test_stages_that_tie(params: tuple[str, ...], machine: tuple[str, ...], tied: tuple[str, ...]) -> None:
    found = Experiment(load_bench("matmul-composite"), spread("default", *machine), params)
    verdict = found.launch.verdict
    assert (verdict.kind, set(verdict.resources), verdict.tile_ns) == (VerdictKind.TIE, set(tied), 16.0)
    together = found.gain(*tied)
    assert together is not None
    assert all((found.gain(name) or 0) <= together / 3 for name in tied)


def test_nothing_is_promised_below_two_per_cent() -> None:
    advice = advise_program(prepare(load_bench("hello-send"), spread()), workers=1)
    assert all(each.share >= 0.02 for each in (*advice.machine, *advice.program))
    assert np.isclose(advice.run_ns, 805.903, atol=2)
