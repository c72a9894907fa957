"""Kernels of every kind of command on a ring of PEs, for tests of what things wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from queue_support import install, ring_of

from engine_support import hbm, machine
from kernbench.common.dtypes import dtype
from kernbench.messages.requests import (
    HostMsg,
    KernelLaunchMsg,
    KernelRef,
    MappedShard,
    MemoryWriteMsg,
    MmuMapMsg,
    PeDmaMsg,
    TensorArg,
    TensorMapping,
)
from kernbench.observe.trace_log import TraceLog
from needs import NeedsEngine
from path_support import SMALL

N = 64
PES = 3
BYTES = (320 + 8) * 128 * 4
"""Of the tensor that kernels work on."""


def own(x: int, tl: Any, row: int = 0) -> int:
    """Rows of its own; every PE has eight."""
    return x + (tl.program_id(0) * 8 + row) * N * 4


def busy(x: Any, n: int, tl: Any) -> Any:
    for _ in range(n):
        x = tl.abs(x)
    return x


# --- what a kernel may do; all PEs do the same, at a pace of their own ------------------------------------------------


def load_and_store(x: int, live: list[Any], tl: Any, k: int) -> None:
    live.append(tl.load(own(x, tl, k), N, "f32"))
    tl.store(own(x, tl, k + 1), live[-1])


def overlapping(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Two stores and a load whose bytes meet in part."""
    tl.store(own(x, tl, k), live[-1])
    tl.store(own(x, tl, k) + 8 * k, live[0])
    live.append(tl.load(own(x, tl, k) + 4 * k, N, "f32"))


def strided(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Columns: of some the bytes meet, of others only the ranges that enclose them."""
    tl.store(own(x, tl), tl.full((4, 4), 1, "f32"), strides=(N * 4, 8 + 4 * k))
    tl.store(own(x, tl, 4), tl.load(own(x, tl) + 4 * (k % 2), (4, 4), "f32", strides=(N * 4, 8)))
    live.append(tl.load(own(x, tl), N, "f32"))


def by_range(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Columns of more rows than are compared one by one, in two slices: other bytes in the same ranges."""
    middle, column = x + BYTES // 2 - 40 * 1024, (1024, 4)
    tl.store(middle, tl.full((80, 1), k, "f32"), strides=column)
    tl.store(own(x, tl), tl.load(middle + 8, (80, 1), "f32", strides=column), valid=(N // 2, 1))


def masked(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Some of the elements, or none."""
    live.append(tl.load(own(x, tl), (N,), "f32", valid=(k * 7,), other=1.0))
    tl.store(own(x, tl, k), live[-1], valid=(k * 9,))


def math(_: int, live: list[Any], tl: Any, k: int) -> None:
    live.append(busy(live[-1] + live[0], k, tl))


def products(x: int, live: list[Any], tl: Any, k: int) -> None:
    a, b = tl.load(x, (33, 40), "f16"), tl.load(x, (40, 36), "f16")
    tl.store(own(x, tl, k), tl.sum(tl.dot(a, b), 0))


def added_up(x: int, _: list[Any], tl: Any, k: int) -> None:
    """Two chains of products, of which the matrix unit keeps what nobody else looks at."""
    a, b = tl.load(x, (33, 40), "f16"), tl.load(x, (40, 36), "f16")
    p, q = tl.dot(a, b, out_dtype="f32"), tl.dot(a, b)
    seen = p if k & 1 else q
    for _ in range(k // 2):
        p, q = tl.dot(a, b, p), tl.dot(a, b, q)
    tl.store(own(x, tl, k), tl.sum(p, 0) + tl.sum(tl.cast(seen, "f32"), 0))


def streamed(x: int, _: list[Any], tl: Any, k: int) -> None:
    """Composites whose operands lie in memory, in TCM, or one in each, with and without an epilogue."""
    a, b = (
        (tl.load if staged else tl.ref)(x, shape, "f16") for staged, shape in ((k & 1, (33, 70)), (k & 2, (70, 40)))
    )
    steps = (("relu",), ("add", tl.ref(x, (33, 40), "f16"))) if k & 4 else ()
    tl.composite("gemm", a, b, out_ptr=own(x, tl), epilogue=steps)


def elementwise(x: int, _: list[Any], tl: Any, k: int) -> None:
    other = tl.ref(x, (40, 40), "f16") if k & 1 else tl.load(x, (40, 40), "f16")
    tl.composite("add", tl.ref(x, (40, 40), "f16"), other, out_ptr=own(x, tl))


def wait(_: int, live: list[Any], tl: Any, k: int) -> None:
    tl.wait(live[-1 - k % len(live)])


def show(_: int, live: list[Any], tl: Any, k: int) -> None:
    tl.device_print("live", live[-1], k)


def meet(_: int, live: list[Any], tl: Any, k: int) -> None:
    tl.barrier()


def fenced(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Behind a store on its way, one that waits, and nothing new."""
    tl.store(own(x, tl, k), live[-1])
    if k & 1:
        tl.store(own(x, tl, 1), busy(live[0], k, tl), valid=(k * 9,))
    tl.fence()
    if k & 2:
        live.append(tl.load(own(x, tl, 1), N, "f32"))
        tl.fence()


def large(x: int, live: list[Any], tl: Any, k: int) -> None:
    """More than the scratch of these machines holds at once."""
    for _ in range(3):
        tl.store(x, tl.abs(tl.load(x, (320 + k, 128), "f32")))


def pass_on(_: int, live: list[Any], tl: Any, k: int) -> None:
    """Slots are held until the sum is there."""
    for _ in range(1 + k % 3):
        tl.send("E", tl.full(N, k, "f32"))
        live.append(tl.recv("W", N, "f32") + live[0])


def forward(_: int, live: list[Any], tl: Any, k: int) -> None:
    """Out of its slot."""
    tl.send("E", tl.full(N, k, "f32"))
    tl.send("E", tl.recv("W", N, "f32"))
    live.append(tl.recv("W", N, "f32") * 2.0)


def post(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Receives ahead of their messages."""
    posted = tl.recv_async("W", N, "f32")
    tl.send("E", busy(tl.full(N, k, "f32"), k, tl))
    tl.store(own(x, tl, k), posted)


def window(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Out of memory and out of TCM, into memory and to an address, at most one on its way."""
    tl.send("E", tl.ref(own(x, tl), (N,), "f32"))
    room = tl.zeros(N, "f32")
    tl.recv("W", N, "f32", dst_space="tcm", dst_addr=room.addr)
    tl.send("E", src_addr=room.addr, shape=N, dtype="f32", space="tcm")
    tl.recv("W", N, "f32", dst_space="hbm", dst_addr=own(x, tl, k))
    live.append(room)


def from_anyone(_: int, live: list[Any], tl: Any, k: int) -> None:
    """From both sides; barriers keep what comes later away."""
    tl.barrier()
    tl.send("E", busy(tl.full(N, k, "f32"), tl.program_id(0) * k, tl))
    tl.send("W", tl.full(N, k, "f32"))
    for _ in range(2):
        live.append(tl.recv(None, N, "f32") + 1.0)
    tl.barrier()


def fill_slots(_: int, live: list[Any], tl: Any, k: int) -> None:
    """More messages than slots, to a slow receiver."""
    for _ in range(4):
        if tl.program_id(0) == 0:
            tl.send("E", tl.full(N, k, "f32"))
        elif tl.program_id(0) == 1:
            tl.wait(busy(tl.recv("W", N, "f32"), k, tl))


def values(x: int, live: list[Any], tl: Any, k: int) -> None:
    """Of what is there, and of what is on its way."""
    tl.value(tl.reshape(live[0], (2, -1)))
    tl.value(tl.load(own(x, tl, k), N, "f32"))


def lists(x: int, live: list[Any], tl: Any, k: int) -> None:
    """In both slices; some bytes meet those of the list before."""
    middle = x + BYTES // 2
    tl.store(
        [(own(x, tl) + 64 * i, 4 + 4 * (i == k)) for i in (3, 1, 2)] + [(middle + 4 * k, 8)],
        tl.zeros(5 + (0 < k < 4), "f32"),
    )
    live.append(tl.load([(own(x, tl, i % 2) + 4 * k, 16) for i in range(15)] + [(None, 8), (middle, 8)], N, "f32"))


def atomics(x: int, live: list[Any], tl: Any, k: int) -> None:
    """On elements of all PEs and on its own."""
    old = tl.atomic_add(x + 4 * (k % 3), tl.full((8, 4), k, "f32"), strides=(64, 4), fetch=k % 2 > 0)
    tl.atomic_max([(own(x, tl, 1) + 4 * k, 4)], tl.full((), k, "f32"), release=k > 4)
    tl.atomic_cas(own(x, tl), live[0], live[-1])
    if old is not None:
        tl.wait(old)


OPS = (
    load_and_store, overlapping, strided, by_range, masked, math, products, added_up, streamed, elementwise, wait, show,
    meet, fenced, large, pass_on, forward, post, window, from_anyone, fill_slots, values, lists, atomics,
)  # fmt: skip
Op = tuple[Callable[[int, list[Any], Any, int], None], int]


def kernel_of(ops: Sequence[Op], pace: Sequence[int]) -> Callable[..., None]:
    def kernel(x: int, *, tl: Any) -> None:
        live = [busy(tl.load(own(x, tl), N, "f32"), pace[tl.program_id(0)], tl)]
        for op, k in ops:
            op(x, live, tl, k)
            del live[1:-3]

    return kernel


PIPELINE, CPU = "pe.components.pe_scheduler.attrs", "pe.components.pe_cpu.attrs"
MACHINES: tuple[tuple[str, ...], ...] = (
    (),
    (f"{PIPELINE}.tiles_in_flight=1", "pe.dma.setup_ns=20", "transport.express=false"),
    (f"{PIPELINE}.stage_slots=1", f"{CPU}.issue_ns=0", "pe.components.pe_ipcq.attrs.overhead_ns=0"),
    (f"{PIPELINE}.issue_ns=0", f"{CPU}.launch_ns=0", "pe.dma.setup_ns=0"),
    ("pe.dma.ordering=relaxed",),
)
# Room for two or three blocks of ``large``.
TIGHT = ("pe.tcm.scheduler_reserved_bytes=1", "pe.tcm.bytes=640KiB")


def place_in_two(engine: NeedsEngine) -> TensorArg:
    """A tensor half of which lies at one PE, half at another."""
    va = engine.va_allocator(0).alloc(BYTES)
    shards = []
    for pe in range(2):
        pa = engine.allocators[0, 0, pe].alloc_hbm(BYTES // 2).encode()
        at = pe * BYTES // 2
        shards.append(MappedShard(sip=0, cube=0, pe=pe, offset_bytes=at, nbytes=BYTES // 2, pa=pa))
    mapping = TensorMapping(name="x", va_base=va, nbytes=BYTES, shards=tuple(shards))
    engine.wait(engine.submit(MmuMapMsg(sip=0, mapping=mapping)))
    return TensorArg(name="x", va=va, shape=(BYTES // 4,), dtype=dtype("f32"), owners=((0, 0, 0), (0, 0, 1)))


def play(
    ops: Sequence[Op],
    *,
    pace: Sequence[int] = (0,) * PES,
    launches: int = 1,
    host: str | None = None,
    changes: tuple[str, ...] = (),
    **queues: Any,
) -> tuple[NeedsEngine, TraceLog]:
    """Launches of a kernel of ``ops`` behind each other, and what the host does meanwhile; ``queues``: settings."""
    engine = NeedsEngine(machine(*SMALL, *TIGHT, *changes), enable_data=any(op is values for op, _ in ops))
    trace = TraceLog()
    trace.begin(engine.machine)
    pes = [(0, 0, pe) for pe in range(PES)]
    with engine.observed():
        install(engine, ring_of(*pes), slot_size=N * 4, **queues)
        x = place_in_two(engine)
        ref = KernelRef(name="k", function=kernel_of(ops, pace))
        messages: list[HostMsg] = [KernelLaunchMsg(kernel=ref, args=(x,), targets=tuple(pes))] * launches
        if host == "fill":
            messages += [MemoryWriteMsg(pa=hbm(0, 0, 5, at << 16), nbytes=5000, pattern=b"x") for at in range(5)]
        elif host == "traffic":
            messages.append(PeDmaMsg(pe=(0, 0, 1), pa=hbm(0, 0, 5), nbytes=1500, repeat=5, outstanding=2))
        for handle in [engine.submit(message) for message in messages]:
            engine.wait(handle)
    return engine, trace
