"""Which PEs take part for a rank, and which PEs the ranks of a world are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from kernbench.common.errors import InputError
from kernbench.common.imports import named_function
from kernbench.messages.requests import PeCoord
from kernbench.topology.spec import TopologySpec

Mapper: TypeAlias = Callable[[TopologySpec, int], list[tuple[int, int]]]
"""``(topology, rank) -> [(cube, pe)]``: the PEs of SIP ``rank`` that take part; the first of them leads."""
RankPes: TypeAlias = tuple[tuple[PeCoord, ...], ...]
"""The PEs of each rank, the leading one first."""


def leader_only(topology: TopologySpec, rank: int) -> list[tuple[int, int]]:  # noqa: ARG001 - a Mapper
    """PE 0 of cube 0."""
    return [(0, 0)]


def pe0_of_every_cube(topology: TopologySpec, rank: int) -> list[tuple[int, int]]:  # noqa: ARG001 - a Mapper
    """PE 0 of every cube, by cube."""
    return [(cube, 0) for cube in range(topology.cubes_per_sip)]


def all_pes(topology: TopologySpec, rank: int) -> list[tuple[int, int]]:  # noqa: ARG001 - a Mapper
    """Every PE, by cube, then PE."""
    return [(cube, pe) for cube in range(topology.cubes_per_sip) for pe in range(topology.pes_per_cube)]


MAPPERS: dict[str, Mapper] = {
    "leader_only": leader_only,
    "all_pes": all_pes,
    "pe0_of_every_cube": pe0_of_every_cube,
}


def mapper_called(text: str, owner: str, folder: Path | None = None) -> Mapper:
    """The mapper that ``text`` means in the configuration of ``owner``; raises as ``named_function``."""
    return named_function("mapper", text, MAPPERS, f"{owner}: mapper {text!r}", folder)


def rank_pes(topology: TopologySpec, world_size: int, mapper: Mapper, *, ranks_are_pes: bool = False) -> RankPes:
    """The PEs of every rank: with as many ranks as SIPs those of its SIP that the mapper says.

    With any other number, or with ``ranks_are_pes``, rank r is the r-th PE in (sip, cube, pe) order. InputError for
    more ranks than PEs and for a mapper that names PEs which a SIP does not have.
    """
    if world_size == topology.num_sips and not ranks_are_pes:
        return tuple(_mapped(topology, sip, mapper) for sip in range(world_size))
    if not 1 <= world_size <= topology.num_pes:
        sips = f"with as many ranks as SIPs ({topology.num_sips}) a rank is a SIP, with any other number it is a PE"
        what = "its ranks are PEs" if ranks_are_pes else sips
        raise InputError(f"world_size={world_size}: {what}, and this machine has {topology.num_pes} of them")
    return tuple((nth_pe(topology, rank),) for rank in range(world_size))


def nth_pe(topology: TopologySpec, index: int) -> PeCoord:
    """The PE number ``index`` of the machine in (sip, cube, pe) order."""
    cube, pe = divmod(index, topology.pes_per_cube)
    return (*divmod(cube, topology.cubes_per_sip), pe)


def _mapped(topology: TopologySpec, sip: int, mapper: Mapper) -> tuple[PeCoord, ...]:
    found = tuple((sip, cube, pe) for cube, pe in mapper(topology, sip))
    if not found or len(set(found)) < len(found):
        problem = "names a PE twice" if found else "names no PE"
        raise InputError(f"mapper {mapper.__name__}: for rank {sip} it {problem}")
    for _, cube, pe in found:
        if not (0 <= cube < topology.cubes_per_sip and 0 <= pe < topology.pes_per_cube):
            has = f"a SIP has cubes 0..{topology.cubes_per_sip - 1} with PEs 0..{topology.pes_per_cube - 1}"
            raise InputError(f"mapper {mapper.__name__}: for rank {sip} it names PE {pe} of cube {cube}; {has}")
    return found
