"""Queue pairs: how edges pair up, the memory of their rings, and the messages that install and remove them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import NamedTuple

from kernbench.ccl.config import AlgorithmSettings, QueueSettings, SlotSize
from kernbench.ccl.diagnostics import trace_if_asked
from kernbench.ccl.loading import as_ccl_config
from kernbench.ccl.topologies import QueueEdge, direct_direction
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
_ONE_WAY = "_out"
_MAX_LINES = 8


@value
class Reservation:
    """Contiguous memory for all rings of a PE."""

    pe: PeCoord
    addr: PhysAddr
    nbytes: int


@value(kw_only=True, eq=False)
class InstalledQueues:
    """An installation: its edges, its memory, and an install message for each PE with queues, in PE order."""

    edges: tuple[QueueEdge, ...]
    settings: QueueSettings
    reservations: tuple[Reservation, ...]
    messages: tuple[IpcqInitMsg, ...]

    @property
    def pes(self) -> tuple[PeCoord, ...]:
        """The PEs that have queues."""
        return tuple(message.pe for message in self.messages)

    def removals(self) -> tuple[IpcqRemoveMsg, ...]:
        """Return the messages that remove the queues."""
        return tuple(
            IpcqRemoveMsg(pe=message.pe, name="remove queues", installation=message.installation)
            for message in self.messages
        )


def prepare_queues(
    engine: GraphEngine,
    edges: Sequence[QueueEdge],
    settings: QueueSettings | AlgorithmSettings,
    slots: Mapping[str, SlotSize] = MappingProxyType({}),
) -> InstalledQueues:
    """Reserve rings for the queues of ``edges`` and return the install messages, for the caller to submit in any order.

    ``slots`` has the slots of edges by direction; those of other directions are in ``settings``. The call only reserves
    memory, which ``release_rings`` frees; the messages do all else. Raises IpcqError for edges that cannot be installed
    and for a PE that already has a queue of that name, and AllocationError if a memory is full. After an error no
    memory is reserved.
    """
    check_host_calls()
    if isinstance(settings, AlgorithmSettings):
        settings = as_ccl_config(settings).algorithm()
    ends = dict(by_pe(pair_queues(edges, engine.spec)))
    for pe, pe_ends in ends.items():
        _check_names(engine, pe, pe_ends)
    receiving = {pe: [end for end in pe_ends if end.receives] for pe, pe_ends in ends.items()}
    rings: dict[tuple[PeCoord, str], int] = {}
    with ExitStack() as undo:
        reservations = []
        for pe, pe_ends in receiving.items():
            sizes = [slots.get(end.sender_direction, settings.slots) for end in pe_ends]
            if sizes:
                reservations.append(_reserve(engine, pe, sizes, settings.buffer_kind))
                undo.callback(_free, engine, settings.buffer_kind, reservations[-1])
                starts = accumulate([size.ring_bytes for size in sizes], initial=reservations[-1].addr.encode())
                rings |= {(pe, end.direction): start for end, start in zip(pe_ends, starts, strict=False)}
        _check_disjoint(reservations)
        undo.pop_all()
    installation = engine.machine.next_op()
    messages = tuple(
        IpcqInitMsg(
            name="install queues",
            pe=pe,
            queues=queue_setups(pe_ends, rings, settings.slots, slots),
            buffer_kind=settings.buffer_kind,
            backpressure=settings.backpressure,
            poll_ns=settings.poll_ns,
            credit_bytes=settings.ipcq_credit_size_bytes,
            installation=installation,
        )
        for pe, pe_ends in ends.items()
    )
    trace_if_asked(engine)
    return InstalledQueues(edges=tuple(edges), settings=settings, reservations=tuple(reservations), messages=messages)


def install_edges(
    engine: GraphEngine,
    edges: Sequence[QueueEdge],
    settings: QueueSettings | AlgorithmSettings,
    slots: Mapping[str, SlotSize] = MappingProxyType({}),
) -> InstalledQueues:
    """Install queues for ``edges``, on all PEs or on none, and wait for the end. Arguments as ``prepare_queues``."""
    queues = prepare_queues(engine, edges, settings, slots)
    handles = [engine.submit(message) for message in queues.messages]
    errors = _wait_for_all(engine, handles)
    if errors:
        ended = zip(queues.removals(), handles, strict=True)
        _carry_out(engine, [msg for msg, h in ended if h.outcome is not None and h.outcome.error is None])
        release_rings(engine, queues)
        raise errors[0]
    return queues


def uninstall(engine: GraphEngine, queues: InstalledQueues) -> None:
    """Remove queues from their PEs once the current kernels have ended, and free the memory of the queues.

    Raises IpcqError if the queues have been removed already and, after the removal, for messages that were never
    received.
    """
    if not any(
        message.installation in queue_part(engine.machine, message.pe).installations for message in queues.messages
    ):
        raise IpcqError("the queues of this installation have been removed already")
    _carry_out(engine, queues.removals())
    release_rings(engine, queues)
    lost = engine.unreceived(queues.pes)
    if lost:
        raise make_unreceived_error(lost)


def make_unreceived_error(messages: Sequence[UnreceivedMessage]) -> IpcqError:
    """Return the error for one or more messages that were never received and cannot be received any more."""
    n = len(messages)
    subject = "a message was" if n == 1 else f"{n} messages were"
    advice = "a kernel, or a rank of the program, has to receive what another sends"
    return IpcqError("\n  ".join([f"{subject} sent and never received; {advice}:", *lines_of(messages)]))


def lines_of(messages: Iterable[UnreceivedMessage]) -> list[str]:
    """Return a line for each distinct path and place of messages; a last line gives the number of lines left out."""
    texts = [text if n == 1 else f"{text}, {n} times" for text, n in Counter(map(str, messages)).items()]
    more = [f"and {len(texts) - _MAX_LINES} more"] if len(texts) > _MAX_LINES else []
    return [*texts[:_MAX_LINES], *more]


def release_rings(engine: GraphEngine, queues: InstalledQueues) -> None:
    """Free the memory of rings; their queues must have been removed from all PEs."""
    for reservation in queues.reservations:
        _free(engine, queues.settings.buffer_kind, reservation)


def _carry_out(engine: GraphEngine, messages: Iterable[HostMsg]) -> None:
    errors = _wait_for_all(engine, [engine.submit(message) for message in messages])
    if errors:
        raise errors[0]


def _wait_for_all(engine: GraphEngine, handles: Sequence[RequestHandle]) -> list[KernbenchError]:
    """Wait for every request, including those after a failed one, and return the errors."""
    errors: list[KernbenchError] = []
    for handle in handles:
        try:
            engine.wait(handle)
        except KernbenchError as error:
            errors.append(error)
    return errors


def _check_names(engine: GraphEngine, pe: PeCoord, ends: Iterable[QueueEnd]) -> None:
    """Check that a PE has no queue with the name of one of ``ends``."""
    pairs = queue_pairs_of(engine.machine, pe)
    taken_names = [end.direction for end in ends if end.direction in pairs]
    if taken_names:
        raise IpcqError(
            f"{pe_name(pe)} has queues already ({', '.join(taken_names)}): a name is installed once; remove them first"
        )


def _reserve(engine: GraphEngine, pe: PeCoord, rings: Sequence[SlotSize], kind: BufferKind) -> Reservation:
    nbytes = sum(ring.ring_bytes for ring in rings)
    try:
        match kind:
            case "tcm":
                addr = engine.allocators[pe].reserve_ipcq_tcm(nbytes)
            case "hbm":
                addr = engine.allocators[pe].reserve_ipcq_hbm(nbytes)
            case "sram":
                addr = engine.cube_allocator(*pe[:2]).reserve_ipcq_sram(nbytes)
    except AllocationError as error:
        text = ", ".join(
            f"{count} rings of {ring.n_slots} slots of {ring.slot_size} bytes" for ring, count in Counter(rings).items()
        )
        raise AllocationError(f"queues of {pe_name(pe)} need {nbytes} bytes of {kind} ({text}): {error}") from error
    return Reservation(pe, addr, nbytes)


def _free(engine: GraphEngine, kind: BufferKind, reservation: Reservation) -> None:
    match kind:
        case "tcm":
            engine.allocators[reservation.pe].free_tcm(reservation.addr, reservation.nbytes)
        case "hbm":
            engine.allocators[reservation.pe].free_hbm(reservation.addr, reservation.nbytes)
        case "sram":
            engine.cube_allocator(*reservation.pe[:2]).free_sram(reservation.addr, reservation.nbytes)


def _check_disjoint(reservations: Iterable[Reservation]) -> None:
    """Check that rings do not overlap: an arrival is identified by its address alone."""
    placed = sorted((reservation.addr.encode(), reservation.nbytes, reservation.pe) for reservation in reservations)
    for (low, nbytes, pe), (start, _, next_pe) in pairwise(placed):
        if start < low + nbytes:
            raise IpcqError(f"the rings of {pe_name(pe)} and {pe_name(next_pe)} overlap at {start:#x}")


def queue_setups(
    ends: Iterable[QueueEnd],
    rings: Mapping[tuple[PeCoord, str], int],
    usual: SlotSize,
    slots: Mapping[str, SlotSize] = MappingProxyType({}),
) -> tuple[QueueSetup, ...]:
    """Return the queues of a PE with ``ends``; ``rings`` has the address of the ring of each (PE, direction).

    ``slots`` has the slots of edges by direction, and ``usual`` those of all other edges.
    """
    return tuple(
        QueueSetup(
            direction=end.direction,
            peer=QueuePeer(
                pe=end.peer,
                direction=end.peer_direction,
                rx_base_pa=rings[end.peer, end.peer_direction] if end.sends else None,
            ),
            rx_base_pa=rings[end.pe, end.direction] if end.receives else None,
            n_slots=(size := slots.get(end.sender_direction, usual)).n_slots,
            slot_size=size.slot_size,
            via_port=end.direction.removeprefix(_GLOBAL) if end.direction.startswith(_GLOBAL) else None,
        )
        for end in ends
    )


_TREE = {"parent": ("child_left", "child_right"), "child_left": ("parent",), "child_right": ("parent",)}


class QueueEnd(NamedTuple):
    """A planned queue pair: queue ``direction`` of ``pe`` and its peer's queue. The queue sends, receives or both."""

    pe: PeCoord
    direction: str
    peer: PeCoord
    peer_direction: str
    sends: bool
    receives: bool

    @property
    def sender_direction(self) -> str:
        """The direction by which slots are chosen: that of an end that sends."""
        return self.direction if self.sends else self.peer_direction


def edge_text(edge: QueueEdge) -> str:
    """Return the text of an edge for errors."""
    return f"{pe_name(edge[0])} {edge[1]} -> {pe_name(edge[2])}"


def unite(*lists: Iterable[QueueEdge]) -> list[QueueEdge]:
    """Return the edges of all lists in order, without duplicates."""
    return list(dict.fromkeys(edge for edges in lists for edge in edges))


def pair_queues(edges: Sequence[QueueEdge], spec: TopologySpec) -> list[QueueEnd]:
    """Return the ends of all queues: an end for each edge in order, then the ends that only receive.

    The reverse of an edge is the opposite direction of its peer if that direction leads back; otherwise it is any
    direction of the peer that leads back. A direction is the reverse of at most one edge. An edge without a reverse
    ends in a receive-only queue on the peer, named after the opposite direction: W for E, ``child_left`` or else
    ``child_right`` for ``parent``, and ``sip0`` for messages that SIP 0 sends on ``sip3``. For any other name x the
    name is ``from_x``. A direction ``x_out`` never has a reverse, and its receiving queue is ``x_in``. Raises IpcqError
    for edges that cannot be installed.
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


_ByName = dict[tuple[PeCoord, str], QueueEdge]


def _check_edges(edges: Sequence[QueueEdge], spec: TopologySpec) -> _ByName:
    """Check edges and return them by PE and direction."""
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


def _check_pe(pe: PeCoord, sizes: tuple[int, int, int], edge: QueueEdge) -> None:
    for name, index, size in zip(("sip", "cube", "pe"), pe, sizes, strict=True):
        if not 0 <= index < size:
            raise IpcqError(f"{edge_text(edge)}: this machine has {name} 0..{size - 1}, not {index}")


def _opposites(edge: QueueEdge) -> tuple[str, ...]:
    """Return the possible names of the direction back."""
    (sip, _, _), direction, (peer_sip, _, _) = edge
    if direction in OPPOSITE_DIRECTION:
        return (OPPOSITE_DIRECTION[direction],)
    if direction == direct_direction(peer_sip):
        return (direct_direction(sip),)
    if direction.endswith(_ONE_WAY):
        return (f"{direction.removesuffix(_ONE_WAY)}_in",)
    return _TREE.get(direction, ())


def _reverses(edges: Sequence[QueueEdge], by_name: _ByName) -> dict[QueueEdge, QueueEdge]:
    """Return the reverse of every edge that has one; the result has both directions."""
    between: defaultdict[tuple[PeCoord, PeCoord], list[QueueEdge]] = defaultdict(list)
    two_way_edges = [edge for edge in edges if not edge[1].endswith(_ONE_WAY)]
    for edge in two_way_edges:
        between[edge[0], edge[2]].append(edge)

    def opposite(edge: QueueEdge) -> Iterable[QueueEdge]:
        named = (by_name.get((edge[2], name)) for name in _opposites(edge))
        return (back for back in named if back is not None and back[2] == edge[0])

    def whichever(edge: QueueEdge) -> Iterable[QueueEdge]:
        return between.get((edge[2], edge[0]), ())

    reverse_of: dict[QueueEdge, QueueEdge] = {}
    for candidates in (opposite, whichever):
        for edge in two_way_edges:
            if edge not in reverse_of:
                back = next((back for back in candidates(edge) if back not in reverse_of), None)
                if back is not None:
                    reverse_of[edge], reverse_of[back] = back, edge
    return reverse_of


def _receiver_name(edge: QueueEdge, by_name: _ByName) -> str:
    """Return a free name for the queue that receives an edge without a reverse, and reserve it."""
    names = _opposites(edge) or (f"from_{edge[1]}",)
    free = next((name for name in names if (edge[2], name) not in by_name), None)
    if free is None:
        holders = "; ".join(edge_text(by_name[edge[2], name]) for name in names)
        raise IpcqError(
            f"{edge_text(edge)} has no way back, so {pe_name(edge[2])} needs a queue {' or '.join(names)} that "
            f"receives it; that name is taken: {holders}"
        )
    by_name[edge[2], free] = edge
    return free


def by_pe(ends: Iterable[QueueEnd]) -> Iterator[tuple[PeCoord, list[QueueEnd]]]:
    """Yield the ends of each PE in their order, sorted by PE."""
    ends_of: defaultdict[PeCoord, list[QueueEnd]] = defaultdict(list)
    for end in ends:
        ends_of[end.pe].append(end)
    yield from sorted(ends_of.items())
