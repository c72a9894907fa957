"""Engines whose host carries requests out by itself: they overlap, and each takes a time that follows from its size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from greenlet import getcurrent

from kernbench.common.data_policy import DataPolicy
from kernbench.common.dtypes import dtype as dtype_of
from kernbench.common.errors import AbandonedError
from kernbench.common.ids import HOST
from kernbench.common.units import ns_to_ps
from kernbench.engine.engine import GraphEngine
from kernbench.engine.machine import Component, Done, Machine, Outcome
from kernbench.engine.requests import RequestHandle
from kernbench.messages.control import PeReport
from kernbench.messages.requests import (
    HostBytes,
    HostMsg,
    KernelLaunchMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    TensorArg,
)
from kernbench.numerics.memory import MemoryStore
from kernbench.policy.address.pe_mmu import PeMMU
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.topology.graph import Node

HOST_LATENCY_NS, HOST_GBS, FILL_NS, LAUNCH_NS, MAP_NS = 100.0, 62.5, 50.0, 1000.0, 30.0
SMALL = (
    "sip.cube_mesh.w=2",
    "sip.cube_mesh.h=1",
    "cube.pe_layout.pe_per_corner=1",
    "cube.hbm.slices=4",
)


def small_machine(*overrides: str) -> Topology:
    """Two SIPs of two cubes of four PEs, unless overridden, whose host asks nothing of them."""
    return resolve_topology("default", [*SMALL, "system.components.host.impl=fake_engine.FakeHost", *overrides])


class FakeHost(Component):
    """Carries requests out when their time is over; ``memory`` is what they read and write, None without data."""

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        self.memory: MemoryStore | None = None
        self.run_kernels = False
        self._kernels: dict[int, Done] = {}
        self._mmus = {pe: PeMMU(*pe) for pe in machine.memories.pes}

    def accept(self, msg: HostMsg, done: Done) -> None:
        if isinstance(msg, KernelLaunchMsg):
            self._kernels[msg.request_id] = done
        if duration_ns(msg) < float("inf"):
            self.clock.call_at(self.clock.time + ns_to_ps(duration_ns(msg)), self._finish, (msg, done))

    def abandon(self, request_ids: frozenset[int]) -> None:
        """As on the machine: kernels are stopped, everything else comes to its end."""
        for request_id in request_ids & self._kernels.keys():
            self._kernels.pop(request_id)(Outcome(AbandonedError("given up")))

    def _finish(self, ended: tuple[HostMsg, Done]) -> None:
        msg, done = ended
        if isinstance(msg, KernelLaunchMsg) and self._kernels.pop(msg.request_id, None) is None:
            return
        try:
            reports = tuple(self._reports(msg))
        except Exception as error:
            done(Outcome(error))
        else:
            done(Outcome(reports=reports))

    def _reports(self, msg: HostMsg) -> Iterator[PeReport]:
        """What the PEs say of a request, which is carried out."""
        match msg:
            case MemoryWriteMsg(pa=pa, nbytes=nbytes, pattern=pattern):
                assert nbytes > 0
                data = self.machine.contents.host_arrays.pop(msg.request_id, None)
                if self.memory is None:
                    assert data is None, "data was made for a run that has none"
                elif pattern is not None:
                    self.memory.fill(space_of(pa), pa, nbytes, pattern)
                else:
                    assert data is not None
                    assert (data.dtype, data.shape) == (np.uint8, (nbytes,))
                    self.memory.write(space_of(pa), pa, data.array() if isinstance(data, HostBytes) else data)
            case MmuMapMsg(mapping=mapping):
                self._each_mmu(msg, lambda mmu: mmu.map(mapping))
            case MmuUnmapMsg(va_base=va):
                self._each_mmu(msg, lambda mmu: mmu.unmap(va))
            case KernelLaunchMsg():
                now = self.clock.time
                if self.run_kernels:
                    self._run(msg)
                for pe in msg.targets:
                    yield PeReport(pe=pe, start_ps=now - ns_to_ps(LAUNCH_NS / 2 + pe[2]), end_ps=now)

    def _each_mmu(self, msg: MmuMapMsg | MmuUnmapMsg, act: Callable[[PeMMU], None]) -> None:
        for pe, mmu in self._mmus.items():
            if pe[0] == msg.sip and (msg.target_pe == "all" or pe in msg.target_pe):
                act(mmu)

    def _run(self, msg: KernelLaunchMsg) -> None:
        plain = [arg.va if isinstance(arg, TensorArg) else arg for arg in msg.args]
        counts = tuple(len({pe[at] for pe in msg.targets}) for at in (2, 1, 0))
        for pe in msg.targets:
            tl = FakeTl(self.memory, self._mmus[pe], pe[::-1], counts)
            msg.kernel.function(*plain, **dict(msg.kwargs), tl=tl)


class FakeEngine(GraphEngine):
    """An engine of a ``small_machine``. ``messages`` are all that were submitted, ``abandoned`` all that were given up.

    Kernels do nothing unless they shall run, in NumPy.
    """

    def __init__(self, topology: Topology, enable_data: bool | DataPolicy = True, run_kernels: bool = False) -> None:
        super().__init__(topology, enable_data)
        host = self.machine.part(HOST, FakeHost)
        host.memory = self.memory_store if self.enable_data else None
        host.run_kernels = run_kernels
        self.abandoned: list[RequestHandle] = []
        self._home = getcurrent()

    @property
    def messages(self) -> list[HostMsg]:
        return [handle.msg for handle in self.handles]

    @property
    def watched(self) -> Mapping[int, RequestHandle]:
        return self._watched

    def next_ended(self) -> Sequence[RequestHandle]:
        assert getcurrent() is self._home, "time passes in the program's own greenlet, never in a rank"
        return super().next_ended()

    def abandon(self, handles: Sequence[RequestHandle]) -> None:
        assert getcurrent() is self._home
        self.abandoned += handles
        super().abandon(handles)


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
