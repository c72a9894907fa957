"""A process group that the program makes before it spawns its ranks."""

from __future__ import annotations

from contextlib import suppress

import pytest
from machines import RING, context_on, working_machine

from compiled import compiled
from kernbench.ccl.sfr_config import configure_sfr_intercube_multisip
from kernbench.common.errors import InputError
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.runtime_api.process_group import QueueInstaller


@pytest.fixture
def torch(tmp_path):
    with context_on(working_machine(), tmp_path, RING) as context:
        yield context


@pytest.fixture
def installs(monkeypatch):
    """How often queues were installed."""
    count = []
    plain = QueueInstaller.install
    monkeypatch.setattr(QueueInstaller, "install", lambda *args, **named: count.append(0) or plain(*args, **named))
    return count


def reduced(torch, rank):
    """An all-reduce as a rank program does it."""
    torch.ahbm.set_device(rank)
    tensor = torch.full((8,), rank + 1)
    torch.distributed.all_reduce(tensor)
    return tensor.tolist()


def spawn(torch, program):
    results = {}
    torch.multiprocessing.spawn(lambda rank: results.update({rank: program(rank)}), nprocs=2)
    return [results[rank] for rank in sorted(results)]


def test_ranks_find_the_group_that_the_program_has_made(torch, installs):
    dist = torch.distributed
    dist.init_process_group("ahbm", world_size=2, rank=0)
    installed = torch.engine.now
    assert installed > 0
    assert (dist.is_initialized(), dist.get_world_size(), dist.get_rank(), dist.get_backend()) == (True, 2, 0, "ahbm")

    def program(rank):
        before = dist.is_initialized(), dist.get_world_size(), dist.get_rank(), torch.engine.now
        dist.init_process_group("ahbm")
        dist.init_process_group()
        return before, torch.engine.now, reduced(torch, rank)

    expected = [((True, 2, rank, installed), installed, [3.0] * 8) for rank in range(2)]
    assert spawn(torch, program) == expected
    assert len(installs) == 1


def test_several_spawns_use_one_group_and_so_may_ranks_of_their_own_afterwards(torch, installs):
    dist = torch.distributed
    dist.init_process_group("ahbm")
    for _ in range(2):
        assert spawn(torch, lambda rank: reduced(torch, rank)) == [[3.0] * 8] * 2
    assert len(installs) == 1
    dist.destroy_process_group()
    assert not dist.is_initialized()
    torch.multiprocessing.spawn(lambda rank: None, nprocs=3)

    def program(rank):
        dist.init_process_group("ahbm")
        found = reduced(torch, rank)
        dist.destroy_process_group()
        return found

    assert spawn(torch, program) == [[3.0] * 8] * 2
    assert torch.cleanup().left == ()


def test_a_rank_may_leave_it_and_come_back(torch):
    dist = torch.distributed
    dist.init_process_group("ahbm")

    def program(rank):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises(InputError, match=f"rank {rank} has no process group"):
            dist.barrier()
        dist.init_process_group("ahbm")
        return reduced(torch, rank)

    assert spawn(torch, program) == [[3.0] * 8] * 2
    assert dist.is_initialized()


@pytest.mark.parametrize("nprocs", [1, 3])
def test_another_number_of_ranks_is_refused_before_anything_runs(torch, nprocs):
    torch.distributed.init_process_group("ahbm")
    begun = []
    words = rf"nprocs={nprocs}, but the process group .* has 2 ranks.*: spawn 2, or .*destroy_process_group\(\) first"
    with pytest.raises(InputError, match=words):
        torch.multiprocessing.spawn(begun.append, nprocs=nprocs)
    assert begun == []
    torch.distributed.destroy_process_group()
    torch.multiprocessing.spawn(begun.append, nprocs=nprocs)
    assert begun == list(range(nprocs))


COLLECTIVES = {
    "all_reduce": lambda dist, t: dist.all_reduce(t),
    "async all_reduce": lambda dist, t: dist.all_reduce(t, async_op=True),
    "broadcast": lambda dist, t: dist.broadcast(t, 0),
    "reduce": lambda dist, t: dist.reduce(t, 0),
    "all_gather": lambda dist, t: dist.all_gather([t, t], t),
    "reduce_scatter": lambda dist, t: dist.reduce_scatter(t, [t, t]),
    "all_to_all": lambda dist, t: dist.all_to_all([t, t], [t, t]),
    "barrier": lambda dist, t: dist.barrier(),
    "send": lambda dist, t: dist.send(t, 1),
    "recv": lambda dist, t: dist.recv(t, 1),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_is_for_ranks(torch, name):
    tensor = torch.ones(4)
    with pytest.raises(InputError, match=r"init_process_group\('ahbm'\) first.*Only ranks call collectives"):
        COLLECTIVES[name](torch.distributed, tensor)
    torch.distributed.init_process_group("ahbm")
    with pytest.raises(InputError, match=r"none of the 2 ranks .* torch.multiprocessing.spawn\(fn, args, nprocs=2\)"):
        COLLECTIVES[name](torch.distributed, tensor)
    assert spawn(torch, lambda rank: reduced(torch, rank)) == [[3.0] * 8] * 2


def test_a_group_of_some_ranks_can_be_made_before_they_run(torch):
    torch.distributed.init_process_group("ahbm")
    alone = torch.distributed.new_group([1])
    assert spawn(torch, lambda rank: torch.distributed.get_rank(alone)) == [-1, 0]


def test_it_is_not_destroyed_nor_made_under_living_ranks(torch):
    dist = torch.distributed
    dist.init_process_group("ahbm")
    handle = torch.multiprocessing.spawn(lambda rank: reduced(torch, rank), nprocs=2, join=False)
    with pytest.raises(InputError, match=r"ranks of the group still run; join\(\)"):
        dist.destroy_process_group()
    assert dist.is_initialized()
    handle.join()
    dist.destroy_process_group()
    handle = torch.multiprocessing.spawn(lambda rank: None, nprocs=2, join=False)
    with pytest.raises(InputError, match="call it before spawn, or in the ranks"):
        dist.init_process_group("ahbm")
    handle.join()
    dist.init_process_group("ahbm")
    with pytest.raises(InputError, match="the program has a process group already"):
        dist.init_process_group("ahbm")


def fails(torch, rank):
    if rank:
        raise ZeroDivisionError("mine")
    reduced(torch, rank)


def never_joins(torch, rank):
    if not rank:
        torch.distributed.all_reduce(torch.ones(8), async_op=True)


def differs(torch, rank):
    torch.ahbm.set_device(rank)
    torch.distributed.all_reduce(torch.ones(8 + rank))


@pytest.mark.parametrize("program", [fails, never_joins, differs])
def test_it_can_be_used_after_ranks_have_failed(torch, program):
    torch.distributed.init_process_group("ahbm")
    with suppress(SpawnException):
        torch.multiprocessing.spawn(lambda rank: program(torch, rank), nprocs=2)
    for _ in range(2):
        assert spawn(torch, lambda rank: reduced(torch, rank)) == [[3.0] * 8] * 2
    torch.distributed.destroy_process_group()
    assert not torch.cleanup().leaked


def test_one_that_is_left_is_told_and_taken_off(tmp_path):
    topology = working_machine()
    with context_on(topology, tmp_path, RING) as torch:
        torch.distributed.init_process_group("ahbm")
        spawn(torch, lambda rank: reduced(torch, rank))
    assert torch.cleanup_report.left == ("process group of the program, not destroyed",)
    assert torch.cleanup_report.leaked == ()


def test_a_world_of_one_has_its_program_as_its_rank(tmp_path):
    with context_on(working_machine(1), tmp_path, RING) as torch:
        torch.distributed.init_process_group("ahbm")
        tensor = torch.ones(8)
        torch.distributed.all_reduce(tensor)
        torch.multiprocessing.spawn(lambda rank: torch.distributed.all_reduce(tensor))
        torch.distributed.all_reduce(tensor)
        assert tensor.tolist() == [1.0] * 8


def test_the_machine_as_nested_mappings(tmp_path):
    with context_on(working_machine(4), tmp_path) as torch:
        spec = torch.spec
        assert spec["system"]["sips"]["count"] == torch.topology.num_sips == 4
        assert (spec["sip"]["cube_mesh"]["w"], spec["sip"]["cube_mesh"]["h"]) == (2, 1)
        assert spec["cube"]["pe_layout"]["corners"] == ("NW", "NE", "SW", "SE")
        assert spec["cube"]["hbm"]["bytes_per_slice"] == 6 << 30
        assert spec["pe"]["components"]["pe_ipcq"]["attrs"]["overhead_ns"] == 2.0
        for section in (spec, spec["system"]["sips"], spec["pe"]["gemm"]["macs_per_ns"]):
            with pytest.raises(TypeError):
                section["new"] = 1
        with pytest.raises(AttributeError):
            torch.spec = {}


@pytest.mark.parametrize(("sips", "grid"), [(("mesh_2d",), (2, 2)), (("torus_2d", 4, 1), (4, 1)), (("ring_1d",), None)])
def test_the_columns_and_rows_of_sips_are_there_to_be_read(sips, grid):
    """So that a program can hand them to ``kernel_args``, and the whole to what checks the machine."""
    topology, *extents = sips
    sizes = [f"system.sips.{name}={value}" for name, value in zip("wh", extents, strict=False)]
    small = ["system.sips.count=4", "sip.cube_mesh.w=2", "sip.cube_mesh.h=1"]
    engine = GraphEngine(compiled(*small, f"system.sips.topology={topology}", *sizes))
    with RuntimeContext(engine) as torch:
        found = torch.spec["system"]["sips"]
        assert (found["w"], found["h"]) == (grid or (None, None))
        assert configure_sfr_intercube_multisip(engine, torch.spec).world_size == 8
