"""Column- and row-parallel layers against one product on the host."""

from __future__ import annotations

import numpy as np
import pytest
from tp_ranks import LAYOUTS, SOME_LAYOUTS, in_parallel, numbers, same_bits

from covering import covering, slow
from kernbench.common.errors import InputError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.tp import ColumnParallelLinear, RowParallelLinear, ops, scatter_to_tp_region

IN, OUT, TOKENS = 24, 32, 8
X, W, B = numbers(1, TOKENS, IN), numbers(2, IN, OUT, scale=IN**-0.5), numbers(3, OUT)


def near(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def side_by_side(results):
    return np.concatenate(results, axis=-1)


@pytest.mark.parametrize(("sips", "dtype"), [*covering((1, 2), ("f16", "f32")), slow(4, "f16"), slow(4, "f32")])
def test_a_column_and_a_row_layer_are_two_products(sips, dtype):
    tolerance = {"f16": 1e-2, "f32": 1e-5}[dtype]
    kind = {"f16": np.float16, "f32": np.float32}[dtype]
    x, w1 = numbers(1, 5, 12, dtype=kind), numbers(2, 12, 40, dtype=kind, scale=12**-0.5)
    w2 = numbers(3, 40, 12, dtype=kind, scale=40**-0.5)

    def program(torch, rank):
        up = ColumnParallelLinear(12, 40, dtype=dtype, torch=torch)
        down = RowParallelLinear(40, 12, dtype=dtype, torch=torch)
        up.load(w1)
        down.load(w2)
        assert up.weight.shape == (12, 40 // sips)
        assert down.weight.shape == (40 // sips, 12)
        return down(up(torch.tensor(x))).numpy()

    results = in_parallel(program, sips)
    wanted = x.astype(np.float64) @ w1.astype(np.float64) @ w2.astype(np.float64)
    # Values are about 1; sums that cancel are as far off as what they add up.
    np.testing.assert_allclose(results[0], wanted, rtol=tolerance, atol=tolerance)
    assert same_bits(results)


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_the_input_may_be_a_view(layout):
    """Of columns, shards that have a part of an axis in the middle."""
    w = numbers(5, 2, OUT)

    def program(torch, rank):
        column = ColumnParallelLinear(2, OUT, dtype="f32", torch=torch)
        column.load(w)
        return column(torch.tensor(X[:, :16], dp=LAYOUTS[layout]).reshape(8, 8, 2)).numpy()

    near(side_by_side(in_parallel(program)), X[:, :16].reshape(8, 8, 2) @ w)


@pytest.mark.parametrize("layout", SOME_LAYOUTS)
def test_the_input_may_lie_anywhere(layout):
    def program(torch, rank):
        column = ColumnParallelLinear(IN, OUT, bias=True, dtype="f32", torch=torch)
        column.load(W, B)
        row = RowParallelLinear(IN, OUT, bias=True, dtype="f32", input_is_parallel=False, torch=torch)
        row.load(W, B)
        x = torch.tensor(X, dp=LAYOUTS[layout])
        return column(x).numpy(), row.forward(x).numpy()

    columns, rows = zip(*in_parallel(program), strict=True)
    near(side_by_side(columns), X @ W + B)
    near(rows[0], X @ W + B)
    assert same_bits(rows)


@pytest.mark.parametrize(
    "dp",
    [
        DPPolicy("column_wise", "column_wise", num_cubes=1, num_pes=3),
        DPPolicy("column_wise", "replicate"),
        slow(DPPolicy("replicate", "column_wise")),
        slow(DPPolicy("replicate", "replicate")),
        DPPolicy(num_cubes=1, num_pes=1),
    ],
    ids=str,
)
def test_the_weight_may_be_spread_otherwise(dp):
    def program(torch, rank):
        column = ColumnParallelLinear(IN, OUT, bias=True, dtype="f32", gather_output=True, dp=dp, torch=torch)
        column.load(W, B)
        row = RowParallelLinear(OUT, IN, bias=True, dtype="f32", input_is_parallel=False, dp=dp, torch=torch)
        row.load(W.T, X[0])
        y = column(torch.tensor(X))
        return y.numpy(), row(y).numpy()

    (gathered, back), (other, same) = in_parallel(program)
    near(gathered, X @ W + B)
    near(back, (X @ W + B) @ W.T + X[0])
    assert same_bits([gathered, other])
    assert same_bits([back, same])


def test_every_pe_has_columns_of_its_own():
    def program(torch, rank):
        layer = ColumnParallelLinear(IN, OUT, torch=torch)
        small = RowParallelLinear(IN, 6, torch=torch)
        return len(layer.weight.layout.owners), len(small.weight.shards), layer.weight.sip

    assert in_parallel(program) == [(8, 6, 0), (8, 6, 1)]


def test_more_axes():
    x = numbers(4, 2, 3, IN)

    def program(torch, rank):
        layer = ColumnParallelLinear(IN, OUT, dtype="f32", gather_output=True, torch=torch)
        layer.load(W)
        row = RowParallelLinear(IN, OUT, dtype="f32", torch=torch)
        row.load(W)
        placed = torch.tensor(x)
        return layer(placed).numpy(), row(scatter_to_tp_region(placed)).numpy()

    for column, row in in_parallel(program):
        near(column, x @ W)
        near(row, x @ W)


def test_an_all_reduce_adds_up_ranks_and_no_cubes():
    # A row on PE 0 of each of two cubes: the packaged default algorithm would add up the cubes too.
    def program(torch, rank):
        row = RowParallelLinear(IN, OUT, dtype="f32", input_is_parallel=False, torch=torch)
        row.load(W)
        y = row(torch.tensor(X[:2]))
        return y.numpy(), len(y.shards)

    (y, shards), _ = in_parallel(program)
    near(y, X[:2] @ W)
    assert shards == 2


def test_a_single_row_is_spread_by_columns():
    def program(torch, rank):
        up = ColumnParallelLinear(IN, OUT, bias=True, dtype="f32", torch=torch)
        down = RowParallelLinear(OUT, IN, bias=True, dtype="f32", torch=torch)
        up.load(W, B)
        down.load(W.T, X[0])
        x = torch.tensor(X[:1])
        hidden = up(x)
        y = down(hidden)
        return ops.add(x, y, torch).numpy(), len(hidden.shards), len(y.shards)

    (y, hidden_shards, shards), (other, *_) = in_parallel(program)
    near(y, X[:1] + (X[:1] @ W + B) @ W.T + X[0])
    assert (hidden_shards, shards) == (8, 4)
    assert same_bits([y, other])


def test_a_workspace_is_reused_and_not_reported():
    def program(torch, rank):
        policy = DPPolicy("row_wise", "row_wise")
        first, again = (torch.workspace(64, dtype="f32", dp=policy) for _ in range(2))
        other = torch.workspace(32, dtype="f32", dp=policy)
        assert first.layout is again.layout is not other.layout
        return torch

    report = in_parallel(program)[0].cleanup_report
    assert (report.freed, report.leaked) == ((), ())


def test_weights_may_be_copied_in():
    def program(torch, rank):
        row = RowParallelLinear(IN, OUT, bias=True, dtype="f32", torch=torch)
        row.weight.copy_(W[12 * rank : 12 * rank + 12])
        row.bias.copy_(B)
        return row(torch.tensor(X[:, 12 * rank : 12 * rank + 12])).numpy()

    near(in_parallel(program)[1], X @ W + B)


def test_a_layer_frees_what_it_does_not_hand_out():
    def program(torch, rank):
        column = ColumnParallelLinear(IN, OUT, dtype="f32", gather_output=True, torch=torch)
        row = RowParallelLinear(OUT, IN, bias=True, dtype="f32", input_is_parallel=False, torch=torch)
        x = torch.zeros(TOKENS, IN, dp=LAYOUTS["columns"])
        for each in (x, y := column(x), row(y), column.weight, row.weight, row.bias):
            each.free()
        return torch

    assert in_parallel(program)[0].cleanup_report.freed == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda torch: ColumnParallelLinear(8, 33, torch=torch), "out_features=33 cannot be split evenly over 2 ranks"),
        (lambda torch: RowParallelLinear(33, 8, torch=torch), "in_features=33 cannot be split evenly over 2 ranks"),
        (lambda torch: RowParallelLinear(8, 0, torch=torch), "out_features=0"),
        (lambda torch: ColumnParallelLinear(8, 8, torch=torch).load(W), r"shape \(8, 8\), got \(24, 32\)"),
        (lambda torch: ColumnParallelLinear(IN, OUT, torch=torch).load(W, B), "has no bias; omit it"),
        (lambda torch: RowParallelLinear(IN, OUT, True, torch=torch).load(W), "has a bias; pass one"),
        (lambda torch: ColumnParallelLinear(8, 8, torch=torch)(torch.zeros(2, 9, dtype="f16")), "must be 8"),
        (lambda torch: ColumnParallelLinear(8, 8, torch=torch)(torch.zeros(8, dtype="f16")), "at least two axes"),
    ],
)
def test_sizes_that_do_not_fit(make, message):
    with pytest.raises(SpawnException, match=message) as raised:
        in_parallel(lambda torch, rank: make(torch))
    (error,) = raised.value.errors.values()
    assert isinstance(error, ValueError)
    assert isinstance(error, InputError)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda torch: ColumnParallelLinear(8, 8, torch=torch)(torch.zeros(2, 8)), "column.weight f16; use one type"),
        (lambda torch: RowParallelLinear(8, 8, dp=LAYOUTS["rows"], torch=torch), "not row_wise"),
    ],
)
def test_other_errors(make, message):
    with pytest.raises(SpawnException, match=message) as raised:
        in_parallel(lambda torch, rank: make(torch))
    (error,) = raised.value.errors.values()
    assert isinstance(error, InputError)
