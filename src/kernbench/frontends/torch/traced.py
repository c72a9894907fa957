"""Operators of the machine that PyTorch's compiler keeps as one node of a graph: attention, its gradients, and lookups.

Run eagerly, attention is an autograd function. A compiler traces tensors without elements through the operators of this
module instead. Each has a rule for its shapes, and attention has a formula for its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from kernbench.frontends.torch.attention import AttentionCall, attend, compute_gradients
from kernbench.frontends.torch.indexing import fake_index_tensor, index_tensor
from kernbench.frontends.torch.storage import TorchOperator
from kernbench.frontends.torch.tensor import new, sip_of

NAMESPACE = "kernbench"
_SCHEMAS = (
    "scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale)"
    " -> (Tensor, Tensor)",
    "scaled_dot_product_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? mask,"
    " Tensor out, Tensor lse, bool causal, float scale, bool of_mask) -> (Tensor, Tensor, Tensor, Tensor)",
    "index(Tensor x, Tensor?[] indices) -> Tensor",
)
_LIBRARY = Library(NAMESPACE, "DEF")
for _schema in _SCHEMAS:
    _LIBRARY.define(_schema)
_OPERATORS = torch.ops.kernbench


# attention


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    return attend(AttentionCall.of(query, key, value, mask, causal, scale))


def _backpropagate_attention(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    of_mask: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the gradients of query, key, value and the scores; the last one is empty unless ``of_mask``."""
    call = AttentionCall.of(query, key, value, mask, causal, scale)
    grad = grad.contiguous() if 0 in grad.stride() else grad
    by_query, by_key, by_value, of_scores = compute_gradients(call, grad, out, lse, of_mask)
    return by_query, by_key, by_value, new((0,), torch.float32, sip_of(query)) if of_scores is None else of_scores


def _shape_of_attention(
    query: Tensor,
    key: Tensor,  # noqa: ARG001
    value: Tensor,
    mask: Tensor | None,
    causal: bool,  # noqa: ARG001
    scale: float,  # noqa: ARG001
) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _ = query.shape
    planes = 1 if mask is None or mask.dtype is torch.bool else 2
    lse = query.new_empty((planes, batch, heads, queries), dtype=torch.float32)
    return query.new_empty((batch, queries, heads, value.shape[3])).transpose(1, 2), lse


def _shapes_of_attention_gradients(
    grad: Tensor,  # noqa: ARG001
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,  # noqa: ARG001
    out: Tensor,  # noqa: ARG001
    lse: Tensor,  # noqa: ARG001
    causal: bool,  # noqa: ARG001
    scale: float,  # noqa: ARG001
    of_mask: bool,
) -> tuple[Tensor, ...]:
    by_operands = [x.new_empty((x.shape[0], x.shape[2], x.shape[1], x.shape[3])).transpose(1, 2) for x in (query, key)]
    by_value = value.new_empty((value.shape[0], value.shape[2], value.shape[1], value.shape[3])).transpose(1, 2)
    scores = (*query.shape[:3], key.shape[2]) if of_mask else (0,)
    return *by_operands, by_value, query.new_empty(scores, dtype=torch.float32)


def _save_attention(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_attention(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, mask, out, lse = ctx.saved_tensors
    if grad is None:
        return (None,) * 6
    of_mask = ctx.needs_input_grad[3]
    *gradients, of_scores = _OPERATORS.scaled_dot_product_attention_backward(
        grad, query, key, value, mask, out, lse, ctx.causal, ctx.scale, of_mask
    )
    by_mask = of_scores.sum_to_size(mask.shape).to(mask.dtype) if of_mask else None
    return *gradients, by_mask, None, None


def _register() -> Mapping[TorchOperator, Callable[..., Any]]:
    """Register shapes and gradients, and return the function that runs each operator."""
    rows: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
        ("scaled_dot_product_attention", _attend, _shape_of_attention),
        ("scaled_dot_product_attention_backward", _backpropagate_attention, _shapes_of_attention_gradients),
        ("index", index_tensor, fake_index_tensor),
    )
    for name, _, shape_of in rows:
        torch.library.register_fake(f"{NAMESPACE}::{name}", shape_of, lib=_LIBRARY)
    torch.library.register_autograd(
        f"{NAMESPACE}::scaled_dot_product_attention",
        _differentiate_attention,
        setup_context=_save_attention,
        lib=_LIBRARY,
    )
    return MappingProxyType({_operator(name): function for name, function, _ in rows})


def _operator(name: str) -> TorchOperator:
    operator: TorchOperator = getattr(_OPERATORS, name).default
    return operator


LOWERINGS = _register()
"""The function that runs each operator of this module on the machine."""
