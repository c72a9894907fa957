"""Operations on the activations of one rank, each a launch of the package's kernels, and how its tensors lie in a SIP.

Activations are (..., features) on the rank's SIP, and each operation makes a new one, spread by rows over the PEs where
the operands lie. Then their virtual addresses are those of one row-major matrix, which any PE can read, and write
columns of, without knowing where the rows lie. A weight is spread by columns over cubes and PEs, so that every PE
multiplies by columns that lie in its own HBM slice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.kernels.attention import attention as attention_kernel
from kernbench.kernels.copy import shards_to_rows, strided_copy
from kernbench.kernels.elementwise import add as add_kernel
from kernbench.kernels.elementwise import elementwise
from kernbench.kernels.layernorm import layernorm as layernorm_kernel
from kernbench.kernels.linear import add_bias as add_bias_kernel
from kernbench.kernels.linear import linear as linear_kernel
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
    """The first ``cubes`` of a SIP, and the first ``pes`` of each."""

    cubes: int
    pes: int

    @classmethod
    def of_sip(cls, topology: TopologySpec) -> PeGrid:
        """Return all PEs of a SIP."""
        return cls(topology.cubes_per_sip, topology.pes_per_cube)

    @classmethod
    def of_policy(cls, dp: DPPolicy | None, topology: TopologySpec) -> PeGrid:
        """Return the grid where tensors of a policy lie; without one, all PEs."""
        whole = cls.of_sip(topology)
        return whole if dp is None else cls(dp.num_cubes or whole.cubes, dp.num_pes or whole.pes)

    @classmethod
    def of(cls, tensor: Tensor) -> PeGrid:
        """Return the grid where a tensor lies."""
        owners = tensor.layout.owners
        return cls(len({cube for _, cube, _ in owners}), len({pe for _, _, pe in owners}))

    def rows(self, count: int) -> DPPolicy:
        """Return the policy of ``count`` rows over as many of its PEs as they suffice for."""
        within = self._limit(count)
        return DPPolicy(ROWS, ROWS, num_cubes=within.cubes, num_pes=within.pes)

    def columns(self, count: int) -> DPPolicy:
        """Return the policy of ``count`` columns over as many of its PEs as they suffice for."""
        within = self._limit(count)
        return DPPolicy(COLUMNS, COLUMNS, num_cubes=within.cubes, num_pes=within.pes)

    def _limit(self, parts: int) -> PeGrid:
        # Cubes first, always: so of two such grids one holds the other, and the PEs of a launch form a grid.
        cubes = min(self.cubes, parts)
        return PeGrid(cubes, min(self.pes, parts // cubes))

    def copies(self) -> DPPolicy:
        """Return the policy of a copy on each PE."""
        return DPPolicy(COPIES, COPIES, num_cubes=self.cubes, num_pes=self.pes)


def weight_policy(columns: int, dp: DPPolicy | None, topology: TopologySpec) -> DPPolicy:
    """Return the policy of a weight: ``dp``, else by columns over all PEs; InputError when ``dp`` splits it by rows.

    A narrow weight by columns over cubes and PEs takes as many of them as it has columns for.
    """
    if dp is None or (dp.cube, dp.pe) == (COLUMNS, COLUMNS):
        return PeGrid.of_policy(dp, topology).columns(columns)
    if ROWS in (dp.cube, dp.pe):
        raise InputError(f"dp={dp}: the weight of a linear layer is spread by {COLUMNS} or {COPIES}, not by {ROWS}")
    return dp


def has_whole_rows(layout: TensorLayout) -> bool:
    """Return True when no axis but the first is split, so that rows follow each other in virtual addresses."""
    whole = layout.whole.bounds[1:]
    return all(view.window.bounds[1:] == whole for view in layout.views)


def row_table(layout: TensorLayout) -> tuple[int, ...]:
    """Return a line for every shard and copy in the form that ``shards_to_rows`` takes."""
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
    """Yield parts of the window whose rows follow each other in the tensor: one, unless a middle axis is split."""
    split = [axis for axis in range(1, len(shape) - 1) if window.bounds[axis] != (0, shape[axis])]
    before = split[-1] if split else 0
    for corner in product(*(range(*bounds) for bounds in window.bounds[:before])):
        yield Window((*((at, at + 1) for at in corner), *window.bounds[before:]))


def matrix_size(x: Tensor) -> tuple[int, int]:
    """Return rows and columns of (..., features); SizeError for fewer than two axes."""
    if x.ndim < 2:
        raise SizeError(
            f"tensor {x.name!r} has shape {x.shape}; an activation is (..., features) with two axes at least"
        )
    return prod(x.shape[:-1]), x.shape[-1]


def as_rows(x: Tensor, torch: AnyContext) -> Tensor:
    """Return ``x`` itself if it is row-major in virtual addresses, else a copy that is."""
    if has_whole_rows(x.layout):
        return x
    made = rows_like(x, x.shape, PeGrid.of(x), torch, f"{x.name}.rows")
    row_bytes = x.shape[-1] * x.dtype.itemsize
    torch.launch("to-rows", shards_to_rows, x, made, row_table(x.layout), row_bytes, x.dtype)
    return made


def rows_like(x: Tensor, shape: tuple[int, ...], grid: PeGrid, torch: AnyContext, name: str) -> Tensor:
    """Make an activation of the type of ``x`` that nothing was written to."""
    return torch.empty(shape, dtype=x.dtype, dp=grid.rows(shape[0]), name=name)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, torch: AnyContext, name: str = "linear") -> Tensor:
    """Compute ``x @ weight + bias`` on the PEs that hold the weight (in, out); bias (out,)."""
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


def add_bias_(x: Tensor, bias: Tensor, torch: AnyContext) -> Tensor:
    """Add ``bias`` to each row of ``x``, in place."""
    torch.launch("add-bias", add_bias_kernel, x, bias, x, *matrix_size(x), x.dtype)
    return x


def gelu(x: Tensor, torch: AnyContext) -> Tensor:
    """Compute GELU of each element, in its tanh form."""
    y = rows_like(x, x.shape, PeGrid.of(x), torch, "gelu.out")
    torch.launch("gelu", elementwise, "gelu", _require_rows(x), None, None, y, x.numel(), x.dtype)
    return y


def add(x: Tensor, y: Tensor, torch: AnyContext) -> Tensor:
    """Compute ``x + y``, of one shape and type."""
    if x.shape != y.shape:
        raise SizeError(f"add: {x.name} has shape {x.shape}, {y.name} {y.shape}")
    _check_types("add", x, y)
    z = rows_like(x, x.shape, PeGrid.of(y), torch, "add.out")
    torch.launch("add", add_kernel, _require_rows(x), _require_rows(y), z, x.numel(), x.dtype)
    return z


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, torch: AnyContext, eps: float = 1e-5) -> Tensor:
    """Normalise each row to mean 0 and variance 1, times ``weight`` plus ``bias``, each (features,)."""
    y = rows_like(x, x.shape, PeGrid.of(weight), torch, "layernorm.out")
    torch.launch("layernorm", layernorm_kernel, _require_rows(x), weight, bias, y, *matrix_size(x), x.dtype, eps)
    return y


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, causal: bool, torch: AnyContext) -> Tensor:
    """Compute Flash-style attention of ``heads`` heads, side by side: q (lq, heads d), k and v (lk, heads d)."""
    (lq, width), (lk, _) = matrix_size(q), matrix_size(k)
    o = rows_like(q, q.shape, PeGrid.of(q), torch, "attention.out")
    sizes = (lq, lk, width // heads, q.dtype, heads)
    torch.launch("attention", attention_kernel, q, k, v, o, *sizes, causal=causal, layout="lhd")
    return o


def part_of_columns(x: Tensor, part: int, parts: int, torch: AnyContext) -> Tensor:
    """Copy block ``part`` of the last axis, which is cut into ``parts``."""
    (m, n), item = matrix_size(x), x.dtype.itemsize
    each = n // parts
    y = rows_like(x, (*x.shape[:-1], each), PeGrid.of(x), torch, f"{x.name}.part")
    strides = (n * item, item), (each * item, item)
    torch.launch("part", strided_copy, _require_rows(x), y, (m, each), *strides, x.dtype, src_offset=part * each * item)
    return y


def blocks_side_by_side(blocks: Tensor, shape: tuple[int, ...], torch: AnyContext) -> Tensor:
    """Copy blocks one below the other, (parts m, n), to ``shape`` = (..., parts n), where they are side by side."""
    n, item = blocks.shape[1], blocks.dtype.itemsize
    parts = shape[-1] // n
    m = blocks.shape[0] // parts
    y = rows_like(blocks, shape, PeGrid.of(blocks), torch, f"{blocks.name}.joined")
    strides = (n * item, m * n * item, item), (parts * n * item, n * item, item)
    torch.launch("side-by-side", strided_copy, blocks, y, (m, parts, n), *strides, blocks.dtype)
    return y


def _require_rows(x: Tensor) -> Tensor:
    if not has_whole_rows(x.layout):
        raise InputError(f"tensor {x.name!r} is spread by columns ({x.dp}); spread it by row_wise or replicate")
    return x


def _check_types(what: str, x: Tensor, other: Tensor) -> None:
    if x.dtype != other.dtype:
        raise InputError(f"{what}: {x.name} is {x.dtype.name}, {other.name} is {other.dtype.name}; they have to be one")
