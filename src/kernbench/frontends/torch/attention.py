"""Scaled dot product attention of PyTorch as one kernel: blocks of queries over blocks of keys, no matrix of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kernbench.common.dtypes import F32, I32, DType
from kernbench.common.values import value
from kernbench.frontends.placed import whole_grid
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.placement import SHARD_BYTES
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, new
from kernbench.kernels.shares import blocks, part, share

aten = torch.ops.aten
_NAME = "scaled_dot_product_attention"
_QUERIES, _KEYS = 128, 256
_FEW, _LEAST_KEYS = 32, 64
"""Few queries: the keys of a head are split over PEs, so many at least on each."""
_LOWEST, _GONE = -1e30, -2e38
"""No score is below the first, which a finite mask leaves; the second is that of a key that is masked off."""
_LEAST_F32, _NEVER = -3.4028234663852886e38, 1e30
"""Below the first is minus infinity alone; the second is the logarithm of a sum that no weight is anything of."""


@value
class Heads:
    """A tensor (batch, heads, length, d): elements from one to the next along each axis."""

    strides: tuple[int, ...]
    dtype: DType

    @staticmethod
    def of(x: AhbmTensor) -> Heads:
        """Those of a tensor."""
        return Heads(tuple(x.stride()), dtype_of(x))

    def load(self, address: int, at: Sequence[int], shape: tuple[int, int], tl: Any) -> Any:
        """Load rows and columns of a head, from (batch, head, row) on."""
        item = self.dtype.itemsize
        first = address + sum(i * step for i, step in zip(at, self.strides, strict=False)) * item
        row, column = self.strides[2:]
        extent = tuple(1 if step == 0 else n for n, step in zip(shape, (row, column), strict=True))
        return tl.load(first, extent, self.dtype, strides=(max(row, 1) * item, max(column, 1) * item))

    def store(self, address: int, at: Sequence[int], values: Any, tl: Any) -> None:
        """Store rows of a head."""
        item = self.dtype.itemsize
        first = address + sum(i * step for i, step in zip(at, self.strides, strict=False)) * item
        tl.store(first, tl.cast(values, self.dtype), strides=tuple(step * item for step in self.strides[2:]))


@value
class KeyParts:
    """The parts that the keys of a head are split into, where there are fewer blocks of queries than PEs."""

    count: int


@value
class Attention:
    """Which heads and positions attend to which. ``bias``: added to scores; ``causal``: query i sees keys 0 to i."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    d: int
    dv: int
    scale: float
    causal: bool
    q: Heads
    k: Heads
    v: Heads
    out: Heads
    bias: Heads | None
    bias_is_mask: bool = False

    def run(self, out: int, lse: int, q: int, k: int, v: int, bias: int | None, tl: Any) -> None:
        """Compute this program's share of all blocks of queries of all heads."""
        per_head = -(-self.queries // self.block_q)
        first, mine = share(self.batch * self.heads * per_head, tl)
        for which in range(first, first + mine):
            z, rest = divmod(which, self.heads * per_head)
            head, at = divmod(rest, per_head)
            row = at * self.block_q
            rows = min(self.block_q, self.queries - row)
            query = self.q.load(q, (z, head, row), (rows, self.d), tl)
            last = min(self.keys, row + rows) if self.causal else self.keys
            mixed, total, top = self._attend(query, (z, head, row), (0, max(last, 1)), k, v, bias, tl)
            mixed, logarithm = self._finish(mixed, total, top, tl)
            self.out.store(out, (z, head, row), mixed, tl)
            tl.store(lse + ((z * self.heads + head) * self.queries + row) * F32.itemsize, logarithm)

    def _finish(self, mixed: Any, total: Any, top: Any, tl: Any) -> tuple[Any, Any]:
        """Return the result, 0 for a query without keys, and the logarithm of the sum of its weights."""
        if self.bias is None:
            return mixed / total, top + tl.log(total)
        some = total > 0
        return mixed / tl.where(some, total, 1.0), tl.where(some, top + tl.log(total), _NEVER)

    @property
    def block_q(self) -> int:
        """The queries of a block: fewer where there are few."""
        return min(_QUERIES, max(16, self.queries))

    def run_part(self, parts: KeyParts, addresses: Sequence[int], tl: Any) -> None:
        """Compute this program's part of the keys of a head, for all its queries: what ``merge`` makes a result of."""
        mixed_at, total_at, top_at, q, k, v, *bias = addresses
        first, mine = share(self.batch * self.heads * parts.count, tl)
        for which in range(first, first + mine):
            unit, at = divmod(which, parts.count)
            z, head = divmod(unit, self.heads)
            begin, keys = part(self.keys, parts.count, at)
            query = self.q.load(q, (z, head, 0), (self.queries, self.d), tl)
            found = self._attend(query, (z, head, 0), (begin, keys), k, v, bias[0] if bias else None, tl)
            rows = which * self.queries * F32.itemsize
            for address, x, width in zip((mixed_at, total_at, top_at), found, (self.dv, 1, 1), strict=True):
                tl.store(address + rows * width, x)

    def merge(self, parts: KeyParts, addresses: Sequence[int], tl: Any) -> None:
        """Add the parts of every head up, each by how its largest score compares with the largest of all."""
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
            mixed, logarithm = self._finish(mixed, total, tl.reshape(top, (queries, 1)), tl)
            self.out.store(out, (z, head, 0), mixed, tl)
            tl.store(lse + unit * queries * F32.itemsize, logarithm)

    def _attend(
        self, query: Any, at: tuple[int, int, int], seen: tuple[int, int], k: int, v: int, bias: int | None, tl: Any
    ) -> tuple[Any, Any, Any]:
        """Return the mix of values, the sum of weights and the largest score of each query, in f32.

        ``seen``: the first key, and the number of keys.
        """
        z, head, row = at
        kv = head * self.kv_heads // self.heads
        mixed = total = top = None
        for key, keys in blocks(seen[1], _KEYS, seen[0]):
            score = tl.dot(query, self.k.load(k, (z, kv, key), (keys, self.d), tl), out_dtype="f32", trans_b=True)
            score = score * self.scale
            if self.bias is not None and bias is not None:
                score = self._add_bias(score, bias, (z, head, row), key, tl)
            if self.causal and key + keys - 1 > row:
                position = tl.iota((query.shape[0], 1), I32, axis=0) + (row - key)
                score = tl.where(tl.iota((1, keys), I32) <= position, score, _GONE)
            largest = tl.max(score, 1, keepdims=True)
            largest = largest if top is None else tl.maximum(largest, top)
            weight = tl.exp(score - largest)
            if self.bias is not None:  # a query may have no key
                weight = tl.where(score > _GONE / 2, weight, 0.0)
            sums = tl.sum(weight, 1, keepdims=True)
            if mixed is not None:
                fade = tl.exp(top - largest)
                sums, mixed = sums + total * fade, mixed * fade
            values = self.v.load(v, (z, kv, key), (keys, self.dv), tl)
            mixed = tl.dot(tl.cast(weight, self.v.dtype), values, mixed, out_dtype="f32")
            top, total = largest, sums
        return mixed, total, top

    def _add_bias(self, score: Any, bias: int, at: tuple[int, int, int], key: int, tl: Any) -> Any:
        assert self.bias is not None
        z, head, row = at
        item, steps = self.bias.dtype.itemsize, self.bias.strides
        first = bias + (z * steps[0] + head * steps[1] + row * steps[2] + key * steps[3]) * item
        extent = tuple(1 if step == 0 else n for n, step in zip(score.shape, steps[2:], strict=True))
        loaded = tl.load(first, extent, self.bias.dtype, strides=tuple(max(step, 1) * item for step in steps[2:]))
        if self.bias_is_mask:
            return tl.where(loaded, score, _GONE)
        wide = tl.cast(loaded, F32)
        return tl.where(wide < _LEAST_F32, _GONE, tl.maximum(score + wide, _LOWEST))


def attend(
    query: AhbmTensor, key: AhbmTensor, value: AhbmTensor, mask: AhbmTensor | None, causal: bool, scale: float
) -> tuple[AhbmTensor, AhbmTensor]:
    """Launch attention of (batch, heads, length, d); return the result, and the logarithm of each query's sum."""
    if query.shape[2] == 1 and key.shape[1] < query.shape[1] and not causal:
        return _attend_by_groups(query, key, value, mask, scale)
    batch, heads, queries, d = query.shape
    kv_heads, keys, dv = key.shape[1], key.shape[2], value.shape[3]
    sip = query.storage.tensor.sip
    # As (batch, length, heads, d) it goes on without a copy to the projection that follows.
    out = new((batch, queries, heads, dv), query.dtype, sip).transpose(1, 2)
    lse = new((batch, heads, queries), torch.float32, sip)
    seen = None if mask is None else mask.expand(batch, heads, queries, keys)
    work = Attention(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        d=d,
        dv=dv,
        scale=scale,
        causal=causal,
        q=Heads.of(query),
        k=Heads.of(key),
        v=Heads.of(value),
        out=Heads.of(out),
        bias=None if seen is None else Heads.of(seen),
        bias_is_mask=seen is not None and seen.dtype is torch.bool,
    )

    tensors = (query, key, value, *([] if seen is None else [seen]))
    if not out.numel():
        return out, lse
    if work.queries <= _FEW and not causal and keys >= 2 * _LEAST_KEYS:
        _attend_in_parts(work, out, lse, tensors)
        return out, lse

    def program(out_at: int, lse_at: int, q_at: int, k_at: int, v_at: int, *rest: int, tl: Any) -> None:
        work.run(out_at, lse_at, q_at, k_at, v_at, rest[0] if rest else None, tl)

    units = batch * heads * -(-queries // work.block_q)
    launch(_NAME, program, (out, lse), tensors, units * SHARD_BYTES)
    return out, lse


def _attend_in_parts(work: Attention, out: AhbmTensor, lse: AhbmTensor, tensors: Sequence[AhbmTensor]) -> None:
    """Launch attention of few queries: every head's keys are split over PEs, and a second launch adds up."""
    cubes, pes = whole_grid(current())
    units, sip = work.batch * work.heads, out.storage.tensor.sip
    parts = KeyParts(max(1, min(cubes * pes // units, work.keys // _LEAST_KEYS)))
    rows = units * parts.count * work.queries
    some = [new((rows * width,), torch.float32, sip) for width in (work.dv, 1, 1)]

    def split(*addresses: int, tl: Any) -> None:
        work.run_part(parts, addresses, tl)

    def merge(*addresses: int, tl: Any) -> None:
        work.merge(parts, addresses, tl)

    launch(_NAME, split, some, tensors, units * parts.count * SHARD_BYTES)
    launch(_NAME, merge, (out, lse), some, units * SHARD_BYTES)


def _attend_by_groups(
    query: AhbmTensor, key: AhbmTensor, value: AhbmTensor, mask: Any, scale: float
) -> tuple[AhbmTensor, AhbmTensor]:
    """Take one query of each head that shares its keys with others as several queries of one head."""
    (batch, heads), groups = query.shape[:2], key.shape[1]
    together: Any = query.squeeze(2)
    seen = None if mask is None else mask.expand(batch, heads, 1, key.shape[2]).squeeze(2).unflatten(1, (groups, -1))
    out, lse = attend(together.unflatten(1, (groups, -1)), key, value, seen, False, scale)
    found: Any = out.reshape(batch, heads, 1, value.shape[3])
    return found, lse.reshape(batch, heads, 1)


class _Attend(torch.autograd.Function):
    """Attention with PyTorch's formulas for the gradients."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, mask: Any, causal: bool, scale: float) -> Any:
        with current().operators.measure(_NAME):
            out, lse = attend(query, key, value, mask, causal, scale)
        ctx.save_for_backward(query, key, value, mask, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with current().operators.measure(f"{_NAME}_backward"):
            return _Attend.gradients(ctx, grad)

    @staticmethod
    def gradients(ctx: Any, grad: Any) -> Any:
        """Compute the gradients of query, key, value and mask."""
        query, key, value, mask, out, lse = ctx.saved_tensors
        repeats = query.shape[1] // key.shape[1]
        k, v = (x if repeats == 1 else x.repeat_interleave(repeats, 1) for x in (key, value))
        scores = torch.matmul(query, k.transpose(-1, -2)).to(torch.float32) * ctx.scale
        if mask is not None and mask.dtype is not torch.bool:
            scores = scores + mask
        weights = torch.exp(scores - lse.unsqueeze(-1))
        if ctx.causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            weights = weights.masked_fill(~seen, 0.0)
        if mask is not None and mask.dtype is torch.bool:
            weights = weights.masked_fill(~mask, 0.0)
        narrow = weights.to(query.dtype)
        grad_v = torch.matmul(narrow.transpose(-1, -2), grad)
        of_weights = torch.matmul(grad, v.transpose(-1, -2)).to(torch.float32)
        inner = (grad.to(torch.float32) * out.to(torch.float32)).sum(-1, keepdim=True)
        of_scores = weights * (of_weights - inner)
        grad_mask = None
        if mask is not None and ctx.needs_input_grad[3]:
            grad_mask = of_scores.sum_to_size(mask.shape).to(mask.dtype)
        of_scores = (of_scores * ctx.scale).to(query.dtype)
        grad_q, grad_k = torch.matmul(of_scores, k), torch.matmul(of_scores.transpose(-1, -2), query)
        if repeats > 1:
            grad_k, grad_v = (x.unflatten(1, (key.shape[1], repeats)).sum(2) for x in (grad_k, grad_v))
        return grad_q, grad_k, grad_v, grad_mask, None, None


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
    """As PyTorch's; with dropout, or on other than four axes, by products and softmax, as PyTorch has it in full."""
    fits = query.dim() == key.dim() == value.dim() == 4 and not dropout_p and key.shape[2] > 0
    fits = fits and query.shape[0] == key.shape[0] == value.shape[0] and key.shape[2] == value.shape[2]
    shared = fits and query.shape[1] % key.shape[1] == 0 and (enable_gqa or query.shape[1] == key.shape[1])
    if not shared or key.shape[1] != value.shape[1]:
        return _in_full(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    mask = attn_mask
    while mask is not None and mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return _Attend.apply(query, key, value, mask, is_causal, factor)


def _in_full(query: Any, key: Any, value: Any, mask: Any, dropout_p: float, causal: bool, **options: Any) -> Any:
    if query.dim() == 3:
        q, k, v = (x.unsqueeze(0) for x in (query, key, value))
        return scaled_dot_product_attention(q, k, v, mask, dropout_p, causal, **options).squeeze(0)
    return aten._scaled_dot_product_attention_math.default(  # noqa: SLF001 - an operator's name
        query, key, value, mask, dropout_p, causal, **options
    )[0]
