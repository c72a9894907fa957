"""Operators that look at placements, against NumPy."""

from __future__ import annotations

from itertools import product
from operator import add, mul

import numpy as np
import pytest
from meshes import PLACEMENTS, on_mesh, placed

from covering import sample, slow
from kernbench.common.errors import InputError, UnsupportedError
from kernbench.dtensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.multiprocessing import SpawnException

R, P, S0, S1 = Replicate(), Partial(), Shard(0), Shard(1)
RNG_SEED = 7


def whole_numbers(*shape):
    """Small enough that sums in any order are exact."""
    return np.random.default_rng(RNG_SEED + len(shape) + shape[0]).integers(-3, 4, shape).astype(np.float32)


def same_on_all(results):
    for each in results[1:]:
        assert each == results[0]
    return results[0]


MATMUL = {
    (R, R): R,
    (R, S0): P,
    (R, S1): S1,
    (S0, R): S0,
    (S1, R): P,
    (S1, S0): P,
}


@pytest.mark.parametrize("sizes", sample([(4, 6, 8), (5, 7, 3)], (5, 7, 3)))
def test_products_of_all_pairs(sizes):
    m, k, n = sizes
    a, b = whole_numbers(m, k), whole_numbers(k, n)

    def program(mesh):
        found = {}
        for x, y in product(PLACEMENTS, PLACEMENTS):
            c = placed(a, mesh, (x,)) @ placed(b, mesh, (y,))
            assert c.shape == (m, n)
            np.testing.assert_array_equal(c.full_tensor().numpy(), a @ b)
            (found[x, y],) = c.placements
        return found

    found = same_on_all(on_mesh((2,), program)[0])
    assert {pair: found[pair] for pair in MATMUL} == MATMUL
    # Gathering the smaller of the two is the cheaper.
    assert found[S0, S1] == (S0 if k * n <= m * k else S1)


@pytest.mark.parametrize("step", sample([86, 43], 86))
def test_products_over_a_rectangle(step):
    a, b = whole_numbers(6, 5), whole_numbers(5, 7)
    kinds = list(product(PLACEMENTS, repeat=2))
    pairs = [pair for at, pair in enumerate(product(kinds, kinds)) if at % step == 3]

    def program(mesh):
        for x, y in pairs:
            c = placed(a, mesh, x) @ placed(b, mesh, y)
            np.testing.assert_array_equal(c.full_tensor().numpy(), a @ b, err_msg=f"{x} @ {y}")
        plain = placed(a, mesh, (S0, R)) @ placed(b, mesh, (R, S1))
        return plain.placements, plain.to_local().shape

    results, _ = on_mesh((2, 2), program)
    assert [placements for placements, _ in results] == [(S0, S1)] * 4
    assert [shape for _, shape in results] == [(3, 4), (3, 3), (3, 4), (3, 3)]


@pytest.mark.parametrize("operator", [add, mul], ids=lambda each: each.__name__)
def test_sums_and_products_of_elements(operator):
    a, b = whole_numbers(5, 4), whole_numbers(5, 4) + 1

    def program(mesh):
        found = {}
        for x, y in product(PLACEMENTS, PLACEMENTS):
            c = operator(placed(a, mesh, (x,)), placed(b, mesh, (y,)))
            np.testing.assert_array_equal(c.full_tensor().numpy(), operator(a, b), err_msg=f"{x}, {y}")
            (found[x, y],) = c.placements
        return found

    found = same_on_all(on_mesh((2,), program)[0])
    assert found[R, R] == R
    assert found[P, R] == found[R, P] == P
    assert found[P, P] == (R if operator is mul else P)
    assert found[S0, R] == found[R, S0] == found[S0, P] == S0
    assert found[S0, S1] == S0
    assert found[S1, S0] == S1


@pytest.mark.parametrize("step", sample([86, 43], 86))
def test_elements_over_a_rectangle(step):
    a, b = whole_numbers(4, 6), whole_numbers(4, 6) - 1
    kinds = list(product(PLACEMENTS, repeat=2))
    pairs = [pair for at, pair in enumerate(product(kinds, kinds)) if at % step == 5]

    def program(mesh):
        for x, y in pairs:
            c = placed(a, mesh, x) - placed(b, mesh, y)
            np.testing.assert_array_equal(c.full_tensor().numpy(), a - b, err_msg=f"{x} - {y}")
        # Where two dims would cut the same axis too often, copies are made.
        return (placed(a[:3, :1], mesh, (S0, R)) + placed(b[:3, :1], mesh, (R, S0))).full_tensor().numpy()

    for result in on_mesh((2, 2), program)[0]:
        np.testing.assert_array_equal(result, (a + b)[:3, :1])


NUMBERS = {
    "scaled": (lambda x: x * 2, True),
    "scaled from the left": (lambda x: np.float32(2) * x, True),
    "divided": (lambda x: x / 4, True),
    "negated": (lambda x: -x, True),
    "shifted": (lambda x: x + 3, False),
    "shifted from the left": (lambda x: 3 + x, False),
    "taken from": (lambda x: 1 - x, False),
    "divisor": (lambda x: 8 / (x * x + 1), False),
}


def test_numbers():
    a = whole_numbers(5, 4)

    def program(mesh):
        found = {}
        for placement, (name, (function, _)) in product((S1, P), NUMBERS.items()):
            c = function(placed(a, mesh, (placement,)))
            np.testing.assert_allclose(c.full_tensor().numpy(), function(a), rtol=1e-6, err_msg=name)
            (found[placement, name],) = c.placements
        return found

    found = same_on_all(on_mesh((2,), program)[0])
    for (placement, name), result in found.items():
        linear = NUMBERS[name][1]
        assert result == (placement if linear or placement != P else R)


def test_functions_reduce_first():
    a = whole_numbers(5, 4)
    functions = {
        "relu": lambda x: np.maximum(x, 0),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "tanh": np.tanh,
        "exp": np.exp,
        "abs": np.abs,
        "silu": lambda x: x / (1 + np.exp(-x)),
        "gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    }

    def program(mesh):
        for placement, (name, function) in product((S0, P), functions.items()):
            c = getattr(placed(a, mesh, (placement,)), name)()
            np.testing.assert_allclose(c.full_tensor().numpy(), function(a), rtol=1e-5, atol=1e-6, err_msg=name)
            assert c.placements == ((R,) if placement == P else (placement,))
        x = placed(a, mesh, (P,))
        np.testing.assert_array_equal(x.maximum(1).full_tensor().numpy(), np.maximum(a, 1))
        np.testing.assert_array_equal(
            x.minimum(placed(a[::-1], mesh, (S0,))).full_tensor().numpy(), np.minimum(a, a[::-1])
        )

    on_mesh((2,), program)


def test_quotients_of_integers_are_of_sums():
    def program(mesh):
        x = DTensor.from_local(mesh.torch.tensor([3, -3, 5], dtype="i32"), mesh, [Partial()])
        halves, both = x / 4, x / placed(np.array([2, 2, 2]), mesh, (R,))
        return halves.full_tensor().tolist(), both.full_tensor().tolist()

    assert on_mesh((2,), program)[0] == [([1, -1, 2], [3, -3, 5])] * 2


def test_products_of_integers_are_wide():
    a, b = np.full((3, 70), 100, np.int8), np.full((70, 2), 100, np.int8)

    def program(mesh):
        c = placed(a, mesh, (S1,)) @ placed(b, mesh, (S0,))
        return c.dtype.name, c.full_tensor().tolist()

    assert on_mesh((2,), program)[0] == [("i32", [[700000] * 2] * 3)] * 2


@pytest.mark.parametrize(
    "dp", [None, DPPolicy("column_wise", "row_wise"), slow(DPPolicy("replicate", "column_wise"))], ids=str
)
def test_parts_on_many_pes(dp):
    a, b = whole_numbers(96, 130), whole_numbers(130, 64)

    def program(mesh):
        x, w = (distribute_tensor(each, mesh, [s], dp=dp) for each, s in ((a, S1), (b, S0)))
        y = (x @ w).relu()
        if dp is not None:
            assert y.to_local().dp == y.dp == dp
        return y.full_tensor().numpy(), len(y.to_local().shards)

    for result, shards in on_mesh((2,), program, cubes=2)[0]:
        np.testing.assert_array_equal(result, np.maximum(a @ b, 0))
        assert shards == 8


def test_an_mlp_by_columns_and_rows_reduces_once():
    x, w1, w2 = whole_numbers(6, 8), whole_numbers(8, 10), whole_numbers(10, 8)

    def program(mesh):
        rows, up, down = placed(x, mesh, (R,)), placed(w1, mesh, (S1,)), placed(w2, mesh, (S0,))
        first = len(mesh.torch.traces)
        y = (rows @ up).relu() @ down
        names = [each.name for each in mesh.torch.traces[first:] if each.phase == "launch" and each.sip == 0]
        assert y.placements == (P,)
        return names, y.full_tensor().numpy()

    for names, result in on_mesh((2,), program)[0]:
        assert set(names) == {"matmul", "relu"}
        np.testing.assert_array_equal(result, np.maximum(x @ w1, 0) @ w2)


def test_operands_stay_and_what_was_made_for_them_goes():
    def program(mesh):
        x, w = placed(whole_numbers(4, 6), mesh, (S0,)), placed(whole_numbers(6, 4), mesh, (S0,))
        y = x @ w
        assert (x.placements, w.placements) == ((S0,), (S0,))
        for each in (x, w, y):
            each.free()

    _, torch = on_mesh((2,), program)
    assert torch.cleanup_report.freed == ()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x, y, mesh: x @ x, r"@: shapes \(4, 6\) and \(4, 6\)"),
        (lambda x, y, mesh: x + y, "nothing is broadcast"),
        (lambda x, y, mesh: x + x.to_local(), "from_local makes a DTensor of it"),
        (lambda x, y, mesh: x * np.ones((4, 6)), "a ndarray is no operand for a DTensor"),
        (lambda x, y, mesh: x @ 3, "a int is no operand"),
        (lambda x, y, mesh: np.ones((4, 6)) @ y, "@: a ndarray is no operand for a DTensor"),
        (lambda x, y, mesh: x.to_local() @ y, "from_local makes a DTensor of it"),
        (lambda x, y, mesh: of_integers(mesh) * 2.5, "mul: 2.5 is not an integer from -128 to 127, as i8"),
        (lambda x, y, mesh: of_integers(mesh) + 300, "add: 300 is not an integer from -128 to 127, as i8"),
        (lambda x, y, mesh: of_integers(mesh) - np.nan, "sub: nan is not an integer"),
        (lambda x, y, mesh: x + distribute_tensor(np.ones((4, 6), np.float16), mesh), "operands of f32 and f16"),
        (lambda x, y, mesh: x + distribute_tensor(np.ones((4, 6)), type(mesh)("ahbm", [[0, 1]])), "on two meshes"),
    ],
)
def test_what_cannot_be(function, words):
    def program(mesh):
        function(placed(whole_numbers(4, 6), mesh, (S0,)), placed(whole_numbers(6, 4), mesh, (R,)), mesh)

    with pytest.raises(SpawnException, match=words) as caught:
        on_mesh((2,), program)
    assert all(isinstance(each, InputError) for each in caught.value.errors.values())


def of_integers(mesh):
    return distribute_tensor(np.ones(4), mesh, dtype="i8")


def test_types_that_are_not_multiplied():
    def program(mesh):
        x = distribute_tensor(np.ones((4, 4)), mesh, [S0], dtype="i32")
        return x @ x

    with pytest.raises(SpawnException, match="does not multiply i32") as caught:
        on_mesh((2,), program)
    assert all(type(each) is UnsupportedError for each in caught.value.errors.values())


def test_a_freed_operand_is_found_before_anything_is_made():
    def program(mesh):
        x, y = placed(whole_numbers(4, 6), mesh, (P,)), placed(whole_numbers(4, 6), mesh, (R,))
        y.free()
        for use in (lambda: x.maximum(y), lambda: y.redistribute([S0]), lambda: x - y):
            with pytest.raises(InputError, match="has been freed"):
                use()
        x.free()

    _, torch = on_mesh((2,), program)
    assert {each.name.count(".") for each in torch.cleanup_report.freed} == {0}


@pytest.mark.slow
@pytest.mark.parametrize(("mesh_shape", "step"), [((2, 2), 1), ((3, 2), 5)])
def test_products_of_pairs_over_rectangles(mesh_shape, step):
    a, b = whole_numbers(6, 11), whole_numbers(11, 8)
    kinds = list(product(PLACEMENTS, repeat=2))

    def program(mesh):
        for x, y in list(product(kinds, kinds))[::step]:
            operands = placed(a, mesh, x), placed(b, mesh, y)
            c = operands[0] @ operands[1]
            np.testing.assert_array_equal(c.full_tensor().numpy(), a @ b, err_msg=f"{x} @ {y}")

    on_mesh(mesh_shape, program)


def test_operands_may_be_views():
    """A tensor under another shape has the policy of the one it was made with, and lies otherwise."""
    a, b = whole_numbers(4, 16), whole_numbers(4, 8, 2)
    columns = DPPolicy("column_wise", "column_wise")

    def program(mesh):
        view = mesh.torch.tensor(a, dp=columns).reshape(4, 8, 2)
        other = mesh.torch.tensor(b, dp=DPPolicy())
        x, y = DTensor.from_local(view, mesh), DTensor.from_local(other, mesh)
        return [each.full_tensor().numpy() for each in (x + y, y + x, (x * 2).relu())]

    for found in on_mesh((2,), program, cubes=2)[0]:
        expected = a.reshape(4, 8, 2) + b, a.reshape(4, 8, 2) + b, np.maximum(a.reshape(4, 8, 2) * 2, 0)
        for got, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
