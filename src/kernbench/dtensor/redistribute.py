"""Redistribute tensors on the machine: local copies and the collectives between them."""

from __future__ import annotations

from kernbench.common.values import value
from kernbench.dtensor.local import Blocks, LocalTensors, RankPart
from kernbench.dtensor.placements import Partial, Placements, Redistribution, Shard, check_not_empty, chunk, plan_steps
from kernbench.policy.placement.geometry import Window
from kernbench.runtime_api.collective_calls import RankGroup
from kernbench.runtime_api.distributed import Distributed
from kernbench.runtime_api.tensor import Tensor


def redistribute(part: RankPart, placements: Placements) -> RankPart:
    """Return the same tensor with other placements: the same part if nothing changes, else one with a new local tensor.

    InputError when a rank would have nothing of it, and when it has been freed.
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
        # Dims of one rank: another name for the same data, which are to have an owner of their own.
        return now.with_placements(placements, now.tensors.clone(now.local, now.local.name))
    return now


@value
class MeshLine:
    """The ranks along one dim of a mesh while one placement becomes another.

    ``whole``: extents of what they have together; ``place``: where in the line this rank is; ``owned``: whether the
    local tensor is nobody else's, so that it may be overwritten.
    """

    part: RankPart
    step: Redistribution
    whole: tuple[int, ...]
    size: int
    place: int
    owned: bool

    @classmethod
    def of(cls, part: RankPart, step: Redistribution, *, owned: bool) -> MeshLine:
        """Return the line of a step of ``part``."""
        mesh = part.spec.mesh
        whole = part.spec.window(step.whole).shape
        return cls(part, step, whole, mesh.shape[step.mesh_dim], mesh.get_coordinate()[step.mesh_dim], owned)

    @property
    def local(self) -> Tensor:
        """The tensor of this rank before the step."""
        return self.part.local

    @property
    def tensors(self) -> LocalTensors:
        """The maker of local tensors."""
        return self.part.tensors

    @property
    def group(self) -> RankGroup:
        """These ranks."""
        return self.part.spec.mesh.get_group(self.step.mesh_dim)

    @property
    def collectives(self) -> Distributed:
        """The collectives."""
        return self.part.spec.mesh.torch.distributed

    def move(self) -> Tensor:
        """Do the step, and return this rank's tensor behind it: a new one, or one that it owned."""
        source, target = self.step.source, self.step.target
        if isinstance(source, Shard):
            if isinstance(target, Shard):
                return self._exchange(source.dim, target.dim)
            return self._spread_out(source.dim) if isinstance(target, Partial) else self._gather(source.dim)
        if isinstance(source, Partial):
            return self._scatter(source, target.dim) if isinstance(target, Shard) else self._reduce(source)
        return self._keep_chunk(target.dim) if isinstance(target, Shard) else self._contribute(target)

    def window(self, axis: int, place: int) -> Window:
        """Return the chunk of an axis that a place of the line has, in the whole."""
        return Window.whole(self.whole).along(axis, *chunk(self.whole[axis], self.size, place))

    def _make_name(self, what: str) -> str:
        return f"{self.local.name}.{what}"

    def _make_result(self, shape: tuple[int, ...]) -> Tensor:
        return self.tensors.empty(shape, self.local.dtype, self._make_name(str(self.step.target)))

    def _keep_chunk(self, axis: int) -> Tensor:
        """Turn Replicate to Shard: every rank keeps its chunk."""
        mine = self.window(axis, self.place)
        made = self._make_result(mine.shape)
        self.tensors.copy(self.local, made, [(mine, made.layout.whole)])
        return made

    def _contribute(self, target: object) -> Tensor:
        """Turn Replicate to Partial.

        Of a sum the first rank has all and the others nothing, which is exact in any type.
        """
        if isinstance(target, Partial) and target.reduce_op == "sum" and self.place:
            return self.tensors.zeros(self.whole, self.local.dtype, self._make_name("zeros"))
        return self.tensors.clone(self.local, self._make_name(str(target)))

    def _spread_out(self, axis: int) -> Tensor:
        """Turn Shard to a Partial sum: every rank's chunk among zeros."""
        made = self.tensors.zeros(self.whole, self.local.dtype, self._make_name("spread"))
        self.tensors.copy(self.local, made, [(self.local.layout.whole, self.window(axis, self.place))])
        return made

    def _reduce(self, source: Partial) -> Tensor:
        """Turn Partial to Replicate: all-reduce, of a copy where somebody else has the contributions."""
        made = self.local if self.owned else self.tensors.clone(self.local, self._make_name("reduced"))
        self.collectives.all_reduce(made, source.reduce_op, self.group, elementwise=True)
        return made

    def _gather(self, axis: int) -> Tensor:
        """Turn Shard to Replicate: all-gather of chunks."""
        blocks = self._make_blocks(axis)
        taken, made = blocks.one(self.local), self._make_result(self.whole)
        moves = [(blocks.window(at, self.window(axis, at).shape), self.window(axis, at)) for at in range(self.size)]
        blocks.unpack(
            made,
            moves if axis or not blocks.even else None,
            blocks.shape_of_all,
            lambda output: self.collectives.all_gather_into_tensor(output, taken, self.group),
        )
        return self._finish(taken, made)

    def _scatter(self, source: Partial, axis: int) -> Tensor:
        """Turn Partial to Shard: reduce-scatter of chunks."""
        blocks, made = self._make_blocks(axis), self._make_result(self.window(axis, self.place).shape)
        moves = [(self.window(axis, at), blocks.window(at, self.window(axis, at).shape)) for at in range(self.size)]
        taken = blocks.pack(self.local, moves if axis or not blocks.even else None)
        blocks.unpack(
            made,
            None if blocks.even else [(made.layout.whole, made.layout.whole)],
            blocks.shape,
            lambda output: self.collectives.reduce_scatter_tensor(output, taken, source.reduce_op, self.group),
        )
        return self._finish(taken, made)

    def _exchange(self, given: int, wanted: int) -> Tensor:
        """Turn Shard to Shard of another axis: all-to-all of the chunks of chunks."""
        blocks, made = self._make_blocks(given, wanted), self._make_result(self.window(wanted, self.place).shape)
        outgoing, incoming = [], []
        for at in range(self.size):
            there = self.local.layout.whole.along(wanted, *self.window(wanted, at).bounds[wanted])
            outgoing.append((there, blocks.window(at, there.shape)))
            here = made.layout.whole.along(given, *self.window(given, at).bounds[given])
            incoming.append((blocks.window(at, here.shape), here))
        taken = blocks.pack(self.local, outgoing if wanted or not blocks.even else None)
        blocks.unpack(
            made,
            incoming if given or not blocks.even else None,
            blocks.shape_of_all,
            lambda output: self.collectives.all_to_all_single(output, taken, group=self.group),
        )
        return self._finish(taken, made)

    def _make_blocks(self, *axes: int) -> Blocks:
        return Blocks(self.whole, axes, self.size, self.tensors)

    def _finish(self, taken: Tensor, made: Tensor) -> Tensor:
        if taken is not self.local:
            taken.free()
        return made
