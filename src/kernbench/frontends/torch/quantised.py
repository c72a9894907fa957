"""Products of PyTorch with scales: of float8 factors, of int8 factors, and of floats and int8 or 4-bit weights."""

from __future__ import annotations

import torch
from torch import Tensor

from kernbench.common.dtypes import BF16, F32, I8
from kernbench.common.errors import InputError
from kernbench.frontends.torch.launches import dtype_of, launch, view_of
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.products import multiply, on_matrix_unit
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import deliver, new, result_for, sip_of
from kernbench.kernels.gemv import GemvEpilogue
from kernbench.kernels.quantised import Int4Product, Int8Product
from kernbench.kernels.tiling import QuantisedTiles
from kernbench.kernels.view import View

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_GROUPS = (32, 64, 128, 256)
"""Sizes of groups of 4-bit weights that PyTorch has"""


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,  # noqa: ARG001 - sums are always accumulated in f32
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``scale_a scale_b a b + bias`` of float8 matrices, with scales in f32.

    Either both scales are numbers, or they are (m, 1) and (1, n). Factors of both float8 types are first converted to
    bf16, which represents them exactly, as are factors of a type that the matrix unit lacks. A float8 result is divided
    by ``scale_result``, as on PyTorch's CPU. Return NotImplemented for scales of blocks, which the host applies.
    """
    (m, _), n, dtype = a.shape, b.shape[1], out_dtype or a.dtype
    is_by_number = scale_a.numel() == scale_b.numel() == 1
    is_by_line = (tuple(scale_a.shape), tuple(scale_b.shape)) == ((m, 1), (1, n))
    if not (is_by_number or is_by_line) or {scale_a.dtype, scale_b.dtype} != {torch.float32}:
        return NotImplemented
    types = current().topology.pe.gemm.macs_per_ns
    if a.dtype is not b.dtype or dtype_of(a).name not in types:
        if BF16.name not in types:
            return NotImplemented
        a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
    scales = [scale.reshape(1, 1, 1) if is_by_number else scale.unsqueeze(0) for scale in (scale_a, scale_b)]
    if scale_result is not None and dtype in _FLOAT8:
        scales.append(scale_result.reciprocal().reshape(1, 1, 1))
        bias = None if bias is None else bias / scale_result
    addend = None
    if bias is not None:
        addend = (bias if bias.dtype in (a.dtype, torch.float32) else bias.float()).expand(1, m, n)
    result = result_for(out, (m, n), dtype, (a, b))
    factors = [scale.expand(1, m, n) for scale in scales]
    multiply("_scaled_mm", a.unsqueeze(0), b.unsqueeze(0), result.unsqueeze(0), addend, scales=factors)
    return deliver(result, out)


@on_matrix_unit
def int_mm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Multiply two matrices of int8; the result is int32."""
    result = result_for(out, (a.shape[0], b.shape[1]), torch.int32, (a, b))
    multiply("_int_mm", a.unsqueeze(0), b.unsqueeze(0), result.unsqueeze(0))
    return deliver(result, out)


def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """Compute ``(x @ weight.T) * scales`` with weights in int8, (n, k), and a scale for each row of the weights."""
    (m, k), n = x.shape, weight.shape[0]
    if dtype_of(x).name not in current().topology.pe.gemm.macs_per_ns:
        return NotImplemented
    out = new((m, n), x.dtype, sip_of(x))
    if not (m and n):
        return out
    if not k:
        return out.zero_()
    x, weight = x.contiguous(), weight.contiguous()
    view = view_of(out.unsqueeze(0))
    epilogue = GemvEpilogue(view, factors=(view_of(scales.expand(1, m, n)),))
    tiles = QuantisedTiles.of(current().topology, dtype_of(x), m, k, (I8,))
    product = Int8Product(view_of(x), view_of(weight), epilogue, tiles)
    launch("_weight_int8pack_mm", product.run, (out,), (x, weight, scales), weight.numel())
    return out


def convert_weight_to_int4pack(weight: Tensor, inner_k_tiles: int) -> Tensor:
    """Pack 4-bit weights: uint8 (n, k / 2), where the upper half of a byte has the even one of two weights.

    The result has PyTorch's shape, but a layout of this machine: byte j has weight j, less 8, in its upper half, and
    weight j + k / 2 in its lower half, so that groups of weights are contiguous.
    """
    n, k = weight.shape[0], weight.shape[1] * 2
    if inner_k_tiles not in (2, 4, 8) or n % 8 or k % (16 * inner_k_tiles):
        raise InputError(
            f"{program_place()}: _convert_weight_to_int4pack of ({n}, {k}) weights, innerKTiles={inner_k_tiles}: "
            "innerKTiles must be 2, 4 or 8, rows a multiple of 8, and columns a multiple of 16 innerKTiles"
        )
    weights = torch.stack((weight >> 4, weight & 15), dim=2).view(n, k)
    packed = ((weights[:, : k // 2] << 4) ^ 128) | weights[:, k // 2 :]
    return packed.view(torch.int32).view(n // 8, k // (16 * inner_k_tiles), 32, inner_k_tiles // 2)


def weight_int4pack_mm(x: Tensor, weight: Tensor, group: int, scales_and_zeros: Tensor) -> Tensor:
    """Compute ``x @ weight.T`` with weights that `convert_weight_to_int4pack` has packed.

    ``scales_and_zeros`` is (k / group, n, 2): a weight q stands for ``(q - 8) * scale + zero``.
    """
    (m, k), n = x.shape, weight.shape[0] * 8
    if dtype_of(x).name not in current().topology.pe.gemm.macs_per_ns:
        return NotImplemented
    if group not in _GROUPS or k % group or tuple(scales_and_zeros.shape) != (k // group, n, 2):
        raise InputError(
            f"{program_place()}: _weight_int4pack_mm of {tuple(x.shape)} with groups of {group} and scales "
            f"{tuple(scales_and_zeros.shape)}: groups are {_GROUPS} weights that divide {k}, and scales ({k} / group, "
            f"{n}, 2)"
        )
    if weight.numel() * 8 != n * k:
        raise InputError(
            f"{program_place()}: _weight_int4pack_mm of {tuple(x.shape)} and weights {tuple(weight.shape)}: they have "
            f"{weight.numel() * 8 // max(n, 1)} columns, must have {k}"
        )
    out = new((m, n), x.dtype, sip_of(x))
    if not (m and n):
        return out
    if not k:
        return out.zero_()
    x, weight, scales_and_zeros = x.contiguous(), weight.contiguous(), scales_and_zeros.contiguous()
    packed = View.row_major(0, (n, k // 2), I8)
    tiles = QuantisedTiles.of(current().topology, dtype_of(x), m, k, (I8, F32))
    epilogue = GemvEpilogue(view_of(out.unsqueeze(0)))
    product = Int4Product(view_of(x), packed, view_of(scales_and_zeros), epilogue, group, tiles)
    launch("_weight_int4pack_mm", product.run, (out,), (x, weight, scales_and_zeros), n * k // 2)
    return out
