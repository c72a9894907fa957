"""Installation of an algorithm's queues on a machine: edges, neighbours by rank, and the plan of an installation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from operator import index
from typing import Annotated, Any, NamedTuple, Self, SupportsIndex, TypeAlias

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from kernbench.ccl.config import AlgorithmConfig, QueueSettings, resolve_algorithm_config
from kernbench.ccl.layouts import RankPes, rank_pes
from kernbench.ccl.loading import (
    Algorithm,
    CclLike,
    Neighbors,
    as_ccl_config,
    load_algorithm,
    load_ccl_config,
    note_settings,
)
from kernbench.ccl.queues import InstalledQueues, install_edges, prepare_queues, release_rings, uninstall
from kernbench.ccl.topologies import QueueEdge, rank_edges, ranks_are_sips, world_size_of
from kernbench.common.errors import InputError
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import BufferKind, PeCoord
from kernbench.topology.spec import TopologySpec

__all__ = [
    "AlgorithmConfig",
    "InstalledQueues",
    "IpcqPlan",
    "QueueSettings",
    "find_algorithm",
    "install_edges",
    "install_ipcq",
    "load_ccl_config",
    "plan_of",
    "prepare_queues",
    "release_rings",
    "resolve_algorithm_config",
    "uninstall",
]


_PE: TypeAlias = tuple[StrictInt, StrictInt, StrictInt]
_EDGE: TypeAdapter[QueueEdge] = TypeAdapter(tuple[_PE, Annotated[StrictStr, Field(min_length=1)], _PE])


class PlacedPe(NamedTuple):
    """A ``PeCoord`` whose fields have names."""

    sip: int
    cube: int
    pe: int


class Peer(int):
    """A neighbouring rank: an int, the number of the rank, with the place of its leading PE."""

    sip: int
    cube: int
    pe: int

    def __new__(cls, rank: int, leader: PeCoord) -> Self:
        """Create rank ``rank``, whose first PE is ``leader``."""
        self = super().__new__(cls, rank)
        self.sip, self.cube, self.pe = leader
        return self


NeighborTable = Mapping[int, Mapping[str, Peer]]
"""rank -> direction -> rank"""


@value
class RankLayout:
    """The ranks of a world: the PEs of each rank, the leading PE first."""

    ranks: RankPes
    ranks_are_sips: bool

    @property
    def leaders(self) -> tuple[PlacedPe, ...]:
        """The leading PE of every rank."""
        return tuple(PlacedPe(*pes[0]) for pes in self.ranks)

    def rank_finder(self) -> Callable[[PeCoord], int | None]:
        """Return a function from a PE to its rank, or to None for a PE outside the world."""
        if self.ranks_are_sips:
            return lambda pe: pe[0]
        return {pes[0]: rank for rank, pes in enumerate(self.ranks)}.get

    def neighbor_table(self, edges: Sequence[QueueEdge]) -> NeighborTable:
        """Return the neighbours of every rank; if a direction has several peers, only the first is included."""
        rank_of, leaders = self.rank_finder(), self.leaders
        table: dict[int, dict[str, Peer]] = {rank: {} for rank in range(len(self.ranks))}
        for src, direction, dst in edges:
            rank, peer = rank_of(src), rank_of(dst)
            if rank is not None and peer is not None and rank != peer:
                table[rank].setdefault(direction, Peer(peer, leaders[peer]))
        return table


def layout_of(algorithm: Algorithm, spec: TopologySpec) -> RankLayout:
    """Return the ranks of an algorithm on a machine. Raises InputError for a world that does not fit."""
    config = algorithm.config
    ranks = rank_pes(spec, world_size_of(spec, config), algorithm.mapper_fn, ranks_are_pes=config.ranks_are_pes)
    return RankLayout(ranks, ranks_are_sips(spec, config))


def edges_of(algorithm: Algorithm, spec: TopologySpec) -> list[QueueEdge]:
    """Return the edges of the topology; the algorithm's function ``neighbors``, if it has one, may change them.

    A direction that ``neighbors`` changes or adds joins each PE of the rank to the same PE of the peer; all other
    directions are those of the topology. Raises InputError if either function breaks its contract.
    """
    label = f"algorithm {algorithm.config.name!r}: topology {algorithm.config.topology!r}"
    with note_settings(algorithm.config):
        edges = [_edge(entry, label) for entry in algorithm.topology_fn(spec, algorithm.config)]
    if algorithm.neighbors is None:
        return edges
    return _change_edges(edges, layout_of(algorithm, spec), algorithm.neighbors, f"algorithm {algorithm.config.name!r}")


def _edge(entry: Any, label: str) -> QueueEdge:
    """Check an entry of a topology's list and return it as an edge."""
    try:
        return _EDGE.validate_python(entry)
    except ValidationError:
        form = '((sip, cube, pe), "direction", (sip, cube, pe))'
        raise InputError(f"{label}: returned {entry!r}; every entry has the form {form}") from None


def _change_edges(edges: list[QueueEdge], layout: RankLayout, neighbors: Neighbors, label: str) -> list[QueueEdge]:
    n = len(layout.ranks)
    base = layout.neighbor_table(edges)
    wanted = {rank: _answer(neighbors, rank, n, base[rank], label) for rank in range(n)}
    rank_of = layout.rank_finder()

    def stays(edge: QueueEdge) -> bool:
        rank, peer = rank_of(edge[0]), rank_of(edge[2])
        return rank is None or peer is None or rank == peer or wanted[rank].get(edge[1]) == peer

    added = (
        edge
        for rank, directions in wanted.items()
        for direction, peer in directions.items()
        if base[rank].get(direction) != peer
        for edge in rank_edges(layout.ranks, rank, direction, peer)
    )
    return [*filter(stays, edges), *added]


def _answer(neighbors: Neighbors, rank: int, n: int, base: Mapping[str, int], label: str) -> dict[str, int]:
    answer = neighbors(rank, n, dict(base))
    if not isinstance(answer, Mapping):
        raise InputError(f"{label}: neighbors({rank}, {n}, …) returned {answer!r}, not a mapping direction -> rank")
    for direction, peer in answer.items():
        if not isinstance(direction, str) or not isinstance(peer, int) or not 0 <= peer < n:
            raise InputError(
                f"{label}: neighbors({rank}, {n}, …) returned {direction!r}: {peer!r}; ranks are 0..{n - 1}"
            )
    return dict(answer)


@value(kw_only=True)
class IpcqPlan:
    """The result of an installation of queues.

    ``rank_to_pe`` has the leading (sip, cube, pe) of each rank, ``rank_pes`` all its PEs. ``neighbor_table`` maps
    rank -> direction -> rank. Entries of ``rank_to_pe`` and ``neighbor_table`` have ``sip``, ``cube`` and ``pe``.
    ``uninstall(engine, plan.queues)`` removes the queues.
    """

    config: AlgorithmConfig
    world_size: int
    rank_to_pe: tuple[PlacedPe, ...]
    rank_pes: RankPes = field(repr=False)
    neighbor_table: NeighborTable = field(repr=False, hash=False)
    buffer_kind: BufferKind
    queues: InstalledQueues = field(repr=False)


def install_ipcq(
    engine: GraphEngine,
    algorithm: str | AlgorithmConfig | Mapping[str, Any] | None = None,
    world_size: int | None = None,
    ccl: CclLike = None,
) -> IpcqPlan:
    """Install the queues of an algorithm and wait until every PE has its queues.

    ``algorithm`` is a name in ``ccl``, or settings as ``resolve_algorithm_config`` returns them; None means the default
    algorithm. With ``world_size`` n the ranks are the first n PEs, even on a machine of n SIPs. Without ``world_size``
    the configuration decides; its default is one rank per SIP. ``ccl`` is a file or a loaded configuration; None means
    ./ccl.yaml, or the packaged file if there is none. Raises InputError for invalid arguments, and IpcqError and
    AllocationError as ``prepare_queues`` does.
    """
    chosen = find_algorithm(algorithm, world_size, ccl)
    layout = layout_of(chosen, engine.spec)
    queues = install_edges(engine, edges_of(chosen, engine.spec), chosen.config)
    return plan_of(chosen.config, layout, queues)


def find_algorithm(
    algorithm: str | AlgorithmConfig | Mapping[str, Any] | None = None,
    world_size: int | None = None,
    ccl: CclLike = None,
) -> Algorithm:
    """Return the algorithm that the arguments of ``install_ipcq`` select."""
    if algorithm is None or isinstance(algorithm, str):
        config = as_ccl_config(ccl).algorithm(algorithm)
    else:
        config = as_ccl_config(algorithm).algorithm()
    if world_size is not None:
        config = replace(config, world_size=check_count("world_size", world_size, 1), ranks_are_pes=True)
    return load_algorithm(config)


def plan_of(config: AlgorithmConfig, layout: RankLayout, queues: InstalledQueues) -> IpcqPlan:
    """Return the plan of an installation."""
    return IpcqPlan(
        config=config,
        world_size=len(layout.ranks),
        rank_to_pe=layout.leaders,
        rank_pes=layout.ranks,
        neighbor_table=layout.neighbor_table(queues.edges),
        buffer_kind=queues.settings.buffer_kind,
        queues=queues,
    )


def check_count(name: str, count: object, least: int) -> int:
    """Return ``count`` as an int. Raises InputError if it is no integer or less than ``least``."""
    if isinstance(count, bool) or not isinstance(count, SupportsIndex) or index(count) < least:
        raise InputError(f"{name}={count!r}: must be a whole number, at least {least}")
    return index(count)
