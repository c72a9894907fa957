"""Edges that follow the machine itself: the cube mesh of a SIP, and the links between SIPs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kernbench.topology.fabric import sip_neighbours
from kernbench.topology.sides import SIDES
from kernbench.topology.spec import SipsSpec, TopologySpec

if TYPE_CHECKING:
    from kernbench.ccl.topologies import Edge, Edges


def global_direction(side: str) -> str:
    """``global_E``: the queue to the next SIP on that side; its traffic leaves by the link there."""
    return f"global_{side}"


def direct_direction(sip: int) -> str:
    """``sip3``: the queue to the same PE of SIP 3, wherever it is."""
    return f"sip{sip}"


def cube_mesh_edges(spec: TopologySpec) -> Iterator[Edge]:
    """Between PE 0 of neighbouring cubes of every SIP: E, W, N, S, nothing beyond the border."""
    grid = spec.sip.cube_mesh.grid
    for sip in range(spec.num_sips):
        for cube in range(len(grid)):
            beyond = ((side, grid.neighbour(cube, side)) for side in SIDES)
            yield from (((sip, cube, 0), side, (sip, far, 0)) for side, far in beyond if far is not None)


def next_sips(sips: SipsSpec, sip: int, *, ring_without_sides: bool = False) -> dict[str, int]:
    """The next SIP of each ``global_X`` of a SIP.

    ``fully_connected`` and ``switch`` have no sides: no SIP, or with ``ring_without_sides`` a ring by number.
    """
    beyond: dict[str, int] = {global_direction(side): peer for side, peer in sip_neighbours(sips, sip).items()}
    if not beyond and ring_without_sides and sips.topology in {"fully_connected", "switch"} and sips.count > 1:
        beyond = {"global_E": (sip + 1) % sips.count, "global_W": (sip - 1) % sips.count}
    return beyond


def next_sip_edges(
    spec: TopologySpec, pes: Sequence[tuple[int, int]], *, ring_without_sides: bool = False
) -> Iterator[Edge]:
    """``global_X`` between the same (cube, pe) of neighbouring SIPs, for those in ``pes``."""
    for sip in range(spec.num_sips):
        beyond = next_sips(spec.system.sips, sip, ring_without_sides=ring_without_sides)
        for cube, pe in pes:
            yield from (((sip, cube, pe), direction, (far, cube, pe)) for direction, far in beyond.items())


def fabric_edges(spec: TopologySpec) -> Edges:
    """What lets every PE talk with the same PE of every other SIP: ``global_X`` to the next ones, ``sip{k}`` to all."""
    pes = [(cube, pe) for cube in range(spec.cubes_per_sip) for pe in range(spec.pes_per_cube)]
    edges: Edges = []
    for sip in range(spec.num_sips):
        beyond = list(next_sips(spec.system.sips, sip).items())
        beyond += [(direct_direction(far), far) for far in range(spec.num_sips) if far != sip]
        edges += [((sip, cube, pe), direction, (far, cube, pe)) for cube, pe in pes for direction, far in beyond]
    return edges
