"""The simulation engine: requests in, completions and traces out, phase 2 behind the op-log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernbench.common.collector import patient_collector
from kernbench.common.dtypes import U8
from kernbench.common.errors import InputError, KernbenchError, SimulationDeadlock, UnknownNameError
from kernbench.common.ids import HOST, pe_part
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.core.clock import NEVER
from kernbench.core.log import NONE, By, Kind, Row
from kernbench.engine.deadlock import deadlock
from kernbench.engine.machine import Component, Machine, Outcome
from kernbench.engine.observer import Observer
from kernbench.engine.part_check import check_parts
from kernbench.engine.pointers import Pointers
from kernbench.engine.printing import PrintedLine, Printer
from kernbench.engine.queue_state import QueuePart
from kernbench.messages.control import PeReport
from kernbench.messages.queues import IpcqInitMsg
from kernbench.messages.requests import HostMsg, KernelLaunchMsg, PeCoord, PeDmaMsg
from kernbench.numerics.data_executor import DataExecutor, ReplayStats
from kernbench.numerics.memory_store import MemoryStore
from kernbench.policy.address.allocator import CubeMemAllocator, PEMemAllocator
from kernbench.policy.address.layout import Component as Space
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.topology.builder import Topology
from kernbench.topology.graph import Graph
from kernbench.transport import Transfer


@dataclass(slots=True, eq=False)
class RequestHandle:
    """A submitted request; ``done`` when it has completed, well or not."""

    msg: HostMsg
    submitted_ps: int
    ended_ps: int = NEVER
    outcome: Outcome | None = None

    @property
    def request_id(self) -> int:
        """Its number: the order of submission, from 0."""
        return self.msg.request_id

    @property
    def done(self) -> bool:
        """Whether it has completed."""
        return self.outcome is not None


@dataclass(frozen=True, slots=True)
class Completion:
    """How a request ended; times in ns."""

    request_id: int
    correlation_id: str
    t_start: float
    t_end: float
    error: Exception | None

    @property
    def ok(self) -> bool:
        """True unless it failed."""
        return self.error is None


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """Where a request spent its time.

    ``pe_exec_ns``: run time of the kernel on each PE; ``late_pes`` got the order after the common start;
    ``network_ns``: the rest, control path and fabric;
    ``transfers``: its transfers with per-hop times when the engine traces hops.
    """

    total_ns: float
    pe_exec_ns: Mapping[PeCoord, float]
    network_ns: float
    late_pes: tuple[PeCoord, ...]
    transfers: tuple[Transfer, ...] = field(default=(), repr=False)


class GraphEngine:
    """Simulates one machine: a compiled topology, or its graph.

    ``enable_data``: keep operands so that numbers can be replayed; without it a run gives times only. ``trace_hops``:
    keep per-hop times of every transfer. ``observers``: what watches the run; InputError for one that needs data in a
    run without.
    """

    def __init__(
        self,
        topology: Topology | Graph,
        enable_data: bool = True,
        *,
        trace_hops: bool = False,
        observers: Sequence[Observer] = (),
    ) -> None:
        topology = Topology(topology, "a graph") if isinstance(topology, Graph) else topology
        looking = [each for each in observers if each.needs_data]
        if looking and not enable_data:
            raise InputError(f"{type(looking[0]).__name__} looks at data; make the engine with enable_data=True")
        self.topology = topology
        self.spec = topology.spec
        self.enable_data = enable_data
        check_parts(topology.topology_obj.nodes.values())
        self.machine = Machine(topology.topology_obj, keep_data=enable_data)
        self.op_log = self.machine.op_log
        self.pointers = Pointers(self.machine)
        self._printer = Printer(self.op_log, self.machine.hooks, enable_data)
        self._store = MemoryStore(self._unwritten if looking else None)
        self._executor = DataExecutor(self.op_log, self._store, topology.spec.pe.gemm.acc)
        self._handles: dict[int, RequestHandle] = {}
        self._n_requests = 0
        self._watched: dict[int, RequestHandle] = {}
        self._ended: list[RequestHandle] = []
        self._transfers: list[Transfer] = []
        self._waited: Row = NONE  # of the request whose end the host has waited for
        self.machine.network.trace_hops = trace_hops
        if trace_hops:
            self.machine.hooks.sent.subscribe(self._transfers.append)
        self._observers = tuple(observers)
        for observer in self._observers:
            observer.begin(self.machine)

    @property
    def now(self) -> float:
        """Simulated time in ns."""
        return ps_to_ns(self.machine.clock.time)

    @property
    def n_events(self) -> int:
        """Events fired so far."""
        return self.machine.clock.n_events

    @property
    def memory_store(self) -> MemoryStore:
        """What the machine holds at ``now``: phase 2 is replayed up to then."""
        self.replay()
        return self._store

    @property
    def allocators(self) -> Mapping[PeCoord, PEMemAllocator]:
        """The memory of every PE, by (sip, cube, pe)."""
        return self.machine.memories.pes

    @property
    def used_allocators(self) -> Mapping[PeCoord, PEMemAllocator]:
        """Those of them that anything was asked of."""
        return self.machine.memories.used_pes

    def cube_allocator(self, sip: int, cube: int) -> CubeMemAllocator:
        """The SRAM of a cube."""
        return self.machine.memories.cube(sip, cube)

    def va_allocator(self, sip: int) -> VirtualAllocator:
        """The virtual addresses of a SIP."""
        return self.machine.memories.va(sip)

    def printed(self) -> tuple[PrintedLine, ...]:
        """What kernels have printed up to now; without data arrays show their type and shape only."""
        self.replay()
        return self._printer.lines()

    def component(self, node_id: str) -> Component:
        """The component at a node. UnknownNameError when there is none."""
        return self.machine.component(node_id)

    def submit(self, msg: HostMsg) -> RequestHandle:
        """Start a request now and return at once."""
        numbered = replace(msg, request_id=self._n_requests)
        self._n_requests += 1
        handle = RequestHandle(numbered, self.machine.clock.time)
        log = self.machine.log
        cause = (NONE, By.NOTHING) if self._waited < 0 else (self._waited, By.HOST)
        what, launch = log.named(msg.name), numbered.request_id
        row = log.requests[launch] = log.open(
            log.part(HOST), Kind.REQUEST, handle.submitted_ps, cause, what=what, launch=launch
        )
        self._handles[numbered.request_id] = handle
        for observer in self._observers:
            observer.submitted(numbered, handle.submitted_ps)
        if isinstance(msg, IpcqInitMsg):
            self.pointers.forget()

        def done(outcome: Outcome) -> None:
            handle.ended_ps = self.machine.clock.time
            handle.outcome = outcome
            log.close(row, handle.ended_ps, outcome.last)
            if self._watched.pop(numbered.request_id, None) is not None:
                self._ended.append(handle)
                self._waited = row
                self.machine.clock.halt()

        self._entry(numbered).accept(numbered, done)
        return handle

    def _entry(self, msg: HostMsg) -> Component:
        return self.component(pe_part(*msg.pe, "pe_dma") if isinstance(msg, PeDmaMsg) else HOST)

    def wait(self, handle: RequestHandle) -> Completion:
        """Advance until the request is over. Raises its error, or SimulationDeadlock when it can never end.

        When it cannot because the kernel of one of its PEs has failed, that failure is raised, from the deadlock.
        """
        try:
            self._advance_to(handle)
        except SimulationDeadlock as stuck:
            for part in self.machine.components:
                for request_id, report in part.failures():
                    if request_id == handle.request_id and report.error is not None:
                        raise report.error from stuck
            raise
        completion = self._completion(handle)
        if completion.error is not None:
            raise completion.error
        return completion

    def watch(self, handle: RequestHandle) -> None:
        """Have ``next_ended`` stop when this request is over."""
        if handle.done:
            self._ended.append(handle)
        else:
            self._watched[handle.request_id] = handle

    def unwatch(self, handle: RequestHandle) -> None:
        """Take ``watch`` back."""
        self._watched.pop(handle.request_id, None)
        if handle in self._ended:
            self._ended.remove(handle)

    def next_ended(self) -> Sequence[RequestHandle]:
        """Advance until a watched request is over, well or not, at once when one is; those that are: watched no more.

        SimulationDeadlock when none of them can ever end. What is watched and goes on costs nothing here.
        """
        with patient_collector():
            while not self._ended:
                if self.machine.clock.next_time() == NEVER:
                    raise deadlock(self.machine, [_described(handle) for handle in self._watched.values()])
                self.advance()
        ended, self._ended = self._ended, []
        return ended

    def _advance_to(self, handle: RequestHandle) -> None:
        if not handle.done:
            with self._watching_only(handle):
                self.next_ended()

    @contextmanager
    def _watching_only(self, *handles: RequestHandle) -> Iterator[None]:
        """Inside, the clock stops for none but these; what else is watched is so again afterwards."""
        watched, self._watched = self._watched, {handle.request_id: handle for handle in handles}
        ended, self._ended = self._ended, []
        try:
            yield
        finally:
            self._watched, self._ended = {}, ended
            for handle in watched.values():
                self.watch(handle)

    def advance(self) -> None:
        """Let simulated time pass while somebody waits. A subclass may let it pass in portions, and stop it."""
        self.machine.clock.advance()

    def run_until(self, ns: float) -> None:
        """Advance to ``ns``, whatever completes before."""
        with patient_collector(), self._watching_only():
            self.machine.clock.advance(ns_to_ps(ns))
        self._waited = NONE

    def drain(self) -> None:
        """Let everything under way end."""
        with patient_collector(), self._watching_only():
            self.machine.clock.advance()
        self._waited = NONE

    def get_completion(self, handle: RequestHandle) -> tuple[Completion, RequestTrace]:
        """How a finished request ended, and where its time went. KernbenchError while it is under way."""
        return self._completion(handle), self._trace(handle)

    def _completion(self, handle: RequestHandle) -> Completion:
        if handle.outcome is None:
            raise KernbenchError(f"request {handle.request_id} has not completed yet; wait for it")
        return Completion(
            handle.request_id,
            handle.msg.correlation_id,
            ps_to_ns(handle.submitted_ps),
            ps_to_ns(handle.ended_ps),
            handle.outcome.error,
        )

    def _trace(self, handle: RequestHandle) -> RequestTrace:
        assert handle.outcome is not None
        kernels: tuple[PeReport, ...] = tuple(r for r in handle.outcome.reports if r.end_ps)
        exec_ns = {r.pe: ps_to_ns(r.end_ps - r.start_ps) for r in kernels}
        total = ps_to_ns(handle.ended_ps - handle.submitted_ps)
        running = max((r.end_ps for r in kernels), default=0) - min((r.start_ps for r in kernels), default=0)
        within = tuple(each for each in self._transfers if handle.submitted_ps <= each.injected_ps <= handle.ended_ps)
        late = tuple(r.pe for r in kernels if r.late)
        return RequestTrace(total, exec_ns, total - ps_to_ns(running), late, within)

    def abandon(self, handles: Sequence[RequestHandle]) -> None:
        """Give up requests: their kernels are stopped, and what is under way ends.

        All queues that no kernel uses are empty afterwards, also when the requests are over: what has failed may have
        left messages there. So the machine can be used again after one of several programs has failed.
        """
        ids = frozenset(handle.request_id for handle in handles if not handle.done)
        with self._watching_only():
            if ids:
                self._stop(ids)
            self._empty_queues()
        self._waited = NONE

    def _stop(self, ids: frozenset[int]) -> None:
        self.machine.given_up = ids  # of what is still on its way to the PEs
        with self.pointers.kept():
            for part in self.machine.components:
                part.abandon(ids)
            self.machine.clock.advance()
        self.machine.given_up = frozenset()
        for part in self.machine.components:
            part.reset()

    def _empty_queues(self) -> None:
        """Begin all queues anew that no kernel uses, once the last message is there."""
        clock = self.machine.clock
        busy = {pe for launch in self.launches_under_way for pe in launch.targets}
        queues = [part for part in self.machine.components if isinstance(part, QueuePart)]
        while any(part.is_sending(busy) for part in queues) and clock.next_time() < NEVER:
            clock.advance(clock.next_time())
        for part in queues:
            part.empty(busy)

    @property
    def launches_under_way(self) -> tuple[KernelLaunchMsg, ...]:
        """The launches that have not completed."""
        under_way = (handle.msg for handle in self._handles.values() if not handle.done)
        return tuple(msg for msg in under_way if isinstance(msg, KernelLaunchMsg))

    def replay(self) -> None:
        """Phase 2 up to now; what has been replayed is not replayed again."""
        if self.enable_data:
            self._executor.replay(self.machine.clock.time)

    def _unwritten(self, space: str, address: int, nbytes: int) -> None:
        for observer in self._observers:
            observer.unwritten(self._executor.current, space, address, nbytes)

    @property
    def phase2_stats(self) -> ReplayStats:
        """What phase 2 has done so far."""
        return self._executor.stats

    def read_memory(self, pa: int, nbytes: int) -> np.ndarray[Any, Any]:
        """The bytes at a physical address as they are now (uint8). KernbenchError in a timing-only run."""
        if not self.enable_data:
            raise KernbenchError("this run keeps no data; make the engine with enable_data=True")
        self.replay()
        addr = self.machine.addresses.decode(pa)
        if addr.component not in (Space.HBM, Space.SRAM, Space.TCM):
            raise UnknownNameError("memory", str(addr.component), ("hbm", "sram", "tcm"))
        return self._store.read(str(addr.component), pa, (nbytes,), U8)


def _described(handle: RequestHandle) -> str:
    return f"{type(handle.msg).__name__} {handle.msg.name!r} (request {handle.request_id})"
