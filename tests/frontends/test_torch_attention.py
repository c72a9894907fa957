"""Attention's backward on the machine: its gradients are PyTorch's, its launches few; flex_attention both ways."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.attention import flex_attention as flex  # noqa: E402

import kernbench.torch  # noqa: E402, F401
from frontends.torch_programs import AHBM, machine  # noqa: E402
from kernbench.common.errors import InputError  # noqa: E402
from kernbench.topology.builder import resolve_topology  # noqa: E402

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
TOLERANCES = {F32: 2e-6, F16: 1e-3, BF16: 8e-3}
"""Of the largest element of each gradient."""


def bias(keys: int) -> Any:
    """Add to scores, the same for all queries: its gradient is a sum."""
    return torch.randn(1, 4, 1, keys)


def hide_all(keys: int) -> Any:
    """Hide some keys, and all of them from query 2."""
    mask = torch.zeros(keys, keys).masked_fill(torch.rand(keys, keys) > 0.6, float("-inf"))
    mask[2] = float("-inf")
    return mask


def low(keys: int) -> Any:
    """Hide some keys, and all of them from query 2, by numbers beside which scores are nothing."""
    mask = torch.zeros(keys, keys).masked_fill(torch.rand(keys, keys) > 0.6, -1e9)
    mask[2] = torch.finfo(F32).min
    return mask


def triangle(keys: int) -> Any:
    return torch.ones(keys, keys, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    ("dtype", "kv_heads", "queries", "keys", "causal", "mask", "launches"),
    [
        (F32, 4, 9, 9, False, None, 1),
        (F32, 2, 7, 13, True, None, 1),
        (F32, 1, 3, 13, False, bias, 3),  # two add the gradient of the bias up
        (F32, 4, 9, 9, False, hide_all, 1),
        (F32, 2, 9, 9, False, triangle, 1),
        (F32, 2, 9, 9, False, low, 1),
        (F32, 2, 140, 260, True, None, 2),
        (F16, 2, 9, 9, True, None, 1),
        pytest.param(BF16, 2, 40, 257, False, None, 2, marks=pytest.mark.slow),
    ],
)
def test_gradients(dtype: Any, kv_heads: int, queries: int, keys: int, causal: bool, mask: Any, launches: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, n, m, 8).to(dtype) for n, m in ((4, queries), (kv_heads, keys), (kv_heads, keys)))
    given = None if mask is None else mask(keys)
    weight = torch.randn(1, 4, queries, 8).to(dtype)
    options = {"is_causal": causal, "enable_gqa": kv_heads != 4}

    def gradients(device: Any, to: Any) -> list[Any]:
        found = [x.clone().to(device, to).requires_grad_() for x in (q, k, v)]
        extra = None if given is None else given.clone().to(device)
        if mask is bias:
            found.append(extra.requires_grad_())
        y = functional.scaled_dot_product_attention(*found[:3], attn_mask=extra, **options)
        y.backward(weight.to(device, to))
        return [x.grad.cpu() for x in found]

    with sdpa_kernel(SDPBackend.MATH):  # the fused one of the CPU loses the sum of weights beside low scores
        wanted = gradients("cpu", F32)
    with machine() as context:
        found = gradients(AHBM, dtype)
        uses = {each.name: each for each in context.operators.uses()}
        assert not context.unmodelled
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.float() - other).abs().max() <= TOLERANCES[dtype] * other.abs().max()
    assert uses["scaled_dot_product_attention_backward"].launches == launches


@pytest.mark.parametrize("length", [34, 66, 130, pytest.param(258, marks=pytest.mark.slow)])
def test_a_query_does_not_see_the_key_after_it(length: int) -> None:
    """Also where that is the last of a block, and the first query the one before."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 8) for _ in range(3))

    def attend(device: Any) -> list[Any]:
        leaves = [x.clone().to(device).requires_grad_() for x in (q, k, v)]
        y = functional.scaled_dot_product_attention(*leaves, is_causal=True)
        (y * torch.arange(1.0, length + 1, device=device)[:, None]).sum().backward()
        return [y.detach().cpu(), *[x.grad.cpu() for x in leaves]]

    with machine():
        results = attend(AHBM)
    for mine, wanted in zip(results, attend("cpu"), strict=True):
        assert (mine - wanted).abs().max() <= 1e-5 * wanted.abs().max()


def test_operands_may_repeat_a_row_or_a_column() -> None:
    torch.manual_seed(0)
    given = [torch.randn(1, 2, *shape) for shape in ((1, 8), (7, 1), (7, 1))]

    def gradients(device: Any) -> list[Any]:
        found = [x.clone().to(device).requires_grad_() for x in given]
        q, k, v = (x.expand(1, 2, n, 8) for x, n in zip(found, (5, 7, 7), strict=True))
        y = functional.scaled_dot_product_attention(q, k, v)
        (y * torch.arange(8, device=device)).sum().backward()
        return [x.grad.cpu() for x in found]

    with machine():
        mine = gradients(AHBM)
    for x, wanted in zip(mine, gradients("cpu"), strict=True):
        assert (x - wanted).abs().max() <= 1e-6 + 1e-5 * wanted.abs().max()


@pytest.mark.slow
def test_blocks_fit_the_scratch_of_a_small_machine() -> None:
    settings = ["system.sips.count=1", "pe.tcm.bytes=1MiB", "pe.tcm.scheduler_reserved_bytes=256KiB"]
    with machine(data=False, topology=resolve_topology("default", settings)):
        x = torch.empty(1, 1, 260, 64, device=AHBM).requires_grad_()
        functional.scaled_dot_product_attention(x, x, x).sum().backward()
        assert x.grad.shape == x.shape


def test_gradients_of_gradients_are_refused() -> None:
    with machine():
        x = torch.ones(1, 1, 3, 4, device=AHBM, requires_grad=True)
        for y in (functional.scaled_dot_product_attention(x, x, x), functional.rms_norm(x, (4,))):
            with pytest.raises(InputError, match="create_graph=True"):
                torch.autograd.grad(y.sum(), x, create_graph=True)


def test_flex_attention_runs_operator_by_operator() -> None:
    """As PyTorch computes it without a kernel, there and back; of the same numbers as attention with that mask."""

    def grads(device: Any, attend: Any) -> list[Any]:
        given = [x.to(device).requires_grad_() for x in inputs]
        attend(*given).square().sum().backward()
        return [each.grad.cpu() for each in given]

    def causal(_: Any, __: Any, row: Any, column: Any) -> Any:
        return row >= column

    inputs = [torch.randn(1, 2, 16, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    with machine() as context, warnings.catch_warnings(action="error"):
        mask = flex.create_block_mask(causal, None, None, 16, 16, device=AHBM)
        found = grads(AHBM, lambda *qkv: flex.flex_attention(*qkv, block_mask=mask))
    wanted = grads("cpu", lambda *qkv: functional.scaled_dot_product_attention(*qkv, is_causal=True))
    for got, each in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, each)
    assert "flex_attention: ran operator by operator, with all scores in memory" in context.remarks


def test_a_score_of_flex_attention_takes_tensors_from_outside() -> None:
    """With their values; a gradient of theirs would be left out, so one that wants it is refused."""
    inputs = [torch.randn(1, 2, 8, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    slopes = torch.tensor([0.5, -0.25])
    wanted = [x.clone().requires_grad_() for x in inputs]
    apart = torch.arange(8)[:, None] - torch.arange(8)
    bias = slopes[:, None, None] * apart
    functional.scaled_dot_product_attention(*wanted, attn_mask=bias).square().sum().backward()
    with machine():
        found, there = [x.to(AHBM).requires_grad_() for x in inputs], slopes.to(AHBM)

        def lean(score: Any, _: Any, head: Any, row: Any, column: Any) -> Any:
            return score + there[head] * (row - column)

        flex.flex_attention(*found, score_mod=lean).square().sum().backward()
        for got, each in zip(found, wanted, strict=True):
            torch.testing.assert_close(got.grad.cpu(), each.grad)
        there.requires_grad_()
        with pytest.raises(InputError, match="gradient would be left out; detach it"):
            flex.flex_attention(*found, score_mod=lean)
