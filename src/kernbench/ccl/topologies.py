"""Who is whose neighbour: functions from a machine and an algorithm's configuration to directed edges between PEs.

A direction whose peer would be the sender itself is left out, so one rank has no edges. What is not said here of the
directions is in ``docs/collectives.md``, which algorithms rely on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.layouts import RankPes, mapper_called, rank_pes
from kernbench.common.errors import InputError
from kernbench.messages.requests import PeCoord
from kernbench.topology.fabric import sip_neighbours
from kernbench.topology.grid import SIDES, Grid
from kernbench.topology.spec import TWO_DIMENSIONAL, SipsSpec, TopologySpec, current_topology_name

Edge: TypeAlias = tuple[PeCoord, str, PeCoord]
"""((sip, cube, pe), direction, (sip, cube, pe)): what the first sends on ``direction`` goes to the second."""
Edges: TypeAlias = list[Edge]
TopologyFunction: TypeAlias = Callable[[TopologySpec, AlgorithmConfig], Edges]
GRID_KEYS = ("kernel_w", "kernel_h")
"""What an algorithm's configuration may say of the shape of a grid of ranks."""


def world_size_of(topology: TopologySpec, config: AlgorithmConfig) -> int:
    """How many ranks an algorithm has on this machine."""
    return topology.num_sips if config.world_size is None else config.world_size


def ranks_of(topology: TopologySpec, config: AlgorithmConfig) -> RankPes:
    """The PEs of every rank of an algorithm; InputError for a world that the machine has not."""
    mapper = mapper_called(config.mapper, config.label, config.folder)
    return rank_pes(topology, world_size_of(topology, config), mapper, ranks_are_pes=config.ranks_are_pes)


def ranks_are_sips(topology: TopologySpec, config: AlgorithmConfig) -> bool:
    """Whether a rank of an algorithm is a SIP; otherwise it is a PE."""
    return not config.ranks_are_pes and world_size_of(topology, config) == topology.num_sips


def rank_grid(
    world_size: int,
    *,
    kernel_w: object = None,
    kernel_h: object = None,
    num_sips: int = 0,
    sip_topology: str = "",
    sip_w: int = 0,
    sip_h: int = 0,
    ranks_are_sips: bool = True,
    **_others: object,
) -> Grid:
    """Columns and rows of the ranks, from what ``kernel_args`` gets: ``rank_grid(world_size, **config)``.

    ``kernel_w``, ``kernel_h`` when given; else the SIPs' when they are the ranks and form a grid; else the root of a
    square. InputError for any other number, and for a rectangle of another size.
    """
    if kernel_w is not None or kernel_h is not None:
        return _given_grid(world_size, kernel_w, kernel_h)
    if ranks_are_sips and world_size == num_sips and current_topology_name(sip_topology) in TWO_DIMENSIONAL:
        return Grid(sip_w, sip_h)
    side = math.isqrt(world_size)
    if side * side != world_size:
        raise InputError(
            f"{world_size} ranks are no square; give the algorithm kernel_w and kernel_h with "
            f"kernel_w x kernel_h = {world_size}"
        )
    return Grid(side, side)


def _given_grid(world_size: int, w: object, h: object) -> Grid:
    for name, value in (("kernel_w", w), ("kernel_h", h)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(f"{name}={value!r}: must be a whole number, at least 1")
    w = w if isinstance(w, int) else world_size // h if isinstance(h, int) else world_size
    h = h if isinstance(h, int) else world_size // w
    if w * h != world_size:
        raise InputError(f"kernel_w x kernel_h = {w} x {h} is not {world_size}, the number of ranks")
    return Grid(w, h)


def ring_1d(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """A ring over the ranks: E is the next rank, W the one before."""
    n = world_size_of(topology, config)
    return _between_ranks(topology, config, lambda rank: {"E": (rank + 1) % n, "W": (rank - 1) % n})


def ring_1d_unidir(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """A ring over the ranks that is sent round one way: E is the next rank.

    Each of two ranks is the other's W as well: else the reverse of E would be E, and nothing would come in on W.
    """
    n = world_size_of(topology, config)
    return ring_1d(topology, config) if n == 2 else _between_ranks(topology, config, lambda r: {"E": (r + 1) % n})


def torus_2d(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Rows and columns of ranks that close to rings; the shape is that of ``rank_grid``."""
    return _in_a_grid(topology, config, wrap=True)


def mesh_2d_no_wrap(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Rows and columns of ranks with nothing beyond the border; the shape is that of ``rank_grid``."""
    return _in_a_grid(topology, config, wrap=False)


def tree_binary(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """A binary tree over the ranks, rank 0 its root: ``parent``, ``child_left``, ``child_right``."""
    n = world_size_of(topology, config)
    return _between_ranks(topology, config, lambda rank: _in_tree(rank, n))


def hierarchical_3level(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Rings over the PEs of a cube (E, W) and over the cubes of a SIP (S, N, on their first PE), a tree over the SIPs.

    Of the PEs that take part. InputError when ranks are PEs and fill no whole cubes and SIPs.
    """
    pes = sorted(pe for rank in ranks_of(topology, config) for pe in rank)
    cubes = [list(group) for _, group in groupby(pes, lambda pe: pe[:2])]
    sips = [[cube[0] for cube in group] for _, group in groupby(cubes, lambda cube: cube[0][0])]
    for what, groups in (("cubes", cubes), ("SIPs", sips)):
        if len({len(group) for group in groups}) > 1:
            raise InputError(f"hierarchical_3level: {len(pes)} PEs fill no whole {what}; its levels have to be alike")
    edges = [edge for cube in cubes for edge in _ring(cube, "E", "W")]
    edges += [edge for leaders in sips for edge in _ring(leaders, "S", "N")]
    roots = [leaders[0] for leaders in sips]
    return edges + [
        (root, direction, roots[peer])
        for at, root in enumerate(roots)
        for direction, peer in _in_tree(at, len(roots)).items()
    ]


def intercube(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """PE 0 of every cube with those of the neighbouring cubes (E, W, N, S) and of the same cube of the next SIPs.

    InputError unless ranks are SIPs.
    """
    if not ranks_are_sips(topology, config):
        asked = f"world_size={world_size_of(topology, config)}" + (" of PEs" if config.ranks_are_pes else "")
        raise InputError(f"intercube: {asked}, but its ranks are the SIPs, of which there are {topology.num_sips}")
    return intercube_edges(topology)


def intercube_edges(topology: TopologySpec) -> Edges:
    """The edges of ``intercube``: the cube mesh of every SIP, then ``global_X`` of every cube."""
    leaders = [(cube, 0) for cube in range(topology.cubes_per_sip)]
    return [*cube_mesh_edges(topology), *next_sip_edges(topology, leaders, ring_without_sides=True)]


def none(topology: TopologySpec, config: AlgorithmConfig) -> Edges:  # noqa: ARG001 - a TopologyFunction
    """No neighbours."""
    return []


TOPOLOGIES: dict[str, TopologyFunction] = {
    "ring_1d": ring_1d,
    "ring_1d_unidir": ring_1d_unidir,
    "torus_2d": torus_2d,
    "mesh_2d_no_wrap": mesh_2d_no_wrap,
    "tree_binary": tree_binary,
    "hierarchical_3level": hierarchical_3level,
    "intercube": intercube,
    "none": none,
}


def _between_ranks(
    topology: TopologySpec, config: AlgorithmConfig, neighbours: Callable[[int], Mapping[str, int]]
) -> Edges:
    """``neighbours`` of every rank, as edges from each of its PEs to the same one of the peer's."""
    ranks = ranks_of(topology, config)
    return [
        edge
        for rank in range(len(ranks))
        for direction, peer in neighbours(rank).items()
        for edge in rank_edges(ranks, rank, direction, peer)
    ]


def rank_edges(ranks: RankPes, rank: int, direction: str, peer: int) -> Iterator[Edge]:
    """From each PE of ``rank`` to the same one of ``peer``; nothing when they are one."""
    if peer != rank:
        yield from ((pe, direction, far) for pe, far in zip(ranks[rank], ranks[peer], strict=False))


def _in_a_grid(topology: TopologySpec, config: AlgorithmConfig, *, wrap: bool) -> Edges:
    sips = topology.system.sips
    grid = rank_grid(
        world_size_of(topology, config),
        num_sips=sips.count,
        sip_topology=sips.topology,
        sip_w=sips.grid.w,
        sip_h=sips.grid.h,
        ranks_are_sips=ranks_are_sips(topology, config),
        **dict(config.passthrough),
    )

    def neighbours(rank: int) -> dict[str, int]:
        beyond = {side: grid.neighbour(rank, side, wrap=wrap) for side in SIDES}
        return {side: peer for side, peer in beyond.items() if peer is not None}

    return _between_ranks(topology, config, neighbours)


def _in_tree(at: int, n: int) -> dict[str, int]:
    """The neighbours of place ``at`` in a binary tree of ``n``."""
    children = {"child_left": 2 * at + 1, "child_right": 2 * at + 2}
    up = {"parent": (at - 1) // 2} if at else {}
    return up | {direction: child for direction, child in children.items() if child < n}


def _ring(pes: Sequence[PeCoord], forth: str, back: str) -> Iterator[Edge]:
    n = len(pes)
    for at, pe in enumerate(pes if n > 1 else ()):
        yield pe, forth, pes[(at + 1) % n]
        yield pe, back, pes[(at - 1) % n]


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
