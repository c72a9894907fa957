"""Flash-style attention against the textbook's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import Array, Machine, assert_near, normal, wide

from kernbench.common.dtypes import BF16, F8E4M3, F8E5M2, F16, F32, DType
from kernbench.kernels.attention import attention
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
