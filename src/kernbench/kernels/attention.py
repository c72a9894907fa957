"""Flash attention: softmax(Q Kᵀ scale) V with a running maximum and sum over blocks of keys."""

from typing import Any, NamedTuple

from kernbench.kernels.shares import blocks, share

LAYOUTS = ("hld", "lhd")
MINUS_INFINITY = float("-inf")


class Heads(NamedTuple):
    """A tensor of ``heads`` matrices, each (length, d)."""

    ptr: int
    heads: int
    length: int
    d: int
    dtype: Any
    layout: str

    def place(self, head: int, row: int, tl: Any) -> tuple[int, tuple[int, int]]:
        """Return the address of a row of a head, and the strides of its matrix."""
        item = tl.itemsize(self.dtype)
        if self.layout == "hld":
            head_elements, row_elements = self.length * self.d, self.d
        else:
            head_elements, row_elements = self.d, self.heads * self.d
        return self.ptr + (head * head_elements + row * row_elements) * item, (row_elements * item, item)

    def load(self, head: int, row: int, rows: int, tl: Any) -> Any:
        """Load ``rows`` rows of a head, from ``row`` on."""
        at, strides = self.place(head, row, tl)
        return tl.load(at, (rows, self.d), self.dtype, strides=strides)

    def store(self, head: int, row: int, values: Any, tl: Any) -> None:
        """Store rows of a head, from ``row`` on, rounded to the tensor's dtype."""
        at, strides = self.place(head, row, tl)
        tl.store(at, tl.cast(values, self.dtype), strides=strides)


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
    dtype: Any,
    heads: int | None = None,
    kv_heads: int | None = None,
    causal: bool = False,
    causal_offset: int | None = None,
    scale: float | None = None,
    layout: str = "hld",
    block_q: int = 128,
    block_k: int = 256,
    *,
    tl: Any,
) -> None:
    """Compute ``o = softmax(q kᵀ scale) v`` for each head: q and o (lq, d), k and v (lk, d). Sums are in f32.

    ``heads`` counts the heads of q and o, split over programs by cube, then PE. The default is one head a program.
    ``kv_heads`` counts the heads of k and v (default ``heads``): consecutive query heads share one. ``causal``: query i
    attends to keys 0 to i + ``causal_offset``. The default offset, lk - lq, lets the last query attend to all keys. A
    query that attends to no key gets 0. ``scale`` defaults to 1 / sqrt(d). ``layout`` is ``hld`` (each head contiguous)
    or ``lhd`` (the heads of a position side by side). Raises ValueError for another layout, or if ``kv_heads`` does not
    divide ``heads``.
    """
    n_heads: int = tl.num_programs(0) * tl.num_programs(1) if heads is None else heads
    n_kv: int = n_heads if kv_heads is None else kv_heads
    _check(n_heads, n_kv, layout)
    q, o = (Heads(ptr, n_heads, lq, d, dtype, layout) for ptr in (q_ptr, o_ptr))
    k, v = (Heads(ptr, n_kv, lk, d, dtype, layout) for ptr in (k_ptr, v_ptr))
    offset = lk - lq if causal_offset is None else causal_offset
    scores = Scores(d**-0.5 if scale is None else scale, offset if causal else None, block_k)
    first, mine = share(n_heads, tl)
    for head in range(first, first + mine):
        blind = 0 if not causal else max(0, min(lq, -offset))
        for row, rows in blocks(blind, block_q):
            o.store(head, row, tl.zeros((rows, d), dtype), tl)
        for row, rows in blocks(lq - blind, block_q, blind):
            query = q.load(head, row, rows, tl)
            o.store(head, row, _attend(query, row, k, v, head * n_kv // n_heads, scores, tl), tl)


def _attend(query: Any, row: int, k: Heads, v: Heads, head: int, scores: Scores, tl: Any) -> Any:
    """Return the result, in f32, for the block of queries from ``row`` on. Each query attends to the first key."""
    largest: Any = None
    total: Any = None
    mixed: Any = None
    for key, keys in blocks(scores.keys_seen(row + query.shape[0] - 1, k.length), scores.block_k):
        score = _scores(query, row, k.load(head, key, keys, tl), key, scores, tl)
        top = tl.max(score, 1, keepdims=True)
        top = top if largest is None else tl.maximum(top, largest)
        weight = tl.exp(score - top)
        sums = tl.sum(weight, 1, keepdims=True)
        if mixed is not None:
            fade = tl.exp(largest - top)
            sums, mixed = sums + total * fade, mixed * fade
        mixed = tl.dot(tl.cast(weight, v.dtype), v.load(head, key, keys, tl), mixed, out_dtype="f32")
        largest, total = top, sums
    return mixed / total


def _scores(query: Any, row: int, key_block: Any, key: int, scores: Scores, tl: Any) -> Any:
    """Multiply a block of queries by the keys from ``key`` on and scale; masked scores are -inf."""
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
