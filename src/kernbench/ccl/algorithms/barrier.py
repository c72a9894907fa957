"""Barrier over SIPs: no rank continues before all ranks have arrived.

Steps: n-1 rounds. In each round every rank sends a token to the next rank and waits for the token of the previous one.
After round k, the k previous ranks have arrived. Time: (n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.rings import over_sips
from kernbench.messages.steps import Step, await_message, send, zero
from kernbench.triton_emu.schedules import ScheduledKernel


def schedule(*, rank: int, world_size: int, **config: Any) -> list[Step]:
    """Return the steps in which this rank waits for all ranks; the steps read no tensor."""
    ring = over_sips(rank, world_size, **config).ring
    one_round = [send(ring.next, 0), await_message(ring.prev, 1)]
    return [zero(0, 1), *one_round * (ring.size - 1)]


kernel = ScheduledKernel(schedule, over="sips")
kernel_args = kernel.kernel_args
