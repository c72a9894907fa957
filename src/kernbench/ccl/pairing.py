"""From directed edges to queue pairs: which direction of the peer is the other end of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kernbench.ccl.topologies import Edge, direct_direction
from kernbench.common.errors import IpcqError
from kernbench.common.ids import pe_name
from kernbench.messages.queues import OPPOSITE_DIRECTION
from kernbench.messages.requests import PeCoord
from kernbench.topology.spec import TopologySpec

_TREE = {"parent": ("child_left", "child_right"), "child_left": ("parent",), "child_right": ("parent",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnd:
    """A queue pair to be: queue ``direction`` of ``pe`` and the other end of it; it sends, receives or both."""

    pe: PeCoord
    direction: str
    peer: PeCoord
    peer_direction: str
    sends: bool
    receives: bool


def edge_text(edge: Edge) -> str:
    """An edge as errors name it."""
    return f"{pe_name(edge[0])} {edge[1]} -> {pe_name(edge[2])}"


def unite(*lists: Iterable[Edge]) -> list[Edge]:
    """The edges of all lists in order, each once."""
    return list(dict.fromkeys(edge for edges in lists for edge in edges))


def pair_queues(edges: Sequence[Edge], spec: TopologySpec) -> list[QueueEnd]:
    """The ends of all queues: of each edge in order, then those that only receive.

    The reverse of an edge is the opposite direction of its peer when that points back, else any direction that does;
    no direction is the reverse of two. An edge without one ends in a queue of its own on the peer, which only receives,
    named for the opposite direction: W for E, ``child_left`` or else ``child_right`` for ``parent``, ``sip0`` for what
    comes from SIP 0 on ``sip3``, ``from_x`` for any other name x. IpcqError for edges that cannot be installed.
    """
    by_name = _checked(edges, spec)
    reverse = _reverses(edges, by_name)
    ends = [_two_way(edge, reverse.get(edge), by_name) for edge in edges]
    receivers = [_receiver(end) for end in ends if not end.receives]
    return ends + receivers


_ByName = dict[tuple[PeCoord, str], Edge]


def _checked(edges: Sequence[Edge], spec: TopologySpec) -> _ByName:
    """The edges by PE and direction."""
    sizes = (spec.num_sips, spec.cubes_per_sip, spec.pes_per_cube)
    inside: set[PeCoord] = set()
    by_name: _ByName = {}
    for edge in edges:
        src, direction, dst = edge
        for pe in (src, dst):
            if pe not in inside:
                _check_pe(pe, sizes, edge)
                inside.add(pe)
        if src == dst:
            raise IpcqError(f"{edge_text(edge)}: a PE cannot be its own neighbour; leave the direction out")
        first = by_name.get((src, direction))
        if first is not None:
            raise IpcqError(f"{pe_name(src)} has direction {direction} twice: {edge_text(first)} and {edge_text(edge)}")
        by_name[src, direction] = edge
    return by_name


def _check_pe(pe: PeCoord, sizes: tuple[int, int, int], edge: Edge) -> None:
    for name, index, size in zip(("sip", "cube", "pe"), pe, sizes, strict=True):
        if not 0 <= index < size:
            raise IpcqError(f"{edge_text(edge)}: this machine has {name} 0..{size - 1}, not {index}")


def _opposites(edge: Edge) -> tuple[str, ...]:
    """What the peer would call the way back."""
    (sip, _, _), direction, (peer_sip, _, _) = edge
    if direction in OPPOSITE_DIRECTION:
        return (OPPOSITE_DIRECTION[direction],)
    if direction == direct_direction(peer_sip):
        return (direct_direction(sip),)
    return _TREE.get(direction, ())


def _reverses(edges: Sequence[Edge], by_name: _ByName) -> dict[Edge, Edge]:
    """The reverse of every edge that has one; of each other."""
    found: dict[Edge, Edge] = {}
    for edge in edges:
        if edge not in found:
            named = (by_name.get((edge[2], name)) for name in _opposites(edge))
            _match(edge, (back for back in named if back is not None and back[2] == edge[0]), found)
    between: defaultdict[tuple[PeCoord, PeCoord], list[Edge]] = defaultdict(list)
    for edge in edges:
        if edge not in found:
            between[edge[0], edge[2]].append(edge)
    for (src, dst), there in list(between.items()):
        for edge in there:
            if edge not in found:
                _match(edge, between.get((dst, src), ()), found)
    return found


def _match(edge: Edge, candidates: Iterable[Edge], found: dict[Edge, Edge]) -> None:
    back = next((back for back in candidates if back not in found), None)
    if back is not None:
        found[edge], found[back] = back, edge


def _two_way(edge: Edge, back: Edge | None, by_name: _ByName) -> QueueEnd:
    src, direction, dst = edge
    name = back[1] if back is not None else _receiver_name(edge, by_name)
    return QueueEnd(pe=src, direction=direction, peer=dst, peer_direction=name, sends=True, receives=back is not None)


def _receiver_name(edge: Edge, by_name: _ByName) -> str:
    """The name of the queue that receives an edge without a reverse; taken from then on."""
    names = _opposites(edge) or (f"from_{edge[1]}",)
    free = next((name for name in names if (edge[2], name) not in by_name), None)
    if free is None:
        taken = "; ".join(edge_text(by_name[edge[2], name]) for name in names)
        raise IpcqError(
            f"{edge_text(edge)} has no way back, so {pe_name(edge[2])} needs a queue {' or '.join(names)} that "
            f"receives it; that name is taken: {taken}"
        )
    by_name[edge[2], free] = edge
    return free


def _receiver(end: QueueEnd) -> QueueEnd:
    return QueueEnd(
        pe=end.peer,
        direction=end.peer_direction,
        peer=end.pe,
        peer_direction=end.direction,
        sends=False,
        receives=True,
    )


def by_pe(ends: Iterable[QueueEnd]) -> Iterator[tuple[PeCoord, list[QueueEnd]]]:
    """The ends of each PE in their order, PEs in order."""
    found: defaultdict[PeCoord, list[QueueEnd]] = defaultdict(list)
    for end in ends:
        found[end.pe].append(end)
    yield from sorted(found.items())
