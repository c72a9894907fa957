"""All-reduce by passing every rank's tile once round the ring.

Steps: n-1 for each piece of the tile. A rank passes each message on unchanged from its slot, and adds the message to
its own data. Each rank has half as many pieces in flight as a queue has slots, because in a ring of full queues no rank
could send. A piece that has visited all ranks frees space for the next piece.

Rounding: each rank adds in a different order, so more than two ranks may differ in the last bits.
Time: (n-1) (S/B + alpha), or more if the links idle because a queue has few slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kernbench.ccl.pieces import Messages, messages_of
from kernbench.messages.steps import Chunk, ChunkSource, Step, await_message, copy, load, send, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,  # noqa: ARG001 - all ranks do the same
    world_size: int,
    n_elem: int,
    reduce_op: str = "sum",
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that reduce the ``n_elem`` elements of each rank.

    With more than two slots several pieces travel at once.
    """
    messages = messages_of(reduce_op, chunk_size, **config)
    # Throughput is highest with half of the slots in flight and half free; a power of two divides most tensors evenly.
    lanes = 1 << max(0, (messages.n_slots // 2).bit_length() - 1)
    steps: list[Step] = []
    for segment in messages.segments(n_elem) if world_size > 1 else ():
        pieces = messages.pieces(segment)
        steps += [load(i, piece) for i, piece in enumerate(pieces)]
        steps += _pass_round(pieces, world_size, min(lanes, len(pieces)), messages)
        steps += [store(i, piece) for i, piece in enumerate(pieces)]
    return steps


def _pass_round(pieces: list[Chunk], world_size: int, lanes: int, messages: Messages) -> list[Step]:
    """Return the steps that reduce ``pieces`` in ``lanes``; the pieces of a lane travel round one after the other."""
    steps = [send("E", i) for i in range(lanes)]
    spare = len(pieces)
    passing: ChunkSource = "W" if messages.n_slots > 1 else spare  # a single slot has to be free before a rank can send
    for i, hop in _arrivals(len(pieces), lanes, world_size - 1):
        steps.append(await_message("W", pieces[i].size))
        if passing != "W":
            steps.append(copy(spare, "W"))
        if hop < world_size - 1:
            steps.append(send("E", passing))
        elif i + lanes < len(pieces):
            steps.append(send("E", i + lanes))
        steps.append(messages.add(i, passing))
        if hop == world_size - 1:
            steps += messages.finish(i, world_size)
    return steps


def _arrivals(pieces: int, lanes: int, hops: int) -> Iterator[tuple[int, int]]:
    """Yield each arriving piece and the number of its hops, in the order in which every rank sends."""
    for arrival in range(-(-pieces // lanes) * hops):
        for lane in range(lanes):
            piece = lane + arrival // hops * lanes
            if piece < pieces:
                yield piece, arrival % hops + 1


kernel = ScheduledKernel(schedule, alike=True)
kernel_args = kernel.kernel_args
