"""The part of a distributed tensor that one rank has, and what the rank does with its tensors, each a launch."""

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
from kernbench.kernels.windows import copy_windows, elementwise_shards, gemm_windows
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.layout import shard_table
from kernbench.runtime_api.tensor import Tensor


class LocalTensors:
    """Makes tensors of a rank and works on them. ``dp``: how they lie in the SIP where their shape allows it."""

    __slots__ = ("dp", "torch")

    def __init__(self, torch: AnyContext, dp: DPPolicy | None) -> None:
        self.torch, self.dp = torch, dp

    def empty(self, shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
        """Make a tensor by the policy of ``dp``."""
        policy = local_policy(shape, dtype.itemsize, self.dp, self.torch.topology)
        return self.torch.empty(shape, dtype=dtype, dp=policy, name=name)

    def zeros(self, shape: tuple[int, ...], dtype: DType, name: str) -> Tensor:
        """Make a tensor of zeros by the policy of ``dp``."""
        return self.empty(shape, dtype, name).fill_(0)

    def buffer(self, shape: tuple[int, ...], dtype: DType, name: str, *, padded: bool = False) -> Tensor:
        """Make a tensor in the order of its elements, for blocks on their way; of zeros when some stay unwritten."""
        policy = rows_policy(shape, dtype.itemsize, self.dp, self.torch.topology)
        made = self.torch.empty(shape, dtype=dtype, dp=policy, name=name)
        return made.fill_(0) if padded else made

    def copy(self, source: Tensor, target: Tensor, moves: Iterable[WindowMove]) -> None:
        """Move windows of one tensor to another."""
        lines = copy_table(source.layout, target.layout, moves)
        self.torch.launch("dtensor-copy", copy_windows, source, target, lines, max(1, source.ndim), source.dtype)

    def clone(self, source: Tensor, name: str) -> Tensor:
        """Make a tensor with the same elements."""
        made = self.empty(source.shape, source.dtype, name)
        self.copy(source, made, [(source.layout.whole, made.layout.whole)])
        return made

    def elementwise(
        self, op: str, x: Tensor, y: Tensor | None = None, number: float | None = None, *, number_first: bool = False
    ) -> Tensor:
        """Apply an operator to one or two tensors of one shape, or to a tensor and a number; it lies as ``x``."""
        other = None if y is None else self._move_like(x, y)
        out = self.torch.empty_like(x, name=f"{op}.out")
        lines = shard_table(x.layout)
        self.torch.launch(op, elementwise_shards, op, x, other, out, lines, x.dtype, number, number_first)
        if other is not None and other is not y:
            other.free()
        return out

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute ``a @ b``, of matrices."""
        (m, k), n = a.shape, b.shape[1]
        kind = a.dtype if a.dtype.is_float else self.torch.int32
        out = self.empty((m, n), kind, "matmul.out")
        operands = [self._make_row_major(each) for each in (a, b)]
        pes = sorted({pe for each in (*operands, out) for pe in each.layout.owners})
        tile_m, _, tile_n = self.torch.topology.pe.gemm.tile_sizes
        lines = gemm_table(out.layout, pes, (tile_m, tile_n))
        self.torch.launch("matmul", gemm_windows, *operands, out, lines, k, n, a.dtype, kind)
        for given, used in zip((a, b), operands, strict=True):
            if used is not given:
                used.free()
        return out

    def _move_like(self, x: Tensor, y: Tensor) -> Tensor:
        if y.layout.views == x.layout.views:
            return y
        made = self.torch.empty_like(x, name=f"{y.name}.moved")
        self.copy(y, made, [(y.layout.whole, made.layout.whole)])
        return made

    def _make_row_major(self, x: Tensor) -> Tensor:
        if reads_in_order(x.layout):
            return x
        made = self.buffer(x.shape, x.dtype, f"{x.name}.rows")
        self.copy(x, made, [(x.layout.whole, made.layout.whole)])
        return made


@value(kw_only=True)
class DTensorSpec:
    """A tensor of ``shape`` over a mesh, the same on all ranks. ``dp``: how parts lie in a SIP; None: by their size."""

    mesh: DeviceMesh
    placements: Placements
    shape: tuple[int, ...]
    dtype: DType
    dp: DPPolicy | None = None

    def window(self, placements: Placements | None = None) -> Window:
        """Return this rank's part, with its own or other placements."""
        wanted = self.placements if placements is None else placements
        return local_window(self.shape, wanted, self.mesh.shape, self.mesh.get_coordinate())

    def cost_of(self, target: Placements) -> float:
        """Return about how many bytes a rank sends to get to these placements."""
        return count_sent_bytes(self.placements, target, self.shape, self.dtype.itemsize, self.mesh.shape)


@value
class RankPart:
    """A distributed tensor as one rank has it."""

    spec: DTensorSpec
    local: Tensor

    @property
    def tensors(self) -> LocalTensors:
        """The maker of tensors that lie as this one's parts do."""
        return LocalTensors(self.spec.mesh.torch, self.spec.dp)

    def with_placements(self, placements: Placements, local: Tensor) -> RankPart:
        """Return the same tensor with other placements."""
        return RankPart(replace(self.spec, placements=placements), local)

    def check_live(self) -> None:
        """Raise InputError when the local tensor has been freed: before work begins that would be left half done."""
        if not self.local.is_live:
            raise InputError(f"tensor {self.local.name!r} has been freed")

    def free_unless(self, kept: RankPart) -> None:
        """Free the local tensor, if it is not that of ``kept``."""
        if self.local is not kept.local:
            self.local.free()


class Blocks:
    """Blocks of one size, one for each rank of a line, as collectives want them: below each other in one tensor.

    A block is as large as the largest chunk along ``axes``; others leave some of it zeros.
    """

    __slots__ = ("_ranks", "_tensors", "even", "shape")

    def __init__(self, whole: tuple[int, ...], axes: Collection[int], ranks: int, tensors: LocalTensors) -> None:
        self._ranks, self._tensors = ranks, tensors
        self.even = all(whole[axis] % ranks == 0 for axis in axes)
        self.shape = tuple(-(-extent // ranks) if axis in axes else extent for axis, extent in enumerate(whole))

    @property
    def shape_of_all(self) -> tuple[int, ...]:
        """The shape of all blocks."""
        return (self.shape[0] * self._ranks, *self.shape[1:])

    def window(self, at: int, extents: tuple[int, ...]) -> Window:
        """Return the first corner of block ``at``, as much of it as is used."""
        first = at * self.shape[0]
        return Window.whole(extents).along(0, first, first + extents[0])

    def one(self, local: Tensor) -> Tensor:
        """Return a rank's own chunk as a block.

        It is the tensor itself where that will do, which is so on all ranks or on none.
        """
        if self.even and is_plain(local.layout):
            return local
        block = self._tensors.buffer(self.shape, local.dtype, f"{local.name}.block", padded=not self.even)
        self._tensors.copy(local, block, [(local.layout.whole, Window.whole(local.shape))])
        return block

    def pack(self, local: Tensor, moves: Sequence[WindowMove] | None) -> Tensor:
        """Make ``moves`` to a tensor of all blocks, and return it; the local tensor itself when it is one."""
        if moves is None and is_plain(local.layout):
            return local
        blocks = self._tensors.buffer(self.shape_of_all, local.dtype, f"{local.name}.blocks", padded=not self.even)
        everything = [(local.layout.whole, blocks.layout.whole)]
        self._tensors.copy(local, blocks, everything if moves is None else moves)
        return blocks

    def unpack(
        self,
        made: Tensor,
        moves: Sequence[WindowMove] | None,
        shape: tuple[int, ...],
        collective: Callable[[Tensor], object],
    ) -> None:
        """Have the collective fill ``made``, or a tensor of ``shape`` in its place, of which ``moves`` then fill it."""
        if moves is None and is_plain(made.layout):
            collective(made)
        else:
            blocks = self._tensors.buffer(shape, made.dtype, f"{made.name}.blocks")
            collective(blocks)
            self._tensors.copy(blocks, made, [(blocks.layout.whole, made.layout.whole)] if moves is None else moves)
            blocks.free()
