"""Neighbours: functions from a machine and an algorithm's configuration to directed edges between PEs.

A direction whose peer would be the sender itself is left out, so one rank has no edges. What is not said here of the
directions is in ``docs/collectives.md``, which algorithms rely on.
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

Edge: TypeAlias = tuple[PeCoord, str, PeCoord]
"""((sip, cube, pe), direction, (sip, cube, pe)): what the first sends on ``direction`` goes to the second."""
Edges: TypeAlias = list[Edge]
TopologyFunction: TypeAlias = Callable[[TopologySpec, AlgorithmConfig], Edges]
Neighbours: TypeAlias = Callable[[int], Mapping[str, int]]
"""Of a place among others, by its number: the place in each direction"""
GRID_KEYS = ("kernel_w", "kernel_h")
"""What an algorithm's configuration may say of the shape of a grid of ranks."""


def world_size_of(topology: TopologySpec, config: AlgorithmConfig) -> int:
    """Return the number of ranks of an algorithm on this machine."""
    return topology.num_sips if config.world_size is None else config.world_size


def ranks_of(topology: TopologySpec, config: AlgorithmConfig) -> RankPes:
    """Return the PEs of every rank of an algorithm; InputError for a world that does not fit the machine."""
    mapper = config.find_named("mapper", config.mapper, MAPPERS)
    return rank_pes(topology, world_size_of(topology, config), mapper, ranks_are_pes=config.ranks_are_pes)


def ranks_are_sips(topology: TopologySpec, config: AlgorithmConfig) -> bool:
    """Return True when a rank of an algorithm is a SIP; otherwise it is a PE."""
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
    """A ring over the ranks: E is the next rank, W the one before."""
    return _between_ranks(topology, config, _ring(world_size_of(topology, config)))


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
    return _between_ranks(topology, config, _tree(world_size_of(topology, config)))


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
    levels = [
        *((cube, _ring(len(cube))) for cube in cubes),
        *((leaders, _ring(len(leaders), "S", "N")) for leaders in sips),
        ([leaders[0] for leaders in sips], _tree(len(sips))),
    ]
    return [edge for level, neighbours in levels for edge in _among(level, neighbours)]


def intercube(topology: TopologySpec, config: AlgorithmConfig) -> Edges:
    """PE 0 of every cube with those of the neighbouring cubes (E, W, N, S) and of the same cube of the next SIPs.

    InputError unless ranks are SIPs.
    """
    if not ranks_are_sips(topology, config):
        asked = f"world_size={world_size_of(topology, config)}" + (" of PEs" if config.ranks_are_pes else "")
        raise InputError(f"intercube: {asked}, but its ranks are the SIPs, of which there are {topology.num_sips}")
    return intercube_edges(topology)


def intercube_edges(topology: TopologySpec) -> Edges:
    """The edges of ``intercube``: the cube mesh of every SIP, then ``global_X`` of every cube.

    SIPs without sides, those of ``fully_connected`` and ``switch``, are a ring by number.
    """
    n, grid = topology.num_sips, topology.sip.cube_mesh.grid
    leaders = [[(sip, cube, 0) for cube in range(len(grid))] for sip in range(n)]
    in_sips = [edge for cubes in leaders for edge in _among(cubes, _sides(grid))]
    by_number = _ring(n, "global_E", "global_W")
    return in_sips + _between(leaders, lambda sip: _next_sips(topology, sip) or by_number(sip))


def fabric_edges(topology: TopologySpec) -> Edges:
    """Return edges between each PE and the same PE of other SIPs: ``global_X`` to the next ones, ``sip{k}`` to all."""
    n = topology.num_sips
    pes = [[(sip, *pe) for pe in all_pes(topology, sip)] for sip in range(n)]
    return _between(pes, lambda sip: _next_sips(topology, sip) | {direct_direction(k): k for k in range(n)})


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


def _ring(n: int, forth: str = "E", back: str = "W") -> Neighbours:
    return lambda at: {forth: (at + 1) % n, back: (at - 1) % n}


def _tree(n: int) -> Neighbours:
    """A binary tree, place 0 its root."""

    def neighbours(at: int) -> dict[str, int]:
        children = {"child_left": 2 * at + 1, "child_right": 2 * at + 2}
        up = {"parent": (at - 1) // 2} if at else {}
        return up | {direction: child for direction, child in children.items() if child < n}

    return neighbours


def _sides(grid: Grid, *, wrap: bool = False) -> Neighbours:
    return lambda at: {str(side): peer for side, peer in grid.neighbours(at, wrap=wrap).items()}


def _between(places: Sequence[Sequence[PeCoord]], neighbours: Neighbours) -> Edges:
    """``neighbours`` of every place, as edges from each of its PEs to the same one of the peer's."""
    return [
        edge
        for at in range(len(places))
        for direction, peer in neighbours(at).items()
        for edge in rank_edges(places, at, direction, peer)
    ]


def _among(pes: Iterable[PeCoord], neighbours: Neighbours) -> Edges:
    return _between([(pe,) for pe in pes], neighbours)


def rank_edges(ranks: Sequence[Sequence[PeCoord]], rank: int, direction: str, peer: int) -> Iterator[Edge]:
    """Yield edges from each PE of ``rank`` to the same one of ``peer``; none when they are one."""
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
    """``global_E``: the queue to the next SIP on that side; its traffic leaves by the link there."""
    return f"global_{side}"


def direct_direction(sip: int) -> str:
    """``sip3``: the queue to the same PE of SIP 3, wherever it is."""
    return f"sip{sip}"


def _next_sips(topology: TopologySpec, sip: int) -> dict[str, int]:
    """Return the next SIP of each ``global_X`` of a SIP; none for those without sides."""
    beyond = sip_neighbours(topology.system.sips, sip)
    return {global_direction(side): peer for side, peer in beyond.items()}
