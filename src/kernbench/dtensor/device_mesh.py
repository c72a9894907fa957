"""Meshes of ranks: a line or a rectangle of ranks for distributed tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kernbench.common.errors import InputError
from kernbench.runtime_api.arrays import whole_number
from kernbench.runtime_api.collective_calls import RankGroup
from kernbench.runtime_api.context import AnyContext, require_context
from kernbench.runtime_api.distributed import BACKEND

AxisNames: TypeAlias = tuple[str, ...]


class DeviceMesh:
    """A mesh of ranks of the process group in one or two dims; no rank repeats, and ranks ascend along each dim.

    ``init_device_mesh`` makes a mesh of all ranks. ``torch`` is the context, and may be omitted inside
    ``with RuntimeContext(...)``. Raises InputError for another device type, for ranks that do not exist, and for
    several ranks without a process group.
    """

    __slots__ = ("_names", "_ranks", "_torch")

    def __init__(
        self,
        device_type: str,
        mesh: npt.ArrayLike,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        torch: AnyContext | None = None,
    ) -> None:
        if device_type != BACKEND:
            raise InputError(f"device type {device_type!r}: this machine has {BACKEND!r}")
        self._torch = require_context(torch)
        self._ranks = _check_ranks(_make_array(mesh), self._torch)
        self._names = _check_names(mesh_dim_names, self._ranks.ndim)

    @property
    def torch(self) -> AnyContext:
        """The context of the ranks."""
        return self._torch

    @property
    def device_type(self) -> str:
        """The device type, ``"ahbm"``."""
        return BACKEND

    @property
    def mesh(self) -> npt.NDArray[np.int64]:
        """The ranks as an array with the shape of the mesh; a copy."""
        return self._ranks.copy()

    @property
    def mesh_dim_names(self) -> AxisNames | None:
        """The names of the dims, or None."""
        return self._names

    @property
    def shape(self) -> tuple[int, ...]:
        """Ranks along each dim."""
        return self._ranks.shape

    @property
    def ndim(self) -> int:
        """The number of dims."""
        return self._ranks.ndim

    def size(self, mesh_dim: int | str | None = None) -> int:
        """Return the number of ranks in the mesh, or along a dim."""
        return self._ranks.size if mesh_dim is None else self.shape[self._find_dim(mesh_dim)]

    def get_rank(self) -> int:
        """Return the number of this rank in the world."""
        return self._torch.distributed.get_rank()

    def get_coordinate(self) -> tuple[int, ...]:
        """Return the place of this rank in the mesh. Raises InputError if the rank is not in the mesh."""
        places = np.argwhere(self._ranks == self.get_rank())
        if len(places) != 1:
            raise InputError(f"rank {self.get_rank()} is not in {self}")
        return tuple(map(int, places[0]))

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Return the place of this rank along a dim; a mesh with one dim needs no ``mesh_dim``."""
        return self.get_coordinate()[self._find_dim(mesh_dim)]

    def ranks_along(self, mesh_dim: int | str | None = None) -> list[int]:
        """Return the line of ranks along a dim that contains this rank, in order."""
        dim, at = self._find_dim(mesh_dim), self.get_coordinate()
        across = np.moveaxis(self._ranks, dim, -1)
        return [int(rank) for rank in across[(*at[:dim], *at[dim + 1 :])]]

    def get_group(self, mesh_dim: int | str | None = None) -> RankGroup:
        """Return the ranks of ``ranks_along`` as a group for ``torch.distributed``."""
        return self._torch.distributed.new_group(self.ranks_along(mesh_dim))

    def __getitem__(self, mesh_dim: str) -> DeviceMesh:
        """Return the mesh of one dim with the ranks of ``ranks_along``; ``mesh_dim`` is the name of the dim.

        Raises InputError for anything but the name of a dim.
        """
        if not isinstance(mesh_dim, str):
            raise InputError(f"mesh[{mesh_dim!r}]: a dim is selected by its name in mesh_dim_names of {self}")
        dim = self._find_dim(mesh_dim)
        return DeviceMesh(BACKEND, self.ranks_along(dim), mesh_dim_names=(mesh_dim,), torch=self._torch)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DeviceMesh):
            return NotImplemented
        named = self.mesh_dim_names == other.mesh_dim_names
        return named and self.torch is other.torch and np.array_equal(self.mesh, other.mesh)

    def __hash__(self) -> int:
        return hash((self.shape, self.mesh_dim_names, self._ranks.tobytes()))

    def __repr__(self) -> str:
        names = f", mesh_dim_names={self._names}" if self._names else ""
        return f"DeviceMesh({BACKEND!r}, {self._ranks.tolist()}{names})"

    def _find_dim(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None and self.ndim == 1:
            return 0
        names = self._names or ()
        if mesh_dim in names:
            return names.index(str(mesh_dim))
        if not isinstance(mesh_dim, int) or not -self.ndim <= mesh_dim < self.ndim:
            called = f", called {', '.join(names)}" if names else ""
            raise InputError(f"mesh dim {mesh_dim!r}: {self} has {self.ndim}{called}")
        return mesh_dim % self.ndim


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    torch: AnyContext | None = None,
) -> DeviceMesh:
    """Create a mesh of all ranks by number, row by row. Raises InputError if the shape does not hold all ranks."""
    context = require_context(torch)
    shape, world = _check_shape(mesh_shape), context.distributed.get_world_size()
    if prod(shape) != world:
        raise InputError(f"mesh shape {shape} holds {prod(shape)} ranks, there are {world}")
    ranks = np.arange(world).reshape(shape)
    return DeviceMesh(device_type, ranks, mesh_dim_names=mesh_dim_names, torch=context)


def _make_array(mesh: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return np.asarray(mesh)
    except ValueError:
        raise InputError(f"mesh {mesh!r}: its rows must have equal lengths") from None


def _check_shape(shape: object) -> tuple[int, ...]:
    """Return the number of ranks along each dim; each is at least one."""
    extents = [whole_number(extent) for extent in shape] if isinstance(shape, Sequence) else [None]
    counts = tuple(extent for extent in extents if extent is not None and extent > 0)
    if len(counts) < len(extents):
        raise InputError(f"mesh shape {shape!r}: the ranks along each dim, one at least, as (2,) or (2, 2)")
    return counts


def _check_ranks(mesh: npt.NDArray[Any], torch: AnyContext) -> npt.NDArray[np.int64]:
    world = torch.distributed.get_world_size()
    if mesh.ndim not in (1, 2):
        raise InputError(f"a mesh has one or two dims, not {mesh.ndim}")
    named = mesh.reshape(-1).tolist()
    if mesh.dtype.kind not in "iu" or not named or len(set(named)) < len(named) or not set(named) <= set(range(world)):
        raise InputError(f"mesh {mesh.tolist()}: has to name ranks of 0..{world - 1}, each once")
    if any(np.any(np.diff(mesh, axis=axis) < 0) for axis in range(mesh.ndim)):
        raise InputError(f"mesh {mesh.tolist()}: ranks have to ascend along each dim, since blocks of collectives do")
    if world > 1 and not torch.distributed.is_initialized():
        raise InputError("DeviceMesh: call torch.distributed.init_process_group('ahbm') first")
    return mesh.astype(np.int64)


def _check_names(names: Sequence[str] | None, ndim: int) -> AxisNames | None:
    if names is None:
        return None
    checked = () if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in checked) or not len(set(checked)) == len(checked) == ndim:
        raise InputError(f"mesh_dim_names={names!r}: the mesh has {ndim} dims, each with a name of its own")
    return checked
