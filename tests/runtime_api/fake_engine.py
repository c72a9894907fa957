"""An engine without a machine: requests overlap and take a time that follows from their size, memory is a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from greenlet import getcurrent

from kernbench.common.config import apply_overrides, parse_document
from kernbench.common.dtypes import U8
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import SimulationDeadlock
from kernbench.di.kinds import KINDS
from kernbench.di.part import Part
from kernbench.di.registry import Registry
from kernbench.engine.memories import Memories
from kernbench.messages.requests import (
    HostMsg,
    KernelLaunchMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    PeCoord,
    TensorArg,
)
from kernbench.numerics.memory_store import MemoryStore
from kernbench.policy.address.pe_mmu import PeMMU
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import Topology, compile_topology

HOST_LATENCY_NS, HOST_GBS, FILL_NS, LAUNCH_NS, MAP_NS = 100.0, 64.0, 50.0, 1000.0, 30.0
SMALL = (
    "sip.cube_mesh.w=2",
    "sip.cube_mesh.h=1",
    "cube.pe_layout.pe_per_corner=1",
    "cube.hbm.slices=4",
)


def small_machine(*overrides: str) -> Topology:
    """Two SIPs of two cubes of four PEs, unless overridden, made of parts that do nothing."""
    registry = Registry()
    shared = {"noc_router": ("noc_router", "io_noc"), "ucie": ("ucie", "sip_port")}
    for kind in (kind for kind in KINDS if kind not in {"io_noc", "sip_port"}):
        registry.register(f"builtin.{kind}", kind=shared.get(kind, kind))(type(kind, (Part,), {}))
    text = (Path(__file__).parents[2] / "topology.yaml").read_text()
    return compile_topology(apply_overrides(parse_document(text, "topology.yaml"), [*SMALL, *overrides]), registry)


@dataclass(eq=False)
class FakeHandle:
    msg: HostMsg
    t_start: float
    t_end: float
    done: bool = False
    error: Exception | None = None
    pe_exec_ns: dict[PeCoord, float] = field(default_factory=dict)

    @property
    def request_id(self) -> int:
        return self.msg.request_id


@dataclass(frozen=True)
class FakeCompletion:
    request_id: int
    t_start: float
    t_end: float
    error: Exception | None

    @property
    def ok(self) -> bool:
        return self.error is None


@dataclass(frozen=True)
class FakeTrace:
    total_ns: float
    pe_exec_ns: Mapping[PeCoord, float]


class FakeEngine:
    """What the runtime needs of ``GraphEngine``. ``messages`` are all that were submitted."""

    def __init__(self, topology: Topology, enable_data: bool = True, run_kernels: bool = False) -> None:
        self.topology, self.spec, self.enable_data = topology, topology.spec, enable_data
        self.now = 0.0
        self.messages: list[HostMsg] = []
        self.store = MemoryStore()
        self._memories = Memories(topology.spec)
        self._pending: list[FakeHandle] = []
        self.watched: dict[int, FakeHandle] = {}
        self._run_kernels = run_kernels
        self.abandoned: list[FakeHandle] = []
        self._home = getcurrent()
        self._mmus = {pe: PeMMU(*pe) for pe in self.allocators}

    @property
    def allocators(self):
        return self._memories.pes

    @property
    def used_allocators(self):
        return self._memories.used_pes

    def va_allocator(self, sip: int):
        return self._memories.va(sip)

    def submit(self, msg: HostMsg) -> FakeHandle:
        msg = replace(msg, request_id=len(self.messages))
        self.messages.append(msg)
        handle = FakeHandle(msg, self.now, self.now + duration_ns(msg))
        self._pending.append(handle)
        return handle

    def wait(self, handle: FakeHandle) -> FakeCompletion:
        assert handle.done, "the runtime lets time pass with next_ended"
        if handle.error is not None:
            raise handle.error
        return self.get_completion(handle)[0]

    def watch(self, handle: FakeHandle) -> None:
        self.watched[handle.request_id] = handle

    def unwatch(self, handle: FakeHandle) -> None:
        self.watched.pop(handle.request_id, None)

    def next_ended(self) -> Sequence[FakeHandle]:
        assert getcurrent() is self._home, "time passes in the program's own greenlet, never in a rank"
        first = min((handle.t_end for handle in self.watched.values()), default=float("inf"))
        if first == float("inf"):
            raise SimulationDeadlock(f"nothing can happen any more at {self.now:g} ns")
        self.run_until(max(first, self.now))
        ended = [handle for handle in self.watched.values() if handle.done]
        for handle in ended:
            self.unwatch(handle)
        return ended

    def abandon(self, handles: Sequence[FakeHandle]) -> None:
        assert getcurrent() is self._home
        self.abandoned += handles
        # As on the machine: kernels are stopped, everything else comes to its end.
        self._pending = [h for h in self._pending if h not in handles or not isinstance(h.msg, KernelLaunchMsg)]
        self.run_until(max((h.t_end for h in self._pending if h.t_end < float("inf")), default=self.now))

    def run_until(self, ns: float) -> None:
        due = sorted((h for h in self._pending if h.t_end <= ns), key=lambda h: (h.t_end, h.request_id))
        self._pending = [h for h in self._pending if h.t_end > ns]
        for handle in due:
            self.now = handle.t_end
            self._finish(handle)
        self.now = max(self.now, ns)

    def get_completion(self, handle: FakeHandle) -> tuple[FakeCompletion, FakeTrace]:
        assert handle.done
        total = handle.t_end - handle.t_start
        return (
            FakeCompletion(handle.request_id, handle.t_start, handle.t_end, handle.error),
            FakeTrace(total, handle.pe_exec_ns),
        )

    def read_memory(self, pa: int, nbytes: int) -> np.ndarray:
        assert self.enable_data, "a run without data was read"
        return self.store.read(space_of(pa), pa, (nbytes,), U8)

    def _finish(self, handle: FakeHandle) -> None:
        handle.done = True
        try:
            self._apply(handle.msg, handle)
        except Exception as error:
            handle.error = error

    def _apply(self, msg: HostMsg, handle: FakeHandle) -> None:
        match msg:
            case MemoryWriteMsg(pa=pa, nbytes=nbytes, data=data, pattern=pattern):
                assert nbytes > 0
                if pattern is not None and self.enable_data:
                    self.store.fill(space_of(pa), pa, nbytes, pattern)
                elif self.enable_data:
                    assert data is not None
                    assert (data.dtype, data.shape) == (np.uint8, (nbytes,))
                    self.store.write(space_of(pa), pa, data)
                else:
                    assert data is None, "data was made for a run that has none"
            case MmuMapMsg(mapping=mapping):
                self._each_mmu(msg, lambda mmu: mmu.map(mapping))
            case MmuUnmapMsg(va_base=va):
                self._each_mmu(msg, lambda mmu: mmu.unmap(va))
            case KernelLaunchMsg():
                self._launch(msg, handle)

    def _each_mmu(self, msg: MmuMapMsg | MmuUnmapMsg, act: Callable[[PeMMU], None]) -> None:
        for pe, mmu in self._mmus.items():
            if pe[0] == msg.sip and (msg.target_pe == "all" or pe in msg.target_pe):
                act(mmu)

    def _launch(self, msg: KernelLaunchMsg, handle: FakeHandle) -> None:
        handle.pe_exec_ns = {pe: LAUNCH_NS / 2 + pe[2] for pe in msg.targets}
        if not self._run_kernels:
            return
        plain = [arg.va if isinstance(arg, TensorArg) else arg for arg in msg.args]
        counts = tuple(len({pe[at] for pe in msg.targets}) for at in (2, 1, 0))
        for pe in msg.targets:
            tl = FakeTl(self.store, self._mmus[pe], pe[::-1], counts)
            msg.kernel.function(*plain, **dict(msg.kwargs), tl=tl)


def duration_ns(msg: HostMsg) -> float:
    match msg:
        case MemoryWriteMsg(pattern=None, nbytes=nbytes) | MemoryReadMsg(nbytes=nbytes):
            return HOST_LATENCY_NS + nbytes / HOST_GBS
        case MemoryWriteMsg():
            return FILL_NS
        case KernelLaunchMsg(name="never"):
            return float("inf")
        case KernelLaunchMsg():
            return LAUNCH_NS
    return MAP_NS


def space_of(pa: int) -> str:
    return str(PhysAddr.decode(pa).component)


class Held(np.ndarray):
    """An array with the attributes that kernels ask of a handle."""

    @property
    def dtype(self) -> Any:
        return dtype_of(super().dtype)


class FakeTl:
    """As much of ``tl`` as the kernels of the benches use, in NumPy."""

    def __init__(self, store: MemoryStore, mmu: PeMMU, ids: tuple[int, ...], counts: tuple[int, ...]) -> None:
        self._store, self._mmu, self._ids, self._counts = store, mmu, ids, counts

    def program_id(self, axis: int) -> int:
        return self._ids[axis]

    def num_programs(self, axis: int) -> int:
        return self._counts[axis]

    def itemsize(self, dtype: object) -> int:
        return dtype_of(dtype).itemsize

    def load(self, ptr: int, shape: Any, dtype: object, strides: Any = None) -> Any:
        shape = (shape,) if isinstance(shape, int) else shape
        addr = self._mmu.translate(ptr)
        return self._store.read(str(addr.component), addr.encode(), shape, dtype_of(dtype), strides).view(Held)

    def store(self, ptr: int, what: Any, strides: Any = None) -> None:
        addr = self._mmu.translate(ptr)
        self._store.write(str(addr.component), addr.encode(), np.asarray(what), strides)

    def dot(self, a: Any, b: Any, acc: Any = None, out_dtype: object = None) -> Any:
        total = np.asarray(a).astype(np.float32) @ np.asarray(b).astype(np.float32)
        total = total if acc is None else total + np.asarray(acc).astype(np.float32)
        return self.cast(total, out_dtype or a.dtype)

    def cast(self, what: Any, dtype: object) -> Any:
        return np.asarray(what).astype(dtype_of(dtype).numpy).view(Held)


def no_kernel(*_args: object, tl: object, **_kwargs: object) -> None:
    """Does nothing."""
