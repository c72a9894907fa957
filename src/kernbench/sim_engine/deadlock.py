"""What to say when nothing can happen any more: who waits, for whom, and why that cannot end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from kernbench.common.errors import IpcqDeadlock, SimulationDeadlock
from kernbench.common.ids import pe_name
from kernbench.common.units import ps_to_ns
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.address_map import AddressMap
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.queue_state import QueuePair, QueuePart, QueueWait

Waits: TypeAlias = Mapping[PeCoord, QueueWait]
Queues: TypeAlias = Mapping[PeCoord, Mapping[str, QueuePair]]


def deadlock(machine: Machine, awaited: Sequence[str]) -> SimulationDeadlock:
    """The error for requests that can never complete: an IpcqDeadlock when some PE waits for a queue."""
    stuck = [line for part in machine.components for line in part.blocked()]
    now = ps_to_ns(machine.clock.time)
    lines = [
        f"nothing can happen any more at {now:g} ns, and this has not completed: {', '.join(awaited)}:",
        *(f"  {line}" for line in stuck or ["no part says what it waits for"]),
    ]
    failed = sorted((report.pe, str(report.error)) for part in machine.components for _, report in part.failures())
    lines += [f"  the kernel on {pe_name(pe)} has failed: {error}" for pe, error in failed]
    parts = sorted((part for part in machine.components if isinstance(part, QueuePart)), key=_place)
    waits = {_place(part): part.waiting for part in parts if part.waiting is not None}
    if not waits:
        return SimulationDeadlock("\n".join(lines))
    queues = {_place(part): part.queue_pairs for part in parts}
    return IpcqDeadlock("\n".join([*lines, *queue_lines(waits, queues), *_dump(waits, queues, machine.addresses)]))


def _dump(waits: Waits, queues: Queues, addresses: AddressMap) -> list[str]:
    """The pointers of the queues that have to do with a deadlock: a machine may have thousands that are empty."""
    told = {
        pe: {name: pair for name, pair in pairs.items() if pe in waits or not pair.settled}
        for pe, pairs in queues.items()
    }
    left_out = sum(len(pairs) for pairs in queues.values()) - sum(len(pairs) for pairs in told.values())
    rest = [f"  and {left_out} queue pairs of PEs that wait for none, all empty"] if left_out else []
    return [*dump_lines(told, addresses), *rest]


def _place(part: QueuePart) -> PeCoord:
    node = part.node
    assert node.sip is not None
    assert node.cube is not None
    assert node.pe is not None
    return node.sip, node.cube, node.pe


def queue_lines(waits: Waits, queues: Queues) -> list[str]:
    """Each wait with its cause, and the cycle that they form, if they do."""
    lines = ["queues that are waited for:"]
    lines += [f"  {pe_name(pe)} {_cause(wait, waits, queues)}" for pe, wait in waits.items()]
    cycle = find_cycle({pe: awaited(wait, queues) for pe, wait in waits.items()})
    if cycle:
        lines.append("who waits for whom: " + " -> ".join(pe_name(pe) for pe in (*cycle, cycle[0])))
        lines += _advice([waits[pe] for pe in cycle], queues)
    else:
        lines.append("no cycle: the waits end at PEs that wait for no queue")
    return lines


def awaited(wait: QueueWait, queues: Queues) -> tuple[PeCoord, ...]:
    """The PEs that could end a wait."""
    pairs = queues[wait.pe]
    if wait.direction is None:
        return tuple(pair.peer.pe for pair in pairs.values() if pair.my_rx_base_pa is not None)
    return (pairs[wait.direction].peer.pe,)


def find_cycle(edges: Mapping[PeCoord, tuple[PeCoord, ...]]) -> tuple[PeCoord, ...]:
    """The first cycle that a walk along the edges closes, by the order of the PEs; empty when there is none."""
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


def _cause(wait: QueueWait, waits: Waits, queues: Queues) -> str:
    where = f"line {wait.line}"
    if wait.direction is None:
        held = [pair.direction for pair in queues[wait.pe].values() if pair.held >= pair.n_slots]
        full = f"; its kernel holds all slots of {', '.join(held)}: drop handles (del)" if held else ""
        return f"receives from any queue ({where}): no message has come{full}"
    pair = queues[wait.pe][wait.direction]
    peer, there = pe_name(pair.peer.pe), queues.get(pair.peer.pe, {}).get(pair.peer.direction)
    other = f"queue {pair.peer.direction} of {peer}"
    pointers = f"here {pair.counters}; there {there.counters if there else 'nothing is installed'}"
    if wait.kind == "recv":
        idle = (
            ""
            if pair.peer.pe in waits
            else f"; {peer} waits for no queue: it has sent all it will, has failed, or never ran"
        )
        return f"receives from queue {pair.direction} ({where}): {_no_message(pair, other)}{idle} [{pointers}]"
    return f"sends by queue {pair.direction} ({where}): {_no_slot(pair, other, there)} [{pointers}]"


def _no_message(pair: QueuePair, other: str) -> str:
    if pair.held >= pair.n_slots:
        return (
            f"its kernel holds all {pair.n_slots} slots of this queue, so that the next message has no place; "
            f"drop handles (del) or receive copies (dst_space='tcm')"
        )
    return f"no message from {other}"


def _no_slot(pair: QueuePair, other: str, there: QueuePair | None) -> str:
    taken = pair.my_head - pair.peer_tail_cache
    if taken < pair.n_slots:
        text = f"{taken} slots of {other} are taken, no fewer than its window"
    else:
        text = f"all {taken} slots of {other} are taken"
    if there is None:
        return text
    unread = there.peer_head_cache - min(there.taken, there.peer_head_cache)
    return f"{text}: its kernel holds {there.held} of them and has yet to receive {unread}"


def _advice(cycle: Sequence[QueueWait], queues: Queues) -> list[str]:
    """What a cycle of senders means, if every slot in it is held by a handle."""
    if any(wait.kind != "send" for wait in cycle):
        return []
    pairs = [queues[wait.pe][wait.direction] for wait in cycle if wait.direction is not None]
    ends = [queues[pair.peer.pe][pair.peer.direction] for pair in pairs]
    taken = [pair.my_head - pair.peer_tail_cache for pair in pairs]
    if any(end.held < slots for end, slots in zip(ends, taken, strict=True)):
        return ["every PE of the cycle sends while its own messages wait to be received: receive in between"]
    if any(slots < pair.n_slots for pair, slots in zip(pairs, taken, strict=True)):
        return [
            "every PE of the cycle holds what it has received while it waits to send on, and windows let no more come. "
            "Send with a larger window, or receive copies (dst_space='tcm')"
        ]
    n_slots = max(pair.n_slots for pair in pairs)
    slots = "the only slot" if n_slots == 1 else f"all {n_slots} slots"
    return [
        f"every PE of the cycle holds {slots} it receives in while it waits to send on: with n_slots={n_slots}, "
        f"slots that are forwarded without a copy cannot move. Install more slots, or receive copies (dst_space='tcm')"
    ]


def dump_lines(queues: Queues, addresses: AddressMap) -> list[str]:
    """The pointers of every queue pair, a line each."""
    lines = ["queue pairs:"]
    for pe, pairs in queues.items():
        lines += [f"  {pe_name(pe)} {_dumped(pair, addresses)}" for pair in pairs.values()]
    return lines


def _dumped(pair: QueuePair, addresses: AddressMap) -> str:
    base = pair.my_rx_base_pa
    ring = "sends only" if base is None else f"receives at {PhysAddr.decode(base, addresses.format)!r}"
    return f"{pair.direction} <-> {pe_name(pair.peer.pe)} {pair.peer.direction}: {pair.counters}; {ring}"
