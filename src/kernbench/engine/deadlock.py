"""The error for a deadlocked run: the waiting components, the components that they wait for, and the reason.

The waits of kernels for queues form a graph::

    a kernel that waits to receive by queue W ──▶ the PE that sends there (None: all PEs that send to it)
    a kernel that waits to send by queue E ─────▶ the PE that must free a slot

A PE may run several kernels concurrently. Each kernel has its own wait.

The report names the first cycle of that graph. The advice depends on the waits in the cycle, for slots or for messages.
Without a cycle the waits end at PEs that wait for no queue: one of these PEs has failed, has ended, or never ran. The
report ends with the counters of the queues involved, in the format of ``pointer_dump``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import TypeAlias

from kernbench.common.errors import IpcqDeadlock, SimulationDeadlock, text_of
from kernbench.common.ids import pe_name
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.engine.address_map import AddressMap
from kernbench.engine.machine import Component, Machine
from kernbench.engine.queues import QueuePair, QueuePart, QueueWait
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.phyaddr import PhysAddr

Waits: TypeAlias = Mapping[PeCoord, Sequence[QueueWait]]
Queues: TypeAlias = Mapping[PeCoord, Mapping[str, QueuePair]]
MOST_OF_A_CYCLE = 20
"""The number of PEs of a cycle that are shown; the middle of a longer cycle is left out"""


@value(kw_only=True)
class Standstill:
    """The state of a machine that is deadlocked from the time ``at`` on.

    - ``awaited``: the requests that cannot complete.
    - ``kernels``: by PE, a text that says what its kernels wait for.
    - ``waits``: by PE, the waits of kernels for queues.
    - ``failed``: PEs whose kernel has failed, with the error.
    - ``other_lines``: a line for each wait of a part outside the PEs.
    - ``pointers``: the counters of the queues involved, a line each.
    """

    at: str
    awaited: Sequence[str]
    kernels: Mapping[PeCoord, str]
    waits: Waits
    queues: Queues
    failed: Sequence[tuple[PeCoord, str]] = ()
    other_lines: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()

    def error(self) -> SimulationDeadlock:
        """Return the error of this deadlock: a verdict of three lines, the cycle, and the waits.

        The error is an IpcqDeadlock if a PE waits for a queue.
        """
        cycle = find_cycle({pe: self._peers_of(pe) for pe in self.waits})
        verdict = [
            f"deadlock {self.at}: nothing can happen any more, and {_some(self.awaited)} cannot complete",
            summary(self.kernels.values()) or "no kernel waits",
            self._cause(cycle),
        ]
        verdict += [f"who waits for whom: {_walk(cycle)}"] if cycle else []
        pes = tuple(f"  {pe_name(pe)}: {self._wait(pe)}" for pe in sorted({*self.kernels, *self.waits}))
        other_parts = ("other parts that wait:", *self.other_lines) if self.other_lines else ()
        groups = (("PEs that wait:", *pes),) if pes else ()
        if not self.waits:
            return SimulationDeadlock("\n".join(verdict), (*groups, *((other_parts,) if other_parts else ())))
        full_cycle = (f"the whole cycle: {_walk(cycle, most=len(cycle))}",) if len(cycle) > MOST_OF_A_CYCLE else ()
        return IpcqDeadlock("\n".join(verdict), groups, (*full_cycle, *other_parts, *self.pointers))

    def _cause(self, cycle: Sequence[PeCoord]) -> str:
        """Return a text with the reason of the standstill and the remedy."""
        if self.failed:
            (pe, error), more = self.failed[0], len(self.failed) - 1
            first = " ".join(error.splitlines())
            return f"the kernel on {pe_name(pe)} has failed: {first}{f' (and {more} more)' if more else ''}"
        if cycle:
            return _advice(self._waits_along(cycle), self.queues) + self._elsewhere()
        if self.waits:
            ends = {peer for pe in self.waits for peer in self._peers_of(pe)} - self.waits.keys()
            names = _some([pe_name(pe) for pe in sorted(ends)])
            return f"no cycle: the waits end at PEs that wait for no queue: {names}{self._elsewhere()}"
        # The last of ``other_lines`` belongs to the part nearest to the PEs.
        nearest = self.other_lines[-1].strip() if self.other_lines else "see what each PE waits for"
        return f"no queue is involved: {nearest}"

    def _elsewhere(self) -> str:
        """Return a text that names PEs with an unread message in another queue than the awaited queue."""
        unread = {pe: [_unread(wait, self.queues) for wait in waits] for pe, waits in self.waits.items()}
        texts = [
            f". On {pe_name(pe)} {text}" for pe, lines in unread.items() if (text := "; ".join(filter(None, lines)))
        ]
        more = f" (and {len(texts) - 1} more PE{'s' if len(texts) > 2 else ''} alike)" if len(texts) > 1 else ""
        return f"{texts[0]}{more}" if texts else ""

    def _wait(self, pe: PeCoord) -> str:
        causes = [_reason(wait, self.waits, self.queues) for wait in self.waits.get(pe, ())]
        return "; ".join([*filter(None, [self.kernels.get(pe)]), *causes])

    def _peers_of(self, pe: PeCoord) -> tuple[PeCoord, ...]:
        """Return the PEs that could end a wait of ``pe``."""
        return tuple(peer for wait in self.waits[pe] for peer in peers_awaited(wait, self.queues))

    def _waits_along(self, cycle: Sequence[PeCoord]) -> list[QueueWait]:
        """Return, for each PE of a cycle, the wait that the next PE could end."""
        return [
            next(wait for wait in self.waits[pe] if peer in peers_awaited(wait, self.queues))
            for pe, peer in zip(cycle, (*cycle[1:], cycle[0]), strict=True)
        ]


def summary(kernels: Collection[str]) -> str:
    """Return the number of waiting kernels by the reason of their wait; empty if no kernel waits."""
    kinds = Counter(text.partition("; ")[0] for text in kernels)
    counts = _some([f"{n} × {text}" if n > 1 else text for text, n in kinds.most_common()])
    n = len(kernels)
    return f"{n} PE{' waits' if n == 1 else 's wait'}: {counts}" if n else ""


def waiting_kernels(machine: Machine) -> dict[PeCoord, str]:
    """Return, by PE, a text that says what the running kernels wait for."""
    blocked = [(part.node, part.blocked()) for part in machine.components if not _is_outside(part)]
    return {node.pe_coord: "; ".join(lines) for node, lines in blocked if lines}


def _is_outside(part: Component) -> bool:
    """Return True if ``part`` belongs to no PE, or is an extra part."""
    return part.node.pe is None or part.node.is_extra


def deadlock(machine: Machine, awaited: Sequence[str]) -> SimulationDeadlock:
    """Return the error for requests that can never complete."""
    kernels = waiting_kernels(machine)
    # Extra parts are constructed before other parts, but their lines come last.
    parts_outside = sorted(filter(_is_outside, machine.components), key=attrgetter("node.is_extra"))
    other_lines = [f"  {part.node.id}: {line}" for part in parts_outside for line in part.blocked()]
    parts = sorted(
        (part for part in machine.components if isinstance(part, QueuePart)), key=attrgetter("node.pe_coord")
    )
    waits = {part.node.pe_coord: waiting for part in parts if (waiting := part.waits)}
    queues = {part.node.pe_coord: part.queue_pairs for part in parts} if waits else {}
    return Standstill(
        at=f"at {ps_to_ns(machine.clock.time):g} ns",
        awaited=awaited,
        kernels=kernels,
        waits=waits,
        queues=queues,
        failed=sorted(
            (report.pe, text_of(report.error))
            for part in machine.components
            for _, report in part.failures()
            if report.error is not None
        ),
        other_lines=tuple(other_lines),
        pointers=tuple(_dump(waits, queues, machine.addresses)) if waits else (),
    ).error()


def _some(texts: Sequence[str], most: int = 3) -> str:
    """Join the first ``most`` of ``texts`` and the number of the remaining texts."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def _walk(cycle: Sequence[PeCoord], most: int = MOST_OF_A_CYCLE) -> str:
    """Return a cycle as ``a -> b -> a``, without the middle of a long cycle."""
    names = [pe_name(pe) for pe in (*cycle, cycle[0])]
    left_out = len(cycle) - most
    if left_out > 0:
        names[most // 2 : most // 2 + left_out] = [f"… {left_out} more …"]
    return " -> ".join(names)


def _dump(waits: Waits, queues: Queues, addresses: AddressMap) -> list[str]:
    """Return a line with the counters of each queue of a waiting PE, and of each non-empty queue.

    All other queues share one line with their number: a machine may have thousands of queues.
    """
    shown = {
        pe: {name: pair for name, pair in pairs.items() if pe in waits or not pair.settled}
        for pe, pairs in queues.items()
    }
    left_out = sum(len(pairs) for pairs in queues.values()) - sum(len(pairs) for pairs in shown.values())
    omitted = [f"  and {left_out} queue pairs of PEs that wait for none, all empty"] if left_out else []
    return [*dump_lines(shown, addresses), *omitted]


def peers_awaited(wait: QueueWait, queues: Queues) -> tuple[PeCoord, ...]:
    """Return the PEs that could end a wait."""
    pairs = queues[wait.pe]
    if wait.direction is None:
        return tuple(pair.peer.pe for pair in pairs.values() if pair.my_rx_base_pa is not None)
    return (pairs[wait.direction].peer.pe,)


def find_cycle(edges: Mapping[PeCoord, tuple[PeCoord, ...]]) -> tuple[PeCoord, ...]:
    """Return the PEs, in order, of the first cycle that a depth-first walk closes; () without a cycle."""
    done: set[PeCoord] = set()
    for start in edges:
        path: list[PeCoord] = []
        stack = [iter((start,))]
        while stack:
            pe = next(stack[-1], None)
            if pe is None:
                stack.pop()
                if path:
                    done.add(path.pop())
            elif pe in path:
                return tuple(path[path.index(pe) :])
            elif pe in edges and pe not in done:
                path.append(pe)
                stack.append(iter(edges[pe]))
    return ()


def _reason(wait: QueueWait, waits: Waits, queues: Queues) -> str:
    """Return a text with the reason why a wait for a queue does not end."""
    if wait.direction is None:
        full_queues = [pair.direction for pair in queues[wait.pe].values() if pair.held >= pair.n_slots]
        full = f"; its kernel holds all slots of {', '.join(full_queues)}: drop handles (del)" if full_queues else ""
        return f"no message has arrived{full}"
    pair = queues[wait.pe][wait.direction]
    peer, peer_pair = pe_name(pair.peer.pe), queues.get(pair.peer.pe, {}).get(pair.peer.direction)
    other = f"queue {pair.peer.direction} of {peer}"
    pointers = f"here {pair.counters}; there {peer_pair.counters if peer_pair else 'nothing is installed'}"
    if wait.kind == "recv":
        idle = (
            ""
            if pair.peer.pe in waits
            else f"; {peer} waits for no queue: it has sent all it will, has failed, or never ran"
        )
        reasons = "; ".join(filter(None, [f"{_no_message(pair, other)}{idle}", _unread(wait, queues)]))
        return f"{reasons} [{pointers}]"
    return f"{_no_slot(pair, other, peer_pair)} [{pointers}]"


def _unread(wait: QueueWait, queues: Queues) -> str:
    """Return a text about unread messages in other queues of a PE that waits to receive; empty without any."""
    if wait.kind != "recv" or wait.direction is None:
        return ""
    full = [pair for pair in queues[wait.pe].values() if pair.unread and pair.direction != wait.direction]
    texts = [f"{_messages(p.unread)} unread in its queue {p.direction}, from {pe_name(p.peer.pe)}" for p in full]
    return f"{_some(texts)}; its kernel waits for another, {wait.direction}" if texts else ""


def _messages(n: int) -> str:
    return f"{n} message{' is' if n == 1 else 's are'}"


def _no_message(pair: QueuePair, other: str) -> str:
    if pair.held >= pair.n_slots:
        return (
            f"its kernel holds all {pair.n_slots} slots of this queue, so the next message has no slot; "
            f"drop handles (del) or receive copies (dst_space='tcm')"
        )
    return f"no message from {other}"


def _no_slot(pair: QueuePair, other: str, peer_pair: QueuePair | None) -> str:
    n_taken = pair.my_head - pair.peer_tail_cache
    if n_taken < pair.n_slots:
        text = f"{n_taken} slots of {other} are taken, all of its window"
    else:
        text = f"all {n_taken} slots of {other} are taken"
    if peer_pair is None:
        return text
    return f"{text}: its kernel holds {peer_pair.held} of them and has yet to receive {peer_pair.unread}"


def _full_queue(pair: QueuePair) -> str:
    """Return the name and the slots of the queue that receives the messages of ``pair``."""
    return f"queue {pair.peer.direction} of {pe_name(pair.peer.pe)} ({pair.n_slots} slots of {pair.slot_size} bytes)"


def _advice(cycle: Sequence[QueueWait], queues: Queues) -> str:
    """Return a text with the reason why the waits of a cycle do not end, and the remedy."""
    kinds = {wait.kind for wait in cycle}
    if kinds == {"recv"}:
        has_unread = any(_unread(wait, queues) for wait in cycle)
        other = ", or receive from the queue that has messages" if has_unread else ""
        advice = f"let one of them send first{other}"
        return f"every PE of the cycle receives before it sends what the next one waits for: {advice}"
    sends = [wait for wait in cycle if wait.kind == "send"]
    pairs = [queues[wait.pe][wait.direction] for wait in sends if wait.direction is not None]
    full = _some([_full_queue(pair) for pair in pairs])
    if kinds != {"send"}:
        return (
            "the PEs of the cycle wait for each other, some to send and some to receive: see why each of them waits. "
            f"Full: {full}"
        )
    ends = [queues[pair.peer.pe][pair.peer.direction] for pair in pairs]
    n_taken = [pair.my_head - pair.peer_tail_cache for pair in pairs]
    if any(end.held < n_used for end, n_used in zip(ends, n_taken, strict=True)):
        return (
            f"every PE of the cycle sends while its own messages wait to be received: receive in between. Full: {full}"
        )
    if any(n_used < pair.n_slots for pair, n_used in zip(pairs, n_taken, strict=True)):
        return (
            "every PE of the cycle holds received messages while it waits to send on, and windows admit no more. "
            "Send with a larger window, or receive copies (dst_space='tcm')"
        )
    n_slots = max(pair.n_slots for pair in pairs)
    slots = "the only slot" if n_slots == 1 else f"all {n_slots} slots"
    return (
        f"every PE of the cycle holds {slots} it receives in while it waits to send on: with n_slots={n_slots}, "
        f"slots that are forwarded without a copy cannot move. Install more slots, or receive copies "
        f"(dst_space='tcm'). Full: {full}"
    )


def dump_lines(queues: Queues, addresses: AddressMap) -> list[str]:
    """Return a line with the counters of each queue pair."""
    lines = ["queue pairs:"]
    for pe, pairs in queues.items():
        lines += [f"  {pe_name(pe)} {_dump_line(pair, addresses)}" for pair in pairs.values()]
    return lines


def _dump_line(pair: QueuePair, addresses: AddressMap) -> str:
    base = pair.my_rx_base_pa
    ring = "sends only" if base is None else f"receives at {PhysAddr.decode(base, addresses.format)!r}"
    return f"{pair.direction} <-> {pe_name(pair.peer.pe)} {pair.peer.direction}: {pair.counters}; {ring}"


@state
class QueuePointers:
    """The counters of all queues of ``machine``, also after a reset of the queues.

    The counters are saved when kernels that wait for queues are abandoned. The saved counters are valid until queues
    are installed or carry messages again.
    """

    machine: Machine
    _snapshot: tuple[str, ...] | None = None
    _n_sent_then: int = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines for all queue pairs, by PE and in the order of installation."""
        return self._now() if self._snapshot is None or self._used else self._snapshot

    @contextmanager
    def keep(self) -> Iterator[None]:
        """If a kernel waits for a queue, save the counters before the body of ``with`` ends kernels."""
        if any(part.waits for part in self._parts):
            self._snapshot = self._now()
        elif self._used:
            self._snapshot = None
        yield
        self._n_sent_then = self._n_sent

    def forget(self) -> None:
        """Drop the saved counters, because other queues are installed."""
        self._snapshot = None

    def _now(self) -> tuple[str, ...]:
        by_pe = sorted(self._parts, key=lambda part: part.coord)
        return tuple(dump_lines({part.coord: part.queue_pairs for part in by_pe}, self.machine.addresses))

    @property
    def _used(self) -> bool:
        return self._n_sent != self._n_sent_then

    @property
    def _parts(self) -> list[QueuePart]:
        return [part for part in self.machine.components if isinstance(part, QueuePart)]

    @property
    def _n_sent(self) -> int:
        return sum(sent.messages for part in self._parts for sent in part.traffic.values())
