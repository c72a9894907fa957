"""Matrix products of PyTorch: arguments of its operators, and the program and PEs of each product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from kernbench.common.errors import InputError
from kernbench.frontends.placed import grid_for, pes_for
from kernbench.frontends.torch.launches import dtype_of, launch, launch_on, view_of
from kernbench.frontends.torch.modules import program_place
from kernbench.frontends.torch.rings import ring_machine, ring_product, rings_of
from kernbench.frontends.torch.storage import Lowering, current
from kernbench.frontends.torch.tensor import AhbmTensor, deliver, known_elements, new, result_for, sip_of
from kernbench.kernels.gemm_grid import BlockProduct, GroupedProduct, SharedProduct
from kernbench.kernels.gemm_streams import StreamedProduct, StreamMachine
from kernbench.kernels.gemv import Gemv, GemvEpilogue, PartialSums
from kernbench.kernels.product_grids import PeRates, prefetched_bytes
from kernbench.kernels.product_ways import choose_way
from kernbench.kernels.tiling import gathered_copies, is_few_rows, is_split_k_faster, panel_columns, partial_sum_columns


def multiply(
    name: str,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    addend: Tensor | None = None,
    scale: float = 1.0,
    activation: str | None = None,
    scales: Sequence[Tensor] = (),
) -> Tensor:
    """Compute ``out = activation(scale a b + addend)`` of tensors (batch, m, k), (batch, k, n) and (batch, m, n).

    ``scales`` are further factors of the product, in f32: of its rows, of its columns, or of all elements. They are
    broadcast to (1, m, n). Raises InputError if shapes or dtypes do not match, or if the matrix unit lacks a dtype.
    """
    if a.dtype is not b.dtype or a.shape[2] != b.shape[1] or a.shape[0] != b.shape[0]:
        raise InputError(
            f"{program_place()}: {name} of {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}: factors need one "
            f"type, and the first needs as many columns as the second has rows"
        )
    context = current()
    (batch, m, k), n, pe = a.shape, b.shape[2], context.topology.pe
    if not (batch and m and n):
        return out
    if not k:
        return out.zero_() if addend is None else out.copy_(addend)
    a, b = _without_zero_strides(a), _without_zero_strides(b)
    operands = scales if addend is None else (*scales, addend)
    views = tuple([view_of(factor) for factor in scales])
    epilogue = GemvEpilogue(view_of(out), None if addend is None else view_of(addend), scale, activation, views)
    has_few_rows = is_few_rows(pe.gemm.tile_m, rings_of(context).free_bytes, m, k, a.element_size())
    if batch == 1 and has_few_rows and b.is_floating_point() and n > 1:
        _multiply_few_rows(name, a.contiguous(), b, out, operands, epilogue)
    elif dtype_of(a).name not in pe.gemm.macs_per_ns:
        raise InputError(f"{name} of {a.dtype}: the matrix unit has {', '.join(pe.gemm.macs_per_ns)}")
    else:
        _multiply_blocks(name, a, b, out, operands, epilogue)
    return out


def _multiply_few_rows(
    name: str, a: Tensor, b: Tensor, out: Tensor, operands: Sequence[Tensor], epilogue: GemvEpilogue
) -> None:
    """Launch a GEMV, or a split-K product and the addition of its sums. ``a`` is contiguous.

    ``operands`` are those of the epilogue.
    """
    (_, m, k), n, item = a.shape, out.shape[2], b.element_size()
    context, sip = current(), sip_of(out)
    pes, pe = pes_for(context, sip, b.numel() * item), context.topology.pe
    cubes, pes_of_cube = pes[-1][1] + 1, pes[-1][2] + 1
    layout, scratch = view_of(b), rings_of(context).free_bytes
    rates, memories = PeRates.of(context.topology, dtype_of(a)), len(pes_for(context, sip, a.numel() * item))
    product = Gemv(
        m,
        layout,
        epilogue,
        pe.gemm.tile_n,
        panel_columns(scratch, pes_of_cube, m, item),
        prefetched_bytes=prefetched_bytes(rates, cubes, memories, m * k * item, scratch),
        is_by_pieces=rates.is_memory_bound(item),
    )
    if layout.strides[1] > layout.strides[2] and is_split_k_faster(cubes, m, k, n, item):
        sums = new((cubes, m, n), torch.float32, sip)
        by_rows = replace(product, epilogue=GemvEpilogue(view_of(sums)))
        launch_on(name, pes, by_rows.run_split_k, (sums,), (a, b))
        adding = PartialSums(cubes, m, n, epilogue, partial_sum_columns(scratch, cubes, m))
        launch_on(name, pes, adding.run, (out,), (sums, *operands))
        return
    buffer = new((cubes * gathered_copies(pes_of_cube) * m * k,), a.dtype, sip)
    launch_on(name, pes, product.run, (out, buffer), (a, b, *operands))


def _multiply_blocks(
    name: str, a: Tensor, b: Tensor, out: Tensor, operands: Sequence[Tensor], epilogue: GemvEpilogue
) -> None:
    """Launch a product of many rows in the fastest way. ``operands`` are those of the epilogue."""
    context, sip, item = current(), sip_of(out), dtype_of(a)
    machine, factors, inputs = ring_machine(context, item), (view_of(a), view_of(b)), (a, b, *operands)
    pes_of_cube = len(machine.form.corners)
    rates, cube = PeRates.of(context.topology, item), StreamMachine.of(context.topology, item, pes_of_cube)
    cubes_of_a, cubes_of_b = (grid_for(context, x.numel() * x.element_size())[0] for x in (a, b))
    way = choose_way(rates, machine, cube, factors, (cubes_of_a, cubes_of_b), epilogue)
    if way.stream is not None:
        multiply_stream(name, out, inputs, StreamedProduct(way.stream, *factors, epilogue))
        return
    product = BlockProduct(way.grid, *factors, epilogue)
    used_cubes = way.used_cubes(pes_of_cube) if way.rings is None else machine.cubes
    used_pes = pes_of_cube if used_cubes > 1 else way.grid.pes
    pes = [(sip, cube, pe) for cube in range(used_cubes) for pe in range(used_pes)]
    if way.rings is not None:
        launch_on(name, pes, ring_product(machine, way.rings, product).run, (out,), inputs)
    elif way.cubes is not None:
        shared = SharedProduct(product, way.cubes)
        buffer = new((shared.buffer_elements,), a.dtype, sip)
        launch_on(name, pes, shared.run, (out, buffer), inputs)
    else:
        launch_on(name, pes, product.run, (out,), inputs)


def multiply_stream(name: str, out: Tensor, inputs: Sequence[Tensor], product: StreamedProduct) -> None:
    """Launch a product that is divided along one axis; along K, launch the addition of its sums too.

    ``inputs``: the factors, then the operands of the epilogue.
    """
    sip, stream = sip_of(out), product.stream
    pes = [(sip, 0, pe) for pe in range(stream.pes)]
    if stream.axis != "k":
        launch_on(name, pes, product.run, (out,), inputs)
        return
    (_, m, n), epilogue = out.shape, product.epilogue
    sums = new((stream.pes, m, n), torch.float32, sip)
    launch_on(name, pes, replace(product, epilogue=GemvEpilogue(view_of(sums))).run, (sums,), inputs[:2])
    most = partial_sum_columns(current().topology.pe.tcm.scratch_bytes, stream.pes, m)
    launch_on(name, pes, PartialSums(stream.pes, m, n, epilogue, most).run, (out,), (sums, *inputs[2:]))


def _without_zero_strides(x: Tensor) -> Tensor:
    """Return ``x``, or a copy of it if its matrices have a stride of 0 along an axis."""
    _, rows, columns = x.shape
    _, row, column = x.stride()
    return x.contiguous() if (rows > 1 and row == 0) or (columns > 1 and column == 0) else x


def on_matrix_unit(lowering: Lowering) -> Lowering:
    """Return ``lowering``, changed to leave products of types that the matrix unit lacks to the host."""

    @wraps(lowering)
    def call(*operands: Any, **options: Any) -> Any:
        types = current().topology.pe.gemm.macs_per_ns
        has_all = all(dtype_of(x).name in types for x in operands if isinstance(x, AhbmTensor))
        return lowering(*operands, **options) if has_all else NotImplemented

    return call


@on_matrix_unit
def mm(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """Multiply two matrices."""
    result = result_for(out, (a.shape[0], b.shape[1]), out_dtype or a.dtype, (a, b))
    multiply("mm", a.unsqueeze(0), b.unsqueeze(0), result.unsqueeze(0))
    return deliver(result, out)


@on_matrix_unit
def bmm(a: Tensor, b: Tensor, out_dtype: torch.dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """Multiply the matrices of two batches."""
    result = result_for(out, (a.shape[0], a.shape[1], b.shape[2]), out_dtype or a.dtype, (a, b))
    return deliver(multiply("bmm", a, b, result), out)


@on_matrix_unit
def addmm(
    bias: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    activation: str | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Compute ``activation(beta bias + alpha a b)``; PyTorch's operator has no activation."""
    shape = (a.shape[0], b.shape[1])
    addend = _scaled(bias, beta, (1, *shape))
    result = result_for(out, shape, a.dtype, (a, b), bias)
    multiply("addmm", a.unsqueeze(0), b.unsqueeze(0), result.unsqueeze(0), addend, alpha, activation)
    return deliver(result, out)


@on_matrix_unit
def addmm_activation(
    bias: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    use_gelu: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `addmm`, then gelu or relu of it."""
    return addmm(bias, a, b, beta=beta, alpha=alpha, activation="gelu" if use_gelu else "relu", out=out)


@on_matrix_unit
def baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None) -> Tensor:
    """Compute ``beta x + alpha a b`` of batches."""
    shape = (a.shape[0], a.shape[1], b.shape[2])
    addend = _scaled(x, beta, shape)
    result = result_for(out, shape, a.dtype, (a, b), x)
    return deliver(multiply("baddbmm", a, b, result, addend, alpha), out)


def _scaled(x: Tensor, beta: float, shape: tuple[int, ...]) -> Tensor | None:
    """Return ``beta x``, broadcast to ``shape``; None if ``beta`` is 0."""
    if beta == 0:
        return None
    addend = (x if beta == 1 else x * beta).expand(shape)
    return addend.contiguous() if shape[-1] > 1 and addend.stride(-1) == 0 else addend


@on_matrix_unit
def addbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Compute ``beta x`` plus ``alpha`` times the sum of all products of two batches."""
    total = bmm(a, b, torch.float32).sum(0) * alpha
    return (total if beta == 0 else total + x * beta).to(a.dtype)


@on_matrix_unit
def dot(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two vectors."""
    return mm(a.unsqueeze(0), b.unsqueeze(1)).reshape(())


@on_matrix_unit
def mv(a: Tensor, b: Tensor) -> Tensor:
    """Multiply a matrix by a vector."""
    return mm(a, b.unsqueeze(1)).squeeze(1)


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Multiply each group of rows of ``a`` by its matrix, (rows, k) by (groups, k, n), or split the summed axis.

    ``offs``: the end of each group. The kernel waits until it has loaded them. A run without data that does not know
    their values assumes groups of equal size.
    """
    if offs is None:
        return bmm(a, b, out_dtype)
    if bias is not None or (a.dim() == 3 or b.dim() == 1):
        return NotImplemented
    groups, splits_k = offs.numel(), b.dim() == 2
    (rows, k), n = a.shape, b.shape[-1]
    out = new((groups, rows, n) if splits_k else (rows, n), out_dtype or a.dtype, sip_of(a))
    assumed_ends: tuple[int, ...] | None = None
    if not current().has_data:
        ends, total = known_elements(offs), k if splits_k else rows
        assumed_ends = tuple([total * (g + 1) // groups for g in range(groups)] if ends is None else ends.tolist())
    out_view, a_view, b_view = (view_of(x if x.dim() == 3 else x.unsqueeze(0)) for x in (out, a, b))
    product = GroupedProduct(out_view, a_view, b_view, groups, splits_k, dtype_of(offs), assumed_ends)
    if out.numel() and (k if splits_k else rows):
        work_bytes = max(x.numel() * x.element_size() for x in (a, b, out))
        launch("grouped_mm", product.run, (out,), (a, b, offs.contiguous()), work_bytes)
    return out
