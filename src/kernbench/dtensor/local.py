"""The part of a distributed tensor on one rank, and the launches of the rank on its local tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.dtensor.device_mesh import DeviceMesh
from kernbench.dtensor.layouts import (
    WindowMove,
    copy_table,
    gemm_table,
    is_plain,
    local_policy,
    reads_in_order,
    rows_policy,
)
from kernbench.dtensor.placements import Placements, count_sent_bytes, local_window
from kernbench.kernels.elementwise import copy_windows, elementwise_shards
from kernbench.kernels.gemm import gemm_windows
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.layout import shard_table
from kernbench.runtime_api.tensor import Tensor


class LocalTensors:
    """Factory of local tensors of a rank, and operations on them.

    ``dp`` is the placement of the tensors in the SIP, if their shape allows it.
    """

    __slots__ = ("dp", "torch")

    def __init__(self, torch: AnyContext, dp: DPPolicy | None) -> None:
        self.torch, self.dp = torch, dp

    def empty(self, shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
        """Create a tensor with the placement of ``dp``."""
        policy = local_policy(shape, dtype.itemsize, self.dp, self.torch.topology)
        return self.torch.empty(shape, dtype=dtype, dp=policy, name=name)

    def zeros(self, shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
        """Create a tensor of zeros with the placement of ``dp``."""
        return self.empty(shape, dtype, name).fill_(0)

    def buffer(self, shape: tuple[int, ...], dtype: DType, name: str, *, padded: bool = False) -> Tensor:
        """Create a row-major tensor for the blocks of a collective; ``padded`` fills it with zeros first."""
        policy = rows_policy(shape, dtype.itemsize, self.dp, self.torch.topology)
        tensor = self.torch.empty(shape, dtype=dtype, dp=policy, name=name)
        return tensor.fill_(0) if padded else tensor

    def copy(self, source: Tensor, target: Tensor, moves: Iterable[WindowMove]) -> None:
        """Copy windows of one tensor to another."""
        lines = copy_table(source.layout, target.layout, moves)
        self.torch.launch("dtensor-copy", copy_windows, source, target, lines, max(1, source.ndim), source.dtype)

    def clone(self, source: Tensor, name: str) -> Tensor:
        """Return a new tensor with the same elements."""
        copy = self.empty(source.shape, source.dtype, name)
        self.copy(source, copy, [(source.layout.whole, copy.layout.whole)])
        return copy

    def elementwise(
        self, op: str, x: Tensor, y: Tensor | None = None, number: float | None = None, *, number_first: bool = False
    ) -> Tensor:
        """Apply an operator to one or two tensors of one shape, or to a tensor and a number.

        The result has the layout of ``x``.
        """
        other = None if y is None else self._move_like(x, y)
        out = self.torch.empty_like(x, name=f"{op}.out")
        lines = shard_table(x.layout)
        self.torch.launch(op, elementwise_shards, op, x, other, out, lines, x.dtype, number, number_first)
        if other is not None and other is not y:
            other.free()
        return out

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute the matrix product ``a @ b``."""
        (m, k), n = a.shape, b.shape[1]
        kind = a.dtype if a.dtype.is_float else self.torch.int32
        out = self.empty((m, n), kind, "matmul.out")
        operands = [self._make_row_major(operand) for operand in (a, b)]
        pes = sorted({pe for operand in (*operands, out) for pe in operand.layout.owners})
        tile_m, _, tile_n = self.torch.topology.pe.gemm.tile_sizes
        lines = gemm_table(out.layout, pes, (tile_m, tile_n))
        self.torch.launch("matmul", gemm_windows, *operands, out, lines, k, n, a.dtype, kind)
        for original, used in zip((a, b), operands, strict=True):
            if used is not original:
                used.free()
        return out

    def _move_like(self, x: Tensor, y: Tensor) -> Tensor:
        if y.layout.views == x.layout.views:
            return y
        moved = self.torch.empty_like(x, name=f"{y.name}.moved")
        self.copy(y, moved, [(y.layout.whole, moved.layout.whole)])
        return moved

    def _make_row_major(self, x: Tensor) -> Tensor:
        if reads_in_order(x.layout):
            return x
        rows = self.buffer(x.shape, x.dtype, f"{x.name}.rows")
        self.copy(x, rows, [(x.layout.whole, rows.layout.whole)])
        return rows


@value(kw_only=True)
class DTensorSpec:
    """A tensor of ``shape`` over a mesh, equal on all ranks. ``dp`` places parts in a SIP; None chooses by size."""

    mesh: DeviceMesh
    placements: Placements
    shape: tuple[int, ...]
    dtype: DType
    dp: DPPolicy | None = None

    def window(self, placements: Placements | None = None) -> Window:
        """Return this rank's window of the tensor, with the spec's placements or others."""
        wanted = self.placements if placements is None else placements
        return local_window(self.shape, wanted, self.mesh.shape, self.mesh.get_coordinate())

    def cost_of(self, target: Placements) -> float:
        """Return an estimate of the bytes that a rank sends to reach these placements."""
        return count_sent_bytes(self.placements, target, self.shape, self.dtype.itemsize, self.mesh.shape)


@value
class RankPart:
    """The part of a distributed tensor on one rank."""

    spec: DTensorSpec
    local: Tensor

    @property
    def tensors(self) -> LocalTensors:
        """The factory of local tensors with the placement of this part."""
        return LocalTensors(self.spec.mesh.torch, self.spec.dp)

    def with_placements(self, placements: Placements, local: Tensor) -> RankPart:
        """Return the same tensor with other placements."""
        return RankPart(replace(self.spec, placements=placements), local)

    def check_live(self) -> None:
        """Raise InputError if the local tensor has been freed; call it before work that could not be completed."""
        if not self.local.is_live:
            raise InputError(f"tensor {self.local.name!r} has been freed")

    def free_unless(self, part: RankPart) -> None:
        """Free the local tensor unless ``part`` uses it."""
        if self.local is not part.local:
            self.local.free()


class Blocks:
    """Blocks of one size, one for each rank of a line, stacked in one tensor for collectives.

    A block is as large as the largest chunk along ``axes``; smaller chunks are padded with zeros.
    """

    __slots__ = ("_ranks", "_tensors", "even", "shape")

    def __init__(self, line_shape: tuple[int, ...], axes: Collection[int], ranks: int, tensors: LocalTensors) -> None:
        self._ranks, self._tensors = ranks, tensors
        self.even = all(line_shape[axis] % ranks == 0 for axis in axes)
        self.shape = tuple(-(-extent // ranks) if axis in axes else extent for axis, extent in enumerate(line_shape))

    @property
    def shape_of_all(self) -> tuple[int, ...]:
        """The shape of all blocks."""
        return (self.shape[0] * self._ranks, *self.shape[1:])

    def window(self, at: int, extents: tuple[int, ...]) -> Window:
        """Return the used corner of block ``at``, with ``extents``, as a window of all blocks."""
        first = at * self.shape[0]
        return Window.whole(extents).along(0, first, first + extents[0])

    def one(self, local: Tensor) -> Tensor:
        """Return a rank's chunk as a block.

        The block is the tensor itself if the layout allows it; either all ranks or no rank can use the tensor itself.
        """
        if self.even and is_plain(local.layout):
            return local
        block = self._tensors.buffer(self.shape, local.dtype, f"{local.name}.block", padded=not self.even)
        self._tensors.copy(local, block, [(local.layout.whole, Window.whole(local.shape))])
        return block

    def pack(self, local: Tensor, moves: Sequence[WindowMove] | None) -> Tensor:
        """Apply ``moves`` to a new tensor of all blocks and return it.

        Return the local tensor itself if it has the layout of all blocks.
        """
        if moves is None and is_plain(local.layout):
            return local
        blocks = self._tensors.buffer(self.shape_of_all, local.dtype, f"{local.name}.blocks", padded=not self.even)
        everything = [(local.layout.whole, blocks.layout.whole)]
        self._tensors.copy(local, blocks, everything if moves is None else moves)
        return blocks

    def unpack(
        self,
        result: Tensor,
        moves: Sequence[WindowMove] | None,
        shape: tuple[int, ...],
        collective: Callable[[Tensor], object],
    ) -> None:
        """Fill ``result`` by the collective: directly, or by ``moves`` from an intermediate tensor of ``shape``."""
        if moves is None and is_plain(result.layout):
            collective(result)
        else:
            blocks = self._tensors.buffer(shape, result.dtype, f"{result.name}.blocks")
            collective(blocks)
            self._tensors.copy(blocks, result, [(blocks.layout.whole, result.layout.whole)] if moves is None else moves)
            blocks.free()
