"""Redistribution of tensors on the machine: local copies and collectives."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.dtensor.local import Blocks, LocalTensors, RankPart
from kernbench.dtensor.placements import Partial, Placements, Redistribution, Shard, check_not_empty, chunk, plan_steps
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.collective_calls import RankGroup
from kernbench.runtime_api.distributed import Distributed
from kernbench.runtime_api.tensor import Tensor


def redistribute(part: RankPart, placements: Placements) -> RankPart:
    """Return the tensor with other placements: the same object if nothing changes, else a part with a new local tensor.

    Raises InputError if a rank would have no elements, or if the tensor has been freed.
    """
    part.check_live()
    check_not_empty(part.spec.shape, placements, part.spec.mesh.shape)
    now = part
    for step in plan_steps(part.spec.placements, placements):
        line = MeshLine.of(now, step, owned=now.local is not part.local)
        local = line.move() if line.size > 1 else now.local
        before, now = now, now.with_placements(step.result, local)
        if before.local is not part.local:
            before.free_unless(now)
    if now.local is part.local and now.spec.placements != part.spec.placements:
        # All changed dims have one rank, so the data are the same; the result is a copy that can be freed separately.
        return now.with_placements(placements, now.tensors.clone(now.local, now.local.name))
    return now


@value
class MeshLine:
    """The ranks along one dim of a mesh while one placement becomes another.

    ``line_shape`` is the shape of the data of all these ranks together, ``place`` the index of this rank in the line.
    ``owned`` means that no other tensor uses the local tensor, which may therefore be overwritten.
    """

    part: RankPart
    step: Redistribution
    line_shape: tuple[int, ...]
    size: int
    place: int
    owned: bool

    @classmethod
    def of(cls, part: RankPart, step: Redistribution, *, owned: bool) -> MeshLine:
        """Return the line of ranks for a step of ``part``."""
        mesh = part.spec.mesh
        line_shape = part.spec.window(step.whole).shape
        return cls(part, step, line_shape, mesh.shape[step.mesh_dim], mesh.get_coordinate()[step.mesh_dim], owned)

    @property
    def local(self) -> Tensor:
        """The tensor of this rank before the step."""
        return self.part.local

    @property
    def tensors(self) -> LocalTensors:
        """The factory of local tensors."""
        return self.part.tensors

    @property
    def group(self) -> RankGroup:
        """The ranks of the line as a group."""
        return self.part.spec.mesh.get_group(self.step.mesh_dim)

    @property
    def collectives(self) -> Distributed:
        """The collectives of the context."""
        return self.part.spec.mesh.torch.distributed

    def move(self) -> Tensor:
        """Carry out the step and return this rank's local tensor after it: a new tensor, or the owned tensor."""
        source, target = self.step.source, self.step.target
        if isinstance(source, Shard):
            if isinstance(target, Shard):
                return self._exchange(source.dim, target.dim)
            return self._spread_out(source.dim) if isinstance(target, Partial) else self._gather(source.dim)
        if isinstance(source, Partial):
            return self._scatter(source, target.dim) if isinstance(target, Shard) else self._reduce(source)
        return self._keep_chunk(target.dim) if isinstance(target, Shard) else self._contribute(target)

    def window(self, axis: int, place: int) -> Window:
        """Return the chunk of an axis that belongs to a place of the line, as a window of ``line_shape``."""
        return Window.whole(self.line_shape).along(axis, *chunk(self.line_shape[axis], self.size, place))

    def _make_name(self, suffix: str) -> str:
        return f"{self.local.name}.{suffix}"

    def _make_result(self, shape: tuple[int, ...]) -> Tensor:
        return self.tensors.empty(shape, self.local.dtype, self._make_name(str(self.step.target)))

    def _keep_chunk(self, axis: int) -> Tensor:
        """Convert Replicate to Shard: every rank copies its chunk."""
        chunk_window = self.window(axis, self.place)
        result = self._make_result(chunk_window.shape)
        self.tensors.copy(self.local, result, [(chunk_window, result.layout.whole)])
        return result

    def _contribute(self, target: object) -> Tensor:
        """Convert Replicate to Partial.

        For a sum, the first rank contributes the tensor and all other ranks contribute zeros, which is exact in any
        element type.
        """
        if isinstance(target, Partial) and target.reduce_op == "sum" and self.place:
            return self.tensors.zeros(self.line_shape, self.local.dtype, self._make_name("zeros"))
        return self.tensors.clone(self.local, self._make_name(str(target)))

    def _spread_out(self, axis: int) -> Tensor:
        """Convert Shard to a Partial sum: every rank places its chunk among zeros."""
        result = self.tensors.zeros(self.line_shape, self.local.dtype, self._make_name("spread"))
        self.tensors.copy(self.local, result, [(self.local.layout.whole, self.window(axis, self.place))])
        return result

    def _reduce(self, source: Partial) -> Tensor:
        """Convert Partial to Replicate: all-reduce in place, or on a copy if another tensor uses the contributions."""
        result = self.local if self.owned else self.tensors.clone(self.local, self._make_name("reduced"))
        self.collectives.all_reduce(result, source.reduce_op, self.group, elementwise=True)
        return result

    def _gather(self, axis: int) -> Tensor:
        """Convert Shard to Replicate: all-gather of chunks."""
        blocks = self._make_blocks(axis)
        block, result = blocks.one(self.local), self._make_result(self.line_shape)
        moves = [(blocks.window(at, self.window(axis, at).shape), self.window(axis, at)) for at in range(self.size)]
        blocks.unpack(
            result,
            moves if axis or not blocks.even else None,
            blocks.shape_of_all,
            lambda output: self.collectives.all_gather_into_tensor(output, block, self.group),
        )
        return self._finish(block, result)

    def _scatter(self, source: Partial, axis: int) -> Tensor:
        """Convert Partial to Shard: reduce-scatter of chunks."""
        blocks, result = self._make_blocks(axis), self._make_result(self.window(axis, self.place).shape)
        moves = [(self.window(axis, at), blocks.window(at, self.window(axis, at).shape)) for at in range(self.size)]
        packed = blocks.pack(self.local, moves if axis or not blocks.even else None)
        blocks.unpack(
            result,
            None if blocks.even else [(result.layout.whole, result.layout.whole)],
            blocks.shape,
            lambda output: self.collectives.reduce_scatter_tensor(output, packed, source.reduce_op, self.group),
        )
        return self._finish(packed, result)

    def _exchange(self, from_axis: int, to_axis: int) -> Tensor:
        """Convert Shard to Shard of another axis: split each rank's chunk along that axis, then all-to-all."""
        blocks, result = (
            self._make_blocks(from_axis, to_axis),
            self._make_result(self.window(to_axis, self.place).shape),
        )
        outgoing, incoming = [], []
        for at in range(self.size):
            send_window = self.local.layout.whole.along(to_axis, *self.window(to_axis, at).bounds[to_axis])
            outgoing.append((send_window, blocks.window(at, send_window.shape)))
            receive_window = result.layout.whole.along(from_axis, *self.window(from_axis, at).bounds[from_axis])
            incoming.append((blocks.window(at, receive_window.shape), receive_window))
        packed = blocks.pack(self.local, outgoing if to_axis or not blocks.even else None)
        blocks.unpack(
            result,
            incoming if from_axis or not blocks.even else None,
            blocks.shape_of_all,
            lambda output: self.collectives.all_to_all_single(output, packed, group=self.group),
        )
        return self._finish(packed, result)

    def _make_blocks(self, *axes: int) -> Blocks:
        return Blocks(self.line_shape, axes, self.size, self.tensors)

    def _finish(self, temporary: Tensor, result: Tensor) -> Tensor:
        if temporary is not self.local:
            temporary.free()
        return result
