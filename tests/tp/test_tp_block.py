"""A transformer block on 1, 2 and 4 SIPs against one device."""

from __future__ import annotations

import numpy as np
import pytest
from tp_ranks import LAYOUTS, in_parallel, machine, numbers, same_bits

from covering import covering, slow
from kernbench.benches.tp_block import compute_block, make_block_weights
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.tp import LayerNorm, ParallelAttention, TransformerBlock

TOKENS, HIDDEN, HEADS, FFN = 5, 16, 4, 20


@pytest.mark.parametrize(("sips", "dtype"), [*covering((1, 2), ("f16", "f32")), slow(4, "f16"), slow(4, "f32")])
def test_a_block_is_the_same_on_any_number_of_sips(sips, dtype):
    tolerance = {"f16": 1e-2, "f32": 1e-5}[dtype]
    weights = make_block_weights(RuntimeContext(GraphEngine(machine(1))), HIDDEN, FFN, dtype)
    x = numbers(1, TOKENS, HIDDEN, dtype={"f16": np.float16, "f32": np.float32}[dtype])

    def program(torch, rank):
        block = TransformerBlock(HIDDEN, HEADS, FFN, dtype=dtype, torch=torch)
        block.load(weights)
        return block(torch.tensor(x, dp=LAYOUTS["copies"])).numpy()

    results = in_parallel(program, sips)
    wanted = compute_block(x, weights, HEADS, causal=True)
    # Elements that cancel to nearly nothing are as far off as the others: relative to the norm of a row.
    off = np.linalg.norm(results[0] - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert off.max() < tolerance
    assert same_bits(results)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda torch: ParallelAttention(24, 5, torch=torch), "hidden=24 cannot be split evenly over 5 heads"),
        (lambda torch: ParallelAttention(24, 3, torch=torch), "heads=3 cannot be split evenly over 2 ranks"),
        (lambda torch: ParallelAttention(24, 0, torch=torch), "hidden=24, to be split over 0 heads"),
    ],
)
def test_heads_that_cannot_be_split(make, message):
    with pytest.raises(SpawnException, match=message):
        in_parallel(lambda torch, rank: make(torch))


def test_layernorm():
    x, weight, bias = numbers(1, 6, 10), numbers(2, 10), numbers(3, 10)

    def program(torch, rank):
        norm = LayerNorm(10, dtype="f32", torch=torch)
        norm.load(weight, bias)
        return norm(torch.tensor(x)).numpy()

    centred = x - x.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * weight + bias
    np.testing.assert_allclose(in_parallel(program, 1)[0], wanted, rtol=1e-5, atol=1e-5)
