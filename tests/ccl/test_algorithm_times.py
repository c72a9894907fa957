"""How long collectives take on the machine, against their closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from algorithm_support import algorithm, all_reduce, small

from kernbench.sim_engine.hooks import QueueEvent

RANKS = 8
LINK_GBS = 256.0


def span_ns(nbytes: int, name: str = "ring_allreduce_rs_ag") -> float:
    """From the first send to the last arrival."""
    run = all_reduce(algorithm(name, "ring_1d", RANKS), small(), lambda pe: np.zeros(nbytes // 4, np.float32))
    events: list[QueueEvent] = []
    run.watch = lambda engine: engine.machine.hooks.queue.subscribe(events.append)
    run.enable_data = False
    run.on_machine()
    sent = min(e.time_ps for e in events if e.kind == "send")
    return (max(e.time_ps for e in events if e.kind == "arrive") - sent) / 1000


@pytest.mark.slow
def test_a_ring_of_large_parts_runs_at_four_fifths_of_its_bandwidth() -> None:
    alpha = span_ns(RANKS * 4) / (2 * (RANKS - 1))
    nbytes = 1 << 20
    ideal = 2 * (RANKS - 1) / RANKS * nbytes / LINK_GBS + 2 * (RANKS - 1) * alpha
    assert span_ns(nbytes) <= ideal / 0.8


def test_small_messages_cost_their_latency_only() -> None:
    assert span_ns(RANKS * 4) < 2 * (RANKS - 1) * 20
