"""Distributed tensors and what makes them, under the module name that PyTorch gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernbench.common.dtypes import DType
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import InputError
from kernbench.dtensor import ops
from kernbench.dtensor.device_mesh import DeviceMesh, init_device_mesh
from kernbench.dtensor.layouts import local_policy
from kernbench.dtensor.local import DTensorSpec, RankPart
from kernbench.dtensor.placements import (
    Partial,
    Placement,
    Placements,
    Replicate,
    Shard,
    check_not_empty,
    check_placements,
    in_words,
)
from kernbench.dtensor.redistribute import redistribute
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.arrays import machine_dtype, numeric, whole_number
from kernbench.runtime_api.tensor import Tensor

__all__ = [
    "DTensor",
    "DeviceMesh",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "distribute_tensor",
    "init_device_mesh",
]


class DTensor:
    """A tensor over the ranks of a mesh; every rank holds its part as a tensor on its SIP. Forward only.

    Operators look at placements, move what has to be moved and launch a kernel on every SIP; all ranks of the mesh call
    them alike. Memory is given back by ``free``, as of any tensor. ``distribute_tensor`` and ``from_local`` make one.
    """

    __slots__ = ("_part",)
    __array_ufunc__ = None  # numbers of NumPy leave an operation with a DTensor to the DTensor

    def __init__(self, part: RankPart) -> None:
        self._part = part

    @classmethod
    def from_local(
        cls,
        local_tensor: Tensor,
        device_mesh: DeviceMesh,
        placements: Sequence[Placement] | None = None,
        *,
        shape: Sequence[int] | None = None,
        dp: DPPolicy | None = None,
    ) -> DTensor:
        """Make one of the local tensors of all ranks; by default they are copies.

        ``shape``: of the whole tensor; by default that of parts of one size. InputError when the local tensor is none
        of the machine, or not the part that this rank has of ``shape``.
        """
        local, mesh = check_local(local_tensor), check_mesh("from_local", device_mesh)
        found = check_placements([Replicate()] * mesh.ndim if placements is None else placements, mesh.ndim, local.ndim)
        whole = whole_shape(shape, local.shape, found, mesh)
        part = RankPart(DTensorSpec(mesh=mesh, placements=found, shape=whole, dtype=local.dtype, dp=dp), local)
        part.check_live()
        if len(whole) != local.ndim or part.spec.window().shape != local.shape:
            raise InputError(
                f"from_local: {local.name} has shape {local.shape}, place {mesh.get_coordinate()} "
                f"of {whole} with {in_words(found)} is another"
            )
        check_not_empty(whole, found, mesh.shape)
        return cls(part)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh it is distributed over."""
        return self._part.spec.mesh

    @property
    def placements(self) -> Placements:
        """The placement along each dim of the mesh."""
        return self._part.spec.placements

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis of all of it."""
        return self._part.spec.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._part.spec.dtype

    @property
    def dp(self) -> DPPolicy | None:
        """The policy of parts in their SIP, where their shape allows it; None: by their size."""
        return self._part.spec.dp

    @property
    def part(self) -> RankPart:
        """The part of this rank."""
        return self._part

    def to_local(self) -> Tensor:
        """Return this rank's part, not a copy."""
        return self._part.local

    def redistribute(
        self,
        device_mesh: DeviceMesh | Sequence[Placement] | None = None,
        placements: Sequence[Placement] | None = None,
    ) -> DTensor:
        """Return the same tensor with other placements, which may be given alone; itself if it has them already.

        InputError for another mesh, and when a rank would have nothing of it.
        """
        if device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
            device_mesh, placements = None, device_mesh
        mesh = self.device_mesh
        if device_mesh is not None and device_mesh != mesh:
            raise InputError(f"redistribute: to {device_mesh}, from {mesh}: the mesh cannot change")
        wanted = self.placements if placements is None else check_placements(placements, mesh.ndim, self.ndim)
        found = redistribute(self._part, wanted)
        return self if found is self._part else DTensor(found)

    def full_tensor(self) -> Tensor:
        """Return all of it on every rank: the local tensor of a replicated one."""
        return self.redistribute([Replicate()] * self.device_mesh.ndim).to_local()

    def free(self) -> None:
        """Give the memory of this rank's part back."""
        self._part.local.free()

    def matmul(self, other: DTensor) -> DTensor:
        """Return the product of two matrices."""
        return self @ other

    def relu(self) -> DTensor:
        """Compute ``max(x, 0)`` of each element."""
        return DTensor(ops.unary("relu", self._part))

    def gelu(self) -> DTensor:
        """Compute GELU of each element, in its tanh form."""
        return DTensor(ops.unary("gelu", self._part))

    def silu(self) -> DTensor:
        """Compute ``x sigmoid(x)`` of each element."""
        return DTensor(ops.unary("silu", self._part))

    def sigmoid(self) -> DTensor:
        """Compute ``1 / (1 + exp(-x))`` of each element."""
        return DTensor(ops.unary("sigmoid", self._part))

    def tanh(self) -> DTensor:
        """Compute the hyperbolic tangent of each element."""
        return DTensor(ops.unary("tanh", self._part))

    def exp(self) -> DTensor:
        """Compute the exponential of each element."""
        return DTensor(ops.unary("exp", self._part))

    def abs(self) -> DTensor:
        """Compute the absolute value of each element."""
        return DTensor(ops.unary("abs", self._part))

    def maximum(self, other: DTensor | float) -> DTensor:
        """Compute the larger of two, element by element."""
        return self._apply("maximum", other)

    def minimum(self, other: DTensor | float) -> DTensor:
        """Compute the smaller of two, element by element."""
        return self._apply("minimum", other)

    def __matmul__(self, other: DTensor) -> DTensor:
        if not isinstance(other, DTensor):
            raise no_operand("@", other)
        return DTensor(ops.matmul(self._part, other.part))

    def __rmatmul__(self, other: object) -> DTensor:
        raise no_operand("@", other)

    def __add__(self, other: DTensor | float) -> DTensor:
        return self._apply("add", other)

    def __sub__(self, other: DTensor | float) -> DTensor:
        return self._apply("sub", other)

    def __mul__(self, other: DTensor | float) -> DTensor:
        return self._apply("mul", other)

    def __truediv__(self, other: DTensor | float) -> DTensor:
        return self._apply("div", other)

    def __radd__(self, other: float) -> DTensor:
        return self._apply("add", other)

    def __rmul__(self, other: float) -> DTensor:
        return self._apply("mul", other)

    def __rsub__(self, other: float) -> DTensor:
        return self._apply("sub", other, number_first=True)

    def __rtruediv__(self, other: float) -> DTensor:
        return self._apply("div", other, number_first=True)

    def __neg__(self) -> DTensor:
        return DTensor(ops.unary("neg", self._part))

    def __repr__(self) -> str:
        return f"DTensor({self.dtype}{list(self.shape)}, {in_words(self.placements)} on {self.device_mesh})"

    def _apply(self, op: str, other: object, *, number_first: bool = False) -> DTensor:
        if isinstance(other, DTensor):
            return DTensor(ops.binary(op, self._part, other.part))
        if isinstance(other, int | float | np.generic) and not isinstance(other, bool):
            number = other.item() if isinstance(other, np.generic) else other
            return DTensor(ops.with_number(op, self._part, number, number_first=number_first))
        raise no_operand(op, other)


def distribute_tensor(
    tensor: object,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None = None,
    *,
    dtype: object = None,
    dp: DPPolicy | None = None,
    name: str | None = None,
) -> DTensor:
    """Distribute ``tensor``, of which every rank has all, over a mesh; by default a copy on each rank.

    No rank asks another. An array, nested lists or a host tensor: each rank copies its part from the host. A tensor on
    this rank's SIP: its part is copied there; with Replicate() alone the result has the local tensor itself. ``dp``:
    the policy of parts in a SIP, where their shape allows it; None: by their size. InputError for Partial, for a tensor
    that is distributed already, and when a rank would have nothing.
    """
    check_mesh("distribute_tensor", device_mesh)
    if isinstance(tensor, DTensor):
        raise InputError(
            f"distribute_tensor: {tensor!r} is distributed already; redistribute gives it other placements"
        )
    source = tensor if isinstance(tensor, Tensor) else numeric(tensor, "distribute_tensor")
    copies: Placements = (Replicate(),) * device_mesh.ndim
    wanted = check_placements(copies if placements is None else placements, device_mesh.ndim, source.ndim)
    if any(isinstance(each, Partial) for each in wanted):
        raise InputError(f"distribute_tensor: {in_words(wanted)}; contributions are what every rank has: from_local")
    check_not_empty(source.shape, wanted, device_mesh.shape)
    if isinstance(source, Tensor):
        if dtype is not None and dtype_of(dtype) != source.dtype:
            raise InputError(f"distribute_tensor: {source.name} is {source.dtype}, not {dtype_of(dtype)}")
        return DTensor.from_local(source, device_mesh, copies, dp=dp or source.dp).redistribute(wanted)
    kind = machine_dtype(source) if dtype is None else dtype_of(dtype)
    spec = DTensorSpec(mesh=device_mesh, placements=wanted, shape=source.shape, dtype=kind, dp=dp)
    mine, torch = source[spec.window().index], device_mesh.torch
    policy = local_policy(mine.shape, kind.itemsize, dp, torch.topology)
    return DTensor(RankPart(spec, torch.tensor(mine, dtype=kind, dp=policy, name=name)))


def check_mesh(what: str, given: object) -> DeviceMesh:
    """Return a mesh; InputError for anything else."""
    if not isinstance(given, DeviceMesh):
        raise InputError(f"{what}: {given!r} is no DeviceMesh; init_device_mesh makes one of all ranks")
    return given


def check_local(given: object) -> Tensor:
    """Return a tensor of the machine; InputError for anything else."""
    if not isinstance(given, Tensor):
        raise InputError(
            f"from_local: a {type(given).__name__} is no tensor of the machine; torch.tensor makes one of this rank's "
            f"data, distribute_tensor takes data that every rank has all of"
        )
    return given


def whole_shape(
    given: Sequence[int] | None, local: tuple[int, ...], placements: Placements, mesh: DeviceMesh
) -> tuple[int, ...]:
    """Return the shape of a whole tensor: as given, else that of parts which are all as large as ``local``."""
    if given is None:
        return _scale_shape(local, placements, mesh)
    found = [whole_number(each) for each in given] if isinstance(given, Sequence) else [None]
    shape = tuple(each for each in found if each is not None)
    if len(shape) < len(found):
        raise InputError(f"from_local: shape={given!r} is no shape; write (2, 3)")
    return shape


def no_operand(op: str, other: object) -> InputError:
    """Return the error for an operand beside a DTensor that is none."""
    if isinstance(other, Tensor):
        return InputError(f"{op}: {other.name} is a local tensor; DTensor.from_local says how it is distributed")
    return InputError(
        f"{op}: a {type(other).__name__} is no operand beside a DTensor; distribute_tensor makes one of it"
    )


def _scale_shape(local: tuple[int, ...], placements: Placements, mesh: DeviceMesh) -> tuple[int, ...]:
    shape = list(local)
    for placement, ranks in zip(placements, mesh.shape, strict=True):
        if isinstance(placement, Shard):
            shape[placement.dim] *= ranks
    return tuple(shape)
