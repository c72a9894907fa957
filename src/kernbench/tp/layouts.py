"""How tensors of a tensor-parallel layer lie inside a SIP.

A weight is spread by columns over cubes and PEs, so that every PE multiplies by columns that lie in its own HBM slice.
Activations are spread by rows: then their virtual addresses are those of one row-major matrix, which any PE can read,
and write columns of, without knowing where the rows lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.layout import TensorLayout
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.spec import TopologySpec

ROWS, COLUMNS, COPIES = "row_wise", "column_wise", "replicate"


@value
class PeGrid:
    """The first ``cubes`` of a SIP, and the first ``pes`` of each."""

    cubes: int
    pes: int

    @classmethod
    def of_sip(cls, topology: TopologySpec) -> PeGrid:
        """All PEs of a SIP."""
        return cls(topology.cubes_per_sip, topology.pes_per_cube)

    @classmethod
    def of_policy(cls, dp: DPPolicy | None, topology: TopologySpec) -> PeGrid:
        """Where tensors of a policy lie; without one, on all PEs."""
        whole = cls.of_sip(topology)
        return whole if dp is None else cls(dp.num_cubes or whole.cubes, dp.num_pes or whole.pes)

    @classmethod
    def of(cls, tensor: Tensor) -> PeGrid:
        """Where a tensor lies."""
        owners = tensor.layout.owners
        return cls(len({cube for _, cube, _ in owners}), len({pe for _, _, pe in owners}))

    def rows(self, count: int) -> DPPolicy:
        """``count`` rows over as much of it as they suffice for."""
        within = self._with_at_most(count)
        return DPPolicy(ROWS, ROWS, num_cubes=within.cubes, num_pes=within.pes)

    def columns(self, count: int) -> DPPolicy:
        """``count`` columns over as much of it as they suffice for."""
        within = self._with_at_most(count)
        return DPPolicy(COLUMNS, COLUMNS, num_cubes=within.cubes, num_pes=within.pes)

    def _with_at_most(self, parts: int) -> PeGrid:
        # Cubes first, always: so of two such grids one holds the other, and the PEs of a launch form a grid.
        cubes = min(self.cubes, parts)
        return PeGrid(cubes, min(self.pes, parts // cubes))

    def copies(self) -> DPPolicy:
        """A copy on each PE."""
        return DPPolicy(COPIES, COPIES, num_cubes=self.cubes, num_pes=self.pes)


def weight_policy(columns: int, dp: DPPolicy | None, topology: TopologySpec) -> DPPolicy:
    """How a weight lies: as ``dp`` says, else by columns over all PEs; InputError when that splits it by rows.

    A narrow weight by columns over cubes and PEs takes as many of them as it has columns for.
    """
    if dp is None or (dp.cube, dp.pe) == (COLUMNS, COLUMNS):
        return PeGrid.of_policy(dp, topology).columns(columns)
    if ROWS in (dp.cube, dp.pe):
        raise InputError(f"dp={dp}: the weight of a linear layer is spread by {COLUMNS} or {COPIES}, not by {ROWS}")
    return dp


def is_row_major(layout: TensorLayout) -> bool:
    """Whether its virtual addresses are in the order of its elements: nothing but the first axis is split."""
    whole = layout.whole.bounds[1:]
    return all(view.window.bounds[1:] == whole for view in layout.views)


def shard_table(layout: TensorLayout) -> tuple[int, ...]:
    """Every shard as ``shards_to_rows`` wants it; of copies all."""
    item = layout.dtype.itemsize
    table: list[int] = []
    for view in layout.views:
        at = view.spec.offset_bytes
        for window in _with_rows_in_order(view.window, layout.shape):
            corner = 0
            for (start, _), extent in zip(window.bounds, layout.shape, strict=True):
                corner = corner * extent + start
            table += (view.spec.cube, view.spec.pe, at, prod(window.shape[:-1]), window.shape[-1], corner * item)
            at += window.size * item
    return tuple(table)


def _with_rows_in_order(window: Window, shape: tuple[int, ...]) -> Iterator[Window]:
    """The window in parts whose rows follow each other in the tensor: one, unless an axis in the middle is split."""
    split = [axis for axis in range(1, len(shape) - 1) if window.bounds[axis] != (0, shape[axis])]
    before = split[-1] if split else 0
    for corner in product(*(range(*bounds) for bounds in window.bounds[:before])):
        yield Window((*((at, at + 1) for at in corner), *window.bounds[before:]))
