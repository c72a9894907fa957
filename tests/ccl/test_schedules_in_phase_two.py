"""Phase 2 plays schedules for all PEs at once: all memory is, to the bit, what it is record by record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import algorithm_support
import numpy as np
import pytest
from algorithm_support import Collective, algorithm, all_reduce, small, values
from cross_support import KINDS, WORLDS, World

from covering import covering
from kernbench.common.errors import KernbenchError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import KernelRef, MemoryWriteMsg, PeCoord
from kernbench.messages.steps import Chunk, Step, await_message, copy, load, receive, reduce, send, store, zero
from kernbench.numerics import schedule_records
from kernbench.numerics.schedule_groups import Group
from kernbench.numerics.schedule_plays import Plays
from kernbench.observe.sanitizer import Sanitizer
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.triton_emu.schedules import ScheduledKernel

ONE_OF_EACH = list({world.name: world for world in WORLDS if world.ranks <= 16}.values())
DTYPES = ("f32", "f16", "bf16", "i32", "i8")
Memory = dict[tuple[str, int, int], bytes]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """The groups that have been played as a whole."""
    groups: list[Group] = []

    class Told(schedule_records.Team):
        def __init__(self, group: Group, *more: Any) -> None:
            super().__init__(group, *more)
            groups.append(group)

    monkeypatch.setattr(schedule_records, "Team", Told)
    return groups


def record_by_record(engine: GraphEngine) -> None:
    """Phase 2 of ``engine`` hears of no schedule."""
    engine.machine.plays = Plays()


def memory_of(engine: GraphEngine) -> Memory:
    """All that records have written, scratch and slots included."""
    written = {(x.space, x.address, x.nbytes) for x in (each.output for each in engine.op_log) if x is not None}
    store = engine.memory_store
    return {place: store.read(*place[:2], (place[2],), "i8").tobytes() for place in sorted(written)}


def outcome(run: Collective, watch: Callable[[GraphEngine], object] | None = None) -> tuple[Memory, tuple[int, int]]:
    """Memory after a run, and how many operations and bytes phase 2 has counted."""
    this = replace(run, watch=watch or run.watch)
    this.on_machine()
    assert this.engine is not None
    stats = this.engine.phase2_stats
    return memory_of(this.engine), (stats.ops, stats.nbytes)


def ring(n: int, kernel: ScheduledKernel | None = None, ranks: int = 4, **more: Any) -> Collective:
    """An all-reduce of ``n`` f32 by the first PEs of a machine, or another schedule there."""
    rng = np.random.default_rng(n)
    found = all_reduce(algorithm("ring_allreduce", "ring_1d", ranks), small(), lambda _: values(rng, n, "f32"), **more)
    if kernel is not None:
        found.kernel, found.args = kernel, {0: kernel.args(n_elem=n, world_size=ranks)}
    return found


@pytest.mark.parametrize("fewest", [False, True], ids=["most", "fewest"])
@pytest.mark.parametrize(("world", "dtype"), covering(ONE_OF_EACH, DTYPES), ids=str)
def test_every_algorithm(world: World, dtype: str, fewest: bool, played: list[Group]) -> None:
    """Kinds of queues, reductions and sizes by turns."""
    turn = ONE_OF_EACH.index(world) + DTYPES.index(dtype)
    if fewest:
        world = min((other for other in WORLDS if other.name == world.name), key=lambda other: other.ranks)
    op = world.reductions[turn % len(world.reductions)]
    run = world.collective((5000, 1000, 8, 1)[turn // 2 % 4], dtype, op)
    run.kind = KINDS[turn % 3]
    found = outcome(run)
    assert sorted(play.pe for group in played for play in group.plays) == sorted(run.pes)
    assert played
    played.clear()
    assert found == outcome(run, record_by_record)
    assert not played


def uneven(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
    """Long messages and short ones in the same slots, one that nobody uses, and ranks that do not all do the same."""
    whole, half = Chunk(0, n_elem), Chunk(n_elem // 2, n_elem // 2)
    steps = [load(0, whole), load(1, half), send("E", 0), send("E", 1), zero(2, n_elem), send("E", 2)]
    steps += [receive("W", n_elem), copy(3, "W"), receive("W", half.size), reduce(1, "W", 1, "max")]
    steps += [await_message("W", n_elem), reduce(0, 3, 0, "sum"), send("E", 1), receive("W", half.size)]
    if rank == 0:
        steps += [reduce(1, 1, "W", "sum")]
    return [*steps, store(0, whole), store(1, half)]


@pytest.mark.parametrize("n_slots", [3, 4, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_a_schedule_of_a_user(kind: str, n_slots: int, played: list[Group]) -> None:
    run = ring(20, ScheduledKernel(uneven), kind=kind, n_slots=n_slots)
    assert outcome(run) == outcome(run, record_by_record)
    assert len(played) == 1


def chain(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
    """The data of rank 0, from one to the next: all but the ends do the same, one after another."""
    if rank == 0:
        return [load(0, Chunk(0, n_elem)), send("E", 0)]
    got = [receive("W", n_elem), store("W", Chunk(0, n_elem))]
    return [*got, send("E", "W")] if rank < world_size - 1 else got


def test_pes_that_do_the_same_one_after_another(played: list[Group]) -> None:
    run = ring(40, ScheduledKernel(chain), ranks=8)
    assert outcome(run) == outcome(run, record_by_record)
    assert len(played) == 1


def test_a_look_in_mid_run_has_what_is_under_way_replayed_record_by_record(played: list[Group]) -> None:
    run, looks = ring(300), [0]

    def look(engine: GraphEngine) -> None:
        def replay(_: object) -> None:
            looks[0] += 1
            if looks[0] == 7:
                engine.replay()

        engine.machine.hooks.queue.subscribe(replay)

    found = outcome(run, look)
    assert looks[0] > 7
    assert not played
    assert found == outcome(run, record_by_record)


def test_with_the_sanitizer_every_read_is_seen(played: list[Group]) -> None:
    run = ring(300)
    expected = outcome(run)
    played.clear()
    run.observers = (Sanitizer(),)
    assert outcome(run) == expected
    assert not played


def test_a_kernel_at_the_other_end(played: list[Group], monkeypatch: pytest.MonkeyPatch) -> None:
    world = next(world for world in WORLDS if world.name == "sip_allreduce" and world.ranks == 2)
    run = world.collective(1000, "f16", "sum")
    expected = outcome(run)
    played.clear()
    schedule = run.kernel

    def kernel(*args: Any, tl: Any) -> None:
        schedule(*args, tl=tl)

    def one_of_each(name: str, function: object) -> KernelRef:
        functions.append(kernel if functions else schedule)
        return KernelRef(name=name, function=functions[-1])

    functions: list[Callable[..., object]] = []
    monkeypatch.setattr(algorithm_support, "KernelRef", one_of_each)
    assert outcome(run) == expected
    assert not played


def failing(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
    """Rank 0 receives another size than it is sent, after it has stored what it was sent first."""
    mine = Chunk(0, n_elem)
    steps = [load(0, mine), send("E", 0), receive("W", n_elem), store("W", mine), send("E", 0)]
    return [*steps, await_message("W", n_elem - 1)] if rank == 0 else [*steps, await_message("W", n_elem)]


def test_what_a_failing_schedule_has_done(played: list[Group]) -> None:
    outcomes = []
    for watch in (lambda _: None, record_by_record):
        run = ring(40, ScheduledKernel(failing), watch=watch)
        with pytest.raises(KernbenchError, match=r"message 1 of queue W has 160 bytes"):
            run.on_machine()
        assert run.engine is not None
        run.engine.drain()
        outcomes.append(memory_of(run.engine))
    assert outcomes[0] == outcomes[1]
    assert not played


@pytest.mark.parametrize("at_end", [False, True], ids=["scratch", "not scratch"])
def test_what_others_write_into_scratch(played: list[Group], at_end: bool) -> None:
    """The host writes into the TCM of a PE while the schedule runs there: into its scratch, or behind its rings."""

    def write(engine: GraphEngine) -> None:
        hooks, tcm = engine.machine.hooks, engine.spec.pe.tcm.bytes
        done: list[PeCoord] = []

        def once(_: object) -> None:
            if not done:
                done.append((0, 0, 0))
                base = PhysAddr.pe_tcm_addr(0, 0, 0, 0, 0, engine.machine.addresses.format).encode()
                data = np.arange(64, dtype=np.uint8)
                pa = base + tcm - 64 if at_end else base + 4096
                engine.submit(MemoryWriteMsg(pa=pa, nbytes=64, data=data))

        hooks.queue.subscribe(once)

    def without_plays(engine: GraphEngine) -> None:
        write(engine)
        record_by_record(engine)

    run = ring(3000)
    assert outcome(run, write) == outcome(run, without_plays)
    assert len(played) == at_end


def two_rounds(torch: Any) -> None:
    """Ranks reduce twice without looking between, gather beside kernels of their own, and look in the end."""

    def main(rank: int) -> None:
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        rows = torch.full((2, 700), rank + 1.0, dtype="f16", dp=DPPolicy("row_wise", "replicate", num_pes=1))
        wide, narrow = torch.zeros(150), torch.full((50,), rank + 3.0)
        work = torch.distributed.all_reduce(rows, async_op=True, elementwise=True)
        torch.distributed.all_gather_into_tensor(wide, narrow)
        work.wait()
        torch.distributed.all_reduce(rows)
        torch.ones(300)
        torch.distributed.all_reduce(narrow, "avg", elementwise=True)
        torch.distributed.destroy_process_group()

    torch.multiprocessing.spawn(main, nprocs=3)


def test_one_after_another_and_beside_each_other(played: list[Group]) -> None:
    machine = small(3, "2x1", 1)
    engines = GraphEngine(machine), GraphEngine(machine)
    record_by_record(engines[1])
    for engine in engines:
        run_bench(topology=machine, bench_fn=two_rounds, engine_factory=lambda *_, e=engine: e).raise_for_status()
    assert memory_of(engines[0]) == memory_of(engines[1])
    assert len(played) == 4
