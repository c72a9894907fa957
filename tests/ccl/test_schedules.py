"""Schedules: what is found of them without simulating, and that playing one is the kernel that it stands for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
from algorithm_support import Collective, values
from cross_support import WORLDS, World
from hypothesis import given
from hypothesis import strategies as st

from covering import covering
from kernbench.ccl.algorithms import ring_allreduce, ring_allreduce_rs_ag
from kernbench.ccl.testing import Content, MemoryChunk, check_schedule, play_schedules, run_kernel_in_mock
from kernbench.common.errors import InputError, IpcqDeadlock, IpcqError, IpcqInvalidDirection, KernelError
from kernbench.messages.requests import PeCoord
from kernbench.messages.steps import Chunk, Step, await_message, copy, load, receive, reduce, scale, send, store
from kernbench.triton_emu.schedules import ScheduledKernel

ONE = Chunk(0, 4)


def swap(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
    """Of two ranks, each adds what the other has."""
    mine = Chunk(0, n_elem)
    return [load(0, mine), send("E", 0), receive("W", n_elem), reduce(0, 0, "W", "sum"), store(0, mine)]


def test_what_a_chunk_ends_as_is_who_went_into_it() -> None:
    first, second = check_schedule(swap, 2, "ring_1d", 4)
    assert first == second == {ONE: Counter({(0, ONE): 1, (1, ONE): 1})}


def test_the_mock_plays_a_schedule_as_it_plays_a_kernel() -> None:
    outputs = run_kernel_in_mock(swap, 2, "ring_1d", [np.full(4, rank + 1, np.float32) for rank in range(2)])
    assert [x.tolist() for x in outputs] == [[3.0] * 4] * 2


def test_a_load_behind_a_store_of_the_same_chunk_reads_what_that_writes() -> None:
    """Two ranks change their data, and change them back: what is sent second is what has come first."""

    def there_and_back(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
        first = [load(0, ONE), send("E", 0), receive("W", n_elem), store("W", ONE)]
        return [*first, load(1, ONE), send("E", 1), receive("W", n_elem), store("W", ONE)]

    found = check_schedule(there_and_back, 2, "ring_1d", 4)
    assert found == [{ONE: Counter({(rank, ONE): 1})} for rank in range(2)]
    inputs = [np.full(4, rank, np.float32) for rank in range(2)]
    assert [x.tolist() for x in run_kernel_in_mock(there_and_back, 2, "ring_1d", inputs)] == [[0.0] * 4, [1.0] * 4]


def of(*steps: Step) -> Callable[..., Sequence[Step]]:
    """The same steps on every rank."""

    def schedule(*, rank: int, world_size: int, n_elem: int) -> Sequence[Step]:
        return steps

    return schedule


@pytest.mark.parametrize(
    ("steps", "error", "says"),
    [
        (
            (await_message("W", 4), load(0, ONE), send("E", 0)),
            IpcqDeadlock,
            r"rank 1 \(.*\): its kernel waits for a message of queue W, at step 1 of .* \(await W, 4 f32\)",
        ),
        (
            (load(0, ONE), send("E", 0), send("E", 0), receive("W", 4), receive("W", 4)),
            IpcqDeadlock,
            r"rank 0 \(.*\): its kernel waits for a slot of queue E, at step 3 of .* \(send E, 4 f32\)",
        ),
        ((load(0, ONE), send("E", 0)), IpcqError, r"left messages unreceived: 1 of queue W"),
        (
            (load(0, ONE), send("E", 0), receive("W", 3)),
            KernelError,
            r"message 0 of queue W has 16 bytes, .* receives 12: .*\nstep 3 of .* \(receive W, 3 f32\)\non rank 1",
        ),
        (
            (receive("N", 4),),
            IpcqInvalidDirection,
            r"has no queue 'N'; installed: E, W\nstep 1 of .* \(receive N, 4 f32\)\non rank 0",
        ),
        ((send("E", 7),), InputError, r"rank 0, step 1 \(send E\): buffer 7 is used before it is written"),
        ((store("W", ONE),), InputError, r"rank 0, step 1 \(store\): no message of W has been received"),
        ((load(0, ONE), store(0, Chunk(0, 3))), InputError, r"step 2 \(store\): the chunk has 3 .* stored value 4"),
        (
            (load(0, ONE), load(1, Chunk(0, 2)), reduce(0, 0, 1, "sum")),
            InputError,
            r"step 3 \(reduce\): its operands have 4 and 2",
        ),
    ],
)
def test_what_is_wrong_names_rank_and_step(steps: tuple[Step, ...], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        check_schedule(of(*steps), 2, "ring_1d", 4, n_slots=1)


def ends_of(run: Collective, n_slots: int) -> dict[PeCoord, dict[MemoryChunk, Content]]:
    """What the chunks of a collective end as."""
    kernel = run.kernel
    assert isinstance(kernel, ScheduledKernel)
    args = {pe: run.args[pe[0]] for pe in run.pes}
    return play_schedules(kernel, args, run.topology.spec, run.edges, n_slots=n_slots, slot_size=run.slot_size)


def contributors(content: Content) -> Counter[PeCoord]:
    assert len({origin.nbytes for origin in content}) == 1
    return Counter(chain.from_iterable([origin.pe] * n for origin, n in content.items()))


MOST = [world for world in WORLDS if world.ranks <= 16 and world.machine is not None]


@pytest.mark.parametrize(("world", "n_slots", "n"), covering(MOST, (1, 2, 4), (1, 8, 5000)), ids=str)
def test_no_packaged_algorithm_stops_and_chunks_end_as_they_should(world: World, n_slots: int, n: int) -> None:
    """All PEs that work together once in each chunk of an all-reduce; else one PE's data, or each rank's."""
    world = replace(world, passed=(*world.passed, ("n_slots", n_slots)))
    run = world.collective(n, "f32", "sum")
    found = ends_of(run, n_slots)
    for pe, chunks in found.items():
        for content in chunks.values():
            who = contributors(content)
            assert set(who.values()) == {1}
            if world.name == "sip_allreduce":
                assert sorted(who) == [(sip, *pe[1:]) for sip in run.sips]
            elif world.name.endswith("allreduce") or world.name == "ring_allreduce_rs_ag":
                assert sorted(who) == sorted(run.pes)
            else:
                assert len(who) == (len(run.sips) if world.name.startswith("reduce") else 1)


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    covering(
        ("ring_allreduce", "ring_allreduce_rs_ag", "tree_allreduce", "mesh_allreduce"),
        ("tcm", "hbm"),
        (("f32", "sum", 5000), ("f16", "avg", 300)),
    ),
)
def test_a_kernel_that_plays_the_schedule_takes_as_long_and_gives_the_same_bits(
    name: str, kind: str, what: tuple[str, str, int]
) -> None:
    """Every step costs the PE's CPU what its call of ``tl`` costs."""
    dtype, op, n = what
    worlds = [w for w in MOST if w.name == name and w.ranks in (8, 9) and not w.pattern]
    check_as_a_kernel(worlds[0].collective(n, dtype, op), kind)


@pytest.mark.parametrize("name", sorted({world.name for world in MOST}))
def test_so_does_every_other_algorithm(name: str) -> None:
    world = [w for w in MOST if w.name == name][-1]
    check_as_a_kernel(world.collective(1000, "f32", "sum"), "tcm")


def check_as_a_kernel(run: Collective, kind: str) -> None:
    """With ``run``'s schedule, and with a kernel that makes its calls."""
    schedule = run.kernel

    def played(*args: Any, tl: Any) -> None:
        schedule(*args, tl=tl)

    outcomes = []
    for kernel in (schedule, played):
        each = replace(run, kernel=kernel, kind=kind)
        tensors = each.on_machine()
        bits = [{pe: x.tobytes() for pe, (_, x) in tensor.items()} for tensor in tensors]
        assert each.engine is not None
        ends = [each.engine.get_completion(handle)[1].pe_exec_ns for handle in each.handles]
        outcomes.append((bits, ends))
    assert outcomes[0] == outcomes[1]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 40), st.integers(1, 9))
def test_rings_of_any_size_with_any_slots(ranks: int, n_slots: int, n: int, chunk: int) -> None:
    for algorithm in (ring_allreduce, ring_allreduce_rs_ag):
        found = check_schedule(
            algorithm.schedule, ranks, "ring_1d", n, n_slots=n_slots, chunk_size=4 * chunk, slot_size=64
        )
        for chunks in found if ranks > 1 else ():
            assert sum(chunk.size for chunk in chunks) == n
            for place, content in chunks.items():
                assert content == {(rank, place): 1 for rank in range(ranks)}


def test_a_mean_is_one_step_in_a_wider_type() -> None:
    def mean(*, rank: int, world_size: int, n_elem: int, dtype: str) -> list[Step]:
        return [load(0, Chunk(0, n_elem)), scale(0, 0, 3), copy(1, 0), store(1, Chunk(0, n_elem))]

    data = values(np.random.default_rng(0), 5, "i8")
    (found,) = run_kernel_in_mock(mean, 1, "none", [data])
    np.testing.assert_array_equal(found, np.trunc(data / 3))


@pytest.mark.parametrize("kernel", [ring_allreduce.kernel, ring_allreduce_rs_ag.kernel])
def test_ranks_of_a_ring_have_their_commands_in_common(kernel: ScheduledKernel) -> None:
    """Wherever their chunks lie: 4 ranks of 8 elements of 4 bytes, in parts of 2."""
    args = kernel.args(n_elem=8, world_size=4)
    of = [kernel.ops_from((1000,), args, (pe, 0, 0), (4, 1, 1)) for pe in range(4)]
    assert all(ops is of[0][0] for ops, _ in of)
    for rank, (_, places) in enumerate(of):
        whole = 1000 + 32 * rank
        own = [whole] if kernel is ring_allreduce.kernel else [whole + 8 * ((rank - turn) % 4) for turn in range(4)]
        assert places[: len(places) // 2] == own
        assert sorted(places) == sorted(own * 2)  # each is loaded and stored


def test_the_steps_of_ranks_that_are_alike_are_made_once() -> None:
    made = []

    def nothing(*, rank: int, world_size: int, n_elem: int) -> list[Step]:
        made.append(rank)
        return [load(0, Chunk(0, n_elem)), store(0, Chunk(0, n_elem))]

    kernel = ScheduledKernel(nothing, alike=True)
    args = kernel.args(n_elem=4, world_size=4)
    del made[:]
    for pe in range(4):
        kernel.ops_from((0,), args, (pe, 0, 0), (4, 1, 1))
    assert made == [0]


def test_a_schedule_with_config_is_told_all_that_a_kernel_is() -> None:
    told: dict[str, object] = {}

    def schedule(*, rank: int, world_size: int, n_elem: int, **config: object) -> list[Step]:
        told.update(config)
        return []

    check_schedule(schedule, 2, "ring_1d", 8, n_slots=3, kernel_gain=0.5)
    assert (told["kernel_gain"], told["n_slots"], told["pes_per_cube"], told["dtype"]) == (0.5, 3, 2, "f32")
