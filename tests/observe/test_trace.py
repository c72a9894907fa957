"""Timelines: files that Perfetto reads without a warning, and what they show."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_support import Placed, machine, place
from ideal_memory import IDEAL, SLICE_GBS
from kernbench.common.errors import InputError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import (
    KernelLaunchMsg,
    KernelRef,
    MemoryWriteMsg,
    PeCoord,
)
from kernbench.observe.energy import EnergyCounts
from kernbench.observe.energy_events import choose_window_ns, measure_power
from kernbench.observe.trace import make_trace
from kernbench.observe.trace_filter import EVERYTHING, TraceFilter, parse_filter
from kernbench.observe.trace_io import trace_events, write_trace
from kernbench.observe.trace_log import TraceLog
from kernbench.observe.trace_model import Trace, Track, TrackGroup, TrackSpan
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import events_of, log_of, logged

SMALL = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1", "system.sips.count=1")
NS = 1e-3
"""of a µs"""
Event = dict[str, Any]


def traced(*overrides: str, links: bool = True) -> GraphEngine:
    """An engine whose run becomes a trace."""
    return logged(machine(*SMALL, *overrides), links=links)


def run(
    engine: GraphEngine,
    kernel: Callable[..., object],
    *args: Placed | int,
    targets: tuple[PeCoord, ...] = ((0, 0, 0),),
) -> None:
    given = tuple(a.arg if isinstance(a, Placed) else a for a in args)
    ref = KernelRef(name=kernel.__name__, function=kernel)
    engine.wait(engine.submit(KernelLaunchMsg(name="work", kernel=ref, args=given, targets=targets)))


def gemm(a: int, b: int, c: int, size: int, *, tl: Tl) -> None:
    tl.composite("gemm", tl.ref(a, (size, size), "f16"), tl.ref(b, (size, size), "f16"), out_ptr=c)


def mixed(p: int, *, tl: Tl) -> None:
    x = tl.load(p, (96, 64), "f16")
    y = tl.load(p, (96, 64), "f16")
    tl.store(p, tl.exp(tl.dot(x, y, trans_b=True)) + 1.0)
    tl.barrier()
    tl.composite("add", tl.ref(p, (96, 64), "f16"), x, out_ptr=p)


def traced_gemm(size: int = 64, *overrides: str, **more: bool) -> GraphEngine:
    engine = traced(*overrides, **more)
    run(engine, gemm, *(place(engine, np.zeros((size, size), np.float16)) for _ in range(3)), size)
    return engine


def traced_mix() -> GraphEngine:
    engine = traced("transport.express=false")
    x = place(engine, np.zeros((96, 96), np.float16))
    run(engine, mixed, x, targets=((0, 0, 0), (0, 0, 5), (0, 1, 3)))
    return engine


def names(events: list[Event]) -> dict[tuple[int, int], tuple[str, str]]:
    """Process and thread names by (pid, tid)."""
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return {
        (e["pid"], e["tid"]): (processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"
    }


def spans(events: list[Event], process: str, thread: str) -> list[Event]:
    """The spans of threads whose name begins with ``thread``."""
    known = names(events)
    keys = {key for key, (p, t) in known.items() if p == process and t.split(" #")[0] == thread}
    return [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in keys]


def check_perfetto(events: list[Event]) -> None:
    """All that its importer complains about, in the whole ns that it keeps."""
    assert {e["ph"] for e in events} <= {"M", "X", "s", "f", "C"}
    counters = [e for e in events if e["ph"] == "C"]
    events = [e for e in events if e["ph"] != "C"]
    known = names(events)
    check_counters(counters, {pid for pid, _ in known})
    pids, tids = {pid for pid, _ in known}, [tid for _, tid in known]
    assert len(set(tids)) == len(tids)
    assert not pids & set(tids)
    timed = [e for e in events if e["ph"] != "M"]
    assert all((e["pid"], e["tid"]) in known for e in timed)
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    assert all(isinstance(e["ts"], float) and e["ts"] >= 0 and e.get("dur", 0.0) >= 0 for e in timed)
    by_thread: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for e in timed:
        if e["ph"] == "X":
            assert e["name"]
            by_thread[e["pid"], e["tid"]].append(e)
    assert set(by_thread) == set(known)  # no empty track
    for given in by_thread.values():
        for before, after in pairwise(given):
            assert int(before["ts"] * 1000) + int(before["dur"] * 1000) <= int(after["ts"] * 1000)
    check_flows(timed, by_thread)


def check_counters(counters: list[Event], pids: set[int]) -> None:
    """Counters have one number each, in order of time, and a process apart."""
    for name in {e["name"] for e in counters}:
        samples = [e for e in counters if e["name"] == name]
        assert [e["ts"] for e in samples] == sorted({e["ts"] for e in samples})
        assert all(set(e["args"]) == {"W"} and e["args"]["W"] >= 0 for e in samples)
        assert {e["pid"] for e in samples}.isdisjoint(pids)


def test_the_power_of_each_die_is_a_counter() -> None:
    """The samples of a die add up to its energy; a filter leaves the counters out."""
    engine = traced_gemm()
    log, energy = log_of(engine), engine.machine.spec.energy
    assert energy is not None
    counters = [e for e in events_of(engine) if e["ph"] == "C"]
    assert {e["name"] for e in counters} >= {"dynamic power of sip0.cube0", "dynamic power of sip0.io"}
    curve = measure_power(EnergyCounts(engine.machine, energy, log.seen.columns), log.seen, choose_window_ns(log.seen))
    watts = sum(e["args"]["W"] for e in counters if e["name"] == "dynamic power of sip0.cube0")
    assert watts == pytest.approx(curve.watts[0, 0].sum(), rel=1e-5)
    hidden = events_of(engine, parse_filter("!power", engine.machine.graph.nodes))
    assert not any(e["ph"] == "C" for e in hidden)


def check_flows(timed: list[Event], by_thread: dict[tuple[int, int], list[Event]]) -> None:
    starts = {e["id"]: e for e in timed if e["ph"] == "s"}
    ends = {e["id"]: e for e in timed if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) + len(ends) == sum(e["ph"] in "sf" for e in timed)
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert start["ts"] <= end["ts"]
        for e in (start, end):
            around = [s for s in by_thread[e["pid"], e["tid"]] if s["ts"] <= e["ts"] <= s["ts"] + s["dur"]]
            assert around, e


@pytest.mark.parametrize("make", [traced_gemm, traced_mix])
def test_a_trace_is_what_perfetto_wants(make: Callable[[], GraphEngine]) -> None:
    engine = make()
    engine.wait(engine.submit(MemoryWriteMsg(pa=place(engine, np.zeros(64, np.float16)).pa, nbytes=64, pattern=b"1")))
    check_perfetto(events_of(engine))


def test_tracks_of_a_pe() -> None:
    engine = traced_mix()
    found = set(names(events_of(engine)).values())
    of_pe = {thread.split(" #")[0] for process, thread in found if process == "SIP 0, cube 0, PE 5"}
    assert of_pe == {"cpu", "scheduler", "DMA in", "fetch", "GEMM", "MATH", "store", "DMA out"}
    assert ("host", "requests") in found
    assert ("SIP 0", "io_cpu") in found
    assert ("SIP 0, cube 1", "m_cpu") in found
    assert any(process == "memories" and thread.startswith("sip0.cube0.hbm0") for process, thread in found)
    assert ("links", "host → switch") in found


def test_the_next_tile_comes_in_while_one_is_multiplied() -> None:
    events = events_of(traced_gemm())
    tiles = [f"{i},{j},0" for i in range(2) for j in range(2)]
    products = {e["name"].removeprefix("tile "): e for e in spans(events, "SIP 0, cube 0, PE 0", "GEMM")}
    reads: dict[str, list[Event]] = defaultdict(list)
    for e in spans(events, "SIP 0, cube 0, PE 0", "DMA in"):
        reads[e["name"].split()[1]].append(e)
    assert list(products) == tiles
    for tile, following in pairwise(tiles):
        product = products[tile]
        assert all(product["ts"] >= e["ts"] + e["dur"] - 1e-9 for e in reads[tile])
        assert any(
            e["ts"] < product["ts"] + product["dur"] and product["ts"] < e["ts"] + e["dur"] for e in reads[following]
        )


def test_spans_say_what_the_log_says() -> None:
    engine = traced_gemm()
    events = events_of(engine)
    products = [r for r in engine.op_log if r.kind == "gemm" and r.tile is not None]
    found = spans(events, "SIP 0, cube 0, PE 0", "GEMM")
    assert [(round(e["ts"] * 1e6), round(e["dur"] * 1e6)) for e in found] == [
        (r.t_start_ps, r.t_end_ps - r.t_start_ps) for r in products
    ]
    assert {e["args"]["line"] for e in found} == {gemm.__code__.co_firstlineno + 1}
    (kernel,) = spans(events, "SIP 0, cube 0, PE 0", "cpu")
    assert (kernel["name"], kernel["args"]["late"]) == ("work", False)
    (launch,) = [e for e in spans(events, "host", "requests") if e["name"].startswith("KernelLaunch")]
    assert launch["name"] == "KernelLaunch work"


def test_links_carry_one_thing_at_a_time_and_all_bytes() -> None:
    engine = traced_gemm()
    events = events_of(engine, TraceFilter(("links",)))
    assert not any("#" in thread for _, thread in names(events).values())
    for (src, dst), link in engine.machine.network.links.items():
        carried = sum(int(e["name"].split()[0]) for e in spans(events, "links", f"{src} → {dst}"))
        assert carried == link.nbytes


def test_a_memory_works_at_least_as_long_as_its_accesses_take() -> None:
    """Turns overlap in its channels."""
    engine = traced_gemm(128, *IDEAL)
    turns = spans(events_of(engine), "memories", "sip0.cube0.hbm0")
    seen = log_of(engine).seen
    answers = seen.transfers.nbytes[seen.answers[seen.asks]]  # the bytes of what is read, and headers
    moved = np.maximum(seen.transfers.nbytes[seen.asks], answers).sum()
    covered, until = 0.0, 0.0
    for e in turns:
        covered += max(0.0, e["ts"] + e["dur"] - max(until, e["ts"]))
        until = max(until, e["ts"] + e["dur"])
    assert moved / SLICE_GBS * (1 - 1e-6) <= covered * 1e3 <= 1.1 * moved / SLICE_GBS


def test_messages_go_from_where_they_leave_to_where_they_arrive() -> None:
    engine = traced_mix()
    events = events_of(engine)
    known = names(events)
    ways = defaultdict(set)
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    for e in events:
        if e["ph"] == "s":
            end = ends[e["id"]]
            ways[e["name"]].add((known[e["pid"], e["tid"]][0], known[end["pid"], end["tid"]][0]))
    assert ways["SipOrder"] == {("host", "SIP 0")}
    assert ("SIP 0", "SIP 0, cube 1") in ways["CubeOrder"]
    assert ("SIP 0, cube 0", "SIP 0, cube 0, PE 5") in ways["PeOrder"]
    assert {("SIP 0, cube 1, PE 3", "SIP 0, cube 1"), ("SIP 0, cube 1", "SIP 0"), ("SIP 0", "host")} <= ways["Report"]
    assert ("SIP 0, cube 0, PE 5", "memories") in ways["request"]
    assert ("memories", "SIP 0, cube 0, PE 5") in ways["acknowledgement"]
    assert ways["data"] >= {("memories", "SIP 0, cube 0, PE 5"), ("SIP 0, cube 0, PE 5", "memories")}


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "processes"),
    [
        ("host", {"host"}),
        ("gemm,fetch", {"SIP 0, cube 0, PE 0"}),
        ("pes", {"SIP 0, cube 0, PE 0"}),
        ("sip0.cube0.hbm*,!links", {"memories"}),
        ("!links,!control,!pes", {"host", "memories"}),
        ("sip0.cube1.*,!links", {"SIP 0, cube 1"}),
    ],
)
def test_filters(text: str, processes: set[str]) -> None:
    engine = traced_gemm()
    events = events_of(engine, parse_filter(text, engine.machine.graph.nodes))
    check_perfetto(events)
    assert {process for process, _ in names(events).values()} == processes


@pytest.mark.parametrize("text", ["", "host,", "gmem", "!", "sip9.*", "!lniks"])
def test_bad_filters(text: str) -> None:
    with pytest.raises(InputError, match="kinds of track: host, control, pes"):
        parse_filter(text, machine(*SMALL).topology_obj.nodes)


def test_what_a_filter_never_keeps_need_not_be_observed() -> None:
    nodes = machine(*SMALL).topology_obj.nodes
    wanted = {text: parse_filter(text, nodes).may_keep("links") for text in ("!links", "pes", "links", "sip0.*", "l*")}
    assert wanted == {"!links": False, "pes": False, "links": True, "sip0.*": True, "l*": True}


def test_nothing_is_observed_unless_asked() -> None:
    engine = GraphEngine(machine(*SMALL), enable_data=False)
    plain, watched = engine.machine, GraphEngine(machine(*SMALL), False, observers=[TraceLog()]).machine
    assert [each.network.watch.on for each in (plain, watched)] == [False, True]
    assert not watched.network.watch.keeps_links
    assert plain.observation is None
    assert [bool(each.hooks.queue.listeners) for each in (plain, watched)] == [False, True]


def test_observing_changes_no_time() -> None:
    plain = GraphEngine(machine(*SMALL), enable_data=False)
    args = tuple(place(plain, np.zeros((64, 64), np.float16)).arg for _ in range(3))
    ref = KernelRef(name="gemm", function=gemm)
    plain.wait(plain.submit(KernelLaunchMsg(name="work", kernel=ref, args=(*args, 64), targets=((0, 0, 0),))))
    assert (plain.now, plain.n_events) == ((traced := traced_gemm()).now, traced.n_events)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file(tmp_path: Path) -> None:
    engine = traced_gemm()
    path = tmp_path / "trace.json"
    trace = make_trace(log_of(engine), engine.handles, EVERYTHING)
    count = write_trace(trace, path)
    document = json.loads(path.read_text())
    assert document["displayTimeUnit"] == "ns"
    assert document["traceEvents"] == list(trace_events(trace))
    assert len(document["traceEvents"]) == count
    again = traced_gemm()
    write_trace(make_trace(log_of(again), again.handles, EVERYTHING), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["again.json", "trace.json"]


def test_lanes_are_as_few_as_it_takes() -> None:
    track = Track(TrackGroup("p"), "row", 0, shown=True)
    trace = Trace(
        [TrackSpan("s", start, end, track=track) for start, end in ((0, 9), (1, 5), (5, 7), (9, 12), (6, 8), (9, 9))]
    )
    trace.assign_lanes()
    assert [span.lane for span in trace.spans] == [0, 1, 1, 0, 2, 0]


def test_times_keep_picoseconds_and_never_fall_below_their_ns() -> None:
    track = Track(TrackGroup("p"), "row", 0, shown=True)
    times = [1, 999, 1_003_000, 4_035_000, 123_456_789_012, 10**15 + 1]
    trace = Trace([TrackSpan("s", ps, ps + 1, track=track) for ps in times])
    shown = [e["ts"] for e in trace_events(trace) if e["ph"] == "X"]
    assert [round(ts * 1e6) for ts in shown] == times
    assert [int(ts * 1000) for ts in shown] == [ps // 1000 for ps in times]
