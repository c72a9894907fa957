"""Long streams of whole machines: who was disturbed once is express again, and the log is the same as by packets."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from engine_support import dma, hbm, launch, place, two_cubes
from kernbench.common.data_policy import DataPolicy
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import logged

LONG = 3_400_000
PES = tuple((0, 0, pe) for pe in range(8))


def events_of_streams(*overrides: str, read_by: int | None) -> int:
    """Return the events of 8 PEs that read 3.4 MB each of their own slices, beside 8 KB of each that another reads."""
    engine = GraphEngine(two_cubes(*overrides), enable_data=False)
    handles = [engine.submit(PeDmaMsg(pe=pe, pa=hbm(*pe), nbytes=LONG)) for pe in PES]
    if read_by is not None:
        for _, _, pe in PES:
            small = PeDmaMsg(pe=(0, 0, (pe + read_by) % 8), pa=hbm(0, 0, pe, LONG), nbytes=8192)
            handles.append(engine.submit(small))
    for handle in handles:
        engine.wait(handle)
    return engine.n_events


@pytest.mark.parametrize("timing", ["hbm3", "ideal"])
def test_streams_that_were_disturbed_cost_what_the_disturbance_costs(timing: str) -> None:
    """By packets they are 3,321 packets on two links each: 53,000 events."""
    machine = f"cube.hbm.timing={timing}"
    assert events_of_streams(machine, read_by=None) == 8 * 4
    assert events_of_streams(machine, read_by=1) <= 1_500


def test_the_price_of_a_disturbance_does_not_grow_with_the_stream() -> None:
    def events(nbytes: int) -> int:
        engine = GraphEngine(two_cubes(), enable_data=False)
        big = engine.submit(PeDmaMsg(pe=(0, 1, 7), pa=hbm(0, 0, 0), nbytes=nbytes))  # from the other cube
        dma(engine, hbm(0, 0, 0, 1 << 30), 4096)
        engine.wait(big)
        return engine.n_events

    assert events(4 << 20) == events(16 << 20) <= 1_000


def random_traffic(rng: Random) -> list[tuple[int, PeDmaMsg]]:
    """Return a few long accesses, many small ones, rows of accesses, and when each is submitted."""
    found: list[tuple[int, PeDmaMsg]] = []
    for _ in range(rng.randint(2, 5)):
        at, pe = rng.randint(0, 2_000_000), (0, rng.randrange(2), rng.randrange(8))
        nbytes = rng.choice([rng.randint(1, 1 << 18), 1 << 18, 1 << 16])
        home = rng.choice([pe, (0, rng.randrange(2), rng.randrange(8))])
        op, repeat, offset = rng.choice(["read", "read", "write"]), rng.choice([1, 1, 3]), rng.randrange(64) * 4096
        message = PeDmaMsg(pe=pe, pa=hbm(*home, offset), nbytes=nbytes, op=op, repeat=repeat, outstanding=2)
        found.append((at, message))
    for _ in range(rng.randint(2, 20)):
        at, pe = rng.randint(0, 3_000_000), (0, rng.randrange(2), rng.randrange(8))
        home = found[rng.randrange(min(3, len(found)))][1].pe
        nbytes, op = rng.choice([32, 1000, 4096, 9000]), rng.choice(["read", "read", "write"])
        found.append((at, PeDmaMsg(pe=pe, pa=hbm(*home, rng.randrange(9999) * 64), nbytes=nbytes, op=op)))
    return found


def rows_of(engine: GraphEngine, traffic: list[tuple[int, PeDmaMsg]]) -> tuple[object, ...]:
    """Return the log, when everything is over, and what the links have carried."""
    handles = []
    for at, message in sorted(traffic, key=lambda each: each[0]):
        engine.machine.clock.call_at(at, lambda each: handles.append(engine.submit(each)), message)
    engine.machine.clock.advance()
    assert all(handle.done for handle in handles)
    links = {ends: (x.nbytes, x.busy_ns, x.peak_fifo_bytes) for ends, x in engine.machine.network.links.items()}
    return list(engine.machine.log.rows), [handle.ended_ps for handle in handles], links


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 60))])
def test_random_traffic_takes_the_same_time_by_packets(seed: int) -> None:
    rng = Random(f"machine {seed}")
    traffic = random_traffic(rng)
    overrides = (
        f"cube.hbm.timing={rng.choice(['hbm3', 'ideal'])}",
        f"cube.links.xbar_to_router.bw_gbs={rng.choice([96.0, 256.0])}",
        f"cube.noc.link_bw_gbs={rng.choice([128.0, 256.0])}",
    )
    engines = [
        GraphEngine(two_cubes(*overrides, f"transport.express={express}"), DataPolicy(keep=False, zeros=True))
        for express in ("true", "false")
    ]
    watched = logged(two_cubes(*overrides), links=True)
    express, packets, seen = (rows_of(engine, traffic) for engine in (*engines, watched))
    assert express == packets
    assert seen[1:] == express[1:]  # numbers of parts are others where somebody observes
    assert engines[0].n_events < engines[1].n_events


def test_kernels_that_load_beside_each_other_have_the_same_log() -> None:
    """Every PE streams of its own slice, in long loads and in tiles, and looks at its neighbour's between."""

    def stream(*own: int, tl: Tl) -> None:
        pe = tl.program_id(0)
        for n in range(3):
            tl.load(own[pe] + (n << 19), (1 << 18,), "f16")
            for tile in range(16):
                tl.load(own[pe] + (1 << 20) + tile * 4096, (32, 64), "f16")
            tl.load(own[(pe + 1) % 8] + n * 1000, (64,), "f16")

    found = []
    for express in ("true", "false"):
        engine = GraphEngine(two_cubes(f"transport.express={express}"))
        placed = [place(engine, np.zeros(1 << 20, np.float16), pe) for pe in PES]
        launch(engine, stream, *placed, targets=PES)
        found.append((list(engine.machine.log.rows), engine.now))
        resumed = engine.machine.network.express.n_resumed
        assert (resumed >= 8) == (express == "true")
    assert found[0] == found[1]
