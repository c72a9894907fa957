"""What programs give to make distributed tensors, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.errors import InputError
from kernbench.dtensor.device_mesh import DeviceMesh
from kernbench.dtensor.placements import Placements, Shard
from kernbench.runtime_api.arrays import whole_number
from kernbench.runtime_api.tensor import Tensor


def checked_mesh(what: str, given: object) -> DeviceMesh:
    """A mesh; else InputError."""
    if not isinstance(given, DeviceMesh):
        raise InputError(f"{what}: {given!r} is no DeviceMesh; init_device_mesh makes one of all ranks")
    return given


def checked_local(given: object) -> Tensor:
    """A tensor of the machine; else InputError."""
    if not isinstance(given, Tensor):
        raise InputError(
            f"from_local: a {type(given).__name__} is no tensor of the machine; torch.tensor makes one of this rank's "
            f"data, distribute_tensor takes data that every rank has all of"
        )
    return given


def whole_shape(
    given: Sequence[int] | None, local: tuple[int, ...], placements: Placements, mesh: DeviceMesh
) -> tuple[int, ...]:
    """The shape of all of a tensor: as given, else that of parts which are all as large as ``local``."""
    if given is None:
        return _of_even_parts(local, placements, mesh)
    found = [whole_number(each) for each in given] if isinstance(given, Sequence) else [None]
    shape = tuple(each for each in found if each is not None)
    if len(shape) < len(found):
        raise InputError(f"from_local: shape={given!r} is no shape; write (2, 3)")
    return shape


def no_operand(op: str, other: object) -> InputError:
    """What to do with something that stands beside a DTensor and is none."""
    if isinstance(other, Tensor):
        return InputError(f"{op}: {other.name} is a local tensor; DTensor.from_local says how it is distributed")
    return InputError(
        f"{op}: a {type(other).__name__} is no operand beside a DTensor; distribute_tensor makes one of it"
    )


def _of_even_parts(local: tuple[int, ...], placements: Placements, mesh: DeviceMesh) -> tuple[int, ...]:
    shape = list(local)
    for placement, ranks in zip(placements, mesh.shape, strict=True):
        if isinstance(placement, Shard):
            shape[placement.dim] *= ranks
    return tuple(shape)
