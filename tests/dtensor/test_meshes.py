"""Meshes of ranks, placements, and what becomes a DTensor."""

from __future__ import annotations

import numpy as np
import pytest
from meshes import machine, on_mesh, placed

from kernbench.common.errors import InputError, UnknownNameError
from kernbench.dtensor import DeviceMesh, DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from kernbench.dtensor.placements import check_placements, in_words
from kernbench.engine.engine import GraphEngine
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException


def test_where_a_rank_is():
    def program(mesh):
        named = DeviceMesh("ahbm", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
        assert named != mesh == init_device_mesh("ahbm", (2, 2)) == DeviceMesh("ahbm", mesh.mesh.astype(np.uint8))
        assert (mesh.shape, mesh.ndim, mesh.size(), named.size("tp")) == ((2, 2), 2, 4, 2)
        rows, columns = named["dp"], named["tp"]
        assert (columns.ndim, columns.get_local_rank(), columns.get_group()) == (
            1,
            named.get_local_rank("tp"),
            named.get_group(1),
        )
        return named.get_coordinate(), rows.mesh.tolist(), columns.mesh.tolist(), list(named.get_group("dp").ranks)

    assert on_mesh((2, 2), program)[0] == [
        ((0, 0), [0, 2], [0, 1], [0, 2]),
        ((0, 1), [1, 3], [0, 1], [1, 3]),
        ((1, 0), [0, 2], [2, 3], [0, 2]),
        ((1, 1), [1, 3], [2, 3], [1, 3]),
    ]


def test_tensors_over_one_dim_of_a_mesh():
    def program(mesh):
        named = DeviceMesh("ahbm", mesh.mesh, mesh_dim_names=("dp", "tp"))
        x = placed(np.arange(6.0), named["tp"], (Shard(0),))
        return (x * 2).full_tensor().tolist()

    assert on_mesh((2, 2), program)[0] == [[0, 2, 4, 6, 8, 10]] * 4


def test_a_program_that_is_alone_is_a_mesh():
    with RuntimeContext(GraphEngine(machine(1))) as torch:
        mesh = init_device_mesh("ahbm", (1, 1), torch=torch)
        x = placed(np.arange(6, dtype=np.float32).reshape(2, 3), mesh, (Shard(0), Partial()))
        y = x @ placed(np.ones((3, 2), np.float32), mesh, (Partial(), Shard(1)))
        assert y.full_tensor().tolist() == [[3, 3], [12, 12]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: init_device_mesh("cuda", (2,)), "device type 'cuda': this machine has 'ahbm'"),
        (lambda: init_device_mesh("ahbm", (3,)), r"mesh shape \(3,\) holds 3 ranks, there are 2"),
        (lambda: init_device_mesh("ahbm", (1, 1, 2)), "one or two dims, not 3"),
        (lambda: init_device_mesh("ahbm", 2), r"mesh shape 2: the ranks along each dim, one at least, as \(2,\)"),
        (lambda: init_device_mesh("ahbm", (-1, -2)), "the ranks along each dim, one at least"),
        (lambda: init_device_mesh("ahbm", (2.0,)), "the ranks along each dim, one at least"),
        (lambda: init_device_mesh("ahbm", (1, 2), mesh_dim_names="dp"), "'dp': the mesh has 2 dims, each with a name"),
        (lambda: init_device_mesh("ahbm", (2,), mesh_dim_names=([],)), "the mesh has 1 dims, each with a name"),
        (lambda: DeviceMesh("ahbm", [[0, 1], [1]]), "its rows must have equal lengths"),
        (lambda: init_device_mesh("ahbm", (2,), mesh_dim_names=("a", "b")), "the mesh has 1 dims, each with a name"),
        (lambda: DeviceMesh("ahbm", [0, 2]), "has to name ranks of 0..1, each once"),
        (lambda: DeviceMesh("ahbm", [0, 0]), "has to name ranks of 0..1, each once"),
        (lambda: DeviceMesh("ahbm", [1, 0]), "ranks have to ascend"),
        (lambda: init_device_mesh("ahbm", (2,))["tp"], "mesh dim 'tp'"),
        (lambda: init_device_mesh("ahbm", (2,))[0], r"mesh\[0\]: a dim is selected by its name"),
        (lambda: DeviceMesh("ahbm", [1]).get_coordinate(), "rank 0 is not in"),
    ],
)
def test_meshes_that_cannot_be(make, words):
    def program(mesh):
        if mesh.get_rank() == 0:
            make()

    with pytest.raises(SpawnException, match=words) as caught:
        on_mesh((2,), program)
    assert isinstance(caught.value.errors[0], InputError)


def test_a_mesh_needs_a_context_and_a_process_group():
    with pytest.raises(InputError, match="no RuntimeContext is active"):
        init_device_mesh("ahbm", (1,))
    with (
        RuntimeContext(GraphEngine(machine(2))) as torch,
        pytest.raises(SpawnException, match="init_process_group"),
    ):
        torch.multiprocessing.spawn(lambda rank: init_device_mesh("ahbm", (2,)), nprocs=2)


def test_placements_are_checked():
    assert check_placements([Shard(-1), Replicate()], 2, 3) == (Shard(2), Replicate())
    assert in_words((Shard(1), Partial())) == "[Shard(1), Partial(sum)]"
    for given, words in [
        ([Shard(0)], "the mesh has 2 dims"),
        ([Shard(3), Shard(0)], "the tensor has 3 axes"),
        ([Partial(), Partial("max")], "a tensor has one reduction only"),
        (["Shard(0)", Shard(0)], "a list of Shard"),
        (0, "a list of Shard"),
    ]:
        with pytest.raises(InputError, match=words):
            check_placements(given, 2, 3)
    with pytest.raises(UnknownNameError, match="sum, avg, max, min"):
        Partial("prod")


def test_placements_are_asked_what_they_are():
    each = (Shard(1), Replicate(), Partial("max"))
    assert [[p.is_shard(), p.is_replicate(), p.is_partial()] for p in each] == np.eye(3, dtype=bool).tolist()
    assert [Shard(1).is_shard(dim) for dim in (0, 1)] == [False, True]
    assert [Partial("max").is_partial(op) for op in ("sum", "max")] == [False, True]


@pytest.mark.parametrize("dim", ["0", 1.0, True, None])
def test_an_axis_is_a_whole_number(dim):
    with pytest.raises(InputError, match="the axis to cut is a whole number"):
        Shard(dim)
    assert repr(check_placements([Shard(np.int64(-1))], 1, 2)) == "(Shard(dim=1),)"


def test_tensors_come_from_the_host_or_from_the_sip():
    rows, spread = np.arange(16.0).reshape(4, 4), DPPolicy("row_wise", "row_wise", num_pes=2)

    def program(mesh):
        host = distribute_tensor(rows.tolist(), mesh, [Shard(0)], dtype="f16", name="x")
        there = mesh.torch.tensor(rows, dp=spread)
        copied, same = distribute_tensor(there, mesh, [Shard(1)]), distribute_tensor(there, mesh)
        assert same.to_local() is there
        assert same.full_tensor() is there
        assert (host.dtype.name, host.to_local().name, copied.dp, same.ndim) == ("f16", "x", spread, 2)
        return host.to_local().tolist(), copied.to_local().tolist(), repr(host)

    for at, (host, copied, text) in enumerate(on_mesh((2,), program)[0]):
        assert host == rows[2 * at : 2 * at + 2].tolist()
        assert copied == rows[:, 2 * at : 2 * at + 2].tolist()
        assert text == "DTensor(f16[4, 4], [Shard(0)] on DeviceMesh('ahbm', [0, 1]))"


def test_from_local():
    def program(mesh):
        local = mesh.torch.full((2, 3), mesh.get_rank())
        even = DTensor.from_local(local, mesh, [Shard(0)])
        part = mesh.torch.full((2 - mesh.get_rank(), 3), 1)
        uneven = DTensor.from_local(part, mesh, [Shard(0)], shape=(3, 3))
        return even.shape, even.full_tensor().tolist(), uneven.full_tensor().shape

    assert on_mesh((2,), program)[0] == [((4, 3), [[0] * 3] * 2 + [[1] * 3] * 2, (3, 3))] * 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda mesh: distribute_tensor(np.ones(4), mesh, [Partial()]),
            "from_local takes the contribution",
        ),
        (lambda mesh: distribute_tensor(np.ones(1), mesh, [Shard(0)]), "leave nothing for place"),
        (lambda mesh: distribute_tensor(mesh.torch.ones(4), mesh, dtype="f16"), "is f32, not f16"),
        (lambda mesh: DTensor.from_local(mesh.torch.ones(4), mesh, [Shard(0)], shape=(9,)), "from_local"),
        (lambda mesh: DTensor.from_local(mesh.torch.ones(4), mesh, [Shard(0)], shape=(8, 1)), "from_local"),
        (lambda mesh: DTensor.from_local(mesh.torch.ones(4), mesh, [Shard(0)], shape=8), "shape=8 is no shape"),
        (lambda mesh: DTensor.from_local(np.ones(4), mesh, [Shard(0)]), "a ndarray is no tensor of the machine"),
        (lambda mesh: DTensor.from_local(freed(mesh), mesh, [Shard(0)]), "has been freed"),
        (lambda mesh: DTensor.from_local(mesh.torch.ones(4), [0, 1], [Shard(0)]), r"\[0, 1\] is not a DeviceMesh"),
        (lambda mesh: distribute_tensor(np.ones(4), "ahbm", [Shard(0)]), "'ahbm' is not a DeviceMesh"),
        (lambda mesh: distribute_tensor(distribute_tensor(np.ones(4), mesh), mesh), "is distributed already"),
    ],
)
def test_tensors_that_cannot_be(make, words):
    with pytest.raises(SpawnException, match=words) as caught:
        on_mesh((2,), make)
    assert all(isinstance(each, InputError) for each in caught.value.errors.values())


def freed(mesh):
    tensor = mesh.torch.ones(4)
    tensor.free()
    return tensor


def test_after_a_rank_that_failed_the_next_program_runs():
    def main(rank, failing):
        torch.ahbm.set_device(rank)
        torch.distributed.init_process_group("ahbm")
        x = distribute_tensor(np.arange(5.0), init_device_mesh("ahbm", (2,)), [Shard(0)], name=f"x{rank}")
        if rank == failing:
            raise ValueError("a rank's own")
        whole = x.full_tensor()
        assert whole.tolist() == [0, 1, 2, 3, 4]
        for each in (x, whole):
            each.free()
        torch.distributed.destroy_process_group()

    with RuntimeContext(GraphEngine(machine(2))) as torch:
        for failing in (0, 1):
            with pytest.raises(SpawnException, match="a rank's own"):
                torch.multiprocessing.spawn(main, args=(failing,), nprocs=2)
        torch.multiprocessing.spawn(main, args=(None,), nprocs=2)
    assert torch.cleanup_report.leaked == torch.cleanup_report.left == ()
