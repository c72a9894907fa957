"""Send from one rank to another: each PE sends to the same PE of the other SIP, by the direct queue between them.

Steps: one. Nothing is computed. Time: S/B + alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.pieces import messages_of
from kernbench.ccl.rings import check_rank, check_ranks
from kernbench.messages.steps import Chunk, Step, receive, send, store
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(
    *,
    rank: int,
    world_size: int,
    n_elem: int,
    src: int = 0,
    dst: int = 1,
    ranks_are_sips: bool = True,
    chunk_size: int | None = None,
    **config: Any,
) -> list[Step]:
    """Return the steps that overwrite the ``n_elem`` elements of ``dst`` with those of ``src``.

    Other ranks have no steps.
    """
    check_ranks(world_size, ranks_are_sips=ranks_are_sips)
    for name, endpoint in (("src", src), ("dst", dst)):
        check_rank(name, endpoint, world_size)
    messages = messages_of("sum", chunk_size, **config)
    pieces = messages.pieces(Chunk(0, n_elem))
    steps: list[Step] = []
    if rank == src != dst:
        for buffer, loads in messages.load_ahead(pieces):
            steps += [*loads, send(f"sip{dst}", buffer)]
    elif rank == dst != src:
        for piece in pieces:
            steps += [receive(f"sip{src}", piece.size), store(f"sip{src}", piece)]
    return steps


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.kernel_args
