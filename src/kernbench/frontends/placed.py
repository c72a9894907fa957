"""The part of each other's tensors that front ends know."""

from __future__ import annotations

from typing import Any

from kernbench.common.errors import InputError
from kernbench.messages.requests import PeCoord
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor


class Placed:
    """A tensor of a host library whose elements lie on the machine; kernels take it as an argument."""

    def place(self) -> tuple[Tensor, int]:
        """The tensor of the machine that holds them, and bytes from its beginning to the first element."""
        raise NotImplementedError


def whole_grid(context: RuntimeContext[Any]) -> tuple[int, int]:
    """Return over how many cubes of a SIP tensors of host libraries spread, and over how many PEs of each.

    InputError when the settings ask for more than there are.
    """
    settings, spec = context.frontends.torch, context.topology
    pes = spec.pes_per_cube if settings.pes is None else settings.pes
    for name, asked, there in (("cubes", settings.cubes, spec.cubes_per_sip), ("pes", pes, spec.pes_per_cube)):
        if asked > there:
            raise InputError(f"--set torch.{name}={asked}: this machine has {there}")
    return settings.cubes, pes


def pes_of_tensors(context: RuntimeContext[Any], sip: int) -> tuple[PeCoord, ...]:
    """Return the PEs of a SIP that tensors of host libraries spread over: all of them reach every tensor there."""
    cubes, pes = whole_grid(context)
    return tuple([(sip, cube, pe) for cube in range(cubes) for pe in range(pes)])
