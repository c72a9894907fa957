"""Every way from placements to placements, on machines; numbers are exact."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from meshes import PLACEMENTS, check_locals, on_mesh, placed

from covering import sample
from kernbench.common.errors import InputError
from kernbench.dtensor import Partial, Replicate, Shard
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.multiprocessing import SpawnException

R, P, S0, S1 = Replicate(), Partial(), Shard(0), Shard(1)
LAYOUTS = {
    "columns": DPPolicy("column_wise", "row_wise", num_pes=2),
    "copies": DPPolicy("replicate", "row_wise"),
    "all copies": DPPolicy(num_pes=2),
}


def numbers(shape):
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


def all_ways(mesh_shape, array, wanted=lambda at: True, cubes=1, **options):
    """Every pair of placements that is ``wanted``: checks what all ranks end with, and that nothing is left."""
    kinds = list(product(PLACEMENTS, repeat=len(mesh_shape)))
    pairs = [pair for at, pair in enumerate(product(kinds, repeat=2)) if wanted(at)]

    def program(mesh):
        found = []
        for before, behind in pairs:
            x = placed(array, mesh, before, **options)
            y = x.redistribute(behind)
            found.append((y.placements, y.shape, y.to_local().peek()))
            for each in {x, y}:
                each.free()
        return found

    results, torch = on_mesh(mesh_shape, program, cubes)
    for at, (_, behind) in enumerate(pairs):
        assert {result[at][:2] for result in results} == {(behind, array.shape)}
        check_locals(array, mesh_shape, behind, [result[at][2] for result in results])
    assert torch.cleanup_report.leaked == torch.cleanup_report.left == ()
    # What `placed` redistributes has no other owner.
    assert all(each.name.startswith("tensor") for each in torch.cleanup_report.freed)


@pytest.mark.parametrize("shape", sample([(4, 6), (5, 3), (7, 8)], (5, 3)))
def test_all_pairs_over_two_ranks(shape):
    all_ways((2,), numbers(shape))


def test_all_pairs_over_three_ranks():
    all_ways((3,), numbers((5, 9)))


@pytest.mark.parametrize("layout", sample(LAYOUTS, "columns", "all copies"))
def test_all_pairs_with_a_policy_of_their_own(layout):
    all_ways((2,), numbers((9, 8)), wanted=lambda at: at % 3 == 1, cubes=2, dp=LAYOUTS[layout])


def test_all_pairs_of_tensors_on_all_pes():
    all_ways((2,), numbers((130, 128)), wanted=lambda at: at % 3 == 0, cubes=2)


@pytest.mark.parametrize("step", sample([26, 13], 26))
def test_pairs_over_a_rectangle(step):
    all_ways((2, 2), numbers((7, 6)), wanted=lambda at: at % step == 3)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [(2, 2), (1, 2), (3, 2)])
@pytest.mark.parametrize("shape", [(12, 12), (11, 12)])
def test_all_pairs_over_rectangles(mesh, shape):
    all_ways(mesh, numbers(shape))


def test_one_axis_and_three():
    def program(mesh):
        vector, cube = numbers((5,)), numbers((3, 4, 5))
        x, y = placed(vector, mesh, (S0,)), placed(cube, mesh, (S1,))
        wholes = [each.full_tensor().numpy() for each in (x, y, y.redistribute([Shard(-1)]))]
        return [each.shape for each in (x.to_local(), y.to_local())], wholes

    for at, (shapes, wholes) in enumerate(on_mesh((2,), program)[0]):
        assert shapes == [(3 - at,), (3, 2, 5)]
        np.testing.assert_array_equal(wholes[0], numbers((5,)))
        np.testing.assert_array_equal(wholes[1], numbers((3, 4, 5)))
        np.testing.assert_array_equal(wholes[2], numbers((3, 4, 5)))


@pytest.mark.parametrize(("op", "expected"), [("sum", [3, 3]), ("avg", [1.5, 1.5]), ("max", [2, 2]), ("min", [1, 1])])
def test_contributions_are_reduced_as_they_say(op, expected):
    def program(mesh):
        torch = mesh.torch
        x = torch.full((2,), mesh.get_rank() + 1)
        y = type(placed(numbers((2,)), mesh, (R,))).from_local(x, mesh, [Partial(op)])
        back = y.redistribute([R]).redistribute([Partial(op)])
        scattered = y.redistribute([S0]).to_local()
        return y.full_tensor().tolist(), back.full_tensor().tolist(), scattered.tolist(), x.tolist()

    for rank, (whole, back, scattered, kept) in enumerate(on_mesh((2,), program)[0]):
        assert whole == back == expected
        assert scattered == expected[:1]
        assert kept == [rank + 1] * 2


def launches(mesh_shape, array, before, behind, **options):
    """What a redistribution launches on a rank."""

    def program(mesh):
        x = placed(array, mesh, before, **options)
        first = len(mesh.torch.traces)
        x.redistribute(behind)
        return first

    (first, *_), torch = on_mesh(mesh_shape, program)
    names = [(each.sip, each.name) for each in torch.traces[first:] if each.phase == "launch"]
    return [name for sip, name in names if sip == 0]


@pytest.mark.parametrize(
    ("before", "behind", "shape", "names"),
    [
        (S0, R, (4, 4), ["all_gather"]),
        (S1, R, (4, 4), ["all_gather", "dtensor-copy"]),
        (S0, R, (5, 4), ["dtensor-copy", "all_gather", "dtensor-copy"]),
        (P, R, (4, 4), ["dtensor-copy", "all_reduce"]),
        (P, S0, (4, 4), ["reduce_scatter"]),
        (P, S1, (4, 4), ["dtensor-copy", "reduce_scatter"]),
        (S0, S1, (4, 4), ["dtensor-copy", "all_to_all"]),
        (S1, S0, (4, 4), ["all_to_all", "dtensor-copy"]),
        (R, S1, (4, 4), ["dtensor-copy"]),
        (R, P, (4, 4), ["dtensor-copy"]),
        (S0, P, (4, 4), ["dtensor-copy"]),
        (S0, S0, (4, 4), []),
    ],
)
def test_one_collective_and_only_the_copies_that_are_needed(before, behind, shape, names):
    assert launches((2,), numbers(shape), (before,), (behind,)) == names


def test_nothing_changes_nothing():
    def program(mesh):
        x = placed(numbers((4, 4)), mesh, (S0,))
        assert x.redistribute([Shard(-2)]) is x
        assert x.redistribute(mesh, [S0]) is x
        assert x.redistribute() is x

    on_mesh((2,), program)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, mesh: x.redistribute([Shard(1)]), "chunks of axis 1 leave nothing for place"),
        (lambda x, mesh: x.redistribute([Shard(2)]), r"Shard\(2\): the tensor has 2 axes"),
        (lambda x, mesh: x.redistribute([R, R]), "the mesh has 1 dims"),
        (lambda x, mesh: x.redistribute(R), "a list of Shard"),
        (lambda x, mesh: x.redistribute(mesh["x"], [R]), "the mesh cannot change"),
    ],
)
def test_what_cannot_be(change, words):
    def program(mesh):
        named = type(mesh)("ahbm", [0, 1], mesh_dim_names=("x",))
        change(placed(numbers((4, 1)), mesh, (S0,)), named)

    with pytest.raises(SpawnException, match=words) as caught:
        on_mesh((2,), program)
    assert all(isinstance(each, InputError) for each in caught.value.errors.values())
