"""Tensors of host libraries on the machine: their common interface, and the PEs that store them."""

from __future__ import annotations

from kernbench.common.errors import InputError
from kernbench.messages.requests import PeCoord
from kernbench.runtime_api.context import AnyContext
from kernbench.runtime_api.tensor import Tensor


class Placed:
    """A tensor of a host library whose elements are stored on the machine. Kernels accept it as an argument."""

    def place(self) -> tuple[Tensor, int]:
        """Return the machine's tensor that stores the elements, and the offset of the first element in bytes."""
        raise NotImplementedError


def whole_grid(context: AnyContext) -> tuple[int, int]:
    """Return the number of cubes, and of PEs in each, that host-library tensors are sharded over on a SIP.

    Raises InputError if the settings name more cubes or PEs than the machine has.
    """
    settings, spec = context.frontends.torch, context.topology
    pes = spec.pes_per_cube if settings.pes is None else settings.pes
    for name, requested, available in (("cubes", settings.cubes, spec.cubes_per_sip), ("pes", pes, spec.pes_per_cube)):
        if requested > available:
            raise InputError(f"--set torch.{name}={requested}: this machine has {available}")
    return settings.cubes, pes


def pes_of_tensors(context: AnyContext, sip: int) -> tuple[PeCoord, ...]:
    """Return the PEs of a SIP that host-library tensors are sharded over. Each PE can access every such tensor."""
    cubes, pes = whole_grid(context)
    return tuple([(sip, cube, pe) for cube in range(cubes) for pe in range(pes)])
