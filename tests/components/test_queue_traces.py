"""Timelines of queues: sends, slots, waits, and the arrows between them."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from queue_support import install, launch, line_of, ring_of, share

from compiled import compiled
from kernbench.engine.engine import GraphEngine
from kernbench.observe.statistics import QueueUse, queue_traffic, sum_works
from kernbench.observe.trace_filter import parse_filter
from observed import events_of, log_of, logged

A, B, C = (0, 0, 0), (0, 0, 1), (0, 0, 2)
SMALL = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1")
PE = "SIP 0, cube 0, PE {}"
Event = dict[str, Any]


def traced() -> GraphEngine:
    """An engine whose run becomes a trace."""
    return logged(compiled(*SMALL), links=True)


def all_reduce(ptr: int, n: int, steps: int, work: int, tl: Any) -> None:
    """Every PE's tile passes round the ring; PE 0 comes late."""
    total = tile = tl.load(ptr, (n,), "f32")
    for _ in range(work if tl.program_id(0) == 0 else 0):
        tile = tl.exp(tile)
    for _ in range(steps):
        tl.send("E", tile)
        tile = tl.recv("W", (n,), "f32")
        total = total + tile
    tl.store(ptr, total)


def reduced(kind: Any = "tcm", n_slots: int = 2, work: int = 20) -> GraphEngine:
    engine = traced()
    install(engine, ring_of(A, B, C), n_slots=n_slots, kind=kind)
    data = share(engine, {pe: np.zeros(256, np.float32) for pe in (A, B, C)})
    launch(engine, all_reduce, data, 256, 2, work, pes=(A, B, C))
    engine.drain()
    return engine


def names(events: list[Event]) -> dict[tuple[int, int], tuple[str, str]]:
    """Process and thread, without its lane, by (pid, tid)."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {
        (e["pid"], e["tid"]): (processes[e["pid"]], e["args"]["name"].split(" #")[0])
        for e in events
        if e["name"] == "thread_name"
    }


def spans(events: list[Event], pe: int, row: str) -> list[Event]:
    known = names(events)
    return [e for e in events if e["ph"] == "X" and known[e["pid"], e["tid"]] == (PE.format(pe), row)]


def flows(events: list[Event], name: str) -> list[tuple[tuple[str, str], float, tuple[str, str], float]]:
    """Where arrows leave, when, where they arrive, when. They pair up, and both ends lie in spans."""
    known = names(events)
    within = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            within[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    found = []
    for number, start in starts.items():
        end = ends[number]
        assert start["name"] == end["name"]
        assert start["ts"] <= end["ts"]
        for e in (start, end):
            assert any(low <= e["ts"] <= high for low, high in within[e["pid"], e["tid"]])
        if start["name"] == name:
            ways = known[start["pid"], start["tid"]], known[end["pid"], end["tid"]]
            found.append((ways[0], start["ts"], ways[1], end["ts"]))
    return found


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
def test_a_message_is_a_send_a_slot_and_an_arrow(kind: Any) -> None:
    events = events_of(reduced(kind))
    for pe, peer in ((0, 1), (1, 2), (2, 0)):
        sent, held = (
            sorted(given, key=lambda e: int(e["args"]["sequence"]))
            for given in (spans(events, pe, "ipcq"), spans(events, peer, "ipcq slots"))
        )
        assert [e["name"] for e in sent] == ["send E #0", "send E #1"]
        assert [e["name"] for e in held] == ["W #0", "W #1"]
        for number, (send, slot) in enumerate(zip(sent, held, strict=True)):
            assert send["args"] | {"line": 0} == slot["args"] | {
                "direction": "E",
                "peer": f"sip0.cube0.pe{peer}",
                "line": 0,
                "kernel": "all_reduce",
                "launch": send["args"]["launch"],
            }
            assert (send["args"]["sequence"], send["args"]["bytes"]) == (number, 1024)
            assert int(send["args"]["slot"], 16) > 0
            assert send["ts"] + send["dur"] == pytest.approx(slot["ts"], abs=1e-6)
    arrows = [each for each in flows(events, "message") if each[2][1] == "ipcq slots"]
    assert len(arrows) == 6
    assert {(src, dst) for src, _, dst, _ in arrows} == {
        ((PE.format(pe), "ipcq"), (PE.format(peer), "ipcq slots")) for pe, peer in ((0, 1), (1, 2), (2, 0))
    }
    rung = flows(events, "doorbell")
    assert len(rung) == (0 if kind == "tcm" else 6)
    assert {src[0] for src, *_ in rung} <= {"memories"}


def test_a_kernel_that_waits_for_a_message() -> None:
    engine = reduced()
    events = events_of(engine)
    (late, *_) = spans(events, 1, "cpu waits")
    assert late["name"] == "message of W"
    assert late["args"]["line"] == all_reduce.__code__.co_firstlineno + 7
    assert late["dur"] * 1000 > 15 * 5  # what PE 0 computes before
    ended = {round((e["ts"] + e["dur"]) * 1e6) for pe in range(3) for e in spans(events, pe, "cpu waits")}
    assert ended == {wait.end_ps for wait in log_of(engine).queues.waits}
    to_waits = [each for each in flows(events, "message") if each[2][1] == "cpu waits"]
    assert len(to_waits) == len(log_of(engine).queues.waits)
    assert ((PE.format(0), "ipcq"), (PE.format(1), "cpu waits")) in {(src, dst) for src, _, dst, _ in to_waits}


def pour(ptr: int, n: int, count: int, tl: Any) -> None:
    mine = tl.full((n,), 1.0, "f32")
    for _ in range(count):
        if tl.program_id(0) == 0:
            tl.send("E", mine)
        else:
            mine = mine + tl.recv("W", (n,), "f32")


def test_a_sender_that_waits_for_a_slot() -> None:
    engine = traced()
    install(engine, line_of(A, B), n_slots=1)
    data = share(engine, {pe: np.zeros(64, np.float32) for pe in (A, B)})
    launch(engine, pour, data, 64, 5, pes=(A, B))
    engine.drain()
    events = events_of(engine)
    waits = spans(events, 0, "cpu waits")
    assert {e["name"] for e in waits} == {"slot of E"}
    assert len(waits) == 4
    arrows = flows(events, "credit")
    assert {(src, dst) for src, _, dst, _ in arrows} == {((PE.format(1), "ipcq slots"), (PE.format(0), "cpu waits"))}
    assert len(arrows) == 4
    held = spans(events, 1, "ipcq slots")
    assert [e["name"] for e in held] == [f"W #{k}" for k in range(5)]
    assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(held))  # there is one slot


def test_spans_of_a_thread_do_not_overlap() -> None:
    events = events_of(reduced())
    by_thread = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            by_thread[e["pid"], e["tid"]].append(e)
    for given in by_thread.values():
        for before, after in pairwise(given):
            assert int(before["ts"] * 1000) + int(before["dur"] * 1000) <= int(after["ts"] * 1000)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("ipcq", {"ipcq", "ipcq slots"}),
        ("waits", {"cpu waits"}),
        ("cpu,!waits", {"cpu"}),
        ("sip0.cube0.pe1.pe_ipcq,!links", {"ipcq", "ipcq slots"}),
    ],
)
def test_filters(text: str, rows: set[str]) -> None:
    engine = reduced()
    events = events_of(engine, parse_filter(text, engine.machine.graph.nodes))
    assert {row for _, row in names(events).values()} == rows
    flows(events, "message")


def test_what_is_under_way_is_shown_up_to_now() -> None:
    """A message that nobody takes stays in its slot."""
    engine = traced()
    install(engine, line_of(A, B))
    data = share(engine, {pe: np.zeros(64, np.float32) for pe in (A, B)})
    launch(engine, pour, data, 64, 1, pes=(A,))
    engine.drain()
    (held,) = spans(events_of(engine), 1, "ipcq slots")
    assert (held["ts"] + held["dur"]) * 1e6 == pytest.approx(engine.machine.clock.time)


def test_nobody_listens_unless_asked_and_observing_changes_no_time() -> None:
    plain = GraphEngine(compiled(*SMALL), enable_data=False)
    hooks = plain.machine.hooks
    assert not any((hooks.queue.listeners, hooks.queue_waited.listeners, hooks.slot_released.listeners))
    install(plain, ring_of(A, B, C), n_slots=2)
    data = share(plain, {pe: np.zeros(256, np.float32) for pe in (A, B, C)})
    launch(plain, all_reduce, data, 256, 2, 20, pes=(A, B, C))
    plain.drain()
    assert (plain.now, plain.n_events) == ((seen := reduced()).now, seen.n_events)


def test_traffic_by_pe_and_direction() -> None:
    engine = reduced()
    found = queue_traffic(engine.machine, sum_works(log_of(engine).seen.works))
    assert [(each.pe, each.sent, each.messages, each.nbytes) for each in found] == [
        (pe, (QueueUse("E", 2, 2048),), 2, 2048) for pe in (A, B, C)
    ]
    sends = [work for work in log_of(engine).seen.each_work() if work.engine == "ipcq" and work.pe == A]
    assert found[0].busy_ns * 1000 == sum(work.end_ps - work.start_ps for work in sends)
    assert queue_traffic(traced().machine, sum_works(log_of(engine).seen.works)) == ()
