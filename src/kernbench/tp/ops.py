"""Operations on the activations of one rank, each a launch of a builtin kernel, and the placement of tensors in a SIP.

Activations are (..., features) on the rank's SIP. Each operation creates a new activation, placed by rows over the PEs
of its operands. The activation is then one row-major matrix in virtual addresses. Any PE can read the matrix, and write
columns of it, without knowing where the rows are stored. A weight is placed by columns over cubes and PEs, so that
every PE multiplies by columns in its own HBM slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.kernels.attention import attention as attention_kernel
from kernbench.kernels.elementwise import add as add_kernel
from kernbench.kernels.elementwise import elementwise, shards_to_rows, strided_copy
from kernbench.kernels.gemv import Gemv, GemvEpilogue
from kernbench.kernels.linear import add_bias as add_bias_kernel
from kernbench.kernels.linear import linear as linear_kernel
from kernbench.kernels.norms import layernorm as layernorm_kernel
from kernbench.kernels.tiling import PREFETCHED_PANELS, gathering_panels, is_few_rows, panel_columns
from kernbench.kernels.view import View
from kernbench.messages.requests import KernelRef
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.layout import TensorLayout, first_element
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import TopologySpec
from kernbench.tp.parallel_state import SizeError

ROWS, COLUMNS, COPIES = "row_wise", "column_wise", "replicate"


@value
class PeGrid:
    """A grid of PEs: the first ``pes`` of each of the first ``cubes`` of a SIP."""

    cubes: int
    pes: int

    @classmethod
    def of_sip(cls, topology: TopologySpec) -> PeGrid:
        """Return the grid of all PEs of a SIP."""
        return cls(topology.cubes_per_sip, topology.pes_per_cube)

    @classmethod
    def of_policy(cls, dp: DPPolicy | None, topology: TopologySpec) -> PeGrid:
        """Return the grid on which a policy places tensors. Without a policy, all PEs."""
        sip = cls.of_sip(topology)
        return sip if dp is None else cls(dp.num_cubes or sip.cubes, dp.num_pes or sip.pes)

    @classmethod
    def of(cls, tensor: Tensor) -> PeGrid:
        """Return the grid on which a tensor is placed."""
        owners = tensor.layout.owners
        return cls(len({cube for _, cube, _ in owners}), len({pe for _, _, pe in owners}))

    def rows(self, count: int) -> DPPolicy:
        """Return the policy for ``count`` rows, over at most as many PEs of the grid as there are rows."""
        within = self._limit(count)
        return DPPolicy(ROWS, ROWS, num_cubes=within.cubes, num_pes=within.pes)

    def columns(self, count: int) -> DPPolicy:
        """Return the policy for ``count`` columns, over at most as many PEs of the grid as there are columns."""
        within = self._limit(count)
        return DPPolicy(COLUMNS, COLUMNS, num_cubes=within.cubes, num_pes=within.pes)

    def _limit(self, parts: int) -> PeGrid:
        # Cubes always come first, so of two such grids one contains the other, and the PEs of a launch form a grid.
        cubes = min(self.cubes, parts)
        return PeGrid(cubes, min(self.pes, parts // cubes))

    def copies(self) -> DPPolicy:
        """Return the policy for a replica on each PE of the grid."""
        return DPPolicy(COPIES, COPIES, num_cubes=self.cubes, num_pes=self.pes)


def weight_policy(columns: int, dp: DPPolicy | None, topology: TopologySpec) -> DPPolicy:
    """Return the policy of a weight: ``dp``, or by columns over all PEs. Raises InputError if ``dp`` splits by rows.

    A weight that has fewer columns than there are PEs is split by columns over as many PEs as it has columns for.
    """
    if dp is None or (dp.cube, dp.pe) == (COLUMNS, COLUMNS):
        return PeGrid.of_policy(dp, topology).columns(columns)
    if ROWS in (dp.cube, dp.pe):
        raise InputError(f"dp={dp}: the weight of a linear layer must be placed {COLUMNS} or {COPIES}, not {ROWS}")
    return dp


def has_whole_rows(layout: TensorLayout) -> bool:
    """Return True if only the first axis is split, so that rows are consecutive in virtual addresses."""
    row_bounds = layout.whole.bounds[1:]
    return all(view.window.bounds[1:] == row_bounds for view in layout.views)


def is_row_major(layout: TensorLayout) -> bool:
    """Return True if the tensor is row-major in virtual addresses, as by rows, or as a single row by columns."""
    return has_whole_rows(layout) or layout.is_row_major


def row_table(layout: TensorLayout) -> tuple[int, ...]:
    """Return one entry per shard, replicas included, in the format of ``shards_to_rows``."""
    item = layout.dtype.itemsize
    table: list[int] = []
    for view in layout.views:
        at = view.spec.offset_bytes
        for window in _split_rows(view.window, layout.shape):
            begin = first_element(window, layout.shape) * item
            table += (view.spec.cube, view.spec.pe, at, prod(window.shape[:-1]), window.shape[-1], begin)
            at += window.size * item
    return tuple(table)


def _split_rows(window: Window, shape: tuple[int, ...]) -> Iterator[Window]:
    """Yield windows whose rows are consecutive in the tensor: a single one, unless a middle axis is split."""
    split = [axis for axis in range(1, len(shape) - 1) if window.bounds[axis] != (0, shape[axis])]
    before = split[-1] if split else 0
    for corner in product(*(range(*bounds) for bounds in window.bounds[:before])):
        yield Window((*((at, at + 1) for at in corner), *window.bounds[before:]))


def matrix_size(x: Tensor) -> tuple[int, int]:
    """Return rows and columns of (..., features). Raises SizeError for fewer than two axes."""
    if x.ndim < 2:
        raise SizeError(
            f"tensor {x.name!r} has shape {x.shape}; an activation is (..., features) with at least two axes"
        )
    return prod(x.shape[:-1]), x.shape[-1]


def as_rows(x: Tensor, torch: AnyContext) -> Tensor:
    """Return ``x`` itself if it is row-major in virtual addresses, else a row-major copy."""
    if is_row_major(x.layout):
        return x
    rows = rows_like(x, x.shape, PeGrid.of(x), torch, f"{x.name}.rows")
    row_bytes = x.shape[-1] * x.dtype.itemsize
    torch.launch("to-rows", shards_to_rows, x, rows, row_table(x.layout), row_bytes, x.dtype)
    return rows


def rows_like(x: Tensor, shape: tuple[int, ...], grid: PeGrid, torch: AnyContext, name: str) -> Tensor:
    """Make an uninitialised activation of the type of ``x``."""
    return torch.empty(shape, dtype=x.dtype, dp=grid.rows(shape[0]), name=name)


def spread_like(
    x: Tensor, shape: tuple[int, ...], grid: PeGrid, torch: AnyContext, name: str, *, is_mapped: bool = True
) -> Tensor:
    """Make an uninitialised activation of the type of ``x``; a single row is spread by columns over the grid.

    ``is_mapped=False``: the launch that computes the activation maps it, together with its other tensors.
    """
    policy = grid.columns(shape[-1]) if prod(shape[:-1]) == 1 else grid.rows(shape[0])
    return torch.empty(shape, dtype=x.dtype, dp=policy, name=name, is_mapped=is_mapped)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    torch: AnyContext,
    name: str = "linear",
    result_grid: PeGrid | None = None,
) -> Tensor:
    """Compute ``x @ weight + bias`` on the PEs that store ``weight`` (in, out); ``bias`` is (out,).

    ``result_grid``: the PEs over which the result is spread; by default those of the weight. An x of few rows is
    multiplied by a GEMV. Raises SizeError if the last axis of x is not ``in``.
    """
    (m, k), n = matrix_size(x), weight.shape[1]
    if k != weight.shape[0]:
        raise SizeError(f"{name}: {x.name} has shape {x.shape}, its last axis must be {weight.shape[0]}")
    _check_types(name, x, weight)
    grid = PeGrid.of(weight)
    rows = as_rows(x, torch)
    y = spread_like(x, (*x.shape[:-1], n), result_grid or grid, torch, f"{name}.out", is_mapped=False)
    if suits_gemv(m, weight, torch):
        _launch_gemv(rows, weight, bias, y, torch, name)
    else:
        _launch_linear(rows, weight, bias, y, torch, name)
    if rows is not x:
        rows.free()
    return y


def _launch_linear(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, torch: AnyContext, name: str) -> None:
    (m, k), n, grid = matrix_size(x), weight.shape[1], PeGrid.of(weight)
    by_column = tuple(int(how == COLUMNS) for how in (weight.dp.cube, weight.dp.pe))
    sizes = (m, k, n, x.dtype, (grid.cubes, grid.pes), by_column)
    torch.launch(name, linear_kernel, x, weight, bias, y, *sizes)


def suits_gemv(m: int, weight: Tensor, torch: AnyContext) -> bool:
    """Return True for a weight by columns on several cubes, and ``m`` rows that fit in one tile of the matrix unit.

    On one cube, the PEs need no all-gather of x, and a composite is as fast.
    """
    pe, grid = torch.topology.pe, PeGrid.of(weight)
    by_columns = (weight.dp.cube, weight.dp.pe) == (COLUMNS, COLUMNS)
    is_few = is_few_rows(pe.gemm.tile_m, pe.tcm.scratch_bytes, m, weight.shape[0], weight.dtype.itemsize)
    is_full_grid = len(weight.layout.owners) == grid.cubes * grid.pes  # every PE gathers a piece of x
    return by_columns and grid.cubes > 1 and is_full_grid and is_few


def gather_buffer(m: int, weight: Tensor, torch: AnyContext) -> Tensor:
    """Return the memory in which each cube gathers ``m`` rows of x."""
    grid = PeGrid.of(weight)
    size = grid.cubes * m * weight.shape[0]
    return torch.workspace(size, dtype=weight.dtype, dp=grid.rows(size))


def _launch_gemv(x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, torch: AnyContext, name: str) -> None:
    (m, k), n, item = matrix_size(x), weight.shape[1], weight.dtype
    pe, grid, x_grid = torch.topology.pe, PeGrid.of(weight), PeGrid.of(x)
    shard = k, -(-n // (grid.cubes * grid.pes))
    scratch, memories = pe.tcm.scratch_bytes, x_grid.cubes * x_grid.pes
    behind = gathering_panels(grid.cubes, m * k * item.itemsize, memories, shard, item.itemsize, scratch)
    addend = None if bias is None else View(0, (1, m, n), (0, 0, 1), item)
    product = Gemv(
        m,
        View.row_major(0, (1, k, n), item),
        GemvEpilogue(View.row_major(0, (1, m, n), item), addend),
        pe.gemm.tile_n,
        panel_columns(scratch, grid.pes, m, item.itemsize),
        is_sharded=True,
        a_grid=(x_grid.cubes, x_grid.pes) if behind > PREFETCHED_PANELS else (0, 0),
        prefetched=max(PREFETCHED_PANELS, behind),
    )
    buffer = gather_buffer(m, weight, torch)
    tensors = (y, buffer, x, weight, *(() if bias is None else (bias,)))
    torch.launch_on(name, weight.layout.owners, KernelRef(name="gemv", function=product.run), *tensors)


def add_bias_(x: Tensor, bias: Tensor, torch: AnyContext) -> Tensor:
    """Add ``bias`` to each row of ``x``, in place."""
    torch.launch("add-bias", add_bias_kernel, x, bias, x, *matrix_size(x), x.dtype)
    return x


def gelu(x: Tensor, torch: AnyContext) -> Tensor:
    """Compute GELU of each element, in its tanh form."""
    y = spread_like(x, x.shape, PeGrid.of(x), torch, "gelu.out")
    torch.launch("gelu", elementwise, "gelu", _require_rows(x), None, None, y, x.numel(), x.dtype)
    return y


def add(x: Tensor, y: Tensor, torch: AnyContext) -> Tensor:
    """Compute ``x + y``. Raises an error unless both have the same shape and type."""
    if x.shape != y.shape:
        raise SizeError(f"add: {x.name} has shape {x.shape}, {y.name} {y.shape}")
    _check_types("add", x, y)
    z = spread_like(x, x.shape, PeGrid.of(y), torch, "add.out")
    torch.launch("add", add_kernel, _require_rows(x), _require_rows(y), z, x.numel(), x.dtype)
    return z


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, torch: AnyContext, eps: float = 1e-5) -> Tensor:
    """Normalise each row to mean 0 and variance 1, times ``weight`` plus ``bias``, each (features,)."""
    y = rows_like(x, x.shape, PeGrid.of(weight), torch, "layernorm.out")
    torch.launch("layernorm", layernorm_kernel, _require_rows(x), weight, bias, y, *matrix_size(x), x.dtype, eps)
    return y


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool, torch: AnyContext) -> Tensor:
    """Compute Flash-style attention of ``heads`` heads with their columns side by side.

    q is (lq, heads d), k and v are (lk, heads d); d is the number of features of a head.
    """
    (lq, width), (lk, _) = matrix_size(q), matrix_size(k)
    o = rows_like(q, q.shape, PeGrid.of(q), torch, "attention.out")
    sizes = (lq, lk, width // heads, q.dtype, heads)
    torch.launch("attention", attention_kernel, q, k, v, o, *sizes, causal=causal, layout="lhd")
    return o


def part_of_columns(x: Tensor, part: int, parts: int, torch: AnyContext) -> Tensor:
    """Copy block ``part`` of the last axis, which is split into ``parts`` blocks."""
    (m, n), item = matrix_size(x), x.dtype.itemsize
    width = n // parts
    y = rows_like(x, (*x.shape[:-1], width), PeGrid.of(x), torch, f"{x.name}.part")
    strides = (n * item, item), (width * item, item)
    torch.launch(
        "part", strided_copy, _require_rows(x), y, (m, width), *strides, x.dtype, src_offset=part * width * item
    )
    return y


def blocks_side_by_side(blocks: Tensor, shape: tuple[int, ...], torch: AnyContext) -> Tensor:
    """Rearrange row blocks, shape (parts · m, n), into column blocks of a tensor of ``shape`` (..., parts · n)."""
    n, item = blocks.shape[1], blocks.dtype.itemsize
    parts = shape[-1] // n
    m = blocks.shape[0] // parts
    y = rows_like(blocks, shape, PeGrid.of(blocks), torch, f"{blocks.name}.joined")
    strides = (n * item, m * n * item, item), (parts * n * item, n * item, item)
    torch.launch("side-by-side", strided_copy, blocks, y, (m, parts, n), *strides, blocks.dtype)
    return y


def _require_rows(x: Tensor) -> Tensor:
    if not is_row_major(x.layout):
        raise InputError(f"tensor {x.name!r} is placed by columns ({x.dp}); place it row_wise or replicate")
    return x


def _check_types(operation: str, x: Tensor, other: Tensor) -> None:
    if x.dtype != other.dtype:
        raise InputError(f"{operation}: {x.name} is {x.dtype.name}, {other.name} {other.dtype.name}; use one type")
