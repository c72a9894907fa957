"""Scaled dot product attention of PyTorch by the kernels of flash attention, forward and backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from kernbench.common.values import value
from kernbench.frontends.placed import whole_grid
from kernbench.frontends.torch.launches import launch, measure, refuse_graph, view_of
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, new, sip_of
from kernbench.kernels.attention import Attention, AttentionBackward, KeyParts
from kernbench.kernels.tiling import attention_blocks, gradient_block, key_parts
from kernbench.runtime_api.collective_pes import SHARD_BYTES

aten = torch.ops.aten
_NAME = "scaled_dot_product_attention"


@value
class AttentionCall:
    """The operands of an attention, (batch, heads, length, features), and its rule.

    ``mask`` (batch, heads, queries, keys) is added to the scores, or selects keys if it is bool.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float) -> AttentionCall:
        """Return a call whose mask is expanded to all scores."""
        if mask is not None:
            mask = mask.expand(*query.shape[:3], key.shape[2])
        return AttentionCall(query, key, value, mask, causal, scale)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that a launch reads."""
        return (self.query, self.key, self.value, *([] if self.mask is None else [self.mask]))

    def kernel(self, out: Tensor, lse: Tensor) -> Attention:
        """Return the attention of these operands, with the log-sum-exp of each query in ``lse``."""
        block_q, block_k = attention_blocks(self.query.shape[2], self.key.shape[2])
        return Attention(
            q=view_of(self.query),
            k=view_of(self.key),
            v=view_of(self.value),
            out=view_of(out),
            lse=view_of(lse),
            scale=self.scale,
            offset=0 if self.causal else None,
            block_q=block_q,
            block_k=block_k,
            bias=None if self.mask is None else view_of(self.mask),
            bias_is_mask=self.mask is not None and self.mask.dtype is torch.bool,
        )

    def group_heads(self) -> AttentionCall:
        """Return the call in which one query per head becomes several queries of each head of keys."""
        groups = self.key.shape[1]
        mask = None if self.mask is None else _group_heads(self.mask, groups)
        return replace(self, query=_group_heads(self.query, groups), mask=mask)


def _group_heads(x: Tensor, groups: int) -> Tensor:
    """Return a view (batch, groups, heads / groups, features) of (batch, heads, 1, features)."""
    return x.squeeze(2).unflatten(1, (groups, -1))


def attend(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Launch attention; return the result, and the log-sum-exp of each query."""
    batch, heads, queries, _ = call.query.shape
    sip = sip_of(call.query)
    # Stored as (batch, length, heads, d), the result needs no copy before the projection that follows.
    out = new((batch, queries, heads, call.value.shape[3]), call.query.dtype, sip).transpose(1, 2)
    planes = 1 if call.mask is None or call.mask.dtype is torch.bool else 2
    lse = new((planes, batch, heads, queries), torch.float32, sip)
    groups = call.key.shape[1]
    if not out.numel():
        return out, lse
    if queries == 1 and groups < heads and not call.causal:
        _launch(call.group_heads(), _group_heads(out, groups), lse.reshape(planes, batch, groups, -1))
    else:
        _launch(call, out, lse)
    return out, lse


def _launch(call: AttentionCall, out: Tensor, lse: Tensor) -> None:
    """Launch attention. Few queries take two launches: for parts of the keys, and to merge the parts."""
    (batch, heads, queries, _), (keys, dv) = call.query.shape, call.value.shape[2:]
    units, (cubes, pes) = batch * heads, whole_grid(current())
    kernel, operands = call.kernel(out, lse), call.operands
    parts = 1 if call.causal else key_parts(queries, keys, units, cubes * pes)
    if parts == 1:
        query_blocks = units * -(-queries // kernel.block_q)
        launch(_NAME, kernel.run, (out, lse), operands, query_blocks * SHARD_BYTES)
        return
    split = KeyParts(kernel, parts)
    rows = units * parts * queries
    states = [new((rows * width,), torch.float32, sip_of(out)) for width in (dv, 1, 1)]
    launch(_NAME, split.run, states, operands, units * parts * SHARD_BYTES)
    launch(_NAME, split.merge, (out, lse), states, units * SHARD_BYTES)


def compute_gradients(
    call: AttentionCall, grad: Tensor, out: Tensor, lse: Tensor, of_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Launch the gradients of query, key, value and, if ``of_bias``, of scores; ``out`` and ``lse`` are of `attend`.

    This takes one launch if a block has all keys of a head, and there are enough heads for the PEs. Otherwise it takes
    one launch for queries, and one for keys and values.
    """
    forward, (query, key, value, *mask) = call.kernel(out, lse), call.operands
    (batch, heads, queries, _), (key_heads, keys, _) = query.shape, key.shape[1:]
    sip, (cubes, pes) = sip_of(query), whole_grid(current())
    units = batch * key_heads
    # A single pass computes 5 products of each block, two passes 7.
    has_all_keys, has_all_queries = forward.block_k == keys, forward.block_q == queries
    single_pass = has_all_keys and (has_all_queries or 7 * cubes * pes <= 10 * units)
    block_k = keys if single_pass else gradient_block(keys, units, cubes * pes)
    dq, dk, dv = (_like_projection(x, sip) for x in (query, key, value))
    inner = lse if single_pass else new((batch, heads, queries), torch.float32, sip)  # a single pass reads none
    of_scores = new((batch, heads, queries, keys), torch.float32, sip) if of_bias else None
    backward = AttentionBackward(
        forward=forward,
        block_k=block_k,
        single_pass=single_pass,
        grad=view_of(grad),
        inner=view_of(inner),
        dq=view_of(dq),
        dk=view_of(dk),
        dv=view_of(dv),
        of_scores=None if of_scores is None else view_of(of_scores),
    )
    name, read = f"{_NAME}_backward", (grad, query, key, value, out, lse, *mask)
    if not single_pass:
        query_blocks = batch * heads * -(-queries // forward.block_q)
        launch(name, backward.run_queries, (dq, inner), read, query_blocks * SHARD_BYTES)
    written = (dq, dk, dv, *([] if of_scores is None else [of_scores]))
    launch(name, backward.run_keys, written, (inner, *read), units * -(-keys // block_k) * SHARD_BYTES)
    return dq, dk, dv, of_scores


def _like_projection(x: Tensor, sip: int) -> Tensor:
    """Return a tensor (batch, heads, length, d) that is stored as (batch, length, heads, d), like projections."""
    batch, heads, length, d = x.shape
    return new((batch, length, heads, d), x.dtype, sip).transpose(1, 2)


class _AutogradContext(Protocol):
    """The context that autograd passes from forward to backward."""

    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]
    causal: bool
    scale: float

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors for backward."""


class _Attend(torch.autograd.Function):
    """Attention with its own kernels, forward and backward."""

    @staticmethod
    def forward(
        ctx: _AutogradContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
    ) -> Tensor:
        with measure(_NAME):
            out, lse = attend(AttentionCall.of(query, key, value, mask, causal, scale))
        ctx.save_for_backward(query, key, value, mask, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: _AutogradContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of query, key, value and mask."""
        refuse_graph(_NAME)
        query, key, value, mask, out, lse = ctx.saved_tensors
        with measure(f"{_NAME}_backward"):
            if not out.numel():
                return *[torch.zeros_like(x) for x in (query, key, value)], None, None, None
            grad = grad.contiguous() if 0 in grad.stride() else grad
            call = AttentionCall.of(query, key, value, mask, ctx.causal, ctx.scale)
            *gradients, of_scores = compute_gradients(call, grad, out, lse, ctx.needs_input_grad[3])
            of_mask = None
            if of_scores is not None and mask is not None:
                of_mask = of_scores.sum_to_size(mask.shape).to(mask.dtype)
        return *gradients, of_mask, None, None


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
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
    if not isinstance(query, AhbmTensor):  # a compiler traces the call
        return _traced_attention(query, key, value, mask, bool(is_causal), factor)
    result: Tensor = _Attend.apply(query, key, value, mask, is_causal, factor)
    return result


def _traced_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    out: Tensor = torch.ops.kernbench.scaled_dot_product_attention(query, key, value, mask, causal, scale)[0]
    return out


def _in_full(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float, causal: bool, **options: Any
) -> Tensor:
    if query.dim() == 3:
        q, k, v = (x.unsqueeze(0) for x in (query, key, value))
        return scaled_dot_product_attention(q, k, v, mask, dropout_p, causal, **options).squeeze(0)
    if mask is not None and mask.dtype is torch.bool:  # the operator adds it
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    math = aten._scaled_dot_product_attention_math.default  # noqa: SLF001 - an operator's name
    result: Tensor = math(query, key, value, mask, dropout_p, causal, **options)[0]
    return result
