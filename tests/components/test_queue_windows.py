"""A send with a window: it goes while fewer messages of its queue than that are unreleased."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from queue_support import assert_settled, held, install, launch, line_of, ring_of, share

from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import IpcqDeadlock, KernelError
from kernbench.core.clock import Clock
from kernbench.engine.engine import GraphEngine
from kernbench.engine.hooks import QueueEvent, QueueWaited
from kernbench.engine.queue_state import QueuePair
from kernbench.messages.queues import QueuePeer, QueueSetup
from kernbench.topology.builder import Topology

A, B, C = (0, 0, 0), (0, 0, 1), (0, 0, 2)


@pytest.fixture
def engine(topology: Topology) -> GraphEngine:
    return GraphEngine(topology)


def numbers(engine: GraphEngine, *pes: tuple[int, int, int], n: int = 16) -> Any:
    return share(engine, {pe: np.full(n, i, np.float32) for i, pe in enumerate(pes)})


def pour(ptr: int, n: int, windows: Any, tl: Any) -> None:
    """PE 0 sends a message with each of ``windows`` (None: without), PE 1 adds them up, taking its time."""
    mine = tl.load(ptr, (n,), "f32")
    if tl.program_id(0) == 0:
        for window in windows:
            if window is None:
                tl.send("E", mine)
            else:
                tl.send("E", mine, window=window)
        return
    total = tl.zeros((n,), "f32")
    for _ in windows:
        total = total + tl.exp(tl.recv("W", (n,), "f32") * 0.0)
        tl.wait(total)
    tl.store(ptr, total)


def events_of(topology: Topology, windows: list[int | None], **settings: Any) -> list[tuple[str, int, int]]:
    """Kind, number and time in ps of all that happens at the queues."""
    engine = GraphEngine(topology)
    install(engine, line_of(A, B), **settings)
    events: list[QueueEvent] = []
    engine.machine.hooks.queue.subscribe(events.append)
    data = numbers(engine, A, B, n=1024)
    launch(engine, pour, data, 1024, windows, pes=(A, B))
    assert held(engine, data, B)[0] == len(windows)
    assert_settled(engine, (A, B))
    return [(event.kind, event.sequence, event.time_ps) for event in events]


@pytest.mark.parametrize("settings", [{}, {"kind": "hbm"}, {"backpressure": "poll", "poll_ns": 13.0}])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_window_of_many_slots_is_as_so_many_slots(topology: Topology, window: int, settings: dict[str, Any]) -> None:
    """To the picosecond."""
    assert events_of(topology, [window] * 12, n_slots=8, **settings) == events_of(
        topology, [None] * 12, n_slots=window, **settings
    )


def test_a_window_larger_than_the_queue_changes_nothing(topology: Topology) -> None:
    assert events_of(topology, [9] * 12, n_slots=3) == events_of(topology, [None] * 12, n_slots=3)


@pytest.mark.parametrize("settings", [{}, {"backpressure": "poll", "poll_ns": 13.0}])
def test_a_window_waits_for_all_that_went_without_it(engine: GraphEngine, settings: dict[str, Any]) -> None:
    """Six go at once; the seventh, alone in its window, when the last of them has been released."""
    install(engine, line_of(A, B), n_slots=8, **settings)
    waits: list[QueueWaited] = []
    released: list[tuple[int, int]] = []
    sent: dict[int, int] = {}
    hooks = engine.machine.hooks
    hooks.queue_waited.subscribe(waits.append)
    hooks.slot_released.subscribe(lambda event: released.append((event.sequence, event.credited_ps or 0)))
    hooks.queue.subscribe(lambda event: sent.setdefault(event.sequence, event.time_ps) if event.kind == "send" else 0)
    data = numbers(engine, A, B, n=1024)
    launch(engine, pour, data, 1024, [None] * 6 + [1], pes=(A, B))
    last = next(when for sequence, when in released if sequence == 5)
    assert last <= sent[6] <= last + 13_000
    (wait,) = [wait for wait in waits if wait.kind == "send"]
    assert wait.sequence == 6
    assert wait.start_ps < next(when for sequence, when in released if sequence == 0) < wait.end_ps == sent[6]
    assert_settled(engine, (A, B))


def test_a_pair_gives_no_slot_beyond_a_window() -> None:
    setup = QueueSetup(
        direction="E", peer=QueuePeer(pe=B, direction="W", rx_base_pa=0), rx_base_pa=None, n_slots=4, slot_size=64
    )
    pair = QueuePair.installed(setup, Clock())
    assert [pair.claim(2) for _ in range(3)] == [0, 1, None]
    assert [pair.claim(9) for _ in range(3)] == [2, 3, None]
    pair.peer_tail_cache = 2
    assert pair.claim(2) is None
    pair.peer_tail_cache = 3
    assert pair.claim(2) == 4


@pytest.mark.parametrize("window", [0, -1, 1.5, "2", None, True])
def test_a_window_that_is_none_is_told(engine: GraphEngine, window: Any) -> None:
    def kernel(ptr: int, tl: Any) -> None:
        tl.send("E", tl.load(ptr, (16,), "f32"), window=window)

    install(engine, line_of(A, B))
    with pytest.raises(KernelError, match=r"window=.*1 or more"):
        launch(engine, kernel, numbers(engine, A, B), pes=(A,))


def forward(ptr: int, steps: int, tl: Any) -> None:
    """A ring that forwards slots, with a window of one: as with one slot."""
    tile = tl.load(ptr, (16,), "f32")
    for _ in range(steps):
        tl.send("E", tile, window=1)
        tile = tl.recv("W", (16,), "f32")
    tl.store(ptr, tile)


def test_a_deadlock_says_that_it_was_the_window(engine: GraphEngine) -> None:
    install(engine, ring_of(A, B, C), n_slots=4)
    told = r"(?s)Send with a larger window.*1 slots of queue W of .*pe1 are taken, no fewer than its window"
    with pytest.raises(IpcqDeadlock, match=told):
        launch(engine, forward, numbers(engine, A, B, C), 3, pes=(A, B, C))


def test_the_mock_keeps_to_a_window_too() -> None:
    inputs = [np.full(16, rank, np.float32) for rank in range(3)]
    with pytest.raises(IpcqDeadlock, match="no fewer than its window"):
        run_kernel_in_mock(forward, 3, "ring_1d", inputs, (3,))
