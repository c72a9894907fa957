"""Flash-style attention against the textbook's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Array, Machine, assert_near, normal, wide

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, DType
from kernbench.kernels.attention import Attention, AttentionBackward, KeyParts, attention
from kernbench.kernels.view import View
from kernbench.messages.commands import LOAD

TYPES = (F32, F16, BF16, F8E4M3, F8E5M2)


def textbook(q: Array, k: Array, v: Array, scale: float, offset: int | None) -> Array:
    """(heads, length, d) each, in f64; a query without keys gives 0."""
    q, k, v = wide(q), wide(k), wide(v)
    repeat = q.shape[0] // k.shape[0]
    k, v = np.repeat(k, repeat, 0), np.repeat(v, repeat, 0)
    score = q @ k.swapaxes(1, 2) * scale
    seen = np.ones(score.shape[1:], bool)
    if offset is not None:
        seen = np.arange(score.shape[2])[None, :] <= np.arange(score.shape[1])[:, None] + offset
    weight = np.where(seen, np.exp(score - score.max(-1, keepdims=True)), 0)
    total = weight.sum(-1, keepdims=True)
    return np.where(total > 0, weight / np.where(total > 0, total, 1), 0) @ v


def check(
    item: DType,
    lq: int,
    lk: int,
    d: int,
    *,
    heads: int = 1,
    kv_heads: int | None = None,
    causal: bool = False,
    offset: int | None = None,
    scale: float | None = None,
    layout: str = "hld",
    grid: tuple[int, int] = (1, 1),
    blocks: tuple[int, int] = (16, 24),
    order: int | None = None,
) -> None:
    rng, machine = np.random.default_rng(lq * lk), Machine()
    kv = heads if kv_heads is None else kv_heads
    q, k, v = (normal(rng, shape, item) for shape in ((heads, lq, d), (kv, lk, d), (kv, lk, d)))
    places = [machine.put(x if layout == "hld" else np.ascontiguousarray(x.swapaxes(0, 1))) for x in (q, k, v)]
    out = machine.room(q.shape, item)
    machine.run(
        attention, *places, out, lq, lk, d, item.name, heads, kv_heads, causal, offset, scale, layout, *blocks,
        grid=grid, order=order,
    )  # fmt: skip
    machine.assert_only_wrote((out, q.size * item.itemsize))
    found = machine.get(out, q.shape if layout == "hld" else (lq, heads, d), item)
    found = found if layout == "hld" else found.swapaxes(0, 1)
    seen = (lk - lq if offset is None else offset) if causal else None
    wanted = textbook(q, k, v, d**-0.5 if scale is None else scale, seen)
    # The weights are rounded to the operands' type before they meet V, and the result again.
    unsigned = textbook(q, k, np.abs(wide(v)), d**-0.5 if scale is None else scale, seen)
    assert_near(found, wanted, magnitude=unsigned)


@pytest.mark.parametrize("item", TYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [(1, 1, 1), (33, 70, 17), (70, 33, 8), (1, 50, 16), (64, 64, 32)], ids=str)
def test_attention_is_the_textbooks(item: DType, causal: bool, size: tuple[int, int, int]) -> None:
    check(item, *size, causal=causal)


@given(
    lq=st.integers(1, 130),
    lk=st.integers(1, 130),
    d=st.integers(1, 70),
    causal=st.booleans(),
    offset=st.none() | st.integers(-140, 140),
    blocks=st.tuples(st.integers(1, 130), st.integers(8, 130)),
    item=st.sampled_from((F32, F16, BF16)),
    order=st.none() | st.integers(0, 9),
)
def test_any_size_offset_and_block(blocks: tuple[int, int], **case: Any) -> None:
    case["blocks"] = (max(8, blocks[0]), blocks[1])
    check(**case)


@pytest.mark.parametrize("layout", ["hld", "lhd"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "grid"), [(6, None, (2, 3)), (5, None, (1, 2)), (4, 2, (1, 4)), (2, 1, (2, 2))]
)
def test_heads_are_split_over_programs_and_share_keys(
    layout: str, heads: int, kv_heads: int | None, grid: tuple[int, int]
) -> None:
    check(F16, 20, 30, 8, heads=heads, kv_heads=kv_heads, grid=grid, layout=layout, causal=True)


def test_each_program_has_a_head_by_default() -> None:
    rng, machine = np.random.default_rng(0), Machine()
    q, k, v = (normal(rng, (4, 9, 8), F32) for _ in range(3))
    places, out = [machine.put(x) for x in (q, k, v)], machine.room(q.shape, F32)
    machine.run(attention, *places, out, 9, 9, 8, "f32", grid=(2, 2))
    assert_near(machine.get(out, q.shape, F32), textbook(q, k, v, 8**-0.5, None), magnitude=1.0)


def test_the_scale_is_the_callers() -> None:
    check(F32, 12, 12, 8, scale=1.0)


def test_large_scores_do_not_overflow() -> None:
    machine = Machine()
    x = np.full((1, 4, 8), 100, np.float16)
    places, out = [machine.put(x), machine.put(x), machine.put(x)], machine.room(x.shape, F16)
    machine.run(attention, *places, out, 4, 4, 8, "f16", causal=True, block_k=2)
    assert (machine.get(out, x.shape, F16) == 100).all()


def test_blocks_that_no_query_of_a_block_sees_are_not_read() -> None:
    machine = Machine()
    at = [machine.room((1, 64, 8), F16) for _ in range(4)]
    loads = {}
    for causal in (False, True):
        machine.run(attention, *at, 64, 64, 8, "f16", causal=causal, block_q=16, block_k=16)
        loads[causal] = sum(c.op is LOAD for c in machine.last.commands)
    assert loads == {False: 4 + 4 * 4 * 2, True: 4 + (1 + 2 + 3 + 4) * 2}


@pytest.mark.parametrize(
    ("changed", "message"), [({"layout": "dlh"}, "hld, lhd"), ({"kv_heads": 3}, "2 heads do not share 3")]
)
def test_arguments_that_do_not_fit(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Machine().run(attention, 0, 0, 0, 0, 4, 4, 4, "f16", **{"heads": 2} | changed)


# --- split-K and backward ---------------------------------------------------------------------------------------------


def place(machine: Machine, x: Array) -> View:
    return View.row_major(machine.put(x), x.shape, F32)


def random_attention(machine: Machine, queries: int, keys: int, offset: int | None) -> tuple[Attention, list[Array]]:
    """Two batches of 4 heads that share 2 heads of keys, in f32; also the operands q, k, v."""
    rng = np.random.default_rng(queries * keys)
    shapes = ((2, 4, queries, 8), (2, 2, keys, 8), (2, 2, keys, 6))
    operands = [normal(rng, shape, F32) for shape in shapes]
    q, k, v = (place(machine, x) for x in operands)
    out, lse = (place(machine, np.zeros(shape, np.float32)) for shape in ((2, 4, queries, 6), (1, 2, 4, queries)))
    return Attention(q, k, v, out, lse, 0.3, offset, block_q=16, block_k=24), operands


def read(machine: Machine, view: View) -> Array:
    return machine.get(view.address, view.extents, F32)


def addresses(work: Attention) -> tuple[int, ...]:
    return work.q.address, work.k.address, work.v.address


@pytest.mark.parametrize("count", [1, 3, 7])
def test_parts_of_keys_are_merged(count: int) -> None:
    machine = Machine()
    work, operands = random_attention(machine, 5, 90, None)
    parts = KeyParts(work, count)
    states = [machine.room((2 * 4, count, 5, width), F32) for width in (6, 1, 1)]
    assert work.lse is not None
    results = work.out.address, work.lse.address
    machine.run(lambda *, tl: parts.run(*states, *addresses(work), tl=tl), grid=(2, 3))
    machine.run(lambda *, tl: parts.merge(*results, *states, tl=tl), grid=(1, 2))
    found, lse = read(machine, work.out), read(machine, work.lse)
    for batch in range(2):
        assert_near(found[batch], textbook(*[x[batch] for x in operands], 0.3, None), magnitude=1.0)
    machine.run(lambda *, tl: work.run(*results, *addresses(work), tl=tl), grid=(1, 2))
    assert_near(read(machine, work.out), wide(found), magnitude=1.0)
    assert_near(read(machine, work.lse), wide(lse), magnitude=1.0)


@pytest.mark.parametrize(
    ("queries", "keys", "offset", "block_k"),
    [(9, 20, None, 20), (40, 50, None, 16), (40, 40, 0, 16), (33, 70, 37, 64), (20, 20, 0, 20)],
)
def test_gradients(queries: int, keys: int, offset: int | None, block_k: int) -> None:
    machine = Machine(1 << 22)
    work, (q, k, v) = random_attention(machine, queries, keys, offset)
    grad = normal(np.random.default_rng(1), work.out.extents, F32)
    targets = [place(machine, np.zeros(x.shape, np.float32)) for x in (q, k, v)]
    single = block_k == keys
    scores = place(machine, np.zeros((2, 4, queries, keys), np.float32)) if single else None
    inner = place(machine, np.zeros((2, 4, queries), np.float32))
    backward = AttentionBackward(work, block_k, single, place(machine, grad), inner, *targets, scores)
    dq, dk, dv = (view.address for view in targets)
    assert work.lse is not None
    results = work.out.address, work.lse.address
    operands = (inner.address, backward.grad.address, *addresses(work), *results)
    machine.run(lambda *, tl: work.run(*results, *addresses(work), tl=tl))
    if not single:
        machine.run(lambda *, tl: backward.run_queries(dq, *operands, tl=tl), grid=(2, 2))
    written = (dq, dk, dv, *([] if scores is None else [scores.address]))
    machine.run(lambda *, tl: backward.run_keys(*written, *operands, tl=tl), grid=(1, 3))

    many_k, many_v = (np.repeat(wide(x), 2, 1) for x in (k, v))
    score = wide(q) @ many_k.swapaxes(2, 3) * 0.3
    if offset is not None:
        score = np.where(np.arange(keys) <= np.arange(queries)[:, None] + offset, score, -np.inf)
    weight = np.exp(score - score.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    by_weight = wide(grad) @ many_v.swapaxes(2, 3)
    by_score = weight * (by_weight - (by_weight * weight).sum(-1, keepdims=True))
    by_k, by_v = by_score.swapaxes(2, 3) @ wide(q) * 0.3, weight.swapaxes(2, 3) @ wide(grad)
    wanted = [by_score @ many_k * 0.3, *[x.reshape(2, 2, 2, keys, -1).sum(2) for x in (by_k, by_v)]]
    for view, gradient in zip(targets, wanted, strict=True):
        assert_near(read(machine, view), gradient, magnitude=float(np.abs(gradient).max()))
    if scores is not None:
        assert_near(read(machine, scores), by_score, magnitude=float(np.abs(by_score).max()))
