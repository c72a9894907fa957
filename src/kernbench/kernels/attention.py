"""Flash attention, forward and backward: softmax(Q Kᵀ scale) V by blocks of queries over blocks of keys.

A running maximum and a running sum replace the softmax of complete rows, so no matrix of scores is stored. Backward
computes the weights of a block again, from the log-sum-exp of each query. Few queries use split-K over keys ("flash
decoding"). Heads are axis 1 of (batch, heads, length, features). Consecutive query heads share a head of keys and
values if there are fewer of those. Sums are in f32; weights are rounded to the type of the values before the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from kernbench.common.dtypes import F32, I32, DType, DTypeLike
from kernbench.common.dtypes import dtype as element_type
from kernbench.common.values import value
from kernbench.kernels.shares import blocks, part, share
from kernbench.kernels.view import View
from kernbench.triton_emu.handles import Handle
from kernbench.triton_emu.tl_context import TLContext

LAYOUTS = ("hld", "lhd")
QueryCorner: TypeAlias = tuple[int, int, int]
"""Batch, head, and first row of a block."""
RunningSoftmax: TypeAlias = tuple[Handle, Handle, Handle]
"""State of some queries after some keys, in f32: weighted sums of values (rows, dv), and (rows, 1) each, the sums of
weights and the largest scores."""
_LOWEST, _MASKED = -1e30, -2e38
"""Lower bound of scores with a finite bias, and the score of a masked key where a query may have no other keys."""
_LEAST_F32, _NEVER = -3.4028234663852886e38, 1e30
"""The lowest finite f32, and the log-sum-exp of a query without keys: all its weights become 0."""


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

    ``heads`` is the number of heads of q and o; by default, each program has one. The blocks of ``block_q`` queries of
    all heads are split over programs by cube, then PE. ``kv_heads`` is the number of heads of k and v (default
    ``heads``): consecutive query heads share one. ``causal``: query i attends to keys 0 to i + ``causal_offset``. The
    default offset, lk - lq, lets the last query attend to all keys. A query that attends to no key gets 0. ``scale``
    defaults to 1 / sqrt(d). ``layout`` is ``hld`` (each head contiguous) or ``lhd`` (the heads of a position side by
    side). Raises ValueError for another layout, or if ``kv_heads`` does not divide ``heads``.
    """
    n_heads: int = tl.num_programs(0) * tl.num_programs(1) if heads is None else heads
    n_kv: int = n_heads if kv_heads is None else kv_heads
    _check(n_heads, n_kv, layout)
    item = element_type(dtype)
    q, out = (_view_heads(ptr, (n_heads, lq, d), item, layout) for ptr in (q_ptr, o_ptr))
    k, v = (_view_heads(ptr, (n_kv, lk, d), item, layout) for ptr in (k_ptr, v_ptr))
    offset = lk - lq if causal_offset is None else causal_offset
    work = Attention(
        q=q,
        k=k,
        v=v,
        out=out,
        lse=None,
        scale=d**-0.5 if scale is None else scale,
        offset=offset if causal else None,
        block_q=block_q,
        block_k=block_k,
    )
    work.compute(tl)


def _check(heads: int, kv_heads: int, layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"layout {layout!r} is none of {', '.join(LAYOUTS)}")
    if heads % kv_heads:
        raise ValueError(f"{heads} heads do not share {kv_heads} heads of keys and values evenly")


def _view_heads(ptr: int, extents: QueryCorner, item: DType, layout: str) -> View:
    """Return the view (1, heads, length, d) of a tensor in ``layout``."""
    heads, length, d = extents
    strides = (length * d, d) if layout == "hld" else (d, heads * d)
    return View(ptr, (1, *extents), (heads * length * d, *strides, 1), item)


def own_blocks(rows: View, block: int, tl: TLContext) -> Iterator[tuple[QueryCorner, int]]:
    """Yield corner and length of this program's share of the blocks of ``rows`` (batch, heads, length, features)."""
    batch, heads, length, _ = rows.extents
    per_head = -(-length // block)
    first, count = share(batch * heads * per_head, tl)
    for index in range(first, first + count):
        unit, place = divmod(index, per_head)
        row = place * block
        yield (*divmod(unit, heads), row), min(block, length - row)


def load_block(x: View, at: QueryCorner, rows: int, tl: TLContext) -> Handle:
    """Load ``rows`` rows of ``x`` (batch, heads, length, features) from ``at`` on."""
    return x.tile(at, (rows, x.extents[3])).load(tl)


@value
class Attention:
    """The views and the rule of an attention. Tensors are (batch, heads, length, features).

    Query i attends to keys 0 to i + ``offset``, to all keys if None. ``bias`` (batch, heads, queries, keys) is added to
    scores, or selects keys if ``bias_is_mask``. ``lse`` (planes, batch, heads, queries) receives the log-sum-exp of the
    scores of each query, in f32. With a second plane it is the sum of both: a low bias leaves one f32 no precision.
    """

    q: View
    k: View
    v: View
    out: View
    lse: View | None
    scale: float
    offset: int | None
    block_q: int
    block_k: int
    bias: View | None = None
    bias_is_mask: bool = False

    def on(self, out: int, lse: int, q: int, k: int, v: int, *bias: int) -> Attention:
        """Return this attention of tensors at these addresses."""
        return self.read_from(q, k, v, *bias).write_to(out, lse)

    def write_to(self, out: int, lse: int) -> Attention:
        """Return this attention with its results at these addresses."""
        return replace(self, out=self.out.on(out), lse=None if self.lse is None else self.lse.on(lse))

    def read_from(self, q: int, k: int, v: int, *bias: int) -> Attention:
        """Return this attention of operands at these addresses."""
        placed = None if self.bias is None else self.bias.on(*bias)
        return replace(self, q=self.q.on(q), k=self.k.on(k), v=self.v.on(v), bias=placed)

    def run(self, out: int, lse: int, q: int, k: int, v: int, *bias: int, tl: TLContext) -> None:
        """Compute this program's share of the query blocks of all heads, of tensors at these addresses."""
        self.on(out, lse, q, k, v, *bias).compute(tl)

    def compute(self, tl: TLContext) -> None:
        """Compute this program's share of the query blocks of all heads."""
        for at, rows in own_blocks(self.q, self.block_q, tl):
            query = load_block(self.q, at, rows, tl)
            state = self.attend(query, at, (0, max(1, self.count_keys(at[2] + rows))), tl)
            self.finish(state, at, tl)

    def count_keys(self, end: int) -> int:
        """Return how many keys the queries before ``end`` attend to."""
        keys = self.k.extents[2]
        return keys if self.offset is None else max(0, min(keys, end + self.offset))

    def key_head(self, head: int) -> int:
        """Return the head of keys and values that a query head uses."""
        return head * self.k.extents[1] // self.q.extents[1]

    @property
    def _may_hide_all_keys(self) -> bool:
        return self.bias is not None or (self.offset is not None and self.offset < 0)

    def attend(self, query: Handle, at: QueryCorner, span: tuple[int, int], tl: TLContext) -> RunningSoftmax:
        """Return the state of the queries at ``at`` after the keys of ``span``: the first one, and their number."""
        z, kv = at[0], self.key_head(at[1])
        mixed: Handle | None = None
        total: Handle | None = None
        top: Handle | None = None
        for key, keys in blocks(span[1], self.block_k, span[0]):
            score = self.score(query, load_block(self.k, (z, kv, key), keys, tl), at, key, tl)
            largest = tl.max(score, 1, keepdims=True)
            largest = largest if top is None else tl.maximum(largest, top)
            weight = tl.exp(score - largest)
            if self._may_hide_all_keys:
                weight = tl.where(score < _MASKED / 2, 0.0, weight)
            sums = tl.sum(weight, 1, keepdims=True)
            if mixed is not None and total is not None and top is not None:
                fade = tl.exp(top - largest)
                sums, mixed = sums + total * fade, mixed * fade
            weight = tl.cast(weight, self.v.dtype)
            mixed = tl.dot(weight, load_block(self.v, (z, kv, key), keys, tl), mixed, out_dtype="f32")
            top, total = largest, sums
        assert mixed is not None, "a span has keys"
        assert total is not None
        assert top is not None
        return mixed, total, top

    def finish(self, state: RunningSoftmax, at: QueryCorner, tl: TLContext) -> None:
        """Store the result of the block of queries at ``at``, 0 for a query without keys, and its log-sum-exp."""
        mixed, total, top = state
        if self._may_hide_all_keys:
            is_empty = total <= 0
            total, top = tl.where(is_empty, 1.0, total), tl.where(is_empty, _NEVER, top)
        mixed = mixed / total
        self.out.tile(at, mixed.shape).store(mixed, tl)
        if self.lse is None:
            return
        logarithms = (top + tl.log(total),) if self.lse.extents[0] == 1 else (top, tl.log(total))
        for plane, logarithm in enumerate(logarithms):
            tl.store(self.lse.at((plane, *at)), logarithm)

    def score(self, query: Handle, keys: Handle, at: QueryCorner, key: int, tl: TLContext) -> Handle:
        """Return the f32 scores of the block of queries at ``at`` and the keys from ``key`` on."""
        row, (rows, _), (columns, _) = at[2], query.shape, keys.shape
        score = tl.dot(query, keys, out_dtype="f32", trans_b=True) * self.scale
        if self.bias is not None:
            score = self._add_bias(score, self.bias.tile((*at, key), score.shape).load(tl), tl)
        if self.offset is not None and key + columns - 1 > row + self.offset:
            position = tl.iota((rows, 1), I32, axis=0) + (row + self.offset - key)
            masked = _MASKED if self._may_hide_all_keys else float("-inf")
            score = tl.where(tl.iota((1, columns), I32) <= position, score, masked)
        return score

    def _add_bias(self, score: Handle, bias: Handle, tl: TLContext) -> Handle:
        if self.bias_is_mask:
            return tl.where(bias, score, score + _MASKED)
        score = score + tl.cast(bias, F32)
        return tl.where(score < _LEAST_F32, _MASKED, tl.maximum(score, _LOWEST))


@value
class KeyParts:
    """Split-K of an attention: ``count`` programs share the keys of a head, then one program merges their states.

    States are f32 arrays (batch · heads, count, queries, features of the values, or 1).
    """

    work: Attention
    count: int

    def run(self, mixed: int, total: int, top: int, q: int, k: int, v: int, *bias: int, tl: TLContext) -> None:
        """Compute the states of this program's share of the parts, and store them at ``mixed``, ``total``, ``top``."""
        work, states = self.work.read_from(q, k, v, *bias), self._states((mixed, total, top))
        batch, heads, queries, _ = work.q.extents
        first, units = share(batch * heads * self.count, tl)
        for index in range(first, first + units):
            unit, place = divmod(index, self.count)
            at = (*divmod(unit, heads), 0)
            query = load_block(work.q, at, queries, tl)
            state = work.attend(query, at, part(work.k.extents[2], self.count, place), tl)
            for view, x in zip(states, state, strict=True):
                tl.store(view.at((unit, place)), x)

    def merge(self, out: int, lse: int, mixed: int, total: int, top: int, *, tl: TLContext) -> None:
        """Combine the states of each head, each weighted by its largest score relative to the largest of all."""
        work = self.work.write_to(out, lse)
        batch, heads, queries, _ = work.q.extents
        mixed_parts, total_parts, top_parts = self._states((mixed, total, top))
        first, units = share(batch * heads, tl)
        for unit in range(first, first + units):
            tops = tl.load(top_parts.at((unit,)), top_parts.extents[1:], F32)
            top_of_all = tl.max(tops, 0, keepdims=True)
            weight = tl.exp(tops - top_of_all)
            sums = tl.sum(tl.load(total_parts.at((unit,)), total_parts.extents[1:], F32) * weight, 0)
            values = tl.sum(tl.load(mixed_parts.at((unit,)), mixed_parts.extents[1:], F32) * weight, 0)
            state = values, sums, tl.reshape(top_of_all, (queries, 1))
            work.finish(state, (*divmod(unit, heads), 0), tl)

    def _states(self, addresses: tuple[int, int, int]) -> list[View]:
        """Return the views of the states at these addresses."""
        batch, heads, queries, _ = self.work.q.extents
        widths = (self.work.v.extents[3], 1, 1)
        shapes = [(batch * heads, self.count, queries, width) for width in widths]
        return [View.row_major(address, shape, F32) for address, shape in zip(addresses, shapes, strict=True)]


@value
class AttentionBackward:
    """The gradients of an attention. Weights are computed again, block by block, from the log-sum-exp.

    ``block_k``: keys of a block. ``single_pass``: a block has all keys of a head, so the program that computes its
    gradients of keys and values computes those of queries, too. ``inner``: the dot product of gradient and result of
    each query, (batch, heads, queries). ``of_scores``: the gradients of scores, if the bias requires one.
    """

    forward: Attention
    block_k: int
    single_pass: bool
    grad: View
    inner: View
    dq: View
    dk: View
    dv: View
    of_scores: View | None

    def on(self, dq: int, inner: int, grad: int, *operands: int) -> AttentionBackward:
        """Return these gradients at the addresses of q, k, v, out, the log-sum-exp, and of the bias."""
        q, k, v, out, lse, *bias = operands
        forward = self.forward.on(out, lse, q, k, v, *bias)
        return replace(self, forward=forward, dq=self.dq.on(dq), inner=self.inner.on(inner), grad=self.grad.on(grad))

    def run_queries(self, dq: int, *operands: int, tl: TLContext) -> None:
        """Compute gradients of queries, and ``inner`` for ``run_keys``, for this program's share of query blocks."""
        work = self.on(dq, *operands)
        for at, rows in own_blocks(work.forward.q, work.forward.block_q, tl):
            work.fold_keys(at, rows, tl)

    def fold_keys(self, at: QueryCorner, rows: int, tl: TLContext) -> None:
        """Compute ``inner`` and the gradients of a block of queries: sums over the keys that they attend to."""
        forward = self.forward
        query, grad = load_block(forward.q, at, rows, tl), load_block(self.grad, at, rows, tl)
        inner = self._inner(grad, at, tl)
        tl.store(self.inner.at(at), inner)
        by_query: Handle | None = None
        for key, keys in blocks(forward.count_keys(at[2] + rows), self.block_k):
            corner = (at[0], forward.key_head(at[1]), key)
            k, v = load_block(forward.k, corner, keys, tl), load_block(forward.v, corner, keys, tl)
            by_score = self._of_block(query, grad, (k, v), inner, at, key, tl)[1]
            by_query = tl.dot(tl.cast(by_score, forward.q.dtype), k, by_query, out_dtype="f32")
        assert by_query is not None, "each block of queries attends to a key"
        self.dq.tile(at, query.shape).store(by_query * forward.scale, tl)

    def run_keys(self, dq: int, dk: int, dv: int, *addresses: int, tl: TLContext) -> None:
        """Compute the gradients of keys and values, for this program's share of the key blocks.

        ``addresses``: of the gradients of scores, if any, and then as for ``run_queries``.
        """
        work = replace(self, dk=self.dk.on(dk), dv=self.dv.on(dv))
        if self.of_scores is not None:
            work, addresses = replace(work, of_scores=self.of_scores.on(addresses[0])), addresses[1:]
        work = work.on(dq, *addresses)
        for at, keys in own_blocks(work.forward.k, work.block_k, tl):
            work.fold_queries(at, keys, tl)

    def fold_queries(self, at: QueryCorner, keys: int, tl: TLContext) -> None:
        """Compute the gradients of a block of keys: sums over the queries, of all heads, that attend to them."""
        forward, (z, kv, key) = self.forward, at
        _, heads, queries, _ = forward.q.extents
        group = heads // forward.k.extents[1]
        k, v = load_block(forward.k, at, keys, tl), load_block(forward.v, at, keys, tl)
        by_key: Handle | None = None
        by_value: Handle | None = None
        for head in range(kv * group, (kv + 1) * group):
            for row, rows in blocks(queries, forward.block_q):
                if forward.count_keys(row + rows) <= key and self.of_scores is None:
                    continue
                corner = (z, head, row)
                query, grad = load_block(forward.q, corner, rows, tl), load_block(self.grad, corner, rows, tl)
                inner = self._inner(grad, corner, tl) if self.single_pass else self._load_inner(corner, rows, tl)
                weight, by_score = self._of_block(query, grad, (k, v), inner, corner, key, tl)
                by_value = tl.dot(tl.cast(weight, self.grad.dtype), grad, by_value, out_dtype="f32", trans_a=True)
                narrow = tl.cast(by_score, forward.q.dtype)
                by_key = tl.dot(narrow, query, by_key, out_dtype="f32", trans_a=True)
                if self.single_pass:
                    by_query = tl.dot(narrow, k, out_dtype="f32") * forward.scale
                    self.dq.tile(corner, query.shape).store(by_query, tl)
                if self.of_scores is not None:
                    self.of_scores.tile((*corner, key), (rows, keys)).store(by_score, tl)
        by_key = tl.zeros(k.shape, F32) if by_key is None else by_key * forward.scale
        self.dk.tile(at, k.shape).store(by_key, tl)
        by_value = tl.zeros(v.shape, F32) if by_value is None else by_value
        self.dv.tile(at, v.shape).store(by_value, tl)

    def _of_block(
        self,
        query: Handle,
        grad: Handle,
        kv: tuple[Handle, Handle],
        inner: Handle,
        at: QueryCorner,
        key: int,
        tl: TLContext,
    ) -> tuple[Handle, Handle]:
        """Return the weights of a block, and the gradients of its scores, in f32."""
        k, v = kv
        score = self.forward.score(query, k, at, key, tl)
        lse = self.forward.lse
        assert lse is not None, "forward stores the log-sum-exp"
        for plane in range(lse.extents[0]):
            score = score - tl.load(lse.at((plane, *at)), (query.shape[0], 1), F32)
        weight = tl.exp(score)
        return weight, weight * (tl.dot(grad, v, out_dtype="f32", trans_b=True) - inner)

    def _inner(self, grad: Handle, at: QueryCorner, tl: TLContext) -> Handle:
        out = load_block(self.forward.out, at, grad.shape[0], tl)
        return tl.sum(tl.cast(grad, F32) * tl.cast(out, F32), 1, keepdims=True)

    def _load_inner(self, at: QueryCorner, rows: int, tl: TLContext) -> Handle:
        return tl.load(self.inner.at(at), (rows, 1), F32)
