"""Collectives of ranks, on a machine: numbers, times, and what goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
from machines import HIERARCHICAL, RING, context_on, run_ranks, working_machine

from compiled import SPREAD
from covering import covering
from kernbench.common.errors import InputError, IpcqDeadlock, SimulationDeadlock
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.multiprocessing import SpawnException

pytestmark = [pytest.mark.usefixtures("runner"), pytest.mark.filterwarnings("ignore:all_reduce. the configured")]

LAYOUTS = {
    "one PE": None,
    "rows": DPPolicy("row_wise", "row_wise"),
    "rows in copies": DPPolicy("replicate", "row_wise"),
    "columns": DPPolicy("column_wise", "row_wise"),
    "uneven": DPPolicy("row_wise", "column_wise", num_pes=3),
    "copies": DPPolicy(),
}
SHAPE = (8, 6)
ROW_PER_CUBE = DPPolicy(cube="row_wise", num_pes=1)


@pytest.fixture
def torch(tmp_path):
    with context_on(working_machine(), tmp_path) as context:
        yield context


@pytest.fixture(params=list(LAYOUTS))
def layout(request):
    return LAYOUTS[request.param]


def contribution(rank):
    return np.arange(48, dtype=np.float32).reshape(SHAPE) * (rank + 1) - 20 * rank


def by_rank(torch, layout, dtype="f32"):
    return lambda rank: torch.tensor(contribution(rank), dtype=dtype, dp=layout)


def copies(tensor):
    """What every copy of a tensor holds; they have to be the same."""
    engine, layout = tensor._memory._engine, tensor.layout  # noqa: SLF001
    parts = {}
    for _, shard in layout.parts:
        parts.setdefault(shard.offset_bytes, set()).add(engine.read_memory(shard.pa, shard.nbytes).tobytes())
    return all(len(held) == 1 for held in parts.values())


REDUCED = {
    "sum": contribution(0) + contribution(1),
    "max": np.maximum(contribution(0), contribution(1)),
    "min": np.minimum(contribution(0), contribution(1)),
    "avg": (contribution(0) + contribution(1)) / 2,
}


@pytest.mark.parametrize(("name", "op"), covering(LAYOUTS, REDUCED))
def test_all_reduce_is_elementwise_over_ranks(torch, name, op):
    layout, expected = LAYOUTS[name], REDUCED[op]

    def program(rank):
        tensor = by_rank(torch, layout)(rank)
        assert torch.distributed.all_reduce(tensor, op=op) is None
        return tensor.numpy(), copies(tensor)

    for result, same in run_ranks(torch, program):
        np.testing.assert_array_equal(result, expected)
        assert same


def test_operations_have_pytorchs_names(torch):
    ops = torch.distributed.ReduceOp

    def program(rank):
        tensor = torch.full((4,), rank + 1, dtype="i32")
        torch.distributed.all_reduce(tensor, ops.MAX)
        return tensor.tolist()

    assert run_ranks(torch, program) == [[2] * 4] * 2
    with pytest.raises(SpawnException, match="op='prod', must be one of sum, max, min, avg"):
        run_ranks(torch, lambda rank: torch.distributed.all_reduce(torch.zeros(1), op="prod"))


def test_broadcast_and_reduce(torch, layout):
    def program(rank):
        tensor = by_rank(torch, layout)(rank)
        torch.distributed.broadcast(tensor, src=1)
        first = tensor.numpy()
        torch.distributed.reduce(tensor, dst=0)
        return first, tensor.numpy()

    (first, reduced), (second, kept) = run_ranks(torch, program)
    np.testing.assert_array_equal(first, contribution(1))
    np.testing.assert_array_equal(second, contribution(1))
    np.testing.assert_array_equal(reduced, 2 * contribution(1))
    np.testing.assert_array_equal(kept, contribution(1))


def test_lists_of_tensors(torch, layout):
    def program(rank):
        dist, make = torch.distributed, by_rank(torch, layout)
        outputs = [torch.zeros(SHAPE, dp=layout) for _ in range(2)]
        dist.all_gather(outputs, make(rank))
        gathered = [each.numpy() for each in outputs]
        inputs = [make(2 * rank + block) for block in range(2)]
        scattered = torch.zeros(SHAPE, dp=layout)
        dist.reduce_scatter(scattered, inputs)
        dist.all_to_all(outputs, inputs)
        return gathered, scattered.numpy(), [each.numpy() for each in outputs], all(map(copies, outputs))

    for rank, (gathered, scattered, exchanged, same) in enumerate(run_ranks(torch, program)):
        np.testing.assert_array_equal(gathered, [contribution(0), contribution(1)])
        np.testing.assert_array_equal(scattered, contribution(rank) + contribution(2 + rank))
        np.testing.assert_array_equal(exchanged, [contribution(rank), contribution(2 + rank)])
        assert same


@pytest.mark.parametrize("name", ["one PE", "rows", "copies"])
def test_tensors_with_a_block_for_each_rank(torch, name):
    layout = LAYOUTS[name]

    def program(rank):
        dist, whole = torch.distributed, torch.zeros(16, 6, dp=layout)
        dist.all_gather_into_tensor(whole, by_rank(torch, layout)(rank))
        gathered, part = whole.numpy(), torch.zeros(SHAPE, dp=layout)
        dist.reduce_scatter_tensor(part, whole)
        exchanged = torch.zeros(16, 6, dp=layout)
        dist.all_to_all_single(exchanged, whole.copy_(gathered + rank))
        return gathered, part.numpy(), exchanged.numpy(), copies(exchanged)

    both = np.concatenate([contribution(0), contribution(1)])
    for rank, (gathered, part, exchanged, same) in enumerate(run_ranks(torch, program)):
        np.testing.assert_array_equal(gathered, both)
        np.testing.assert_array_equal(part, 2 * contribution(rank))
        np.testing.assert_array_equal(exchanged, np.concatenate([contribution(rank), contribution(rank) + 1]))
        assert same


def test_blocks_have_to_lie_in_order(torch):
    columns = LAYOUTS["columns"]

    def program(rank):
        torch.distributed.all_gather_into_tensor(torch.zeros(16, 6, dp=columns), torch.zeros(SHAPE, dp=columns))

    with pytest.raises(SpawnException, match="is not stored in the order of its elements"):
        run_ranks(torch, program)


def test_lists_can_be_used_again_and_their_tensors_freed(torch):
    def program(rank):
        outputs = [torch.zeros(4) for _ in range(2)]
        for value in (1, 2):
            torch.distributed.all_gather(outputs, torch.full((4,), rank * 10 + value))
        assert [each[0].item() for each in outputs] == [2, 12]
        outputs[0].free()
        fresh = [torch.zeros(4), outputs[1]]
        torch.distributed.all_gather(fresh, torch.full((4,), rank))
        return [each[0].item() for each in fresh]

    assert run_ranks(torch, program) == [[0, 1]] * 2
    assert not torch.cleanup().leaked


def test_a_tensor_twice_among_the_outputs_is_refused(torch):
    def program(rank):
        dist, x, y = torch.distributed, torch.zeros(4, name="x"), torch.zeros(4)
        words = r"outputs 0 and 1 are one tensor, 'x', .* give each block a tensor of its own"
        for outputs in ([x, x], [x.reshape(2, 2).reshape(4), x]):
            with pytest.raises(InputError, match=f"all_gather: {words}"):
                dist.all_gather(outputs, y)
            with pytest.raises(InputError, match=f"all_to_all: {words}"):
                dist.all_to_all(outputs, [y, y])
        # Inputs may repeat, and the operation is still the next one on every rank.
        y.fill_(rank + 1)
        dist.reduce_scatter(x, [y, y])
        return x.tolist()

    assert run_ranks(torch, program) == [[3.0] * 4] * 2


def test_views_take_part_in_collectives(torch):
    def program(rank):
        dist, rows = torch.distributed, DPPolicy("row_wise", "row_wise")
        x = torch.tensor(contribution(rank), dp=rows)
        dist.all_reduce(x.reshape(2, 4, 6))
        gathered = torch.zeros(16, 6, dp=rows)
        dist.all_gather_into_tensor(gathered.reshape(4, 4, 6), x.reshape(48))
        clone = x.clone()
        dist.broadcast(clone, 0)
        return gathered.numpy(), clone.numpy()

    for gathered, clone in run_ranks(torch, program):
        total = contribution(0) + contribution(1)
        np.testing.assert_array_equal(gathered, np.concatenate([total, total]))
        np.testing.assert_array_equal(clone, total)


def test_messages_between_two_ranks(tmp_path):
    with context_on(working_machine(4), tmp_path, RING) as torch:

        def program(rank):
            dist, tensor = torch.distributed, torch.full((300,), rank)
            if rank == 0:
                dist.send(tensor, dst=3)
                assert dist.recv(tensor, src=2) == 2
            elif rank == 3:
                dist.recv(tensor, src=0)
            elif rank == 2:
                dist.isend(tensor, dst=0).wait()
            return tensor[299].item()

        assert run_ranks(torch, program) == [2, 1, 2, 0]


def test_a_row_per_cube_is_reduced_over_cubes_too(torch):
    def program(rank):
        tensor = torch.full((2, 100), rank + 1, dtype="f16", dp=ROW_PER_CUBE)
        torch.distributed.all_reduce(tensor)
        return set(tensor.numpy().reshape(-1).tolist())

    assert run_ranks(torch, program) == [{2 * (1 + 2)}] * 2


@pytest.mark.parametrize(("sips", "fabric"), [(4, "torus_2d"), (4, "mesh_2d_no_wrap"), (3, "switch")])
def test_fabrics_between_sips(tmp_path, sips, fabric):
    with context_on(working_machine(sips, f"system.sips.topology={fabric}"), tmp_path) as torch:

        def program(rank):
            tensor, rows = torch.full((3,), rank + 1), torch.full((2, 9), rank + 1, dp=ROW_PER_CUBE)
            torch.distributed.all_reduce(tensor)
            torch.distributed.all_reduce(rows, "max")
            outputs = [torch.zeros(1) for _ in range(sips)]
            torch.distributed.all_gather(outputs, torch.full((1,), rank))
            return tensor.tolist(), rows[1].tolist(), [each.item() for each in outputs]

        expected = [sum(range(sips + 1))] * 3, [sips] * 9, list(range(sips))
        assert run_ranks(torch, program) == [expected] * sips


PARTS = {"rows": 8, "copies of all": 1, "rows in copies of all": 4, "columns": 8}


@pytest.mark.parametrize(("name", "op"), covering(PARTS, ("sum", "avg")))
def test_a_configured_algorithm_adds_up_pes_too(tmp_path, name, op):
    """Every PE has an element in each of as many copies as there are PEs to a part."""
    parts, reduce = PARTS[name], {"sum": np.sum, "avg": np.mean}[op]
    layouts = {
        "copies of all": DPPolicy(num_pes=4, num_cubes=2),
        "rows in copies of all": DPPolicy("replicate", "row_wise"),
    }
    layout = layouts.get(name) or LAYOUTS[name]
    with context_on(working_machine(), tmp_path, HIERARCHICAL) as torch:

        def program(rank):
            tensor = torch.tensor(np.arange(8.0) + 100 * rank, dtype="f32", dp=layout)
            torch.distributed.all_reduce(tensor, op)
            return tensor.numpy(), copies(tensor)

        for result, same in run_ranks(torch, program):
            given = np.stack([(np.arange(8.0) + 100 * rank).reshape(parts, -1) for rank in range(2)])
            every = np.repeat(given, 8 // parts, axis=1)
            np.testing.assert_allclose(result, np.tile(reduce(every, axis=(0, 1)), parts))
            assert same
        assert {each.algorithm for each in torch.traces if each.name == "all_reduce"} == {"chosen"}


def test_a_world_of_one(tmp_path):
    with context_on(working_machine(1), tmp_path, RING) as torch:
        dist = torch.distributed
        torch.ahbm.set_device(0)
        dist.init_process_group("ahbm")  # a program that is alone is rank 0
        tensor, other = torch.ones(8), torch.zeros(8)
        for op in ("sum", "avg", "max"):
            dist.all_reduce(tensor, op)
        dist.broadcast(tensor, 0)
        dist.reduce(tensor, 0)
        dist.all_gather([other], tensor)
        dist.reduce_scatter(tensor, [other])
        dist.all_to_all_single(other, tensor)
        dist.barrier()
        assert tensor.tolist() == other.tolist() == [1] * 8
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "ahbm")
        dist.destroy_process_group()
        assert not dist.is_initialized()


@pytest.mark.parametrize("dtype", ["f16", "bf16", "i32", "i8"])
def test_dtypes(torch, dtype):
    def program(rank):
        tensor = torch.full((33,), rank + 1, dtype=dtype, dp=DPPolicy("replicate", "row_wise"))
        torch.distributed.all_reduce(tensor)
        return set(tensor.tolist())

    assert run_ranks(torch, program) == [{3}, {3}]


def nothing_long(x, n, *, tl):
    """Reads its own memory for a while, on all PEs but the first of each cube."""
    if tl.program_id(0):
        for _ in range(n):
            tl.wait(tl.load(x + tl.program_id(0) * 4096, 1024, "f32"))


def test_an_early_rank_waits_for_a_late_one(torch):
    now = {}

    def program(rank):
        tensor = torch.ones(64)
        late = torch.ones(4, 1024, dp=DPPolicy(pe="row_wise", num_cubes=1))
        if rank:
            torch.launch("busy", nothing_long, late, 50)
        now["begin", rank] = torch.engine.now
        torch.distributed.all_reduce(tensor)
        now["end", rank] = torch.engine.now

    run_ranks(torch, program)
    assert now["begin", 0] + 1000 < now["begin", 1]
    assert now["end", 0] > now["begin", 1]
    assert now["end", 0] == pytest.approx(now["end", 1], abs=500)


def test_a_barrier_keeps_early_ranks(torch):
    now = {}

    def program(rank):
        if rank:
            torch.launch("busy", nothing_long, torch.ones(4, 1024, dp=DPPolicy(pe="row_wise", num_cubes=1)), 50)
        now["begin", rank] = torch.engine.now
        torch.distributed.barrier()
        now["end", rank] = torch.engine.now

    run_ranks(torch, program)
    assert now["begin", 0] < now["begin", 1] < now["end", 0]


def test_work_goes_on_during_a_collective(tmp_path):
    def timed(begin, *works):
        for work in works:
            work.wait()
        return torch.engine.now - begin

    def program(rank):
        shared = torch.ones(1 << 16)
        busy = torch.ones(4, 1024, dp=DPPolicy(pe="row_wise", num_cubes=1))
        dist, now = torch.distributed, lambda: torch.engine.now
        dist.barrier()
        alone = timed(now(), dist.all_reduce(shared, async_op=True))
        dist.barrier()
        kernel = timed(now(), torch.launch("busy", nothing_long, busy, 60, async_op=True))
        dist.barrier()
        begin, reduction = now(), dist.all_reduce(shared, async_op=True)
        both = timed(begin, torch.launch("busy", nothing_long, busy, 60, async_op=True), reduction)
        return alone, kernel, both

    with context_on(working_machine(2, SPREAD), tmp_path) as torch:
        found = run_ranks(torch, program)
    for alone, kernel, both in found:
        assert min(alone, kernel) > 2500
        assert both < max(alone, kernel) + 0.2 * min(alone, kernel)


def test_a_read_waits_for_the_collective(torch):
    def program(rank):
        tensor = torch.full((4,), rank + 1)
        work = torch.distributed.all_reduce(tensor, async_op=True)
        assert not work.is_completed()
        return tensor.tolist(), work.is_completed(), work.wait()

    assert run_ranks(torch, program) == [([3.0] * 4, True, True)] * 2


def test_collectives_in_a_row_on_one_tensor(torch):
    def program(rank):
        tensor = torch.full((8,), rank + 1)
        works = [torch.distributed.all_reduce(tensor, async_op=True) for _ in range(3)]
        works[-1].wait()
        return tensor.tolist()

    assert run_ranks(torch, program) == [[12.0] * 8] * 2


def test_init_takes_time_and_ends_for_all_at_once(torch):
    seen = []

    def program(rank):
        torch.ahbm.set_device(rank)
        if rank:
            torch.zeros(4)
        assert not torch.distributed.is_initialized()
        begin = torch.engine.now
        torch.distributed.init_process_group("ahbm")
        seen.append((torch.engine.now - begin, torch.engine.now))
        assert torch.distributed.is_initialized()

    torch.multiprocessing.spawn(program, nprocs=2)
    assert len({end for _, end in seen}) == 1
    assert all(ns > 100 for ns, _ in seen)
    assert torch.multiprocessing.left == ("process group of rank 0, rank 1, not destroyed",)


MISMATCHES = {
    "another collective": lambda dist, make, rank: dist.all_reduce(make(8)) if rank else dist.broadcast(make(8), 0),
    "another reduction": lambda dist, make, rank: dist.all_reduce(make(8), "max" if rank else "sum"),
    "another shape": lambda dist, make, rank: dist.all_reduce(make(8 + rank)),
    "another dtype": lambda dist, make, rank: dist.all_reduce(make(8, dtype="f16" if rank else "f32")),
    "another layout": lambda dist, make, rank: dist.all_reduce(make(8, dp=LAYOUTS["rows"] if rank else None)),
    "another root": lambda dist, make, rank: dist.broadcast(make(8), rank),
    "another message": lambda dist, make, rank: dist.send(make(8), 1) if rank == 0 else dist.recv(make(9), 0),
}


@pytest.mark.parametrize("case", list(MISMATCHES))
def test_ranks_that_call_different_collectives(torch, case):
    def program(rank):
        MISMATCHES[case](torch.distributed, torch.ones, rank)

    with pytest.raises(SpawnException, match=r"rank . called \w+\(.*, rank . called \w+\(") as caught:
        run_ranks(torch, program)
    assert len(caught.value.errors) == 1
    assert run_ranks(torch, lambda rank: torch.distributed.barrier()) == [None, None]


def joins_all_reduce(torch, rank, but):
    if rank != but:
        torch.distributed.all_reduce(torch.ones(8))


def test_a_rank_that_never_joins(torch):
    with pytest.raises(IpcqDeadlock) as caught:
        run_ranks(torch, lambda rank: joins_all_reduce(torch, rank, but=1))
    text = str(caught.value)
    assert "rank 0 waits for all_reduce(f32[8], op=sum), number 0, which rank 1 never joined" in text
    assert "rank 1 waits for" not in text or "rank 1 has ended" in text
    again = run_ranks(torch, lambda rank: joins_all_reduce(torch, rank, but=None))
    assert again == [None, None]


def test_a_rank_that_never_calls_init(torch):
    def program(rank):
        if rank == 0:
            torch.distributed.init_process_group("ahbm")

    with pytest.raises(SimulationDeadlock, match="rank 0 waits for init_process_group, which rank 1 never called"):
        torch.multiprocessing.spawn(program, nprocs=2)
    run_ranks(torch, lambda rank: torch.distributed.barrier())


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)], ids=["raise", "exit"])
def test_a_rank_that_fails_while_another_is_in_a_collective(torch, error):
    def program(rank):
        tensor = torch.ones(8, 16, dp=LAYOUTS["rows"])
        if rank:
            raise error
        torch.distributed.all_reduce(tensor)

    with pytest.raises(SpawnException) as caught:
        run_ranks(torch, program)
    assert caught.value.errors == {1: error}
    assert torch.multiprocessing.left == ()
    run_ranks(torch, lambda rank: torch.distributed.barrier())


def broken(x, *, tl):
    raise ZeroDivisionError("in the kernel")


def test_a_kernel_that_fails_while_another_rank_is_in_a_collective(torch):
    def program(rank):
        tensor = torch.ones(8, 16, dp=LAYOUTS["rows"])
        if rank:
            torch.launch("bad", broken, tensor)
        torch.distributed.all_reduce(tensor)

    with pytest.raises(SpawnException, match="rank 1 failed: ZeroDivisionError: in the kernel") as caught:
        run_ranks(torch, program)
    assert list(caught.value.errors) == [1]
    run_ranks(torch, lambda rank: torch.distributed.barrier())


def broken_on_one_pe(x, *, tl):
    if tl.program_id(0) == 1:
        raise ZeroDivisionError("on one PE")
    tl.recv("global_E", 4, "f32")


def test_a_kernel_that_fails_on_one_pe_while_its_others_wait(torch):
    def program(rank):
        tensor = torch.ones(8, 16, dp=LAYOUTS["rows"])
        if rank:
            torch.launch("bad", broken_on_one_pe, tensor)
        torch.distributed.all_reduce(tensor)

    with pytest.raises(SpawnException, match="rank 1 failed: ZeroDivisionError: on one PE") as caught:
        run_ranks(torch, program)
    assert list(caught.value.errors) == [1]
    run_ranks(torch, lambda rank: torch.distributed.barrier())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda torch: torch.distributed.all_reduce(np.ones(3)), "takes tensors of the machine, not a ndarray"),
        (lambda torch: torch.distributed.broadcast(torch.ones(2), 7), r"src=7: there are ranks 0..1"),
        (lambda torch: torch.distributed.all_gather([torch.ones(2)], torch.ones(2)), "a list of 1 tensors for 2 ranks"),
        (lambda torch: torch.distributed.all_gather_into_tensor(torch.ones(3), torch.ones(2)), "do not fit each other"),
        (lambda torch: torch.distributed.all_reduce(torch.ones(2), group=1), "group=1 is no group of ranks"),
        (lambda torch: torch.distributed.init_process_group("ahbm"), "has a process group already"),
        (lambda torch: torch.distributed.send(torch.ones(1), torch.distributed.get_rank()), "cannot send to itself"),
    ],
)
def test_calls_that_cannot_be(torch, program, words):
    with pytest.raises(SpawnException, match=words):
        run_ranks(torch, lambda rank: program(torch))


def test_a_tensor_lies_on_the_sip_of_its_rank(torch):
    def program(rank):
        torch.ahbm.set_device(0)
        torch.distributed.all_reduce(torch.ones(2, name="x"))

    with pytest.raises(SpawnException, match="'x' is on sip0, but rank 1 is SIP 1"):
        run_ranks(torch, program)


def test_a_process_group_has_a_rank_for_every_sip(torch, tmp_path):
    init = torch.distributed.init_process_group
    with pytest.raises(SpawnException, match=r"1 rank for 2 SIPs; torch.multiprocessing.spawn\(fn, args, nprocs=2\)"):
        torch.multiprocessing.spawn(lambda rank: init())
    with pytest.raises(InputError, match="backend 'nccl': the backend of this machine is 'ahbm'"):
        init("nccl")
    with pytest.raises(SpawnException, match="3 ranks for 2 SIPs"):
        torch.multiprocessing.spawn(lambda rank: init(), nprocs=3)
    with (
        context_on(working_machine(), tmp_path, target_device="sip:1") as other,
        pytest.raises(InputError, match="all 2 SIPs; this run has SIP 1"),
    ):
        other.distributed.init_process_group("ahbm")
    with (
        context_on(working_machine(), tmp_path, RING.replace("}", ", world_size: 4}")) as other,
        pytest.raises(InputError, match="needs rank = SIP: algorithm 'chosen' has world_size=4"),
    ):
        other.distributed.init_process_group("ahbm")


def test_calls_without_a_group(torch):
    assert not torch.distributed.is_initialized()
    with pytest.raises(InputError, match=r"init_process_group\('ahbm'\) first"):
        torch.distributed.all_reduce(torch.ones(1))
    with pytest.raises(InputError, match="has no process group"):
        torch.distributed.destroy_process_group()


def test_asking_for_a_rank_outside_of_one(torch, monkeypatch, recwarn):
    assert torch.distributed.get_rank() == 0
    assert not recwarn.list
    monkeypatch.setenv("KERNBENCH_DEBUG", "1")
    with pytest.warns(RuntimeWarning, match="get_rank"):
        assert torch.distributed.get_rank() == 0
    with pytest.warns(RuntimeWarning, match=r"rank 1 has no device: torch.ahbm.set_device\(1\)"):
        torch.multiprocessing.spawn(lambda rank: torch.zeros(1), nprocs=2)


def test_nothing_is_left_when_all_is_destroyed(tmp_path):
    with context_on(working_machine(), tmp_path) as torch:
        run_ranks(torch, lambda rank: torch.distributed.all_reduce(torch.ones(2, 5, dp=ROW_PER_CUBE)))
    assert torch.cleanup_report.left == ()
    assert torch.cleanup_report.leaked == ()
