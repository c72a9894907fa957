"""Topologies: functions from a machine and an algorithm's configuration to directed edges between PEs.

A direction whose peer would be the sender itself is omitted, so a world of one rank has no edges.
``docs/collectives.md`` defines the directions further; algorithms rely on that page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TypeAlias

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.layouts import MAPPERS, RankPes, all_pes, rank_pes
from kernbench.common.errors import InputError
from kernbench.messages.requests import PeCoord
from kernbench.topology.grid import Grid
from kernbench.topology.spec import TWO_DIMENSIONAL, TopologySpec, current_topology_name, sip_neighbours

QueueEdge: TypeAlias = tuple[PeCoord, str, PeCoord]
"""((sip, cube, pe), direction, (sip, cube, pe)): the first PE sends on ``direction`` to the second PE."""
Edges: TypeAlias = list[QueueEdge]
TopologyFunction: TypeAlias = Callable[[TopologySpec, AlgorithmConfig], Edges]
Neighbours: TypeAlias = Callable[[int], Mapping[str, int]]
"""``place -> {direction: place}``: the neighbour of a numbered place in each direction"""
GRID_KEYS = ("kernel_w", "kernel_h")
"""Keys of an algorithm's configuration that set the shape of a grid of ranks."""


def world_size_of(topology: TopologySpec, config: AlgorithmConfig) -> int:
    """Return the number of ranks of an algorithm on this machine."""
    return topology.num_sips if config.world_size is None else config.world_size


def ranks_of(topology: TopologySpec, config: AlgorithmConfig) -> RankPes:
    """Return the PEs of every rank of an algorithm. Raises InputError for a world that does not fit the machine."""
    mapper = config.find_named("mapper", config.mapper, MAPPERS)
    return rank_pes(topology, world_size_of(topology, config), mapper, ranks_are_pes=config.ranks_are_pes)


def ranks_are_sips(topology: TopologySpec, config: AlgorithmConfig) -> bool:
    """Return True if a rank of an algorithm is a SIP, False if it is a PE."""
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
    """Return the columns and rows of a grid of ranks; call it with the arguments of ``kernel_args``.

    ``rank_grid(world_size, **config)`` uses ``kernel_w`` and ``kernel_h`` if the configuration sets them. Otherwise
    ranks that are SIPs of a grid have the grid of the SIPs, and all others form a square. Raises InputError for a
    number of ranks that is no square, and for a rectangle of another size.
    """
    if kernel_w is not None or kernel_h is not None:
        return _read_grid(world_size, kernel_w, kernel_h)
    if ranks_are_sips and world_size == num_sips and current_topology_name(sip_topology) in TWO_DIMENSIONAL:
        return Grid(sip_w, sip_h)
    side = math.isqrt(world_size)
    if side * side != world_size:
        raise InputError(
            f"{world_size} ranks are no square; give the algorithm kernel_w and kernel_h with "
            f"kernel_w x kernel_h = {world_size}"
        )
    return Grid(side, side)


def _read_grid(world_size: int, w: object, h: object) -> Grid:
    for name, value in (("kernel_w", w), ("kernel_h", h)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(f"{name}={value!r}: must be a whole number, at least 1")
    w = w if isinstance(w, int) else world_size // h if isinstance(h, int) else world_size
    h = h if isinstance(h, int) else world_size // w
    if w * h != world_size:
        raise InputError(f"kernel_w x kernel_h = {w} x {h} is not {world_size}, the number of ranks")
    return Grid(w, h)


def ring_1d(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return a ring over the ranks: E is the next rank, W the previous rank."""
    return _between_ranks(topology, config, _ring(world_size_of(topology, config)))


def ring_1d_unidir(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return a ring over the ranks in one direction: E is the next rank.

    In a world of two ranks, each rank also has the other rank as W. Without this edge, the reverse of E would be E, and
    W would receive nothing.
    """
    n = world_size_of(topology, config)
    return ring_1d(topology, config) if n == 2 else _between_ranks(topology, config, lambda r: {"E": (r + 1) % n})


def torus_2d(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return rows and columns of ranks that close to rings; ``rank_grid`` gives the shape."""
    return _in_a_grid(topology, config, wrap=True)


def mesh_2d_no_wrap(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return rows and columns of ranks without links across the border; ``rank_grid`` gives the shape."""
    return _in_a_grid(topology, config, wrap=False)


def tree_binary(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return a binary tree over the ranks with rank 0 as root: ``parent``, ``child_left``, ``child_right``."""
    return _between_ranks(topology, config, _tree(world_size_of(topology, config)))


def hierarchical_3level(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return rings over the PEs of each cube (E, W) and over the cubes of each SIP (S, N), and a tree over the SIPs.

    The first participating PE of a cube represents it in the ring of cubes. The PE of a SIP's first cube represents the
    SIP in the tree. Raises InputError if ranks are PEs that do not fill complete cubes and SIPs.
    """
    pes = sorted(pe for rank in ranks_of(topology, config) for pe in rank)
    cubes = [list(group) for _, group in groupby(pes, lambda pe: pe[:2])]
    sips = [[cube[0] for cube in group] for _, group in groupby(cubes, lambda cube: cube[0][0])]
    for level_name, groups in (("cubes", cubes), ("SIPs", sips)):
        if len({len(group) for group in groups}) > 1:
            raise InputError(
                f"hierarchical_3level: {len(pes)} PEs fill no whole {level_name}; its levels have to be alike"
            )
    levels = [
        *((cube, _ring(len(cube))) for cube in cubes),
        *((leaders, _ring(len(leaders), "S", "N")) for leaders in sips),
        ([leaders[0] for leaders in sips], _tree(len(sips))),
    ]
    return [edge for level, neighbours in levels for edge in _among(level, neighbours)]


def intercube(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """Return the mesh of PE 0 of every cube (E, W, N, S) and links to the same cube of the next SIPs (``global_X``).

    Raises InputError unless ranks are SIPs.
    """
    if not ranks_are_sips(topology, config):
        world = f"world_size={world_size_of(topology, config)}" + (" of PEs" if config.ranks_are_pes else "")
        raise InputError(f"intercube: {world}, but its ranks are the SIPs, of which there are {topology.num_sips}")
    return intercube_edges(topology)


def intercube_edges(topology: TopologySpec) -> Edges:
    """Return the edges of ``intercube``: the cube mesh of every SIP, then ``global_X`` of every cube.

    SIPs without sides (``fully_connected``, ``switch``) form a ring by number.
    """
    n, grid = topology.num_sips, topology.sip.cube_mesh.grid
    leaders = [[(sip, cube, 0) for cube in range(len(grid))] for sip in range(n)]
    in_sips = [edge for cubes in leaders for edge in _among(cubes, _sides(grid))]
    by_number = _ring(n, "global_E", "global_W")
    return in_sips + _between(leaders, lambda sip: _next_sips(topology, sip) or by_number(sip))


def fabric_edges(topology: TopologySpec) -> Edges:
    """Return the edges between each PE and the same PE of other SIPs.

    ``global_X`` leads to the adjacent SIP on side X, ``sip{k}`` to SIP k. Every SIP has a ``sip{k}`` for every other
    SIP k.
    """
    n = topology.num_sips
    pes = [[(sip, *pe) for pe in all_pes(topology, sip)] for sip in range(n)]
    return _between(pes, lambda sip: _next_sips(topology, sip) | {direct_direction(k): k for k in range(n)})


def none(topology: TopologySpec, config: AlgorithmConfig) -> Edges:  # noqa: ARG001 - a TopologyFunction
    """Return no edges."""
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


def _ring(n: int, forth: str = "E", back: str = "W") -> Neighbours:
    return lambda at: {forth: (at + 1) % n, back: (at - 1) % n}


def _tree(n: int) -> Neighbours:
    """Return the neighbours in a binary tree with place 0 as root."""

    def neighbours(at: int) -> dict[str, int]:
        children = {"child_left": 2 * at + 1, "child_right": 2 * at + 2}
        up = {"parent": (at - 1) // 2} if at else {}
        return up | {direction: child for direction, child in children.items() if child < n}

    return neighbours


def _sides(grid: Grid, *, wrap: bool = False) -> Neighbours:
    return lambda at: {str(side): peer for side, peer in grid.neighbours(at, wrap=wrap).items()}


def _between(places: Sequence[Sequence[PeCoord]], neighbours: Neighbours) -> Edges:
    """Return edges for ``neighbours`` of every place, from each PE of the place to the same PE of the peer."""
    return [
        edge
        for at in range(len(places))
        for direction, peer in neighbours(at).items()
        for edge in rank_edges(places, at, direction, peer)
    ]


def _among(pes: Iterable[PeCoord], neighbours: Neighbours) -> Edges:
    return _between([(pe,) for pe in pes], neighbours)


def rank_edges(ranks: Sequence[Sequence[PeCoord]], rank: int, direction: str, peer: int) -> Iterator[QueueEdge]:
    """Yield edges from each PE of ``rank`` to the same PE of ``peer``; none if the two ranks are equal."""
    if peer != rank:
        yield from ((pe, direction, far) for pe, far in zip(ranks[rank], ranks[peer], strict=False))


def _between_ranks(topology: TopologySpec, config: AlgorithmConfig, neighbours: Neighbours) -> Edges:
    return _between(ranks_of(topology, config), neighbours)


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
    return _between_ranks(topology, config, _sides(grid, wrap=wrap))


def global_direction(side: str) -> str:
    """Return the name of the queue to the adjacent SIP on a side (``global_E``), which uses the link on that side."""
    return f"global_{side}"


def direct_direction(sip: int) -> str:
    """Return the name of the queue to the same PE of another SIP, such as ``sip3``, wherever that SIP is."""
    return f"sip{sip}"


def _next_sips(topology: TopologySpec, sip: int) -> dict[str, int]:
    """Return the adjacent SIP for each ``global_X`` of a SIP; empty for SIPs without sides."""
    beyond = sip_neighbours(topology.system.sips, sip)
    return {global_direction(side): peer for side, peer in beyond.items()}
