"""Distributed tensors and the functions that create them, under the module name of PyTorch."""

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
    """A tensor over the ranks of a mesh; every rank stores its part as a tensor on its SIP. Without gradients.

    Operators choose placements, redistribute operands as needed and launch a kernel on every SIP. All ranks of the mesh
    must call the same operators in the same order. ``free`` frees the memory of a part, as for any tensor.
    ``distribute_tensor`` and ``from_local`` create DTensors.
    """

    __slots__ = ("_part",)
    __array_ufunc__ = None  # NumPy numbers leave an operation with a DTensor to the DTensor

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
        """Create a DTensor from the local tensors of all ranks, by default replicas of one tensor.

        ``shape`` is the global shape; by default it is computed as if all parts had equal size. Raises InputError if
        the local tensor is not a tensor of the machine, or does not have the size of this rank's part of ``shape``.
        """
        local, mesh = check_local(local_tensor), check_mesh("from_local", device_mesh)
        checked = check_placements(
            [Replicate()] * mesh.ndim if placements is None else placements, mesh.ndim, local.ndim
        )
        global_shape = whole_shape(shape, local.shape, checked, mesh)
        part = RankPart(DTensorSpec(mesh=mesh, placements=checked, shape=global_shape, dtype=local.dtype, dp=dp), local)
        part.check_live()
        if len(global_shape) != local.ndim or part.spec.window().shape != local.shape:
            raise InputError(
                f"from_local: {local.name} has shape {local.shape}, place {mesh.get_coordinate()} "
                f"of {global_shape} with {in_words(checked)} is another"
            )
        check_not_empty(global_shape, checked, mesh.shape)
        return cls(part)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh of the ranks."""
        return self._part.spec.mesh

    @property
    def placements(self) -> Placements:
        """The placement along each dim of the mesh."""
        return self._part.spec.placements

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis of the complete tensor."""
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
        """The placement policy of a part in its SIP, if the shape allows it; None: a policy chosen by size."""
        return self._part.spec.dp

    @property
    def part(self) -> RankPart:
        """The part of this rank."""
        return self._part

    def to_local(self) -> Tensor:
        """Return the local tensor of this rank, without a copy."""
        return self._part.local

    def redistribute(
        self,
        device_mesh: DeviceMesh | Sequence[Placement] | None = None,
        placements: Sequence[Placement] | None = None,
    ) -> DTensor:
        """Return the tensor with other placements, or the same object if the placements do not change.

        The placements may be the only argument. Raises InputError for another mesh, and if a rank would have no
        elements.
        """
        if device_mesh is not None and not isinstance(device_mesh, DeviceMesh):
            device_mesh, placements = None, device_mesh
        mesh = self.device_mesh
        if device_mesh is not None and device_mesh != mesh:
            raise InputError(f"redistribute: to {device_mesh}, from {mesh}: the mesh cannot change")
        wanted = self.placements if placements is None else check_placements(placements, mesh.ndim, self.ndim)
        part = redistribute(self._part, wanted)
        return self if part is self._part else DTensor(part)

    def full_tensor(self) -> Tensor:
        """Redistribute the tensor so that every rank has all of it, and return the local tensor of this rank."""
        return self.redistribute([Replicate()] * self.device_mesh.ndim).to_local()

    def free(self) -> None:
        """Free the memory of this rank's part."""
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
        """Compute the elementwise maximum."""
        return self._apply("maximum", other)

    def minimum(self, other: DTensor | float) -> DTensor:
        """Compute the elementwise minimum."""
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
    """Distribute ``tensor``, which every rank has completely, over a mesh; by default a replica on each rank.

    The ranks exchange no messages. From an array, nested lists or a host tensor, each rank copies its part from the
    host. From a tensor on its SIP, each rank copies its part within the SIP; if all placements are Replicate(), the
    result uses the tensor itself. ``dp`` is the placement policy of a part in its SIP, if the shape allows it; None:
    a policy chosen by size. Raises InputError for Partial, for a tensor that is distributed already, and if a rank
    would have no elements.
    """
    check_mesh("distribute_tensor", device_mesh)
    if isinstance(tensor, DTensor):
        raise InputError(
            f"distribute_tensor: {tensor!r} is distributed already; redistribute gives it other placements"
        )
    source = tensor if isinstance(tensor, Tensor) else numeric(tensor, "distribute_tensor")
    copies: Placements = (Replicate(),) * device_mesh.ndim
    wanted = check_placements(copies if placements is None else placements, device_mesh.ndim, source.ndim)
    if any(isinstance(placement, Partial) for placement in wanted):
        raise InputError(f"distribute_tensor: {in_words(wanted)}; from_local takes the contribution of each rank")
    check_not_empty(source.shape, wanted, device_mesh.shape)
    if isinstance(source, Tensor):
        if dtype is not None and dtype_of(dtype) != source.dtype:
            raise InputError(f"distribute_tensor: {source.name} is {source.dtype}, not {dtype_of(dtype)}")
        return DTensor.from_local(source, device_mesh, copies, dp=dp or source.dp).redistribute(wanted)
    kind = machine_dtype(source) if dtype is None else dtype_of(dtype)
    spec = DTensorSpec(mesh=device_mesh, placements=wanted, shape=source.shape, dtype=kind, dp=dp)
    local_part, torch = source[spec.window().index], device_mesh.torch
    policy = local_policy(local_part.shape, kind.itemsize, dp, torch.topology)
    return DTensor(RankPart(spec, torch.tensor(local_part, dtype=kind, dp=policy, name=name)))


def check_mesh(caller: str, mesh: object) -> DeviceMesh:
    """Return ``mesh`` if it is a DeviceMesh; else raise InputError."""
    if not isinstance(mesh, DeviceMesh):
        raise InputError(f"{caller}: {mesh!r} is not a DeviceMesh; init_device_mesh makes one of all ranks")
    return mesh


def check_local(tensor: object) -> Tensor:
    """Return ``tensor`` if it is a tensor of the machine; else raise InputError."""
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"from_local: a {type(tensor).__name__} is no tensor of the machine; torch.tensor makes one of this rank's "
            f"data, distribute_tensor takes data that every rank has completely"
        )
    return tensor


def whole_shape(
    shape_argument: Sequence[int] | None, local: tuple[int, ...], placements: Placements, mesh: DeviceMesh
) -> tuple[int, ...]:
    """Return the global shape: ``shape_argument``, or by default the shape of a tensor with all parts of ``local``."""
    if shape_argument is None:
        return _scale_shape(local, placements, mesh)
    extents = [whole_number(extent) for extent in shape_argument] if isinstance(shape_argument, Sequence) else [None]
    shape = tuple(extent for extent in extents if extent is not None)
    if len(shape) < len(extents):
        raise InputError(f"from_local: shape={shape_argument!r} is no shape; write (2, 3)")
    return shape


def no_operand(op: str, other: object) -> InputError:
    """Return the error for an operand that is not a DTensor."""
    if isinstance(other, Tensor):
        return InputError(f"{op}: {other.name} is a local tensor; DTensor.from_local makes a DTensor of it")
    return InputError(
        f"{op}: a {type(other).__name__} is no operand for a DTensor; distribute_tensor makes a DTensor of it"
    )


def _scale_shape(local: tuple[int, ...], placements: Placements, mesh: DeviceMesh) -> tuple[int, ...]:
    shape = list(local)
    for placement, ranks in zip(placements, mesh.shape, strict=True):
        if isinstance(placement, Shard):
            shape[placement.dim] *= ranks
    return tuple(shape)
