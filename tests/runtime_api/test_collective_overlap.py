"""Times of collectives on the packaged machine: beside a product, round a ring, and in both directions at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from machines import run_ranks

from compiled import SPREAD, compiled
from kernbench.engine.engine import GraphEngine
from kernbench.observe.statistics import link_traffic
from kernbench.observe.works import ENGINE_OF, Works
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api import long_collectives
from kernbench.runtime_api.collective_pes import collective_pes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.runtime_api.run_request import ReuseRules
from kernbench.tp.ops import linear

ROWS = DPPolicy(pe="row_wise", num_cubes=1)
COLUMNS = DPPolicy(pe="column_wise", num_cubes=1)
LINK_GBS = 128.0


@dataclass(frozen=True)
class Times:
    """Times in ns of a product of 256³, of an all-reduce, and of both together."""

    product: float
    alone: float
    together: float


def measure(comm: str, nbytes: int, sips: int = 2, *, multiplies: bool = True) -> Times:
    engine = GraphEngine(compiled(SPREAD, f"system.sips.count={sips}"), enable_data=False)
    with RuntimeContext(engine) as torch:
        dist = torch.distributed.on(collective_pes(frontend_settings([f"torch.comm={comm}"]).torch, torch.topology))

        def program(rank: int) -> Times:
            x, weight = torch.empty(256, 256, dtype="f32", dp=ROWS), torch.empty(256, 256, dtype="f32", dp=COLUMNS)
            gradient = torch.empty(nbytes // 4, dtype="f32", dp=ROWS)

            def multiply() -> None:
                if multiplies:
                    linear(x, weight, None, torch)

            multiply()
            dist.all_reduce(gradient)
            dist.barrier()
            begin = engine.now
            multiply()
            product = engine.now - begin
            dist.barrier()
            begin = engine.now
            dist.all_reduce(gradient)
            alone = engine.now - begin
            dist.barrier()
            begin = engine.now
            work = dist.all_reduce(gradient, async_op=True)
            multiply()
            work.wait()
            return Times(product, alone, engine.now - begin)

        results: list[Any] = run_ranks(torch, program)
        return results[0]


@pytest.mark.parametrize(
    "kib", [pytest.param(kib, marks=[pytest.mark.slow] if kib > 256 else []) for kib in (256, 512, 1024, 4096)]
)
def test_a_cube_for_collectives_hides_them_behind_a_product(kib):
    same, cube = (measure(comm, kib << 10) for comm in ("same", "cube"))
    assert cube.together <= 1.2 * max(same.product, same.alone)
    assert cube.together <= 1.02 * same.together


@pytest.mark.slow
@pytest.mark.parametrize("sips", [2, 4, 8])
def test_a_ring_all_reduce_has_the_bandwidth_of_its_links(sips):
    nbytes = 1 << 20
    bound = 2 * (sips - 1) / sips * nbytes / LINK_GBS
    assert bound < measure("same", nbytes, sips, multiplies=False).alone < 1.1 * bound


ORDERS = list(product(("send", "receive"), repeat=2))


@pytest.mark.parametrize("comm", ["same", "cube"])
@pytest.mark.parametrize("size", [64, pytest.param(300_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("batched", [True, False])
def test_exchanges_end_in_either_order(comm, size, batched):
    with RuntimeContext(GraphEngine(compiled(SPREAD), enable_data=True)) as torch:
        dist = torch.distributed.on(collective_pes(frontend_settings([f"torch.comm={comm}"]).torch, torch.topology))

        def program(rank: int) -> list[tuple[float, float]]:
            out, come = torch.full((size,), rank + 1, dtype="f32", dp=ROWS), torch.zeros(size, dtype="f32", dp=ROWS)
            results = []
            for number, orders in enumerate(ORDERS):
                out.fill_(10 * number + rank)
                ops = [dist.P2POp(dist.isend, out, 1 - rank), dist.P2POp(dist.irecv, come, 1 - rank)]
                ordered = ops if orders[rank] == "send" else ops[::-1]
                works = dist.batch_isend_irecv(ordered) if batched else [op.op(op.tensor, op.peer) for op in ordered]
                for work in works:
                    work.wait()
                results.append((come[0].item(), come[size - 1].item()))
            return results

        for rank, results in enumerate(run_ranks(torch, program)):
            assert results == [(10 * number + 1 - rank,) * 2 for number in range(4)]


@pytest.mark.parametrize(("name", "comm"), [("all_reduce", "same"), ("scatter", "cube")])
def test_with_reuse_a_part_of_a_long_collective_is_simulated(name: str, comm: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(long_collectives, "SIMULATED_BYTES", 32 << 10)
    check_long(name, comm, 1 << 18, bound=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["same", "cube"])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "scatter"])
def test_the_rest_of_a_long_collective_takes_its_time(name: str, comm: str) -> None:
    check_long(name, comm, 1 << 22, bound=0.04)


@pytest.mark.parametrize("late", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_the_wait_for_a_rank_is_no_part_of_a_long_collective(late: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(long_collectives, "SIMULATED_BYTES", 32 << 10)
    full, part = (time_of_long("all_reduce", "same", 1 << 18, rules, late) for rules in (None, ReuseRules()))
    assert part.ns == pytest.approx(full.ns, rel=0.02)


def check_long(name: str, comm: str, n_elem: int, bound: float) -> None:
    full, part = (time_of_long(name, comm, n_elem, rules) for rules in (None, ReuseRules()))
    assert part.ns == pytest.approx(full.ns, rel=bound)
    assert part.link_bytes == pytest.approx(full.link_bytes, rel=0.02)
    assert part.stored == pytest.approx(full.stored, rel=0.02)
    assert part.events < 0.5 * full.events


@dataclass(frozen=True)
class LongTime:
    """A collective: its time, events, bytes on the links between SIPs, and bytes that DMAs stored."""

    ns: float
    events: int
    link_bytes: int
    stored: float


def time_of_long(name: str, comm: str, n_elem: int, rules: ReuseRules | None, late: int | None = None) -> LongTime:
    """Return the time of a collective; rank ``late`` multiplies before it."""
    engine = GraphEngine(compiled(SPREAD), enable_data=False)
    with RuntimeContext(engine, reuse=rules) as torch:
        dist = torch.distributed.on(collective_pes(frontend_settings([f"torch.comm={comm}"]).torch, torch.topology))

        def program(rank: int) -> tuple[float, int]:
            x, whole = (torch.empty(n * n_elem, dtype="f32", dp=ROWS) for n in (1, 2))
            parts = [torch.empty(n_elem, dtype="f32", dp=ROWS) for _ in range(2)]
            dist.barrier()
            begin, events = engine.now, engine.n_events
            if rank == late:
                factors = [torch.empty(256, 256, dtype="f32", dp=policy) for policy in (ROWS, COLUMNS)]
                linear(factors[0], factors[1], None, torch)
            match name:
                case "all_reduce":
                    dist.all_reduce(x)
                case "all_gather":
                    dist.all_gather_into_tensor(whole, x)
                case "reduce_scatter":
                    dist.reduce_scatter_tensor(x, whole)
                case _:
                    dist.scatter(x, parts if rank == 0 else None, 0)
            dist.barrier()
            return engine.now - begin, engine.n_events - events

        ns, events = run_ranks(torch, program)[0]
        machine = engine.machine
        sips = {node.id: node.sip for node in machine.graph.nodes.values()}
        between = sum(link.nbytes for link in link_traffic(machine) if sips[link.src] != sips[link.dst])
        works = Works(machine.log, machine.log.columns(), machine.passed)
        stored = float(works.weights[works.done_by(ENGINE_OF["dma_write"])].sum())
        return LongTime(ns, events, between, stored)
