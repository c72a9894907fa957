"""Operations on the activations of one rank, as launches of the package's kernels; each makes a new tensor.

Activations are (..., features) on the rank's SIP. Results are spread by rows over the PEs where the operands lie.
"""

from __future__ import annotations

from math import prod

from kernbench.common.errors import InputError
from kernbench.kernels.attention import attention as attention_kernel
from kernbench.kernels.copy import shards_to_rows, strided_copy
from kernbench.kernels.elementwise import add as add_kernel
from kernbench.kernels.elementwise import elementwise
from kernbench.kernels.gemm import linear as linear_kernel
from kernbench.kernels.rows import add_bias as add_bias_kernel
from kernbench.kernels.rows import layernorm as layernorm_kernel
from kernbench.runtime_api.tensor import Tensor
from kernbench.tp.layouts import COLUMNS, PeGrid, is_row_major, shard_table
from kernbench.tp.parallel_state import SizeError, Torch


def matrix_size(x: Tensor) -> tuple[int, int]:
    """Rows and columns of (..., features); SizeError for fewer than two axes."""
    if x.ndim < 2:
        raise SizeError(
            f"tensor {x.name!r} has shape {x.shape}; an activation is (..., features) with two axes at least"
        )
    return prod(x.shape[:-1]), x.shape[-1]


def as_rows(x: Tensor, torch: Torch) -> Tensor:
    """``x`` itself if it is row-major in virtual addresses, else a copy that is."""
    if is_row_major(x.layout):
        return x
    made = rows_like(x, x.shape, PeGrid.of(x), torch, f"{x.name}.rows")
    row_bytes = x.shape[-1] * x.dtype.itemsize
    torch.launch("to-rows", shards_to_rows, x, made, shard_table(x.layout), row_bytes, x.dtype)
    return made


def rows_like(x: Tensor, shape: tuple[int, ...], grid: PeGrid, torch: Torch, name: str) -> Tensor:
    """An activation of the type of ``x`` that nothing was written to."""
    return torch.empty(shape, dtype=x.dtype, dp=grid.rows(shape[0]), name=name)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, torch: Torch, name: str = "linear") -> Tensor:
    """``x @ weight + bias`` on the PEs that hold the weight (in, out); bias (out,)."""
    (m, k), n = matrix_size(x), weight.shape[1]
    if k != weight.shape[0]:
        raise SizeError(f"{name}: {x.name} has shape {x.shape}, its last axis has to be {weight.shape[0]}")
    _check_types(name, x, weight)
    grid = PeGrid.of(weight)
    rows = as_rows(x, torch)
    y = rows_like(x, (*x.shape[:-1], n), grid, torch, f"{name}.out")
    by_column = tuple(int(how == COLUMNS) for how in (weight.dp.cube, weight.dp.pe))
    sizes = (m, k, n, x.dtype, (grid.cubes, grid.pes), by_column)
    torch.launch(name, linear_kernel, rows, weight, bias, y, *sizes)
    if rows is not x:
        rows.free()
    return y


def add_bias_(x: Tensor, bias: Tensor, torch: Torch) -> Tensor:
    """``x + bias`` for each row, in place."""
    torch.launch("add-bias", add_bias_kernel, x, bias, x, *matrix_size(x), x.dtype)
    return x


def gelu(x: Tensor, torch: Torch) -> Tensor:
    """GELU of each element, in its tanh form."""
    y = rows_like(x, x.shape, PeGrid.of(x), torch, "gelu.out")
    torch.launch("gelu", elementwise, "gelu", _in_order(x), None, None, y, x.numel(), x.dtype)
    return y


def add(x: Tensor, y: Tensor, torch: Torch) -> Tensor:
    """``x + y``, of one shape and type."""
    if x.shape != y.shape:
        raise SizeError(f"add: {x.name} has shape {x.shape}, {y.name} {y.shape}")
    _check_types("add", x, y)
    z = rows_like(x, x.shape, PeGrid.of(y), torch, "add.out")
    torch.launch("add", add_kernel, _in_order(x), _in_order(y), z, x.numel(), x.dtype)
    return z


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, torch: Torch, eps: float = 1e-5) -> Tensor:
    """Each row with mean 0 and variance 1, times ``weight`` plus ``bias``, each (features,)."""
    y = rows_like(x, x.shape, PeGrid.of(weight), torch, "layernorm.out")
    torch.launch("layernorm", layernorm_kernel, _in_order(x), weight, bias, y, *matrix_size(x), x.dtype, eps)
    return y


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool, torch: Torch) -> Tensor:
    """Flash-style attention of ``heads`` heads that lie side by side: q (lq, heads d), k and v (lk, heads d)."""
    (lq, width), (lk, _) = matrix_size(q), matrix_size(k)
    o = rows_like(q, q.shape, PeGrid.of(q), torch, "attention.out")
    sizes = (lq, lk, width // heads, q.dtype, heads)
    torch.launch("attention", attention_kernel, q, k, v, o, *sizes, causal=causal, layout="lhd")
    return o


def part_of_columns(x: Tensor, part: int, parts: int, torch: Torch) -> Tensor:
    """Block ``part`` of the last axis, which is cut into ``parts``."""
    (m, n), item = matrix_size(x), x.dtype.itemsize
    each = n // parts
    y = rows_like(x, (*x.shape[:-1], each), PeGrid.of(x), torch, f"{x.name}.part")
    strides = (n * item, item), (each * item, item)
    torch.launch("part", strided_copy, _in_order(x), y, (m, each), *strides, x.dtype, src_offset=part * each * item)
    return y


def blocks_side_by_side(blocks: Tensor, shape: tuple[int, ...], torch: Torch) -> Tensor:
    """(parts m, n), blocks one below the other, as ``shape`` = (..., parts n), where they are side by side."""
    n, item = blocks.shape[1], blocks.dtype.itemsize
    parts = shape[-1] // n
    m = blocks.shape[0] // parts
    y = rows_like(blocks, shape, PeGrid.of(blocks), torch, f"{blocks.name}.joined")
    strides = (n * item, m * n * item, item), (parts * n * item, n * item, item)
    torch.launch("side-by-side", strided_copy, blocks, y, (m, parts, n), *strides, blocks.dtype)
    return y


def _in_order(x: Tensor) -> Tensor:
    if not is_row_major(x.layout):
        raise InputError(f"tensor {x.name!r} is spread by columns ({x.dp}); spread it by row_wise or replicate")
    return x


def _check_types(what: str, x: Tensor, other: Tensor) -> None:
    if x.dtype != other.dtype:
        raise InputError(f"{what}: {x.name} is {x.dtype.name}, {other.name} is {other.dtype.name}; they have to be one")
