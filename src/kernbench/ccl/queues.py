"""Queue pairs: which two ends make one, memory for their rings, the messages that install them and take them off."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import NamedTuple

from kernbench.ccl.config import AlgorithmSettings, QueueSettings
from kernbench.ccl.diagnostics import trace_if_asked
from kernbench.ccl.loading import as_ccl_config
from kernbench.ccl.topologies import Edge, direct_direction
from kernbench.common.errors import AllocationError, IpcqError, KernbenchError
from kernbench.common.ids import pe_name
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.queues import UnreceivedMessage, queue_pairs_of, queue_part
from kernbench.engine.requests import RequestHandle
from kernbench.messages.requests import (
    OPPOSITE_DIRECTION,
    BufferKind,
    HostMsg,
    IpcqInitMsg,
    IpcqRemoveMsg,
    PeCoord,
    QueuePeer,
    QueueSetup,
)
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.spec import TopologySpec
from kernbench.triton_emu.kernel_runner import check_host_calls

_GLOBAL = "global_"
_MOST_TOLD = 8


@value
class Reservation:
    """Memory for all rings of a PE, one behind the other."""

    pe: PeCoord
    addr: PhysAddr
    nbytes: int


@value(kw_only=True, eq=False)
class InstalledQueues:
    """An installation: its edges, the memory it took, and a message for each PE that has queues, PEs in order."""

    edges: tuple[Edge, ...]
    settings: QueueSettings
    reservations: tuple[Reservation, ...]
    messages: tuple[IpcqInitMsg, ...]

    @property
    def pes(self) -> tuple[PeCoord, ...]:
        """The PEs that have queues."""
        return tuple(message.pe for message in self.messages)

    def removals(self) -> tuple[IpcqRemoveMsg, ...]:
        """Return the messages that remove the queues again."""
        return tuple(
            IpcqRemoveMsg(pe=message.pe, name="remove queues", installation=message.installation)
            for message in self.messages
        )


def prepare_queues(
    engine: GraphEngine, edges: Sequence[Edge], settings: QueueSettings | AlgorithmSettings
) -> InstalledQueues:
    """Reserve rings for the queues of these edges and make the messages, for the caller to submit in any order.

    Until they are carried out nothing but memory has changed; ``release_rings`` gives that back. IpcqError for edges
    that cannot be installed and for a PE that has queues, AllocationError when a memory is full; either leaves nothing
    reserved.
    """
    check_host_calls()
    if isinstance(settings, AlgorithmSettings):
        settings = as_ccl_config(settings).algorithm()
    ends = dict(by_pe(pair_queues(edges, engine.spec)))
    for pe in ends:
        _check_bare(engine, pe)
    receiving = {pe: [end.direction for end in own if end.receives] for pe, own in ends.items()}
    with ExitStack() as undo:
        reservations = []
        for pe, directions in receiving.items():
            if directions:
                reservations.append(_reserve(engine, pe, len(directions), settings))
                undo.callback(_free, engine, settings.buffer_kind, reservations[-1])
        _check_disjoint(reservations)
        undo.pop_all()
    rings = {
        (taken.pe, direction): taken.addr.encode() + at * settings.ring_stride
        for taken in reservations
        for at, direction in enumerate(receiving[taken.pe])
    }
    installation = engine.machine.next_op()
    messages = tuple(
        IpcqInitMsg(
            name="install queues",
            pe=pe,
            queues=queue_setups(own, rings, settings.n_slots, settings.slot_size),
            buffer_kind=settings.buffer_kind,
            backpressure=settings.backpressure,
            poll_ns=settings.poll_ns,
            credit_bytes=settings.ipcq_credit_size_bytes,
            installation=installation,
        )
        for pe, own in ends.items()
    )
    trace_if_asked(engine)
    return InstalledQueues(edges=tuple(edges), settings=settings, reservations=tuple(reservations), messages=messages)


def install_edges(
    engine: GraphEngine, edges: Sequence[Edge], settings: QueueSettings | AlgorithmSettings
) -> InstalledQueues:
    """Install queues for these edges and wait until all have them. Raises as ``prepare_queues``; all or nothing."""
    queues = prepare_queues(engine, edges, settings)
    handles = [engine.submit(message) for message in queues.messages]
    errors = _wait_for_all(engine, handles)
    if errors:
        ended = zip(queues.removals(), handles, strict=True)
        _carry_out(engine, [msg for msg, h in ended if h.outcome is not None and h.outcome.error is None])
        release_rings(engine, queues)
        raise errors[0]
    return queues


def uninstall(engine: GraphEngine, queues: InstalledQueues) -> None:
    """Take queues off their PEs, behind their kernels, wait until all are off and give their memory back.

    IpcqError when they have been removed already and, once they are off, for messages that nobody had received.
    """
    if not any(
        queue_part(engine.machine, message.pe).installation == message.installation for message in queues.messages
    ):
        raise IpcqError("the queues of this installation have been removed already")
    _carry_out(engine, queues.removals())
    release_rings(engine, queues)
    lost = engine.unreceived(queues.pes)
    if lost:
        raise make_unreceived_error(lost)


def make_unreceived_error(messages: Sequence[UnreceivedMessage]) -> IpcqError:
    """Return the error for messages, at least one, that nobody has received and nobody can receive any more."""
    n = len(messages)
    what = "a message was" if n == 1 else f"{n} messages were"
    advice = "a kernel, or a rank of the program, has to receive what another sends"
    return IpcqError("\n  ".join([f"{what} sent and never received; {advice}:", *lines_of(messages)]))


def lines_of(messages: Iterable[UnreceivedMessage]) -> list[str]:
    """Return a line for each way and place that messages come from; of many the first, and how many more there are."""
    texts = [text if n == 1 else f"{text}, {n} times" for text, n in Counter(map(str, messages)).items()]
    more = [f"and {len(texts) - _MOST_TOLD} more"] if len(texts) > _MOST_TOLD else []
    return [*texts[:_MOST_TOLD], *more]


def release_rings(engine: GraphEngine, queues: InstalledQueues) -> None:
    """Give the memory of rings back, for which no PE may have a queue any more."""
    for taken in queues.reservations:
        _free(engine, queues.settings.buffer_kind, taken)


def _carry_out(engine: GraphEngine, messages: Iterable[HostMsg]) -> None:
    errors = _wait_for_all(engine, [engine.submit(message) for message in messages])
    if errors:
        raise errors[0]


def _wait_for_all(engine: GraphEngine, handles: Sequence[RequestHandle]) -> list[KernbenchError]:
    """Wait for every request, also behind one that fails."""
    errors: list[KernbenchError] = []
    for handle in handles:
        try:
            engine.wait(handle)
        except KernbenchError as error:
            errors.append(error)
    return errors


def _check_bare(engine: GraphEngine, pe: PeCoord) -> None:
    there = queue_pairs_of(engine.machine, pe)
    if there:
        raise IpcqError(
            f"{pe_name(pe)} has queues already ({', '.join(there)}): a PE is installed once; remove them first"
        )


def _reserve(engine: GraphEngine, pe: PeCoord, n_rings: int, settings: QueueSettings) -> Reservation:
    nbytes = n_rings * settings.ring_stride
    try:
        match settings.buffer_kind:
            case "tcm":
                addr = engine.allocators[pe].reserve_ipcq_tcm(nbytes)
            case "hbm":
                addr = engine.allocators[pe].reserve_ipcq_hbm(nbytes)
            case "sram":
                addr = engine.cube_allocator(*pe[:2]).reserve_ipcq_sram(nbytes)
    except AllocationError as error:
        rings = f"{n_rings} rings of {settings.n_slots} slots of {settings.slot_size} bytes"
        raise AllocationError(
            f"queues of {pe_name(pe)} need {nbytes} bytes of {settings.buffer_kind} ({rings}): {error}"
        ) from error
    return Reservation(pe, addr, nbytes)


def _free(engine: GraphEngine, kind: BufferKind, taken: Reservation) -> None:
    match kind:
        case "tcm":
            engine.allocators[taken.pe].free_tcm(taken.addr, taken.nbytes)
        case "hbm":
            engine.allocators[taken.pe].free_hbm(taken.addr, taken.nbytes)
        case "sram":
            engine.cube_allocator(*taken.pe[:2]).free_sram(taken.addr, taken.nbytes)


def _check_disjoint(reservations: Iterable[Reservation]) -> None:
    """Check that rings do not overlap: an arrival is told apart by its address alone."""
    placed = sorted((taken.addr.encode(), taken.nbytes, taken.pe) for taken in reservations)
    for (low, nbytes, one), (start, _, other) in pairwise(placed):
        if start < low + nbytes:
            raise IpcqError(f"the rings of {pe_name(one)} and {pe_name(other)} overlap at {start:#x}")


def queue_setups(
    ends: Iterable[QueueEnd], rings: Mapping[tuple[PeCoord, str], int], n_slots: int, slot_size: int
) -> tuple[QueueSetup, ...]:
    """Return the queues of a PE whose ends these are; ``rings``: the address of each PE's and direction's ring."""
    return tuple(
        QueueSetup(
            direction=end.direction,
            peer=QueuePeer(
                pe=end.peer,
                direction=end.peer_direction,
                rx_base_pa=rings[end.peer, end.peer_direction] if end.sends else None,
            ),
            rx_base_pa=rings[end.pe, end.direction] if end.receives else None,
            n_slots=n_slots,
            slot_size=slot_size,
            via_port=end.direction.removeprefix(_GLOBAL) if end.direction.startswith(_GLOBAL) else None,
        )
        for end in ends
    )


_TREE = {"parent": ("child_left", "child_right"), "child_left": ("parent",), "child_right": ("parent",)}


class QueueEnd(NamedTuple):
    """A queue pair to be: queue ``direction`` of ``pe`` and the other end of it; it sends, receives or both."""

    pe: PeCoord
    direction: str
    peer: PeCoord
    peer_direction: str
    sends: bool
    receives: bool


def edge_text(edge: Edge) -> str:
    """Name an edge, as errors do."""
    return f"{pe_name(edge[0])} {edge[1]} -> {pe_name(edge[2])}"


def unite(*lists: Iterable[Edge]) -> list[Edge]:
    """Return the edges of all lists in order, each once."""
    return list(dict.fromkeys(edge for edges in lists for edge in edges))


def pair_queues(edges: Sequence[Edge], spec: TopologySpec) -> list[QueueEnd]:
    """Return the ends of all queues: of each edge in order, then those that only receive.

    The reverse of an edge is the opposite direction of its peer when that points back, else any direction that does;
    no direction is the reverse of two. An edge without one ends in a queue of its own on the peer, which only receives,
    named for the opposite direction: W for E, ``child_left`` or else ``child_right`` for ``parent``, ``sip0`` for what
    comes from SIP 0 on ``sip3``, ``from_x`` for any other name x. IpcqError for edges that cannot be installed.
    """
    by_name = _check_edges(edges, spec)
    reverse = _reverses(edges, by_name)
    ends = []
    for edge in edges:
        back = reverse.get(edge)
        far = _receiver_name(edge, by_name) if back is None else back[1]
        ends.append(QueueEnd(*edge, far, sends=True, receives=back is not None))
    receivers = [
        QueueEnd(end.peer, end.peer_direction, end.pe, end.direction, sends=False, receives=True)
        for end in ends
        if not end.receives
    ]
    return ends + receivers


_ByName = dict[tuple[PeCoord, str], Edge]


def _check_edges(edges: Sequence[Edge], spec: TopologySpec) -> _ByName:
    """Check edges, and return them by PE and direction."""
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
    """Return the directions that the peer may give the way back."""
    (sip, _, _), direction, (peer_sip, _, _) = edge
    if direction in OPPOSITE_DIRECTION:
        return (OPPOSITE_DIRECTION[direction],)
    if direction == direct_direction(peer_sip):
        return (direct_direction(sip),)
    return _TREE.get(direction, ())


def _reverses(edges: Sequence[Edge], by_name: _ByName) -> dict[Edge, Edge]:
    """Return the reverse of every edge that has one, both ways."""
    between: defaultdict[tuple[PeCoord, PeCoord], list[Edge]] = defaultdict(list)
    for edge in edges:
        between[edge[0], edge[2]].append(edge)

    def opposite(edge: Edge) -> Iterable[Edge]:
        named = (by_name.get((edge[2], name)) for name in _opposites(edge))
        return (back for back in named if back is not None and back[2] == edge[0])

    def whichever(edge: Edge) -> Iterable[Edge]:
        return between.get((edge[2], edge[0]), ())

    found: dict[Edge, Edge] = {}
    for candidates in (opposite, whichever):
        for edge in edges:
            if edge not in found:
                back = next((back for back in candidates(edge) if back not in found), None)
                if back is not None:
                    found[edge], found[back] = back, edge
    return found


def _receiver_name(edge: Edge, by_name: _ByName) -> str:
    """Return a name for the queue that receives an edge without a reverse, and take it."""
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


def by_pe(ends: Iterable[QueueEnd]) -> Iterator[tuple[PeCoord, list[QueueEnd]]]:
    """Yield the ends of each PE in their order, PEs in order."""
    found: defaultdict[PeCoord, list[QueueEnd]] = defaultdict(list)
    for end in ends:
        found[end.pe].append(end)
    yield from sorted(found.items())
