"""Scatter, gather and all-to-all of blocks of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import RING, context_on, run_ranks, working_machine

from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective_pes import CollectivePes
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException

ROWS = DPPolicy(pe="row_wise", num_cubes=1)
OWN_CUBE = CollectivePes(name="cube 1", cubes=(1,), pes=(0, 1, 2, 3))
FABRICS = [(2, ()), (3, ()), (4, ("system.sips.topology=torus_2d", "system.sips.w=2", "system.sips.h=2"))]
LONG = 30_000
"""Elements of which a PE sends more messages than a queue has slots"""


@pytest.fixture(params=FABRICS, ids=["2 SIPs", "3 SIPs", "2x2 SIPs"])
def torch(request, tmp_path):
    sips, more = request.param
    with context_on(working_machine(sips, *more), tmp_path, RING) as context:
        yield context


@pytest.fixture(params=[None, OWN_CUBE], ids=str)
def dist(request, torch):
    return torch.distributed if request.param is None else torch.distributed.on(request.param)


def block(src: int, dst: int, size: int) -> np.ndarray[Any, Any]:
    return ((np.arange(size) * 3 + 11 * src + 29 * dst) % 97).astype(np.float32)


@pytest.mark.parametrize("size", [1, 300, LONG])
def test_scatter_and_gather(torch, dist, size):
    n = torch.topology.num_sips
    root = n - 1

    def program(rank):
        make = lambda peer: torch.tensor(block(rank, peer, size), dp=ROWS)  # noqa: E731
        result = torch.zeros(size, dp=ROWS)
        dist.scatter(result, [make(peer) for peer in range(n)] if rank == root else None, src=root)
        gathered = [torch.zeros(size, dp=ROWS) for _ in range(n)] if rank == 0 else None
        work = dist.gather(make(0), gathered, async_op=True)
        work.wait()
        return result.numpy(), [each.numpy() for each in gathered or ()]

    for rank, (result, gathered) in enumerate(run_ranks(torch, program)):
        np.testing.assert_array_equal(result, block(root, rank, size))
        for peer, values in enumerate(gathered):
            np.testing.assert_array_equal(values, block(peer, 0, size))


def counts(n: int, scale: int) -> list[list[int]]:
    """Return the rows that rank r sends to rank s: some of them none."""
    return [[(r + 2 * s) % 4 * scale for s in range(n)] for r in range(n)]


@pytest.mark.parametrize("scale", [1, 6000])
def test_all_to_all_with_splits(torch, dist, scale):
    n = torch.topology.num_sips
    rows = counts(n, scale)

    def program(rank):
        values = np.concatenate([block(rank, peer, 2 * rows[rank][peer]) for peer in range(n)]).reshape(-1, 2)
        come = [rows[peer][rank] for peer in range(n)]
        output = torch.zeros(max(1, sum(come)), 2, dp=ROWS)
        if not sum(rows[rank]) or not sum(come):
            raise AssertionError("every rank of the test sends and receives")
        dist.all_to_all_single(output, torch.tensor(values, dp=ROWS), come, rows[rank])
        return output.numpy().reshape(-1)

    for rank, result in enumerate(run_ranks(torch, program)):
        expected = [block(peer, rank, 2 * rows[peer][rank]) for peer in range(n)]
        np.testing.assert_array_equal(result, np.concatenate(expected))


def test_lists_of_blocks_of_any_size(tmp_path):
    sizes = [[5, 800, 0], [60, 2, 3000], [0, 7, 7]]
    with context_on(working_machine(3), tmp_path, RING) as torch:
        dist = torch.distributed.on(OWN_CUBE)

        def part(values):
            """Return these elements, or none, of a tensor that has some in any case."""
            tensor = torch.tensor(np.append(values, np.float32(-1)), dtype="f32", dp=ROWS)
            return dist.TensorPart(tensor, 0, len(values))

        def program(rank):
            outs = [part(np.zeros(sizes[peer][rank], np.float32)) for peer in range(3)]
            dist.all_to_all(outs, [part(block(rank, peer, sizes[rank][peer])) for peer in range(3)])
            gathered = [part(np.zeros(sizes[peer][1], np.float32)) for peer in range(3)]
            dist.all_gather(gathered, part(block(rank, 1, sizes[rank][1])))
            return [[each.tensor.numpy() for each in side] for side in (outs, gathered)]

        for rank, (exchanged, gathered) in enumerate(run_ranks(torch, program)):
            for peer in range(3):
                np.testing.assert_array_equal(exchanged[peer], np.append(block(peer, rank, sizes[peer][rank]), -1))
                np.testing.assert_array_equal(gathered[peer], np.append(block(peer, 1, sizes[peer][1]), -1))


def failing(tmp_path, program, text):
    with (
        context_on(working_machine(2), tmp_path, RING) as torch,
        pytest.raises(SpawnException, match=text),
    ):
        run_ranks(torch, lambda rank: program(torch, torch.distributed, rank))


def test_blocks_that_differ_between_two_ranks_are_reported(tmp_path):
    def program(torch, dist, rank):
        dist.all_to_all_single(torch.zeros(6), torch.zeros(6), [2, 4], [2, 4])

    failing(tmp_path, program, r"all_to_all_single.*: rank \d sends [24] elements to rank \d, which receives [24] from")


def test_a_block_for_the_rank_itself_has_one_size(tmp_path):
    def program(torch, dist, rank):
        dist.all_to_all_single(torch.zeros(6), torch.zeros(6), [2, 4][:: 1 - 2 * rank], [4, 2][:: 1 - 2 * rank])

    failing(tmp_path, program, r"rank (\d) sends 4 elements to rank \1, which receives 2 from it")


BAD = {
    "scatter: rank 0 needs its list": lambda torch, dist, rank: dist.scatter(torch.zeros(2)),
    "gather: rank 1 gives 2 tensors, but only rank 0 has a list": lambda torch, dist, rank: dist.gather(
        torch.zeros(2), [torch.zeros(2), torch.zeros(2)]
    ),
    "scatter: the list has 3 elements of f32 in .*, the tensor of rank 0 2 of f32": lambda torch, dist, rank: (
        dist.scatter(torch.zeros(2), [torch.zeros(2), torch.zeros(3)] if rank == 0 else None)
    ),
    r"input splits \[1, 1\] of 4 rows: give 2 whole numbers with this sum": lambda torch, dist, rank: (
        dist.all_to_all_single(torch.zeros(4), torch.zeros(4), None, [1, 1])
    ),
    r"not the same on all ranks.*(scatter|gather).*(scatter|gather)": lambda torch, dist, rank: (
        dist.scatter(torch.zeros(2), [torch.zeros(2), torch.zeros(2)])
        if rank == 0
        else dist.gather(torch.zeros(2), dst=0)
    ),
    r"not the same on all ranks.*root=[01].*root=[01]": lambda torch, dist, rank: dist.scatter(
        torch.zeros(2), [torch.zeros(2), torch.zeros(2)], src=rank
    ),
}


@pytest.mark.parametrize("text", list(BAD))
def test_bad_calls_are_errors(tmp_path, text):
    failing(tmp_path, BAD[text], text)


def times_of(torch: RuntimeContext[Any]) -> list[object]:
    """Return the time at which every rank ends the same collectives, which read no values."""
    dist = torch.distributed.on(OWN_CUBE)
    n = torch.topology.num_sips

    def program(rank):
        x, y = torch.empty(n * 600, dp=ROWS), torch.empty(n * 600, dp=ROWS)
        blocks = x.numel() // n
        dist.all_reduce(x, "product")
        dist.all_to_all_single(y, x, [blocks] * n, [blocks] * n)
        dist.scatter(dist.TensorPart(x, 0, 600), [dist.TensorPart(y, 0, 600)] * n if rank == 0 else None)
        return torch.engine.now

    return run_ranks(torch, program)


def test_times_do_not_depend_on_data(tmp_path):
    with context_on(working_machine(3), tmp_path, RING) as torch:
        expected = times_of(torch)
    for _ in range(2):
        engine = GraphEngine(working_machine(3), enable_data=False)
        with RuntimeContext(engine, ccl=tmp_path / "ccl.yaml") as torch:
            assert times_of(torch) == expected
