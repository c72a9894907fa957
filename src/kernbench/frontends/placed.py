"""Tensors of host libraries on the machine: their common interface, and the PEs that store them.

Tensors, and operators on them, use the first PEs of a SIP; more bytes get more PEs.
"""

from __future__ import annotations

from kernbench.common.errors import InputError
from kernbench.messages.requests import PeCoord
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective_pes import SHARD_BYTES, collective_pes, pes_of_tensors_in_cube
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
    pes = pes_of_tensors_in_cube(settings, spec)
    for name, count, limit in (("cubes", settings.cubes, spec.cubes_per_sip), ("pes", pes, spec.pes_per_cube)):
        if count > limit:
            raise InputError(f"--set torch.{name}={count}: this machine has {limit}")
    return settings.cubes, pes


def pes_of_tensors(context: AnyContext, sip: int) -> tuple[PeCoord, ...]:
    """Return the PEs of a SIP that host-library tensors are sharded over. Each PE can access every such tensor."""
    cubes, pes = whole_grid(context)
    return tuple([(sip, cube, pe) for cube in range(cubes) for pe in range(pes)])


def pes_with_access(context: AnyContext, sip: int) -> tuple[PeCoord, ...]:
    """Return the PEs of a SIP that access host-library tensors: those of tensors, and with ranks, of collectives."""
    pes = pes_of_tensors(context, sip)
    if context.n_ranks < 2:
        return pes
    places = collective_pes(context.frontends.torch, context.topology).places
    return tuple(dict.fromkeys((*pes, *[(sip, cube, pe) for cube, pe, *_ in places])))


def grid_for(context: AnyContext, nbytes: int) -> tuple[int, int]:
    """Return the number of cubes, and of PEs in each, that share ``nbytes`` bytes."""
    cubes, pes = whole_grid(context)
    wanted = max(1, nbytes // SHARD_BYTES)
    if wanted < pes:
        return 1, wanted
    return min(cubes, wanted // pes), pes


def policy_for(context: AnyContext, nbytes: int) -> DPPolicy:
    """Return the policy that shards a storage of ``nbytes`` bytes row-wise over its SIP."""
    cubes, pes = grid_for(context, nbytes)
    return DPPolicy("row_wise", "row_wise", num_pes=pes, num_cubes=cubes)


def pes_for(context: AnyContext, sip: int, nbytes: int) -> tuple[PeCoord, ...]:
    """Return the PEs of a SIP that run an operator on ``nbytes`` bytes. The same PEs store a tensor of that size."""
    cubes, pes = grid_for(context, nbytes)
    return tuple([(sip, cube, pe) for cube in range(cubes) for pe in range(pes)])
