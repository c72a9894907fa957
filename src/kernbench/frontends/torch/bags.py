"""PyTorch's EmbeddingBag: results of bags of rows of a table, and the gradients of the table and of the weights.

A run without data takes bags of unknown offsets as equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NotImplementedType
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from kernbench.common.dtypes import Array
from kernbench.common.errors import InputError
from kernbench.frontends.torch.indexing import index_values
from kernbench.frontends.torch.launches import dtype_of, launch
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import known_elements, new, sip_of
from kernbench.kernels.bags import BagGradients, BagMode, Bags, BagSums
from kernbench.kernels.indexing import IndexedAxis, IndexValues
from kernbench.triton_emu.tl_context import TLContext

_MODES: tuple[BagMode, ...] = ("sum", "mean", "max")
BagResults: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""The results of bags, the bag of each entry, the size of each bag, and the row of each maximum"""


def _describe(
    operator: str, like: Tensor, indices: Tensor, offsets: Tensor, table_rows: int, count: int, padding: int
) -> tuple[Bags, Tensor, Tensor]:
    """Return bags of ``like``'s dtype and columns, and the contiguous indices and offsets of one dtype."""
    common = torch.promote_types(indices.dtype, offsets.dtype)
    indices, offsets = (x.to(common).contiguous() for x in (indices, offsets))
    entries = indices.numel()
    rows = IndexedAxis(dtype_of(indices), table_rows, 1, index_values(indices, table_rows))
    starts = IndexedAxis(dtype_of(offsets), offsets.numel(), 1, _values_of_offsets(offsets, entries, count))
    bags = Bags(operator, dtype_of(like), like.shape[-1], count, entries, rows, starts, padding)
    return bags, indices, offsets


def _values_of_offsets(offsets: Tensor, entries: int, count: int) -> IndexValues | None:
    """Return the offsets in a run without data; None if the run has data."""
    if current().has_data:
        return None
    elements = known_elements(offsets)

    def spread(first: int, n: int) -> Array:
        return np.arange(first, first + n, dtype=np.int64) * entries // max(count, 1)

    return spread if elements is None else index_values(offsets, entries)


def _launch(
    bags: Bags, program: Callable[[Sequence[int], TLContext], None], outs: Sequence[Tensor], inputs: Sequence[Tensor]
) -> None:
    """Launch ``program(addresses, tl)`` on as many PEs as the bytes of the rows of all entries need."""

    def kernel(*addresses: int, tl: TLContext) -> None:
        program(addresses, tl)

    work_bytes = max(bags.entries, bags.count) * bags.columns * bags.dtype.itemsize
    if work_bytes:
        launch(bags.operator, kernel, outs, inputs, work_bytes)


def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,  # noqa: ARG001 - matters in backward alone
    mode: int = 0,
    sparse: bool = False,  # noqa: ARG001 - as above
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> BagResults:
    """Return the sum, mean or maximum of each bag of rows of ``weight``, and results for backward."""
    count, columns, table = offsets.numel() - include_last_offset, weight.shape[1], weight.contiguous()
    if count < 0:
        raise InputError("embedding_bag: include_last_offset needs an offset, found none")
    bags, indices, offsets = _describe("embedding_bag", table, indices, offsets, len(weight), count, padding_idx)
    sip = sip_of(weight)
    out = new((count, columns), weight.dtype, sip)
    bag_of, sizes = (new((n,), offsets.dtype, sip) for n in (indices.numel(), count))
    rows = [new((count, columns), indices.dtype, sip)] if _MODES[mode] == "max" else []
    factors = [] if per_sample_weights is None else [per_sample_weights.contiguous()]
    sums = BagSums(bags, _MODES[mode], dtype_of(factors[0]) if factors else None)
    _launch(bags, sums.compute, (out, bag_of, sizes, *rows), (table, indices, offsets, *factors))
    return out, bag_of, sizes, rows[0] if rows else sizes


def embedding_bag_backward(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,  # noqa: ARG001 - follows from the offsets
    bag_size: Tensor,  # noqa: ARG001 - as above
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor | NotImplementedType:
    """Return the gradient of the table, added in f32."""
    if sparse:
        return NotImplemented
    grad = grad.contiguous()
    name = "embedding_bag_backward"
    bags, indices, offsets = _describe(name, grad, indices, offsets, num_weights, len(grad), padding_idx)
    out = new((num_weights, grad.shape[-1]), torch.float32, sip_of(grad)).zero_()
    if _MODES[mode] == "max":
        rows = maximum_indices.contiguous()
        axis = IndexedAxis(dtype_of(rows), num_weights, 1, index_values(rows, num_weights))
        gradients = BagGradients(bags, "max", dtype_of(grad))

        def add_to_maxima(addresses: Sequence[int], tl: TLContext) -> None:
            gradients.add_to_maxima(axis, addresses, tl)

        _launch(bags, add_to_maxima, (out,), (grad, indices, offsets, rows))
        return out.to(grad.dtype)
    factors = _factors(indices, num_weights, scale_grad_by_freq, per_sample_weights)
    gradients = BagGradients(bags, _MODES[mode], dtype_of(grad), dtype_of(factors[0]) if factors else None)
    _launch(bags, gradients.add, (out,), (grad, indices, offsets, *factors))
    return out.to(grad.dtype)


def _factors(indices: Tensor, rows: int, by_frequency: bool, weights: Tensor | None) -> list[Tensor]:
    """Return the factor of each entry: its weight, divided by how often its row occurs if ``by_frequency``."""
    factors = [] if weights is None else [weights.contiguous()]
    if not by_frequency:
        return factors
    ones = torch.ones(indices.shape, device=indices.device)
    counts = torch.zeros(rows, device=indices.device).index_add_(0, indices, ones).index_select(0, indices)
    return [factors[0] / counts if factors else counts.reciprocal()]


def embedding_bag_per_sample_weights_backward(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,  # noqa: ARG001 - follows from the offsets
    mode: int,  # noqa: ARG001 - weights are for sums alone
    padding_idx: int = -1,
) -> Tensor:
    """Return the gradient of the weight of each entry; 0 for padding."""
    table, grad = weight.contiguous(), grad.contiguous()
    name = "embedding_bag_per_sample_weights_backward"
    bags, indices, offsets = _describe(name, table, indices, offsets, len(weight), len(grad), padding_idx)
    out = new(tuple(indices.shape), weight.dtype, sip_of(weight))
    if padding_idx >= 0:
        out.zero_()
    _launch(bags, BagGradients(bags, "sum", dtype_of(grad)).weigh, (out,), (grad, table, indices, offsets))
    return out
