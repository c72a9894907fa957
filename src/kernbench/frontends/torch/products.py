"""Matrix products of PyTorch on the PEs of a SIP. The tile scheduler reads operands in any layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.frontends.placed import pes_for, whole_grid
from kernbench.frontends.torch.block_products import (
    PeRates,
    Product,
    SharedProduct,
    choose_cubes,
    choose_grid,
)
from kernbench.frontends.torch.launches import Program, dtype_of, launch, launch_on, view_of
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.storage import current
from kernbench.frontends.torch.tensor import AhbmTensor, known_elements, new, sip_of
from kernbench.kernels.gemv import Epilogue, Gemv, PartialSums
from kernbench.kernels.shares import share
from kernbench.kernels.tiling import is_few_rows, is_split_k_faster, panel_columns, partial_sum_columns

aten = torch.ops.aten


def multiply(
    name: str,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    addend: Tensor | None = None,
    scale: float = 1.0,
    activation: str | None = None,
) -> Any:
    """Compute ``out = activation(scale a b + addend)`` of tensors (batch, m, k), (batch, k, n) and (batch, m, n).

    Raises InputError if shapes or dtypes do not match, or if the matrix unit lacks a dtype.
    """
    if a.dtype is not b.dtype or a.shape[2] != b.shape[1] or a.shape[0] != b.shape[0]:
        raise InputError(
            f"{program_place()}: {name} of {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}: factors need one "
            f"type, and the first needs as many columns as the second has rows"
        )
    batch, m, k = a.shape
    n = b.shape[2]
    if not (batch and m and n):
        return out
    if not k:
        return out.zero_() if addend is None else out.copy_(addend)
    a, b = _readable(a), _readable(b)
    context = current()
    pe = context.topology.pe
    has_few_rows = is_few_rows(pe.gemm.tile_m, pe.tcm.scratch_bytes, m, k, a.element_size())
    if batch == 1 and has_few_rows and b.is_floating_point() and n > 1:
        return _multiply_few_rows(name, a.contiguous(), b, out, addend, scale, activation)
    sip, spec = sip_of(out), context.topology
    cubes, pes_of_cube = whole_grid(context)
    if dtype_of(a).name not in spec.pe.gemm.macs_per_ns:
        raise InputError(f"{name} of {a.dtype}: the matrix unit has {', '.join(spec.pe.gemm.macs_per_ns)}")
    item = dtype_of(a)
    rates = PeRates.of(spec, item)
    _, grid = choose_grid(rates, cubes * pes_of_cube, batch, m, k, n, item.itemsize)
    used = -(-grid.pes // pes_of_cube)
    pes_each = pes_of_cube if used > 1 else grid.pes
    pes = [(sip, cube, pe) for cube in range(used) for pe in range(pes_each)]
    addend_view = None if addend is None else view_of(addend)
    work = Product(grid, view_of(a), view_of(b), view_of(out), addend_view, scale, activation)
    read = (a, b) if addend is None else (a, b, addend)
    by_rows = work.b.strides[1] > work.b.strides[2]
    several = batch == 1 and used > 1
    shares = choose_cubes(rates, used, pes_of_cube, m, k, n, item.itemsize, by_rows) if several else None
    if shares is None:
        launch_on(name, pes, _program(work.run), (out,), read)
        return out
    shared = SharedProduct(work, shares)
    buffer: Any = new((shared.buffer_elements,), a.dtype, sip)
    launch_on(name, pes, _program(shared.run), (out, buffer), read)
    return out


def _multiply_few_rows(
    name: str, a: Tensor, b: Tensor, out: Tensor, addend: Tensor | None, scale: float, activation: str | None
) -> Tensor:
    (_, m, k), n = a.shape, out.shape[2]
    context, sip, item = current(), sip_of(out), b.element_size()
    pes, pe = pes_for(context, sip, b.numel() * item), context.topology.pe
    cubes, pes_of_cube = pes[-1][1] + 1, pes[-1][2] + 1
    layout, scratch = view_of(b), pe.tcm.scratch_bytes
    epilogue = Epilogue(view_of(out), None if addend is None else view_of(addend), scale, activation)
    addends = () if addend is None else (addend,)
    product = Gemv(m, layout, epilogue, pe.gemm.tile_n, panel_columns(scratch, pes_of_cube, m, item))
    if layout.strides[1] > layout.strides[2] and is_split_k_faster(cubes, m, k, n, item):
        sums = new((cubes, m, n), torch.float32, sip)
        by_rows = replace(product, epilogue=Epilogue(view_of(sums)))
        launch_on(name, pes, by_rows.run_split_k, (sums,), (a, b))
        adding = PartialSums(cubes, m, n, epilogue, partial_sum_columns(scratch, cubes, m))
        launch_on(name, pes, adding.run, (out,), (sums, *addends))
        return out
    buffer = new((cubes * m * k,), a.dtype, sip)
    launch_on(name, pes, product.run, (out, buffer), (a, b, *addends))
    return out


def _program(run: Callable[[Sequence[int], Any], None]) -> Program:
    def program(*addresses: int, tl: Any) -> None:
        run(addresses, tl)

    return program


def _readable(x: Tensor) -> Any:
    """Return ``x``, or a copy of it if its matrices have a stride of 0 along an axis."""
    _, rows, columns = x.shape
    _, row, column = x.stride()
    if (rows > 1 and row == 0) or (columns > 1 and column == 0):
        return x.contiguous()
    return x


def _mm(a: Tensor, b: Tensor, out_dtype: Any = None) -> Tensor:
    out = new((a.shape[0], b.shape[1]), out_dtype or a.dtype, sip_of(a))
    multiply("mm", a.unsqueeze(0), b.unsqueeze(0), out.unsqueeze(0))
    return out


def _bmm(a: Tensor, b: Tensor, out_dtype: Any = None) -> Any:
    out = new((a.shape[0], a.shape[1], b.shape[2]), out_dtype or a.dtype, sip_of(a))
    return multiply("bmm", a, b, out)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _addmm_with(None, bias, a, b, beta, alpha)


def _addmm_activation(
    bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, use_gelu: bool = False
) -> Tensor:
    return _addmm_with("gelu" if use_gelu else "relu", bias, a, b, beta, alpha)


def _addmm_with(activation: str | None, bias: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
    out = new((a.shape[0], b.shape[1]), a.dtype, sip_of(a))
    addend = _addend(bias, beta, (1, *out.shape))
    multiply("addmm", a.unsqueeze(0), b.unsqueeze(0), out.unsqueeze(0), addend, alpha, activation)
    return out


def _baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    out = new((a.shape[0], a.shape[1], b.shape[2]), a.dtype, sip_of(a))
    return multiply("baddbmm", a, b, out, _addend(x, beta, tuple(out.shape)), alpha)


def _addend(x: Tensor, beta: float, shape: tuple[int, ...]) -> Any:
    """Return ``beta x``, broadcast to ``shape``; None if ``beta`` is 0."""
    if beta == 0:
        return None
    scaled: Any = x if beta == 1 else x * beta
    seen = scaled.expand(shape)
    return seen.contiguous() if seen.shape[-1] > 1 and seen.stride(-1) == 0 else seen


def _addbmm(x: Any, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    total: Any = _bmm(a, b, torch.float32).sum(0) * alpha
    return (total if beta == 0 else total + x * beta).to(a.dtype)


def _dot(a: Tensor, b: Tensor) -> Any:
    return _mm(a.unsqueeze(0), b.unsqueeze(1)).reshape(())


def _mv(a: Tensor, b: Tensor) -> Any:
    return _mm(a, b.unsqueeze(1)).squeeze(1)


def _grouped_mm(a: Tensor, b: Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply each group of rows of ``a`` by its matrix, (rows, k) by (groups, k, n), or split the summed axis.

    ``offs``: the end of each group. The kernel waits until it has loaded them. A run without data that does not know
    their values assumes groups of equal size.
    """
    if offs is None:
        return _bmm(a, b, out_dtype)
    if bias is not None or (a.dim() == 3 or b.dim() == 1):
        return NotImplemented
    groups, over_k = offs.numel(), b.dim() == 2
    rows, n = a.shape[0], b.shape[-1]
    shape = (groups, rows, n) if over_k else (rows, n)
    out = new(shape, out_dtype or a.dtype, sip_of(a))
    ends_at = known_elements(offs)
    total = a.shape[1] if over_k else rows
    assumed = [total * (g + 1) // groups for g in range(groups)] if ends_at is None else ends_at.tolist()
    layouts = [view_of(x if x.dim() == 3 else x.unsqueeze(0)) for x in (out, a, b)]
    item, has_data = dtype_of(offs), current().has_data
    offs = offs.contiguous()

    def program(*addresses: int, tl: Any) -> None:
        out_view, a_view, b_view = (layout.on(at) for layout, at in zip(layouts, addresses, strict=False))
        loaded = tl.load(addresses[-1], (groups,), item)
        ends = [int(e) for e in tl.value(loaded)] if has_data else (tl.wait(loaded), assumed)[1]
        j, columns = share(n, tl)
        begin = 0
        for g, end in enumerate(ends):
            count, first, begin = end - begin, begin, end
            if not columns or (count <= 0 and not over_k):
                continue
            tile = out_view.tile((g, 0, j) if over_k else (0, first, j), (rows if over_k else count, columns))
            if count <= 0:  # an empty group: nothing to add up
                tile.store(tl.zeros((rows, columns), tile.dtype), tl)
                continue
            if over_k:
                left = a_view.tile((0, 0, first), (rows, count))
                right = b_view.tile((0, first, j), (count, columns))
            else:
                left = a_view.tile((0, first, 0), (count, a.shape[1]))
                right = b_view.tile((g, 0, j), (a.shape[1], columns))
            strides = tuple(stride * tile.dtype.itemsize for stride in tile.strides)
            tl.composite(
                "gemm",
                left.ref(tl),
                right.ref(tl),
                out_ptr=tile.address,
                out_dtype=tile.dtype,
                out_strides=strides,
                block="auto",
            )

    if out.numel() and total:
        launch("grouped_mm", program, (out,), (a, b, offs), max(x.numel() * x.element_size() for x in (a, b, out)))
    return out


def _by_matrix_unit(lowering: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``lowering``, changed to let the host compute products of types that the matrix unit lacks."""

    def multiply_if_it_has(*operands: Any, **options: Any) -> Any:
        types = current().topology.pe.gemm.macs_per_ns
        has_all = all(dtype_of(x).name in types for x in operands if isinstance(x, AhbmTensor))
        return lowering(*operands, **options) if has_all else NotImplemented

    return multiply_if_it_has


_ON_MATRIX_UNIT: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {
        aten.mm.default: _mm,
        aten.mm.dtype: _mm,
        aten.bmm.default: _bmm,
        aten.bmm.dtype: _bmm,
        aten.addmm.default: _addmm,
        aten._addmm_activation.default: _addmm_activation,  # noqa: SLF001 - an operator's name
        aten.baddbmm.default: _baddbmm,
        aten.addbmm.default: _addbmm,
        aten.dot.default: _dot,
        aten.mv.default: _mv,
    }
)
LOWERINGS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {operator: _by_matrix_unit(lowering) for operator, lowering in _ON_MATRIX_UNIT.items()}
    | {aten._grouped_mm.default: _grouped_mm}  # noqa: SLF001
)
