"""Layouts: the PEs of each rank, and the placements of a tensor that an algorithm accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, TypeAlias

from kernbench.common.dtypes import DType
from kernbench.common.errors import InputError
from kernbench.messages.requests import MappedShard, PeCoord
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology.spec import TopologySpec

Mapper: TypeAlias = Callable[[TopologySpec, int], list[tuple[int, int]]]
"""``(topology, rank) -> [(cube, pe)]``: the PEs of SIP ``rank`` that take part, the leading PE first."""
RankPes: TypeAlias = tuple[tuple[PeCoord, ...], ...]
"""The PEs of each rank, the leading PE first."""


def leader_only(topology: TopologySpec, rank: int) -> list[tuple[int, int]]:  # noqa: ARG001 - a Mapper
    """Return PE 0 of cube 0."""
    return [(0, 0)]


def pe0_of_every_cube(topology: TopologySpec, rank: int) -> list[tuple[int, int]]:  # noqa: ARG001 - a Mapper
    """Return PE 0 of every cube, by cube."""
    return [(cube, 0) for cube in range(topology.cubes_per_sip)]


def all_pes(topology: TopologySpec, rank: int) -> list[tuple[int, int]]:  # noqa: ARG001 - a Mapper
    """Return every PE, by cube, then PE."""
    return [(cube, pe) for cube in range(topology.cubes_per_sip) for pe in range(topology.pes_per_cube)]


MAPPERS: dict[str, Mapper] = {
    "leader_only": leader_only,
    "all_pes": all_pes,
    "pe0_of_every_cube": pe0_of_every_cube,
}


def rank_pes(topology: TopologySpec, world_size: int, mapper: Mapper, *, ranks_are_pes: bool = False) -> RankPes:
    """Return the PEs of every rank.

    If there are as many ranks as SIPs, each rank is a SIP, and the mapper chooses the PEs of the rank. With any other
    number of ranks, or with ``ranks_are_pes``, rank r is the r-th PE in (sip, cube, pe) order. Raises InputError for
    more ranks than PEs, and for a mapper that returns PEs which a SIP does not have.
    """
    if world_size == topology.num_sips and not ranks_are_pes:
        return tuple(_map_pes(topology, sip, mapper) for sip in range(world_size))
    if not 1 <= world_size <= topology.num_pes:
        sips = f"a rank is a SIP in a world of {topology.num_sips} ranks, and a PE in any other"
        reason = "its ranks are PEs" if ranks_are_pes else sips
        raise InputError(f"world_size={world_size}: {reason}; this machine has {topology.num_pes} PEs")
    return tuple((nth_pe(topology, rank),) for rank in range(world_size))


def nth_pe(topology: TopologySpec, index: int) -> PeCoord:
    """Return the PE number ``index`` of the machine in (sip, cube, pe) order."""
    cube, pe = divmod(index, topology.pes_per_cube)
    return (*divmod(cube, topology.cubes_per_sip), pe)


def _map_pes(topology: TopologySpec, sip: int, mapper: Mapper) -> tuple[PeCoord, ...]:
    pes = tuple((sip, cube, pe) for cube, pe in mapper(topology, sip))
    if not pes or len(set(pes)) < len(pes):
        problem = "names a PE twice" if pes else "names no PE"
        raise InputError(f"mapper {mapper.__name__} {problem} for rank {sip}")
    for _, cube, pe in pes:
        if not (0 <= cube < topology.cubes_per_sip and 0 <= pe < topology.pes_per_cube):
            has = f"a SIP has cubes 0..{topology.cubes_per_sip - 1} with PEs 0..{topology.pes_per_cube - 1}"
            raise InputError(f"mapper {mapper.__name__} names PE {pe} of cube {cube} for rank {sip}; {has}")
    return pes


class TensorLike(Protocol):
    """The attributes of a tensor that validators read."""

    @property
    def name(self) -> str:
        """The name in reports."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis."""

    @property
    def dtype(self) -> DType:
        """The element type."""

    @property
    def dp(self) -> DPPolicy:
        """The placement over the cubes and PEs of a SIP."""

    @property
    def shards(self) -> Sequence[MappedShard]:
        """The shards, in (cube, pe) order."""


Validator: TypeAlias = Callable[[TensorLike, int, TopologySpec], object]
"""``(tensor, world_size, topology)``: raises InputError for a layout that is not accepted."""


def single_shard_per_rank(tensor: TensorLike, world_size: int, topology: TopologySpec) -> None:  # noqa: ARG001
    """Accept one shard with the complete tensor on PE 0 of cube 0: the layout of a tensor without ``dp``."""
    if [(shard.cube, shard.pe) for shard in tensor.shards] != [(0, 0)]:
        accepted = "one shard on PE 0 of cube 0: DPPolicy(num_cubes=1, num_pes=1), as without dp"
        _reject(tensor, "single_shard_per_rank", accepted)


def multi_pe_sip_local(tensor: TensorLike, world_size: int, topology: TopologySpec) -> None:  # noqa: ARG001
    """Accept one shard on every PE of the SIP, all of the same size: blocks of the tensor, or replicas."""
    owners = {(shard.cube, shard.pe) for shard in tensor.shards}
    sizes = {shard.nbytes for shard in tensor.shards}
    if len(tensor.shards) == len(owners) == topology.pes_per_sip and len(sizes) == 1:
        return
    accepted = (
        f"one shard on each of the {topology.pes_per_sip} PEs of the SIP, all of the same size: a DPPolicy of "
        f"column_wise, row_wise or replicate over all cubes and PEs, of axes that divide evenly"
    )
    _reject(tensor, "multi_pe_sip_local", accepted)


def row_per_cube(tensor: TensorLike, world_size: int, topology: TopologySpec) -> None:  # noqa: ARG001
    """Accept a matrix with a row for each cube of the SIP: PE 0 of cube c stores the complete row c."""
    cubes = topology.cubes_per_sip
    row = math.prod(tensor.shape[1:]) * tensor.dtype.itemsize
    wanted = [(cube, 0, cube * row, row) for cube in range(cubes)]
    spans = [(shard.cube, shard.pe, shard.offset_bytes, shard.nbytes) for shard in tensor.shards]
    # A column_wise split of a matrix with one column for each cube has the same spans, so the policy decides.
    split = cubes == 1 or tensor.dp.cube == "row_wise"
    if len(tensor.shape) != 2 or not split or spans != wanted:
        accepted = f'shape ({cubes}, n), a row on PE 0 of each cube: DPPolicy(cube="row_wise", num_pes=1)'
        _reject(tensor, "row_per_cube", accepted)


VALIDATORS: dict[str, Validator] = {
    "single_shard_per_rank": single_shard_per_rank,
    "multi_pe_sip_local": multi_pe_sip_local,
    "row_per_cube": row_per_cube,
}


def _reject(tensor: TensorLike, validator: str, accepted: str) -> NoReturn:
    sizes = sorted({shard.nbytes for shard in tensor.shards})
    size = f"{sizes[0]} bytes" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]} bytes"
    cubes = len({shard.cube for shard in tensor.shards})
    on = f"{len(tensor.shards)} shards of {size} on PEs {_ids(tensor)} of {cubes} cubes"
    raise InputError(
        f"tensor {tensor.name!r}: layout not accepted by {validator}, which takes {accepted}; "
        f"found shape {tensor.shape}, {on} ({tensor.dp})"
    )


def _ids(tensor: TensorLike) -> str:
    pes = sorted({shard.pe for shard in tensor.shards})
    return str(pes[0]) if len(pes) == 1 else f"{pes[0]} to {pes[-1]}"
