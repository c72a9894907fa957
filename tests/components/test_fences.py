"""``tl.fence``: a kernel goes on when what it has written is in memory, so that a message may say that it is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from queue_support import install, line_of

from causes import check_causes
from engine_support import Placed, fetch, launch, machine, place, two_cubes
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.dtypes import dtype
from kernbench.common.errors import IpcqDeadlock, KernelError
from kernbench.common.units import ps_to_ns
from kernbench.core.log import CAUSE, END, KIND, LAST, NONE, READ, START, WIDTH, By, Kind
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MappedShard, MemoryWriteMsg, MmuMapMsg, PeCoord, TensorArg, TensorMapping
from kernbench.observe.critical_path_model import PathPart
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.run_explanation import explain_run
from kernbench.topology.builder import Topology
from kernbench.triton_emu.tl_context import TLContext as Tl
from observed import events_of, findings, log_of, logged, sanitized
from path_support import SMALL, check_request, path_of, run, watched

N = 16384
A, B = (0, 0, 0), (0, 1, 0)
Array = np.ndarray[Any, Any]
Work = Callable[..., None]


def two_sips() -> Topology:
    return machine("sip.cube_mesh={w: 2, h: 1}")


def place_at(engine: GraphEngine, pa: int, array: Array, name: str = "x") -> Placed:
    """Write an array to a physical address, and map it for the PEs of SIP 0."""
    engine.wait(engine.submit(MemoryWriteMsg(pa=pa, nbytes=array.nbytes, data=array.reshape(-1).view(np.uint8))))
    va = engine.va_allocator(0).alloc(array.nbytes)
    shard = MappedShard(sip=0, cube=0, pe=0, offset_bytes=0, nbytes=array.nbytes, pa=pa)
    mapping = TensorMapping(name=name, va_base=va, nbytes=array.nbytes, shards=(shard,))
    engine.wait(engine.submit(MmuMapMsg(sip=0, mapping=mapping)))
    arg = TensorArg(name=name, va=va, shape=array.shape, dtype=dtype(array.dtype.name), owners=(A,))
    return Placed(arg, pa)


def slice_of(pe: PeCoord) -> Callable[[GraphEngine], int]:
    return lambda engine: engine.allocators[pe].alloc_hbm(4 * N).encode()


PLACES: dict[str, Callable[[GraphEngine], int]] = {
    "the writer's slice": slice_of(A),
    "the reader's slice": slice_of(B),
    "a third PE's slice": slice_of((0, 1, 5)),
    "another SIP": slice_of((1, 1, 3)),
    "SRAM": lambda engine: engine.cube_allocator(0, 1).alloc_sram(4 * N).encode(),
    "the TCM of another PE": lambda engine: PhysAddr.pe_tcm_addr(0, 0, 1, 3, 1 << 16).encode(),
}


def hand_over(write: Work, fenced: bool, read: Work | None = None) -> Work:
    """PE A writes and sends a token; PE B receives that and loads."""

    def kernel(x: int, y: int, *, tl: Tl) -> None:
        if tl.program_id(1) == 0:
            write(tl, x)
            if fenced:
                tl.fence()
            tl.send("E", tl.zeros(1, "i8"))
        else:
            tl.recv("W", 1, "i8")
            if read is None:
                tl.store(y, tl.load(x, N, "f32"))
            else:
                read(tl, x, y)

    return kernel


def handed_over(write: Work, fenced: bool, pa_of: Callable[[GraphEngine], int], *overrides: str) -> Handed:
    """What B finds, who is said to race, and when A's fence was over and the last write was in memory."""
    engine = sanitized(machine("sip.cube_mesh={w: 2, h: 1}", *overrides))
    install(engine, line_of(A, B))
    x, y = place_at(engine, pa_of(engine), np.zeros(N, np.float32)), place(engine, np.zeros(N, np.float32), B, "y")
    launch(engine, hand_over(write, fenced), x, y, targets=(A, B))
    check_causes(engine.machine)
    races = {each.tensor for each in findings(engine) if each.kind == "race"}
    ends = [end for _, _, end, _ in fences_of(engine)]
    return Handed(fetch(engine, y), races, ends, written_ps(engine))


class Handed(NamedTuple):
    found: Array
    races: set[str]
    fences: list[int]
    written: int


def fences_of(engine: GraphEngine) -> list[tuple[int, int, int, int]]:
    """When each fence began, had been issued, and was over; and the row that it waited for."""
    rows = engine.machine.log.rows
    found = [row for row in range(0, len(rows), WIDTH) if rows[row + KIND] == Kind.FENCE]
    return [(rows[row + START], rows[row + READ], rows[row + END], rows[row + LAST]) for row in found]


def written_ps(engine: GraphEngine) -> int:
    """When the last thing that A wrote was in memory."""
    mine = [each for each in engine.op_log if each.component.startswith("sip0.cube0.pe0") and each.parent < 0]
    return max(
        each.t_commit_ps
        for each in mine
        if each.kind in ("dma_write", "atomic") or (each.output is not None and each.output.space != "tcm")
    )


# --- what it is for ---------------------------------------------------------------------------------------------------


def store_all(tl: Tl, x: int) -> None:
    tl.store(x, tl.full(N, 7, "f32"))


@pytest.mark.parametrize("where", PLACES)
def test_a_message_says_that_bytes_are_there_only_behind_a_fence(where: str) -> None:
    """Without one the reader finds what was there before, and the sanitizer tells; with one neither."""
    bare, fenced = (handed_over(store_all, each, PLACES[where]) for each in (False, True))
    assert not bare.found.any()
    assert bare.races == {"x"}
    assert (fenced.found == 7).all()
    assert fenced.races == set()
    assert fenced.fences == [fenced.written]


def test_so_it_is_where_a_machine_compares_no_bytes() -> None:
    relaxed = "pe.dma.ordering=relaxed"
    bare, fenced = (handed_over(store_all, each, PLACES["the reader's slice"], relaxed) for each in (False, True))
    assert (bare.found.any(), bare.races) == (False, {"x"})
    assert ((fenced.found == 7).all(), fenced.races) == (True, set())
    assert fenced.fences == [fenced.written]


def test_the_example_of_the_documentation() -> None:
    """And what its comment says of it."""
    text = (Path(__file__).parents[2] / "docs" / "queues.md").read_text()
    code = text.split("```python\n")[2].split("```")[0]
    bare = "".join(line for line in code.splitlines(keepends=True) if "tl.fence()" not in line)
    seen = []
    for program in (code, bare):
        names: dict[str, Any] = {}
        exec(program, names)
        engine = sanitized(two_cubes())
        pes = (A, (0, 0, 1))
        install(engine, line_of(*pes))
        x, y = (place(engine, np.zeros(N, np.float32), pe) for pe in pes)
        launch(engine, names["hand_over"], x, y, N, targets=pes)
        seen.append((np.unique(fetch(engine, y)).tolist(), [each.kind for each in findings(engine)]))
    assert seen == [([7.0], []), ([0.0], ["race"])]


def masked(tl: Tl, x: int) -> None:
    tl.store(x, tl.full((128, 128), 7, "f32"), valid=(128, 100))


def strided(tl: Tl, x: int) -> None:
    tl.store(x, tl.full((128, 64), 7, "f32"), strides=(512, 8))


def scattered(tl: Tl, x: int) -> None:
    """In places of different lengths, some masked off."""
    runs = [(x + 4096 * i, 4 * (100 + i)) for i in range(10)]
    tl.store([*runs, (None, 4 * 55)], tl.full(1100, 7, "f32"))


def atomics(tl: Tl, x: int) -> None:
    for at in range(0, N, 4096):
        tl.atomic_add(x + 4 * at, tl.full(4096, 7, "f32"))


def fetched(tl: Tl, x: int) -> None:
    tl.atomic_xchg(x, tl.full(N, 7, "f32"), fetch=True)


def elementwise(tl: Tl, x: int) -> None:
    tl.composite("add", tl.ref(x, (128, 128), "f32"), 7, out_ptr=x)


def product(tl: Tl, x: int) -> None:
    a, b = tl.full((128, 1), 7, "f16"), tl.full((1, 128), 1, "f16")
    tl.composite("gemm", a, b, out_ptr=x, out_dtype="f32")


def two_at_once(tl: Tl, x: int) -> None:
    """The first one waits for MATH, and is in memory last."""
    slow = tl.full(N // 2, 0, "f32")
    for _ in range(4):
        slow = tl.exp(slow) * 0.0
    tl.store(x, slow + 7)
    tl.store(x + 2 * N, tl.full(N // 2, 7, "f32"))


WRITES: dict[Work, int] = {
    masked: 12800, strided: 8192, scattered: 1045, atomics: N, fetched: N, elementwise: N, product: N, two_at_once: N,
}  # fmt: skip


@pytest.mark.parametrize("write", WRITES, ids=lambda each: each.__name__)
def test_it_waits_for_whatever_writes_memory(write: Work) -> None:
    """Until the bytes are there, not until the acknowledgement is back; of composites until they end."""
    bare, fenced = (handed_over(write, each, PLACES["the reader's slice"]) for each in (False, True))
    assert np.count_nonzero(bare.found == 7) < WRITES[write]
    assert bare.races == {"x"}
    assert np.count_nonzero(fenced.found == 7) == WRITES[write]
    assert fenced.races == set()
    assert fenced.fences == [fenced.written]


@pytest.mark.parametrize("space", ["hbm", "sram", "tcm"])
def test_it_waits_for_a_message_that_is_copied_to_an_address(space: str) -> None:
    engine = GraphEngine(two_cubes())
    install(engine, line_of(A, B))
    x = place(engine, np.zeros(N, np.float32), B)
    sram = engine.cube_allocator(0, 0).alloc_sram(4096).encode()

    def kernel(x: int, *, tl: Tl) -> None:
        if tl.program_id(1):
            tl.send("W", tl.full(1024, 7, "f32"))
            return
        room = tl.zeros(1024, "f32")
        tl.wait(room)
        address = {"hbm": x, "sram": sram, "tcm": room.addr}[space]
        tl.recv("E", 1024, "f32", dst_addr=address, dst_space=space)
        tl.fence()

    launch(engine, kernel, x, targets=(A, B))
    copied = [each for each in engine.op_log if each.component.startswith("sip0.cube0.pe0.")][-1]
    assert copied.kind == ("math" if space == "tcm" else "dma_write")
    ((_, issued, end, _),) = fences_of(engine)
    assert issued < end == copied.t_commit_ps


def test_an_acknowledgement_that_is_yet_to_come_back_is_no_race() -> None:
    """The memory is far away; the reader, next to the writer, has the message long before."""
    engine = sanitized(machine("system.sips.count=1"))
    near = (0, 0, 1)
    install(engine, line_of(A, near))
    x = place(engine, np.zeros(64, np.float32), (0, 15, 7), "x")

    def kernel(x: int, *, tl: Tl) -> None:
        if tl.program_id(0) == 0:
            tl.store(x, tl.full(64, 7, "f32"))
            tl.fence()
            tl.send("E", tl.zeros(1, "i8"))
            tl.store(x, tl.full(64, 8, "f32"))
        else:
            tl.recv("W", 1, "i8")
            tl.load(x, 64, "f32")

    launch(engine, kernel, x, targets=(A, near))
    first, second = (each for each in engine.op_log if each.kind == "dma_write")
    (loaded,) = (each for each in engine.op_log if each.kind == "dma_read")
    assert first.t_commit_ps < loaded.t_start_ps < first.t_end_ps
    # Only the store behind the message, which nothing keeps apart from the load.
    (race,) = findings(engine)
    assert {race.line, race.other.line if race.other else 0} == {second.line, loaded.line}


def test_fences_in_a_loop_and_in_two_kernels() -> None:
    """Each of eight messages says that another block is there; a second launch does the same to the same bytes."""
    engine = sanitized(two_cubes())
    install(engine, line_of(A, B))
    x, y = place(engine, np.zeros(N, np.float32), B, "x"), place(engine, np.zeros(N, np.float32), B, "y")

    def kernel(x: int, y: int, value: float, *, tl: Tl) -> None:
        for block in range(8):
            at = block * N // 8 * 4
            if tl.program_id(1) == 0:
                tl.store(x + at, tl.full(N // 8, value + block, "f32"))
                tl.fence()
                tl.send("E", tl.zeros(1, "i8"))
            else:
                tl.recv("W", 1, "i8")
                tl.store(y + at, tl.load(x + at, N // 8, "f32"))

    for value in (1.0, 11.0):
        launch(engine, kernel, x, y, value, targets=(A, B))
        assert fetch(engine, y).tolist() == np.repeat(np.arange(8, dtype=np.float32) + value, N // 8).tolist()
    assert findings(engine) == ()
    check_causes(engine.machine)
    assert len(fences_of(engine)) == 16


def test_the_mock_takes_it() -> None:
    """Stores are there at once, but for one that waits for a message; numbers are those of the machine."""
    seen: list[float] = []

    def kernel(x: int, *, tl: Tl) -> None:
        mine = x + tl.program_id(0) * 16
        tl.fence()
        if tl.program_id(0) == 0:
            tl.store(mine, tl.recv_async("E", 4, "f32"))
            tl.fence()
            seen.append(float(tl.value(tl.load(mine, 4, "f32"))[0]))
            tl.send("E", tl.zeros(1, "f32"))
        else:
            tl.send("W", tl.load(mine, 4, "f32"))
            tl.recv("W", 1, "f32")
            tl.store(mine, tl.load(x, 4, "f32") * 2)

    table = {0: {"E": 1}, 1: {"W": 0}}
    inputs = [np.full(4, rank + 1, np.float32) for rank in range(2)]
    assert [each.tolist() for each in run_kernel_in_mock(kernel, 2, table, inputs)] == [[2] * 4, [4] * 4]
    engine = sanitized(two_cubes())
    pes = (A, (0, 0, 1))
    install(engine, line_of(*pes))
    x = place(engine, np.stack(inputs))
    launch(engine, kernel, x, targets=pes)
    assert fetch(engine, x).tolist() == [[2] * 4, [4] * 4]
    assert findings(engine) == ()
    assert seen == [2, 2]


# --- its time ---------------------------------------------------------------------------------------------------------


def events(kernel: Callable[..., object]) -> GraphEngine:
    engine = GraphEngine(two_cubes())
    launch(engine, kernel, place(engine, np.zeros(N, np.float32)))
    return engine


def test_with_nothing_under_way_it_is_an_issue_and_one_event() -> None:
    def idle(x: int, *, tl: Tl) -> None:
        tl.load(x, 64, "f32")

    def fenced(x: int, *, tl: Tl) -> None:
        """Loads are not waited for."""
        tl.fence()
        tl.fence()
        tl.load(x, 64, "f32")
        tl.fence()

    plain, three = events(idle), events(fenced)
    assert three.n_events == plain.n_events + 3
    assert three.machine.clock.time == plain.machine.clock.time + 2 * 1000  # of the last one the load takes longer
    issue_ps = 1000
    assert [(end - begin, last) for begin, _, end, last in fences_of(three)] == [(issue_ps, NONE)] * 3


def test_a_wait_is_one_event_more() -> None:
    def stores(x: int, *, tl: Tl) -> None:
        for i in range(4):
            tl.store(x + 4096 * i, tl.full(1024, 1, "f32"))

    def fenced(x: int, *, tl: Tl) -> None:
        stores(x, tl=tl)
        tl.fence()
        tl.fence()  # finds nothing to wait for

    plain, twice = events(stores), events(fenced)
    assert twice.n_events == plain.n_events + 3
    assert twice.machine.clock.time == plain.machine.clock.time
    records = [[(each.t_start_ps, each.t_commit_ps, each.t_end_ps) for each in e.op_log] for e in (plain, twice)]
    assert records[0] == records[1]
    (_, issued, end, _), (again, _, over, last) = fences_of(twice)
    assert issued < end == written_ps(twice) == again
    assert (over, last) == (end + 1000, NONE)


def test_what_comes_behind_it_waits_for_all_that_came_before() -> None:
    """Also for bytes that it does not touch; its cause is the fence."""

    def kernel(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full(8192, 1, "f32"))
        tl.fence()
        tl.load(x + 4 * 8192, 64, "f32")

    engine = events(kernel)
    store, load = (each for each in engine.op_log if each.kind.startswith("dma"))
    assert store.t_commit_ps < store.t_end_ps
    assert load.t_start_ps == store.t_commit_ps + 1000
    assert check_causes(engine.machine)[By.FENCE] == 1


def test_a_store_of_nothing_is_there_at_once() -> None:
    def kernel(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.exp(tl.full(N, 1, "f32")), valid=0)
        tl.atomic_add([(None, 4)], tl.full(1, 1, "f32"))
        tl.fence()

    engine = events(kernel)
    ((_, issued, end, _),) = fences_of(engine)
    (exp,) = (each for each in engine.op_log if each.name == "exp")
    assert issued < end == exp.t_end_ps
    check_causes(engine.machine)


# --- where it shows ---------------------------------------------------------------------------------------------------


def waits_for_far_store(x: int, *, tl: Tl) -> None:
    tl.store(x, tl.full(1024, 1, "f32"))
    tl.fence()
    tl.load(x + 4096, 64, "f32")


def test_the_critical_path_goes_on_with_the_write_that_was_waited_for() -> None:
    engine = watched()
    handle = run(engine, waits_for_far_store, place(engine, np.zeros(2048, np.float32)))
    assert PathPart.WAIT not in check_request(engine, handle)
    path, first = path_of(engine, handle), waits_for_far_store.__code__.co_firstlineno
    (hop,) = path.hops
    assert (hop.waited_for, hop.waiting.line - first, hop.cause.line - first) == ("fence", 2, 1)
    ((_, issued, end, _),) = fences_of(engine)
    assert (hop.start_ps, hop.end_ps) == (issued, end)
    rows = engine.machine.log.rows
    after = [row for row in range(0, len(rows), WIDTH) if rows[row + KIND] == Kind.ISSUE][-1]
    assert rows[rows[after + CAUSE] + KIND] == Kind.FENCE


def test_a_message_behind_a_fence_leads_to_the_store() -> None:
    engine = logged(two_cubes())
    install(engine, line_of(A, B))
    x, y = place(engine, np.zeros(N, np.float32), A), place(engine, np.zeros(N, np.float32), B)
    handle = run(engine, hand_over(store_all, fenced=True), x, y, targets=(A, B))
    assert PathPart.WAIT not in check_request(engine, handle)
    assert [hop.waited_for for hop in path_of(engine, handle).hops] == ["fence", "message"]


def test_a_trace_shows_who_waits_at_a_fence() -> None:
    engine = logged(machine(*SMALL))
    run(engine, waits_for_far_store, place(engine, np.zeros(2048, np.float32)))
    (span,) = (each for each in events_of(engine) if each["name"] == "fence")
    ((_, issued, end, _),) = fences_of(engine)
    assert span["ts"] == pytest.approx(issued / 1e6)
    assert span["dur"] == pytest.approx((end - issued) / 1e6)
    assert span["args"]["line"] == waits_for_far_store.__code__.co_firstlineno + 2
    assert len(log_of(engine).seen.fences) == 1


def never_comes(x: int, *, tl: Tl) -> None:
    tl.store(x, tl.recv_async("E", 4, "f32"))
    tl.fence()


def test_a_deadlock_names_who_waits_at_a_fence() -> None:
    """Its store waits for a message that nobody sends."""
    line = never_comes.__code__.co_firstlineno
    engine = GraphEngine(two_cubes())
    install(engine, line_of(A, B))
    with pytest.raises(IpcqDeadlock) as caught:
        launch(engine, never_comes, place(engine, np.zeros(4, np.float32)))
    text = f"waits for its stores and atomics to be in memory, at the fence of line {line + 2}"
    assert f"{text}; in flight: recv of line {line + 1}, store of line {line + 1}" in str(caught.value)
    with pytest.raises(IpcqDeadlock, match=text):
        run_kernel_in_mock(never_comes, 2, {0: {"E": 1}, 1: {"E": 0}}, [np.zeros(4, np.float32)] * 2)


def test_a_kernel_that_is_given_up_at_a_fence_leaves_nothing_behind() -> None:
    engine = GraphEngine(two_cubes())
    install(engine, line_of(A, B))
    x = place(engine, np.zeros(4, np.float32))
    with pytest.raises(IpcqDeadlock):
        launch(engine, never_comes, x)
    engine.abandon(engine.handles[-1:])
    assert engine.handles[-1].done

    def fine(x: int, *, tl: Tl) -> None:
        tl.store(x, tl.full(4, 5, "f32"))
        tl.fence()

    launch(engine, fine, x)
    assert fetch(engine, x).tolist() == [5] * 4


def test_what_fails_behind_the_fence_fails_there() -> None:
    """The message that a store waits for has another size: the kernel hears of it where it waits."""
    engine = GraphEngine(two_cubes())
    install(engine, line_of(A, B))

    def kernel(x: int, *, tl: Tl) -> None:
        if tl.program_id(1):
            tl.send("W", tl.exp(tl.zeros(8, "f32")))
        else:
            never_comes(x, tl=tl)

    with pytest.raises(KernelError, match="32 bytes"):
        launch(engine, kernel, place(engine, np.zeros(4, np.float32)), targets=(A, B))


def test_it_is_for_kernels_only() -> None:
    kept: list[Tl] = []

    def kernel(x: int, *, tl: Tl) -> None:
        kept.append(tl)

    engine = events(kernel)
    with pytest.raises(KernelError, match="this tl belongs to a kernel that has ended"):
        kept[0].fence()
    assert fences_of(engine) == []


def test_inversions_of_a_relaxed_machine_are_mended_by_it() -> None:
    def kernel(x: int, fenced: int, *, tl: Tl) -> None:
        tl.store(x, tl.exp(tl.full((64, 64), 0, "f32")))
        if fenced:
            tl.fence()
        tl.load(x + 4, (1, 1), "f32")

    def told(fenced: int) -> list[str]:
        engine = sanitized(two_cubes("pe.dma.ordering=relaxed"))
        launch(engine, kernel, place(engine, np.ones((64, 64), np.float32)), fenced)
        return [str(each) for each in findings(engine)]

    assert any("put tl.fence() or tl.barrier() between them" in each for each in told(0))
    assert told(1) == []


def test_an_explanation_says_what_a_fence_waited_for() -> None:
    engine = watched()
    run(engine, waits_for_far_store, place(engine, np.zeros(2048, np.float32)))
    (launched,) = explain_run(log_of(engine), engine.handles, 0, ps_to_ns(engine.machine.clock.time)).launches
    ((_, issued, end, _),) = fences_of(engine)
    assert [(each.what, each.ns) for each in launched.waits] == [("its writes to be in memory", ps_to_ns(end - issued))]
