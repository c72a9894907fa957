"""Scaled dot product attention as one kernel: blocks of queries over blocks of keys, without a score matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernbench.common.dtypes import F32, I32
from kernbench.common.values import value
from kernbench.frontends.placed import SHARD_BYTES, whole_grid
from kernbench.frontends.torch.launches import launch, measure, refuse_graph, view_of
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import new, sip_of
from kernbench.kernels.shares import blocks, part, share
from kernbench.kernels.view import View

aten = torch.ops.aten
_NAME = "scaled_dot_product_attention"
_QUERIES, _KEYS = 128, 256
_FEW, _LEAST_KEYS = 32, 64
"""Maximum number of queries for which a head's keys are split over PEs, and the minimum number of keys per PE."""
_LOWEST, _GONE = -1e30, -2e38
"""Lower bound of scores with a finite mask, and the score of a key that is masked off."""
_LEAST_F32, _NEVER = -3.4028234663852886e38, 1e30
"""The lowest f32, below which there is only -inf, and the log-sum-exp of a query without keys: its weights are 0."""


@value
class KeyParts:
    """Split-K of attention: the number of parts of a head's keys, if there are fewer query blocks than PEs."""

    count: int


@value
class Attention:
    """Sizes and layouts of an attention. ``bias`` is added to scores; ``causal``: query i attends to keys 0 to i."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int
    scale: float
    causal: bool
    q: View
    k: View
    v: View
    out: View
    bias: View | None
    bias_is_mask: bool = False

    def on(self, q: int, k: int, v: int, bias: int | None = None) -> Attention:
        """Return this attention of operands at these addresses."""
        placed = None if self.bias is None or bias is None else self.bias.on(bias)
        return replace(self, q=self.q.on(q), k=self.k.on(k), v=self.v.on(v), bias=placed)

    def run(self, out: int, lse: int, tl: Any) -> None:
        """Compute this program's share of the query blocks of all heads."""
        per_head = -(-self.queries // self.block_q)
        first, mine = share(self.batch * self.heads * per_head, tl)
        for which in range(first, first + mine):
            z, rest = divmod(which, self.heads * per_head)
            head, at = divmod(rest, per_head)
            row = at * self.block_q
            rows = min(self.block_q, self.queries - row)
            query = self.q.tile((z, head, row), (rows, self.d)).load(tl)
            last = min(self.keys, row + rows) if self.causal else self.keys
            state = self._attend(query, (z, head, row), (0, max(last, 1)), tl)
            self._finish(state, out, lse, (z, head, row), tl)

    def _finish(self, state: tuple[Any, Any, Any], out: int, lse: int, at: tuple[int, int, int], tl: Any) -> None:
        """Store the result, 0 for a query without keys, and its log-sum-exp; ``state`` is as `_attend` returns it."""
        mixed, total, top = state
        if self.bias is not None:
            none = total <= 0
            total, top = tl.where(none, 1.0, total), tl.where(none, _NEVER, top)
        mixed = mixed / total
        self.out.on(out).tile(at, mixed.shape).store(mixed, tl)
        logarithms = (top, tl.log(total)) if self.adds_bias else (top + tl.log(total),)
        for address, logarithm in zip(self.rows_at(lse, at), logarithms, strict=True):
            tl.store(address, logarithm)

    @property
    def adds_bias(self) -> bool:
        """Return whether a bias may make scores so low that a single f32 log-sum-exp loses precision."""
        return self.bias is not None and not self.bias_is_mask

    def rows_at(self, lse: int, at: tuple[int, int, int]) -> tuple[int, ...]:
        """Return the addresses of a query's log-sum-exp: one number, or with a bias the two whose sum it is."""
        z, head, row = at
        first = lse + ((z * self.heads + head) * self.queries + row) * F32.itemsize
        plane = self.batch * self.heads * self.queries * F32.itemsize
        return (first, first + plane) if self.adds_bias else (first,)

    @property
    def block_q(self) -> int:
        """Return the number of queries of a block, at least 16."""
        return min(_QUERIES, max(16, self.queries))

    def run_part(self, parts: KeyParts, results: Sequence[int], tl: Any) -> None:
        """Compute all queries of a head against this program's part of its keys; ``merge`` combines the parts.

        ``results``: addresses of the weighted sums of values, of the sums of weights and of the largest scores.
        """
        first, mine = share(self.batch * self.heads * parts.count, tl)
        for which in range(first, first + mine):
            unit, at = divmod(which, parts.count)
            z, head = divmod(unit, self.heads)
            begin, keys = part(self.keys, parts.count, at)
            query = self.q.tile((z, head), (self.queries, self.d)).load(tl)
            state = self._attend(query, (z, head, 0), (begin, keys), tl)
            rows = which * self.queries * F32.itemsize
            for address, x, width in zip(results, state, (self.dv, 1, 1), strict=True):
                tl.store(address + rows * width, x)

    def merge(self, parts: KeyParts, addresses: Sequence[int], tl: Any) -> None:
        """Combine the parts of every head, each weighted by its largest score relative to the largest of all."""
        out, lse, mixed_at, total_at, top_at = addresses
        n, queries = parts.count, self.queries
        first, mine = share(self.batch * self.heads, tl)
        for unit in range(first, first + mine):
            rows = unit * n * queries * F32.itemsize
            tops = tl.load(top_at + rows, (n, queries, 1), F32)
            top = tl.max(tops, 0, keepdims=True)
            weight = tl.exp(tops - top)
            total = tl.sum(tl.load(total_at + rows, (n, queries, 1), F32) * weight, 0)
            mixed = tl.sum(tl.load(mixed_at + rows * self.dv, (n, queries, self.dv), F32) * weight, 0)
            z, head = divmod(unit, self.heads)
            self._finish((mixed, total, tl.reshape(top, (queries, 1))), out, lse, (z, head, 0), tl)

    def _attend(self, query: Any, at: tuple[int, int, int], span: tuple[int, int], tl: Any) -> tuple[Any, Any, Any]:
        """Return the weighted sum of values, the sum of weights and the largest score of each query, in f32.

        ``span``: the first key, and the number of keys.
        """
        z, head, _ = at
        kv = head * self.kv_heads // self.heads
        mixed = total = top = None
        for key, keys in blocks(span[1], _KEYS, span[0]):
            score = self.score(query, self.k.tile((z, kv, key), (keys, self.d)).load(tl), at, key, tl)
            largest = tl.max(score, 1, keepdims=True)
            largest = largest if top is None else tl.maximum(largest, top)
            weight = tl.exp(score - largest)
            if self.bias is not None:  # a query may have no key to attend to
                weight = tl.where(score < _GONE / 2, 0.0, weight)
            sums = tl.sum(weight, 1, keepdims=True)
            if mixed is not None:
                fade = tl.exp(top - largest)
                sums, mixed = sums + total * fade, mixed * fade
            values = self.v.tile((z, kv, key), (keys, self.dv)).load(tl)
            mixed = tl.dot(tl.cast(weight, self.v.dtype), values, mixed, out_dtype="f32")
            top, total = largest, sums
        return mixed, total, top

    def score(self, query: Any, keys: Any, at: tuple[int, int, int], key: int, tl: Any) -> Any:
        """Return the f32 scores of a block of queries, from (batch, head, row) on, and keys from ``key`` on."""
        row, (rows, _), (columns, _) = at[2], query.shape, keys.shape
        score = tl.dot(query, keys, out_dtype="f32", trans_b=True) * self.scale
        if self.bias is not None:
            score = self._add_bias(score, self.bias.tile((*at, key), score.shape).load(tl), tl)
        if self.causal and key + columns - 1 > row:
            position = tl.iota((rows, 1), I32, axis=0) + (row - key)
            score = tl.where(tl.iota((1, columns), I32) <= position, score, _GONE)
        return score

    def _add_bias(self, score: Any, bias: Any, tl: Any) -> Any:
        if self.bias_is_mask:
            return tl.where(bias, score, score + _GONE)
        score = score + tl.cast(bias, F32)
        return tl.where(score < _LEAST_F32, _GONE, tl.maximum(score, _LOWEST))


def describe(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, out: Tensor, *rule: Any
) -> tuple[Attention, tuple[Tensor, ...]]:
    """Return the description of an attention, and the tensors that it reads; ``rule``: causal, scale."""
    batch, heads, queries, d = query.shape
    seen = None if mask is None else mask.expand(batch, heads, queries, key.shape[2])
    causal, scale = rule
    work = Attention(
        batch=batch,
        heads=heads,
        kv_heads=key.shape[1],
        queries=queries,
        keys=key.shape[2],
        d=d,
        dv=value.shape[3],
        scale=scale,
        causal=causal,
        q=view_of(query),
        k=view_of(key),
        v=view_of(value),
        out=view_of(out),
        bias=None if seen is None else view_of(seen),
        bias_is_mask=seen is not None and seen.dtype is torch.bool,
    )
    return work, (query, key, value, *([] if seen is None else [seen]))


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Launch attention of (batch, heads, length, d); return the result, and the log-sum-exp of each query."""
    if query.shape[2] == 1 and key.shape[1] < query.shape[1] and not causal:
        return _attend_by_groups(query, key, value, mask, scale)
    batch, heads, queries, _ = query.shape
    sip = sip_of(query)
    # Stored as (batch, length, heads, d), it needs no copy before the projection that follows.
    out = new((batch, queries, heads, value.shape[3]), query.dtype, sip).transpose(1, 2)
    work, tensors = describe(query, key, value, mask, out, causal, scale)
    lse = new((2 if work.adds_bias else 1, batch, heads, queries), torch.float32, sip)
    if not out.numel():
        return out, lse
    if work.queries <= _FEW and not causal and work.keys >= 2 * _LEAST_KEYS:
        _attend_in_parts(work, out, lse, tensors)
        return out, lse

    def program(out_at: int, lse_at: int, *operands: int, tl: Any) -> None:
        work.on(*operands).run(out_at, lse_at, tl)

    units = batch * heads * -(-queries // work.block_q)
    launch(_NAME, program, (out, lse), tensors, units * SHARD_BYTES)
    return out, lse


def _attend_in_parts(work: Attention, out: Tensor, lse: Tensor, tensors: Sequence[Tensor]) -> None:
    """Launch attention of few queries: a head's keys are split over PEs, and a second launch combines the parts."""
    cubes, pes = whole_grid(current())
    units, sip = work.batch * work.heads, sip_of(out)
    parts = KeyParts(max(1, min(cubes * pes // units, work.keys // _LEAST_KEYS)))
    rows = units * parts.count * work.queries
    some = [new((rows * width,), torch.float32, sip) for width in (work.dv, 1, 1)]

    def split(*addresses: int, tl: Any) -> None:
        work.on(*addresses[3:]).run_part(parts, addresses[:3], tl)

    def merge(*addresses: int, tl: Any) -> None:
        work.merge(parts, addresses, tl)

    launch(_NAME, split, some, tensors, units * parts.count * SHARD_BYTES)
    launch(_NAME, merge, (out, lse), some, units * SHARD_BYTES)


def _attend_by_groups(query: Tensor, key: Tensor, value: Tensor, mask: Any, scale: float) -> tuple[Tensor, Tensor]:
    """Compute one query per head as several queries of one head, for heads that share keys."""
    (batch, heads), groups = query.shape[:2], key.shape[1]
    together: Any = query.squeeze(2)
    seen = None if mask is None else mask.expand(batch, heads, 1, key.shape[2]).squeeze(2).unflatten(1, (groups, -1))
    out, lse = attend(together.unflatten(1, (groups, -1)), key, value, seen, False, scale)
    found: Any = out.reshape(batch, heads, 1, value.shape[3])
    return found, lse.reshape(-1, batch, heads, 1)


@value
class BackwardAddresses:
    """Addresses of the inputs of backward; ``inner``: of the dot product of gradient and result, by query."""

    grad: int
    q: int
    k: int
    v: int
    out: int
    lse: int
    inner: int
    bias: int | None = None


@value
class AttentionBackward:
    """The gradients of attention. Weights are recomputed block by block, from the log-sum-exp of each query.

    ``whole``: a block has all keys of a head, so the program that computes its gradients of keys and values computes
    those of queries, too. ``of_scores``: the target for gradients of scores, if the bias requires a gradient.
    """

    forward: Attention
    keys_of_block: int
    whole: bool
    grad: View
    dq: View
    dk: View
    dv: View
    of_scores: View | None

    def on(self, x: BackwardAddresses) -> AttentionBackward:
        """Return these gradients of inputs at ``x``."""
        return replace(self, forward=self.forward.on(x.q, x.k, x.v, x.bias), grad=self.grad.on(x.grad))

    def run_keys(self, dq: int, dk: int, dv: int, of_scores: int | None, x: BackwardAddresses, tl: Any) -> None:
        """Compute the gradients of keys and values, for this program's share of the key blocks."""
        its = self.forward
        per_head, group = -(-its.keys // self.keys_of_block), its.heads // its.kv_heads
        first, mine = share(its.batch * its.kv_heads * per_head, tl)
        for which in range(first, first + mine):
            z, rest = divmod(which, its.kv_heads * per_head)
            kv, block = divmod(rest, per_head)
            key = block * self.keys_of_block
            keys = min(self.keys_of_block, its.keys - key)
            k = its.k.tile((z, kv, key), (keys, its.d)).load(tl)
            v = its.v.tile((z, kv, key), (keys, its.dv)).load(tl)
            by_k = by_v = None
            for head in range(kv * group, (kv + 1) * group):
                for row, rows in blocks(its.queries, its.block_q):
                    if its.causal and row + rows <= key and of_scores is None:
                        continue
                    at = (z, head, row)
                    q = its.q.tile(at, (rows, its.d)).load(tl)
                    grad = self.grad.tile(at, (rows, its.dv)).load(tl)
                    inner = self._inner(grad, at, x, tl) if self.whole else self._of_row(x.inner, at, rows, tl)
                    weight, by_score = self._of_block(q, grad, k, v, inner, at, key, x, tl)
                    by_v = tl.dot(tl.cast(weight, self.grad.dtype), grad, by_v, out_dtype="f32", trans_a=True)
                    narrow = tl.cast(by_score, its.q.dtype)
                    by_k = tl.dot(narrow, q, by_k, out_dtype="f32", trans_a=True)
                    if self.whole:
                        by_q = tl.dot(narrow, k, out_dtype="f32") * its.scale
                        self.dq.on(dq).tile(at, (rows, its.d)).store(by_q, tl)
                    if self.of_scores is not None and of_scores is not None:
                        self.of_scores.on(of_scores).tile((*at, key), (rows, keys)).store(by_score, tl)
            by_k = tl.zeros((keys, its.d), F32) if by_k is None else by_k * its.scale
            self.dk.on(dk).tile((z, kv, key), (keys, its.d)).store(by_k, tl)
            by_v = tl.zeros((keys, its.dv), F32) if by_v is None else by_v
            self.dv.on(dv).tile((z, kv, key), (keys, its.dv)).store(by_v, tl)

    def run_queries(self, dq: int, x: BackwardAddresses, tl: Any) -> None:
        """Compute gradients of queries, and ``inner`` for ``run_keys``, for this program's share of query blocks."""
        its = self.forward
        per_head = -(-its.queries // its.block_q)
        first, mine = share(its.batch * its.heads * per_head, tl)
        for which in range(first, first + mine):
            z, rest = divmod(which, its.heads * per_head)
            head, block = divmod(rest, per_head)
            row, kv = block * its.block_q, head * its.kv_heads // its.heads
            rows, at = min(its.block_q, its.queries - row), (z, head, row)
            q, grad = its.q.tile(at, (rows, its.d)).load(tl), self.grad.tile(at, (rows, its.dv)).load(tl)
            inner = self._inner(grad, at, x, tl)
            tl.store(its.rows_at(x.inner, at)[0], inner)
            by_q: Any = None
            for key, keys in blocks(min(its.keys, row + rows) if its.causal else its.keys, self.keys_of_block):
                k = its.k.tile((z, kv, key), (keys, its.d)).load(tl)
                v = its.v.tile((z, kv, key), (keys, its.dv)).load(tl)
                by_score = self._of_block(q, grad, k, v, inner, at, key, x, tl)[1]
                by_q = tl.dot(tl.cast(by_score, its.q.dtype), k, by_q, out_dtype="f32")
            self.dq.on(dq).tile(at, (rows, its.d)).store(by_q * its.scale, tl)

    def _of_block(
        self,
        q: Any,
        grad: Any,
        k: Any,
        v: Any,
        inner: Any,
        at: tuple[int, int, int],
        key: int,
        x: BackwardAddresses,
        tl: Any,
    ) -> tuple[Any, Any]:
        """Return the weights of a block, and the gradients of its scores, in f32."""
        score = self.forward.score(q, k, at, key, tl)
        for address in self.forward.rows_at(x.lse, at):
            score = score - tl.load(address, (q.shape[0], 1), F32)
        weight = tl.exp(score)
        return weight, weight * (tl.dot(grad, v, out_dtype="f32", trans_b=True) - inner)

    def _inner(self, grad: Any, at: tuple[int, int, int], x: BackwardAddresses, tl: Any) -> Any:
        out = self.forward.out.on(x.out).tile(at, grad.shape).load(tl)
        return tl.sum(tl.cast(grad, F32) * tl.cast(out, F32), 1, keepdims=True)

    def _of_row(self, address: int, at: tuple[int, int, int], rows: int, tl: Any) -> Any:
        return tl.load(self.forward.rows_at(address, at)[0], (rows, 1), F32)


def compute_gradients(
    work: Attention, tensors: Sequence[Tensor], grad: Tensor, out: Tensor, lse: Tensor, of_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Launch the gradients of query, key, value and, if ``of_bias``, of scores; ``tensors`` are those of ``attend``.

    This takes one launch if a block has all keys of a head, and there are enough heads for the PEs. Otherwise it takes
    one launch for queries, and one for keys and values.
    """
    query, key, value, *bias = tensors
    sip = sip_of(query)
    cubes, pes = whole_grid(current())
    units = work.batch * work.kv_heads
    single = work.keys <= _KEYS and work.queries <= work.block_q
    whole = work.keys <= _KEYS and (single or 7 * cubes * pes <= 10 * units)  # 5 products instead of 7
    per_pe = -(-work.keys * units // (cubes * pes))
    block = work.keys if whole else min(_KEYS, max(_LEAST_KEYS, -(-per_pe // _LEAST_KEYS) * _LEAST_KEYS))
    dq, dk, dv = (_like_result(x, sip) for x in (query, key, value))
    inner = lse if whole else new(tuple(lse.shape[1:]), torch.float32, sip)  # with all keys it is never read
    shape = (work.batch, work.heads, work.queries, work.keys)
    of_scores = new(shape, torch.float32, sip) if of_bias else None
    backward = AttentionBackward(
        forward=work,
        keys_of_block=block,
        whole=whole,
        grad=view_of(grad),
        dq=view_of(dq),
        dk=view_of(dk),
        dv=view_of(dv),
        of_scores=None if of_scores is None else view_of(of_scores),
    )
    read = (grad, query, key, value, out, lse)

    def run_queries(dq_at: int, inner_at: int, *rest: int, tl: Any) -> None:
        operands = (*rest[:6], inner_at, *rest[6:])
        addresses = BackwardAddresses(*operands)
        backward.on(addresses).run_queries(dq_at, addresses, tl)

    def run_keys(dq_at: int, dk_at: int, dv_at: int, *rest: int, tl: Any) -> None:
        scores_at, operands = (rest[0], rest[1:]) if of_bias else (None, rest)
        addresses = BackwardAddresses(*operands)
        backward.on(addresses).run_keys(dq_at, dk_at, dv_at, scores_at, addresses, tl)

    name = f"{_NAME}_backward"
    if not whole:
        blocks_of_queries = work.batch * work.heads * -(-work.queries // work.block_q)
        launch(name, run_queries, (dq, inner), (*read, *bias), blocks_of_queries * SHARD_BYTES)
    written = (dq, dk, dv, *([] if of_scores is None else [of_scores]))
    launch(name, run_keys, written, (*read, inner, *bias), units * -(-work.keys // block) * SHARD_BYTES)
    return dq, dk, dv, of_scores


def _like_result(x: Tensor, sip: int) -> Any:
    """Return a tensor (batch, heads, length, d) that is stored as (batch, length, heads, d), like projections."""
    batch, heads, length, d = x.shape
    return new((batch, length, heads, d), x.dtype, sip).transpose(1, 2)


class _Attend(torch.autograd.Function):
    """Attention with its own kernels, forward and backward."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float) -> Any:
        with measure(_NAME):
            out, lse = attend(query, key, value, mask, causal, scale)
        ctx.save_for_backward(query, key, value, mask, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        """Compute the gradients of query, key, value and mask."""
        refuse_graph(_NAME)
        query, key, value, mask, out, lse = ctx.saved_tensors
        with measure(f"{_NAME}_backward"):
            if not out.numel():
                return *[torch.zeros_like(x) for x in (query, key, value)], None, None, None
            grad = grad.contiguous() if 0 in grad.stride() else grad
            work, tensors = describe(query, key, value, mask, out, ctx.causal, ctx.scale)
            *found, of_scores = compute_gradients(work, tensors, grad, out, lse, ctx.needs_input_grad[3])
            of_mask = None if of_scores is None else of_scores.sum_to_size(mask.shape).to(mask.dtype)
        return *found, of_mask, None, None


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute attention as PyTorch's function; with dropout, or other than four axes, by PyTorch's decomposition."""
    fits = query.dim() == key.dim() == value.dim() == 4 and not dropout_p and key.shape[2] > 0
    fits = fits and query.shape[0] == key.shape[0] == value.shape[0] and key.shape[2] == value.shape[2]
    shared = fits and query.shape[1] % key.shape[1] == 0 and (enable_gqa or query.shape[1] == key.shape[1])
    if not shared or key.shape[1] != value.shape[1]:
        return _in_full(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    query, key, value = (x.contiguous() if 0 in x.stride()[2:] else x for x in (query, key, value))
    mask = attn_mask
    while mask is not None and mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return _Attend.apply(query, key, value, mask, is_causal, factor)


def _in_full(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool, **options: Any) -> Any:
    if query.dim() == 3:
        q, k, v = (x.unsqueeze(0) for x in (query, key, value))
        return scaled_dot_product_attention(q, k, v, mask, dropout_p, causal, **options).squeeze(0)
    if mask is not None and mask.dtype is torch.bool:  # the operator adds it
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    return aten._scaled_dot_product_attention_math.default(  # noqa: SLF001 - an operator's name
        query, key, value, mask, dropout_p, causal, **options
    )[0]
