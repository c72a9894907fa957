"""The simulation engine: requests in, completions and traces out, phase 2 behind the op-log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from kernbench.common.collector import patient_collector
from kernbench.common.dtypes import U8
from kernbench.common.errors import InputError, KernbenchError, LimitReached, SimulationDeadlock, UnknownNameError
from kernbench.common.ids import HOST, pe_part
from kernbench.common.units import format_ns, ns_to_ps, ps_to_ns
from kernbench.core.clock import NEVER
from kernbench.core.log import NONE, By, Kind, Row
from kernbench.engine.deadlock import deadlock, summary, waiting_kernels
from kernbench.engine.machine import Component, Machine, Outcome
from kernbench.engine.observer import Observer
from kernbench.engine.part_check import check_parts
from kernbench.engine.pointers import Pointers
from kernbench.engine.printing import PrintedLine, Printer
from kernbench.engine.queue_state import QueuePart
from kernbench.engine.requests import Completion, Limits, RequestHandle, RequestTrace
from kernbench.messages.operands import Operand
from kernbench.messages.queues import IpcqInitMsg
from kernbench.messages.requests import HostMsg, KernelLaunchMsg, PeCoord, PeDmaMsg
from kernbench.numerics.data_executor import DataExecutor, ReplayStats
from kernbench.numerics.memory_store import MemoryStore
from kernbench.policy.address.allocator import CubeMemAllocator, PEMemAllocator
from kernbench.policy.address.layout import AddressOwner
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.topology.builder import Topology
from kernbench.topology.graph import Graph
from kernbench.transport import Transfer

# Asking for the time of day costs as much as a few events.
EVENTS_PER_LOOK = 1024


class GraphEngine:
    """Simulates one machine: a compiled topology, or its graph.

    ``enable_data``: keep operands so that numbers can be replayed; without it a run gives times only. ``trace_hops``:
    keep per-hop times of every transfer. ``observers``: what watches the run; InputError for one that needs data in a
    run without. ``limits``: how far it may go; who waits beyond gets LimitReached.
    """

    def __init__(
        self,
        topology: Topology | Graph,
        enable_data: bool = True,
        *,
        trace_hops: bool = False,
        observers: Sequence[Observer] = (),
        limits: Limits | None = None,
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
        if enable_data:
            self.machine.values_of = self._values_of
        self._handles: list[RequestHandle] = []
        self._watched: dict[int, RequestHandle] = {}
        self._ended: list[RequestHandle] = []
        self._transfers: list[Transfer] = []
        self._waited: Row = NONE  # of the request whose end the host has waited for
        self.machine.network.trace_hops = trace_hops
        if trace_hops:
            self.machine.hooks.sent.subscribe(self._transfers.append)
        self._limits = limits = limits or Limits()
        self._last_ps = NEVER if limits.sim_ns is None else ns_to_ps(limits.sim_ns)
        self._deadline = None if limits.wall_s is None else time.monotonic() + limits.wall_s
        self.observers = tuple(observers)
        for observer in self.observers:
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
    def handles(self) -> Sequence[RequestHandle]:
        """All requests, in the order of submission."""
        return self._handles

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
        numbered = replace(msg, request_id=len(self._handles))
        handle = RequestHandle(numbered, self.machine.clock.time)
        log = self.machine.log
        cause = (NONE, By.NOTHING) if self._waited < 0 else (self._waited, By.HOST)
        what, launch = log.named(msg.name), numbered.request_id
        row = log.requests[launch] = log.open(
            log.part(HOST), Kind.REQUEST, handle.submitted_ps, cause, what=what, launch=launch
        )
        self._handles.append(handle)
        for observer in self.observers:
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
            if not handle.done:
                with self._watching_only(handle):
                    self.next_ended()
        except SimulationDeadlock as stuck:
            for part in self.machine.components:
                for request_id, report in part.failures():
                    if request_id == handle.request_id and report.error is not None:
                        raise report.error from stuck
            raise
        completion = handle.completion()
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
        clock = self.machine.clock
        with patient_collector():
            while not self._ended:
                upcoming_ps = clock.next_time()
                if upcoming_ps == NEVER:
                    raise deadlock(self.machine, [str(handle) for handle in self._watched.values()])
                self._check_limits(upcoming_ps)
                clock.advance(self._last_ps, None if self._deadline is None else EVENTS_PER_LOOK)
        ended, self._ended = self._ended, []
        return ended

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

    def _check_limits(self, upcoming_ps: int) -> None:
        """LimitReached when no event may fire any more, the next of which would at ``upcoming_ps``."""
        if upcoming_ps > self._last_ps:
            raise LimitReached(f"stopped by --max-sim-ns {self._limits.sim_ns:g}, {self._reached}")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise self.out_of_time()

    def out_of_time(self) -> LimitReached:
        """The error of a run that has taken as long as it may."""
        return LimitReached(f"stopped by --max-wall-s {self._limits.wall_s:g}, {self._reached}")

    @property
    def _reached(self) -> str:
        waits = summary(waiting_kernels(self.machine).values())
        return f"at {format_ns(self.now)} simulated, after {self.n_events:,} events{waits and f'; {waits}'}"

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
        return handle.completion(), handle.trace(self._transfers)

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
        under_way = (handle.msg for handle in self._handles if not handle.done)
        return tuple(msg for msg in under_way if isinstance(msg, KernelLaunchMsg))

    def replay(self) -> None:
        """Phase 2 up to now; what has been replayed is not replayed again."""
        if self.enable_data:
            self._executor.replay(self.machine.clock.time)

    def _values_of(self, array: Operand) -> np.ndarray[Any, Any]:
        self.replay()
        return self._store.read(array.space, array.address, array.shape, array.dtype, array.strides)

    def _unwritten(self, space: str, address: int, nbytes: int) -> None:
        for observer in self.observers:
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
        if addr.component not in (AddressOwner.HBM, AddressOwner.SRAM, AddressOwner.TCM):
            raise UnknownNameError("memory", str(addr.component), ("hbm", "sram", "tcm"))
        return self._store.read(str(addr.component), pa, (nbytes,), U8)
