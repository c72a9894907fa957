"""Ranks in simulated time: what the scheduler costs, and collectives of many ranks."""

from __future__ import annotations

from time import perf_counter

import pytest

from bench_figures import note_rates
from kernbench.common.collector import patient_collector
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology

SMALL = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "cube.pe_layout.pe_per_corner=1", "cube.hbm.slices=4")
PA = PhysAddr.pe_hbm_addr(0, 0, 0, 0, 0, 6 << 30).encode()
COLLECTIVES = 200


class TimedEngine(GraphEngine):
    """Counts the seconds in which events fire: the rest of a run is the ranks' and their scheduler's."""

    firing_s = 0.0

    def advance(self) -> None:
        begun = perf_counter()
        super().advance()
        self.firing_s += perf_counter() - begun


def engine_of(sips: int) -> TimedEngine:
    return TimedEngine(resolve_topology("default", [*SMALL, f"system.sips.count={sips}"]), enable_data=False)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_small_collectives(benchmark, ranks: int) -> None:
    """Every rank all-reduces 16 elements, again and again. The steps of a ring, and so its events, grow as ranks².

    What ranks and their scheduler cost beside events grows as ranks.
    """

    def program(rank: int, torch: RuntimeContext) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        tensor = torch.ones(16)
        for _ in range(COLLECTIVES):
            torch.distributed.all_reduce(tensor)
        torch.distributed.destroy_process_group()

    def run() -> TimedEngine:
        engine = engine_of(ranks)
        with patient_collector(), RuntimeContext(engine) as torch:
            torch.multiprocessing.spawn(program, args=(torch,), nprocs=ranks)
        return engine

    engine = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["events"] = engine.n_events

    def beside_us(seconds: float) -> float:
        return round((seconds - engine.firing_s) / COLLECTIVES / ranks * 1e6, 1)

    note_rates(
        benchmark,
        scheduler_us_per_collective_and_rank=beside_us,
        us_per_event=lambda seconds: round(seconds / engine.n_events * 1e6, 1),
    )


@pytest.mark.parametrize("ranks", [1, 16, 256])
def test_waits(benchmark, ranks: int) -> None:
    """Ranks that wait for a read each, all ending at times of their own: the price of a wait."""
    waits = 6144 // ranks

    def program(rank: int, torch: RuntimeContext) -> None:
        for _ in range(waits):
            torch.wait(torch.submit(PeDmaMsg(pe=(0, 0, rank % 4), pa=PA, nbytes=64)))

    def run() -> None:
        with RuntimeContext(engine_of(1)) as torch:
            torch.multiprocessing.spawn(program, args=(torch,), nprocs=ranks)

    benchmark.pedantic(run, rounds=1)
    note_rates(benchmark, us_per_wait=lambda seconds: round(seconds / ranks / waits * 1e6, 1))
