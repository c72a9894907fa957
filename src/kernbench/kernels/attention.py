"""Flash attention: softmax(Q Kᵀ scale) V with a running maximum and sum over blocks of keys."""

from typing import NamedTuple

from kernbench.common.dtypes import DType, DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.kernels.shares import blocks, share
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

LAYOUTS = ("hld", "lhd")
MINUS_INFINITY = float("-inf")


class Scores(NamedTuple):
    """Scale and mask of the scores. ``offset``: query i attends to keys 0 to i + offset, to all keys if None."""

    scale: float
    offset: int | None
    block_k: int

    def keys_seen(self, last_query: int, keys: int) -> int:
        """Return how many keys the queries up to ``last_query`` attend to."""
        return keys if self.offset is None else max(0, min(keys, last_query + self.offset + 1))


def attention(
    q_ptr: int,
    k_ptr: int,
    v_ptr: int,
    o_ptr: int,
    lq: int,
    lk: int,
    d: int,
    dtype: DTypeLike,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    causal_offset: int | None = None,
    scale: float | None = None,
    layout: str = "hld",
    block_q: int = 128,
    block_k: int = 256,
    *,
    tl: TLContext,
) -> None:
    """Compute ``o = softmax(q kᵀ scale) v`` for each head: q and o (lq, d), k and v (lk, d). Sums are in f32.

    ``heads`` is the number of heads of q and o, which are split over programs by cube, then PE; by default, each
    program has one. ``kv_heads`` is that of k and v (default ``heads``): consecutive query heads share one. ``causal``:
    query i attends to keys 0 to i + ``causal_offset``. The default offset, lk - lq, lets the last query attend to all
    keys. A query that attends to no key gets 0. ``scale`` defaults to 1 / sqrt(d). ``layout`` is ``hld`` (each head
    contiguous) or ``lhd`` (the heads of a position side by side). Raises ValueError for another layout, or if
    ``kv_heads`` does not divide ``heads``.
    """
    n_heads: int = tl.num_programs(0) * tl.num_programs(1) if heads is None else heads
    n_kv: int = n_heads if kv_heads is None else kv_heads
    _check(n_heads, n_kv, layout)
    item = element_type(dtype)
    q, o = (_view_heads(ptr, (n_heads, lq, d), item, layout) for ptr in (q_ptr, o_ptr))
    k, v = (_view_heads(ptr, (n_kv, lk, d), item, layout) for ptr in (k_ptr, v_ptr))
    offset = lk - lq if causal_offset is None else causal_offset
    scores = Scores(d**-0.5 if scale is None else scale, offset if causal else None, block_k)
    first, count = share(n_heads, tl)
    for head in range(first, first + count):
        blind = 0 if not causal else max(0, min(lq, -offset))
        for row, rows in blocks(blind, block_q):
            o.tile((head, row), (rows, d)).store(tl.zeros((rows, d), dtype), tl)
        for row, rows in blocks(lq - blind, block_q, blind):
            query = q.tile((head, row), (rows, d)).load(tl)
            mixed = _attend(query, row, k, v, head * n_kv // n_heads, scores, tl)
            o.tile((head, row), (rows, d)).store(mixed, tl)


def _view_heads(ptr: int, extents: tuple[int, int, int], item: DType, layout: str) -> View:
    """Return the view (heads, length, d) of a tensor in ``layout``."""
    heads, _, d = extents
    return View.row_major(ptr, extents, item) if layout == "hld" else View(ptr, extents, (d, heads * d, 1), item)


def _attend(query: Handle, row: int, k: View, v: View, head: int, scores: Scores, tl: TLContext) -> Handle:
    """Return, in f32, the result for the block of queries from ``row`` on. Each query must attend to the first key."""
    largest: Handle | None = None
    total: Handle | None = None
    mixed: Handle | None = None
    _, length, d = k.extents
    for key, keys in blocks(scores.keys_seen(row + query.shape[0] - 1, length), scores.block_k):
        score = _scores(query, row, k.tile((head, key), (keys, d)).load(tl), key, scores, tl)
        top = tl.max(score, 1, keepdims=True)
        top = top if largest is None else tl.maximum(top, largest)
        weight = tl.exp(score - top)
        sums = tl.sum(weight, 1, keepdims=True)
        if largest is not None and total is not None and mixed is not None:
            fade = tl.exp(largest - top)
            sums, mixed = sums + total * fade, mixed * fade
        weight = tl.cast(weight, v.dtype)
        mixed = tl.dot(weight, v.tile((head, key), (keys, d)).load(tl), mixed, out_dtype="f32")
        largest, total = top, sums
    assert mixed is not None, "a query attends to the first key"
    assert total is not None
    return mixed / total


def _scores(query: Handle, row: int, key_block: Handle, key: int, scores: Scores, tl: TLContext) -> Handle:
    """Return the scaled products of a block of queries and the keys from ``key`` on; masked scores are -inf."""
    score = tl.dot(query, key_block, out_dtype="f32", trans_b=True) * scores.scale
    rows, keys = score.shape
    if scores.offset is None or key + keys - 1 <= row + scores.offset:
        return score
    position = tl.iota((rows, 1), "i32", axis=0) + (row + scores.offset - key)
    return tl.where(tl.iota((1, keys), "i32") <= position, score, MINUS_INFINITY)


def _check(heads: int, kv_heads: int, layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r} is none of {', '.join(LAYOUTS)}")
    if heads % kv_heads:
        raise ValueError(f"{heads} heads do not share {kv_heads} heads of keys and values evenly")
