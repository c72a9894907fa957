"""Blocks of a tensor on their way between ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from kernbench.dtensor.layouts import is_plain
from kernbench.dtensor.local import LocalTensors
from kernbench.dtensor.tables import Move
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.tensor import Tensor


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
        """That of all blocks."""
        return (self.shape[0] * self._ranks, *self.shape[1:])

    def window(self, at: int, extents: tuple[int, ...]) -> Window:
        """The first corner of block ``at``, so much of it as is used."""
        first = at * self.shape[0]
        return Window.whole(extents).along(0, first, first + extents[0])

    def one(self, local: Tensor) -> Tensor:
        """A rank's own chunk as a block: the tensor itself where it will do, which is so on all ranks or on none."""
        if self.even and is_plain(local.layout):
            return local
        block = self._tensors.buffer(self.shape, local.dtype, f"{local.name}.block", padded=not self.even)
        self._tensors.copy(local, block, [(local.layout.whole, Window.whole(local.shape))])
        return block

    def packed(self, local: Tensor, moves: Sequence[Move] | None) -> Tensor:
        """``moves`` made to a tensor of all blocks; the local tensor itself when it is one."""
        if moves is None and is_plain(local.layout):
            return local
        blocks = self._tensors.buffer(self.shape_of_all, local.dtype, f"{local.name}.blocks", padded=not self.even)
        everything = [(local.layout.whole, blocks.layout.whole)]
        self._tensors.copy(local, blocks, everything if moves is None else moves)
        return blocks

    def unpacked(
        self,
        made: Tensor,
        moves: Sequence[Move] | None,
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
