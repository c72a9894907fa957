"""Exchange over SIPs: every rank sends a block of any size to every other rank, by the direct queue between them.

Scatter and gather are exchanges in which one rank sends, or receives, all blocks.

Steps: rounds. In each round a rank requests one message of each rank that has more for it. It then sends one to each
rank for which it has more, the next rank first. Messages to all ranks are thus in flight together, on all links.
Nothing is computed.

No deadlock: take the rank that is furthest behind. Before a send, it and its receiver have requested all messages of
this round, so the receiver empties the slots of earlier rounds without sending.
Time: alpha + the bytes of the busiest link / B.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from kernbench.ccl.pieces import Messages, messages_of
from kernbench.ccl.rings import over_sips
from kernbench.ccl.topologies import direct_direction
from kernbench.messages.steps import Chunk, Step, receive, send, store
from kernbench.triton_emu.schedules import ScheduledKernel

_COLUMNS = 7


class _Blocks(NamedTuple):
    """The blocks of a PE for one rank: ``sent`` to it and ``received`` from it, in elements."""

    peer: int
    sent: Chunk
    received: Chunk


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    stride: int = 0,
    cube: int = 0,
    pe: int = 0,
    blocks: tuple[int, ...] = (),
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that send and receive the blocks of this PE.

    A line of ``blocks`` has cube, PE, peer, first element and size of the block to send, and of the block to receive.
    Without lines, there is a block of ``n_elem`` elements for each rank, and they begin ``stride`` elements apart. A
    block for the rank itself is copied.
    """
    sips, messages = over_sips(rank, world_size, **config), messages_of("sum", chunk_size, **config)
    lines = [blocks[at : at + _COLUMNS] for at in range(0, len(blocks), _COLUMNS)]
    by_peer = {
        line[2]: _Blocks(line[2], Chunk(line[3], line[4]), Chunk(line[5], line[6], 1))
        for line in lines
        if line[:2] == (cube, pe)
    }
    if not blocks:
        starts = [(peer, slot * stride) for slot, peer in enumerate(sorted(sips.order))]
        by_peer = {peer: _Blocks(peer, Chunk(at, n_elem), Chunk(at, n_elem, 1)) for peer, at in starts}
    order, here = sips.order, sips.order.index(rank)
    ahead = [by_peer[peer] for peer in (*order[here + 1 :], *order[:here]) if peer in by_peer]
    steps = _exchange(ahead, messages)
    return [*steps, *_copy(by_peer[rank], messages, len(steps))] if rank in by_peer else steps


def _exchange(blocks: list[_Blocks], messages: Messages) -> list[Step]:
    """Return the steps that exchange pieces with other ranks: ``blocks`` are in the order of the ring, ahead."""
    sent = [[(b.peer, piece) for piece in messages.pieces(b.sent)] for b in blocks]
    received = [[(b.peer, piece) for piece in messages.pieces(b.received)] for b in reversed(blocks)]
    rounds_out, rounds_in = list(zip_longest(*sent)), list(zip_longest(*received))
    outgoing = [(number, item) for number, items in enumerate(rounds_out) for item in items if item]
    loads = messages.load_ahead([piece for _, (_, piece) in outgoing])
    steps: list[Step] = []
    at = 0
    for number in range(max(len(rounds_out), len(rounds_in))):
        for item in rounds_in[number] if number < len(rounds_in) else ():
            if item:
                queue = direct_direction(item[0])
                steps += [receive(queue, item[1].size), store(queue, item[1])]
        while at < len(outgoing) and outgoing[at][0] == number:
            buffer, begun = next(loads)
            steps += [*begun, send(direct_direction(outgoing[at][1][0]), buffer)]
            at += 1
    return steps


def _copy(block: _Blocks, messages: Messages, first: int) -> list[Step]:
    """Return the steps that copy the rank's own block; ``first`` is a free buffer number."""
    steps: list[Step] = []
    targets = messages.pieces(block.received)
    for buffer, loads in messages.load_ahead(messages.pieces(block.sent)):
        steps += [step._replace(to=first + int(step.to)) for step in loads]
        steps.append(store(first + buffer, targets[buffer]))
    return steps


kernel = ScheduledKernel(schedule, over="sips", tensors=2)
kernel_args = kernel.kernel_args
