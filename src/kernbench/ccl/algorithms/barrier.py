"""Barrier over SIPs: no rank goes on before all have come.

Steps: n-1 rounds, in each of which every rank sends a token to the next and waits for that of the one before: after
round k it knows that the k ranks before it have come. Time: (n-1) alpha.
"""

from __future__ import annotations

from typing import Any

from kernbench.ccl.steps.sip_rings import ring_args, sip_ring


def kernel_args(*, world_size: int, **config: Any) -> tuple[Any, ...]:
    """The ring as for ``sip_allreduce``; ``n_elem`` is not looked at."""
    return ring_args(world_size, **config)


def kernel(_: int | None, order: tuple[int, ...], after: str, before: str, *, tl: Any) -> None:
    """Wait for all ranks; no tensor is looked at."""
    ring = sip_ring(order, after, before, tl).ring
    token = tl.zeros(1, "i32")
    for _ in range(ring.size - 1):
        tl.send(ring.next, token)
        tl.recv(ring.prev, 1, "i32")
