"""The simulation engine: it runs requests, returns their completions and traces, and replays the op-log in phase 2."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any, ClassVar, Literal

import numpy as np

from kernbench.common.collector import patient_collector
from kernbench.common.data_policy import DataPolicy
from kernbench.common.dtypes import U8
from kernbench.common.errors import InputError, LimitReached, PartError, SimulationDeadlock
from kernbench.common.ids import HOST, pe_part
from kernbench.common.program_line import ProgramLine
from kernbench.common.units import format_ns, ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.core.clock import NEVER
from kernbench.core.log import NONE, By, Kind, Row
from kernbench.core.op_log import OpRecord
from kernbench.di.part import is_builtin
from kernbench.engine.deadlock import QueuePointers, deadlock, summary, waiting_kernels
from kernbench.engine.keeping import DataReport, Keeping
from kernbench.engine.machine import Component, Machine, Outcome
from kernbench.engine.part_check import check_parts, name_failure, name_users_parts
from kernbench.engine.queues import QueuePart, UnreceivedMessage, queue_part
from kernbench.engine.records import PrintedLine, Printer
from kernbench.engine.requests import Completion, Limits, RequestHandle, RequestTrace
from kernbench.engine.thinking import ThinkingPart
from kernbench.messages.commands import Operand
from kernbench.messages.requests import (
    HostBytes,
    HostMsg,
    IpcqInitMsg,
    KernelLaunchMsg,
    MemoryWriteMsg,
    PeCoord,
    PeDmaMsg,
)
from kernbench.numerics.memory import MemoryStore
from kernbench.numerics.replay import Replay, ReplayStats
from kernbench.policy.address.allocator import CubeMemAllocator, PEMemAllocator
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.topology.builder import Topology
from kernbench.topology.graph import Graph
from kernbench.triton_emu.kernel_runner import check_host_calls
from kernbench.triton_emu.source import program_file


@value(kw_only=True)
class HostRead:
    """An access of the host program to a tensor: a read, or a comparison, of elements. Times are in ps."""

    action: Literal["read", "assert_close"]
    tensor: str
    line: ProgramLine | None
    start_ps: int
    end_ps: int


@value(kw_only=True)
class SomeElements:
    """A subset of a read: ``count`` of ``total`` elements; the first is at ``index``, on ``pe``, at address ``pa``."""

    count: int
    total: int
    nbytes: int
    index: tuple[int, ...]
    pe: PeCoord
    pa: int


@value(kw_only=True)
class UnlikeCopies:
    """Copies of a tensor that differ from the first copy.

    ``pes`` store these copies, of ``owners`` PEs with any copy. ``held`` is the first differing element in the first of
    them, ``first_held`` the same element in the first copy, on ``first_pe``. ``written``: that element of the first
    copy has been written.
    """

    pes: tuple[PeCoord, ...]
    owners: int
    held: float
    first_held: float
    first_pe: PeCoord
    written: bool


class Observer:
    """An observer of one engine's run; subclasses override notifications. ``needs_data``: it reads computed bytes."""

    needs_data: ClassVar[bool] = False

    def begin(self, machine: Machine) -> None:
        """Begin to observe ``machine``, whose engine exists; no time has passed."""

    def submitted(self, msg: HostMsg, time_ps: int) -> None:
        """Receive the notification that the host has submitted ``msg``."""

    def unwritten(self, record: OpRecord | None, space: str, address: int, nbytes: int) -> None:
        """Receive that a replay of ``record`` read unwritten bytes from ``address`` on. Only in runs with data."""

    def read_unwritten(self, read: HostRead, elements: SomeElements) -> None:
        """Receive the notification that the host read or compared unwritten ``elements``. Only in runs with data."""

    def read_unlike(self, read: HostRead, elements: SomeElements, copies: UnlikeCopies) -> None:
        """Receive the notification that ``elements`` read by the host differ between copies. Only in runs with data."""


# A read of the wall clock costs as much as a few events.
EVENTS_PER_LOOK = 1024


class GraphEngine:
    """The simulator of one machine, given as a compiled topology or its graph.

    - ``enable_data``: True stores operands so that values can be read; False computes times only; or a policy.
    - ``trace_hops``: record per-hop times of every transfer.
    - ``observers``: observers of the run. Raises InputError if an observer needs data in a run without data.
    - ``limits``: the limits of the run. A wait beyond the limits raises LimitReached.
    """

    def __init__(
        self,
        topology: Topology | Graph,
        enable_data: bool | DataPolicy = True,
        *,
        trace_hops: bool = False,
        observers: Sequence[Observer] = (),
        limits: Limits | None = None,
    ) -> None:
        topology = Topology(topology, "a graph") if isinstance(topology, Graph) else topology
        data_observers = [observer for observer in observers if observer.needs_data]
        policy = enable_data if isinstance(enable_data, DataPolicy) else DataPolicy(enable_data)
        if data_observers and not policy.keep:
            raise InputError(f"{type(data_observers[0]).__name__} reads data; make the engine with enable_data=True")
        self.topology = topology
        self.spec = topology.spec
        check_parts(topology.topology_obj.places)
        self.machine = Machine(topology.topology_obj, keep_data=policy.keep)
        self.op_log = self.machine.op_log
        self.pointers = QueuePointers(self.machine)
        clock = self.machine.clock
        self._keeping = Keeping(policy, self.machine.recorder, self.machine.log, lambda: clock.time, self._drop_data)
        self._printer = Printer(self.op_log, self.machine.hooks, self.machine.recorder)
        self._tracks_writes = bool(data_observers)
        self._reuses = False  # True if writes are tracked and memory may contain the bytes of an earlier owner
        self._new_memory()
        self.machine.values_of = self._values_of
        self._handles: list[RequestHandle] = []
        self._watched: dict[int, RequestHandle] = {}
        self._ended: list[RequestHandle] = []
        self._emptied: list[UnreceivedMessage] = []
        self._failure: PartError | None = None  # the error of a user's part; ``_lost`` are the requests it ended
        self._lost: frozenset[int] = frozenset()
        self._waited: Row = NONE  # row of the request whose end the host has waited for
        self._make_extra_parts()
        self.machine.network.trace_hops = trace_hops
        self._limits = limits = limits or Limits()
        self._last_ps = NEVER if limits.sim_ns is None else ns_to_ps(limits.sim_ns)
        self._deadline = None if limits.wall_s is None else time.monotonic() + limits.wall_s
        self.observers = tuple(observers)
        for observer in self.observers:
            observer.begin(self.machine)

    def _new_memory(self) -> None:
        """Begin phase 2 with an empty memory."""
        self._store = MemoryStore(self._unwritten if self._tracks_writes else None)
        self._replay = Replay(self.op_log, self._store, self.spec.pe.gemm.acc)

    def _drop_data(self) -> None:
        """Release the inputs and the results of phase 2."""
        self.machine.contents.host_arrays.clear()
        self._new_memory()

    @property
    def enable_data(self) -> bool:
        """True if values can be read: the run stores the inputs of phase 2 and has not reached the storage limit."""
        return self._keeping.keeps

    @property
    def keeping(self) -> Keeping:
        """The policy for data stored for phase 2, and the number of values read."""
        return self._keeping

    def data_report(self) -> DataReport:
        """Return a report of the data stored, read and computed so far."""
        keeping, stats = self._keeping, self._replay.stats
        zeros = keeping.policy.zeros
        return DataReport(
            kept=keeping.keeps,
            zeros=zeros,
            stopped=keeping.stopped,
            values_read=0 if zeros else keeping.values_read,
            zeros_read=keeping.values_read if zeros else 0,
            operations=stats.ops,
            nbytes=stats.nbytes,
        )

    def _make_extra_parts(self) -> None:
        """Construct the extra parts, which may act before any request. Raises PartError if the construction fails."""
        try:
            for node in self.topology.topology_obj.extra_nodes:
                self.machine.component(node.id)
        except Exception as error:
            raise name_failure(error)  # noqa: B904 - it has its cause

    @property
    def now(self) -> float:
        """The simulated time in ns."""
        return ps_to_ns(self.machine.clock.time)

    @property
    def n_events(self) -> int:
        """The number of events fired so far."""
        return self.machine.clock.n_events

    @property
    def handles(self) -> Sequence[RequestHandle]:
        """The requests, in the order of submission."""
        return self._handles

    @property
    def memory_store(self) -> MemoryStore:
        """The memory of the machine, replayed up to ``now``. Raises NoDataError in a run without values."""
        if not self.enable_data:
            raise self._keeping.refusal("memory_store")
        self.replay()
        return self._store

    @property
    def allocators(self) -> Mapping[PeCoord, PEMemAllocator]:
        """The memory allocator of every PE, by (sip, cube, pe)."""
        return self.machine.memories.pes

    @property
    def used_allocators(self) -> Mapping[PeCoord, PEMemAllocator]:
        """The allocators in use, by PE."""
        return self.machine.memories.used_pes

    def cube_allocator(self, sip: int, cube: int) -> CubeMemAllocator:
        """Return the SRAM allocator of a cube."""
        return self.machine.memories.cube(sip, cube)

    def va_allocator(self, sip: int) -> VirtualAllocator:
        """Return the allocator of a SIP's virtual addresses."""
        return self.machine.memories.va(sip)

    def addresses_of(self, part: str) -> tuple[int, int]:
        """Return the first physical address and the bytes of a memory at ``cube.extra`` or ``pe.extra``.

        Raises UnsupportedError for a part without ``bytes``, UnknownNameError if there is no such part.
        """
        return self.machine.addresses.range_of(self.topology.topology_obj.node(part))

    def printed(self) -> tuple[PrintedLine, ...]:
        """Return the lines that kernels have printed so far. Without data, arrays show only dtype and shape."""
        if self._printer.unread_values and self.enable_data:
            self._keeping.read(self._printer.unread_values, "device_print")
            self.replay()
        return self._printer.lines()

    def component(self, node_id: str) -> Component:
        """Return the component at a node. Raises UnknownNameError if the machine has no such node."""
        return self.machine.component(node_id)

    def submit(self, msg: HostMsg) -> RequestHandle:
        """Submit a request now and return its handle at once. Raises the error of a request that is refused."""
        check_host_calls()
        self._recover()
        numbered = self._assign_number(msg, len(self._handles))
        handle = RequestHandle(numbered, self.machine.clock.time, self.machine.clock.time)
        log = self.machine.log
        cause = (NONE, By.NOTHING) if self._waited < 0 else (self._waited, By.HOST)
        name, launch = log.intern(msg.name), numbered.request_id
        log.requests[launch] = log.open(
            log.part(HOST), Kind.REQUEST, handle.submitted_ps, cause, subject=name, launch=launch
        )
        self._handles.append(handle)
        for observer in self.observers:
            observer.submitted(numbered, handle.submitted_ps)
        if isinstance(msg, IpcqInitMsg):
            self.pointers.forget()
        try:
            self._entry(numbered).accept(numbered, partial(self._end, handle))
        except Exception as error:
            failure = name_failure(error)
            self._end(handle, Outcome(failure))
            raise failure  # noqa: B904 - it has its cause
        return handle

    def _end(self, handle: RequestHandle, outcome: Outcome) -> None:
        """End a request. An answer to a request that has already failed is dropped."""
        if handle.done:
            return
        ended_ps = self.machine.clock.time
        handle.begun_ps = self.machine.log.queued.get(handle.request_id, handle.begun_ps)
        row = self.machine.log.requests[handle.request_id]
        self.machine.log.close(row, ended_ps, outcome.last)
        handle.end(ended_ps, outcome)
        if self._watched.pop(handle.request_id, None) is not None:
            self._ended.append(handle)
            self._waited = row
            self.machine.clock.halt()

    def _assign_number(self, msg: HostMsg, request_id: int) -> HostMsg:
        """Return the request with its number. The data of a write move to ``contents``, until the write is replayed."""
        if isinstance(msg, MemoryWriteMsg) and (data := msg.data) is not None:
            if self.enable_data:
                self._keeping.hold(data.take_held_bytes() if isinstance(data, HostBytes) else data.nbytes)
            if self.enable_data:
                self.machine.contents.host_arrays[request_id] = data
            return replace(msg, request_id=request_id, data=None)
        return replace(msg, request_id=request_id)

    def _entry(self, msg: HostMsg) -> Component:
        return self.component(pe_part(*msg.pe, "pe_dma") if isinstance(msg, PeDmaMsg) else HOST)

    def wait(self, handle: RequestHandle) -> Completion:
        """Advance until the request is over, and return its completion.

        Raises the request's error, SimulationDeadlock if it can never end, or LimitReached. A deadlock that a failed
        kernel of the request causes is raised as the kernel's error, from the deadlock.
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
        """Make ``next_ended`` stop when this request is over."""
        if handle.done:
            self._ended.append(handle)
        else:
            self._watched[handle.request_id] = handle

    def unwatch(self, handle: RequestHandle) -> None:
        """Undo ``watch``."""
        self._watched.pop(handle.request_id, None)
        if handle in self._ended:
            self._ended.remove(handle)

    def next_ended(self) -> Sequence[RequestHandle]:
        """Advance until a watched request is over, successful or failed, and return the requests that are over.

        The call returns at once if a watched request is over already. Returned requests are no longer watched. Raises
        SimulationDeadlock if no watched request can ever end, and LimitReached at a limit.
        """
        check_host_calls()
        self.machine.do_postponed()
        clock = self.machine.clock
        with patient_collector():
            while not self._ended:
                upcoming_ps = clock.next_time()
                if upcoming_ps == NEVER:
                    raise deadlock(self.machine, [str(handle) for handle in self._watched.values()])
                self._check_limits(upcoming_ps)
                self._advance(self._last_ps, None if self._deadline is None else EVENTS_PER_LOOK)
        ended, self._ended = self._ended, []
        return ended

    @contextmanager
    def _watching_only(self, *handles: RequestHandle) -> Iterator[None]:
        """Make the clock stop only for ``handles`` in the body of ``with``; then all earlier watches apply again."""
        self.machine.do_postponed()
        watched, self._watched = self._watched, {handle.request_id: handle for handle in handles}
        ended, self._ended = self._ended, []
        try:
            yield
        finally:
            self._watched, self._ended = {}, ended
            for handle in watched.values():
                self.watch(handle)

    def _check_limits(self, upcoming_ps: int) -> None:
        """Raise LimitReached if the next event, at ``upcoming_ps``, is beyond a limit of the run."""
        if upcoming_ps > self._last_ps:
            raise LimitReached(f"stopped by --max-sim-ns {self._limits.sim_ns:g}, {self._state_text}")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise self.out_of_time()

    @property
    def limits(self) -> Limits:
        """The limits of the run, in simulated and in real time."""
        return self._limits

    def seconds_left(self) -> float:
        """Return the seconds left until the wall-clock limit; inf without a limit."""
        return inf if self._deadline is None else self._deadline - time.monotonic()

    def out_of_time(self, foreseen: str | None = None) -> LimitReached:
        """Return the error of a run at its wall-clock limit; ``foreseen`` explains a run that would exceed it."""
        stopped = f"stopped by --max-wall-s {self._limits.wall_s:g}"
        return LimitReached(
            f"{stopped}, {self._state_text}" if foreseen is None else f"{stopped} before it is over: {foreseen}"
        )

    @property
    def _state_text(self) -> str:
        waits = summary(waiting_kernels(self.machine).values())
        endless_waits = [
            f"{part.node.id} ({part.node.impl}) has waited {part.waits:,} times since its last message"
            for part in self.machine.components
            if isinstance(part, ThinkingPart) and part.waits > EVENTS_PER_LOOK
        ]
        reached = f"at {format_ns(self.now)} simulated, after {self.n_events:,} events"
        return "; ".join([reached, *filter(None, [waits]), *endless_waits])

    def run_until(self, ns: float) -> None:
        """Advance to ``ns``; do not stop when a request completes."""
        with patient_collector(), self._watching_only():
            self._advance(ns_to_ps(ns))
        self._waited = NONE

    def drain(self) -> None:
        """Advance until everything in flight has ended."""
        with patient_collector(), self._watching_only():
            self._advance()
        self._waited = NONE

    def _advance(self, until: int = NEVER, enough: int | None = None) -> None:
        """Advance the clock. A failure of a user's part fails all requests; PartError is raised if none is watched."""
        check_host_calls()
        try:
            self.machine.clock.advance(until, enough)
        except Exception as error:
            failure = name_failure(error)
            if not isinstance(failure, PartError):
                name_users_parts(error, self.machine.components)
                raise
            self._failure = failure
            self._lost = frozenset(handle.request_id for handle in self._handles if not handle.done)
            for request_id in self._lost:
                self._end(self._handles[request_id], Outcome(failure))
            if not self._ended:
                raise failure  # noqa: B904 - it has its cause

    def get_completion(self, handle: RequestHandle) -> tuple[Completion, RequestTrace]:
        """Return the completion of a request and its time by phase. Raises KernbenchError while it is in flight."""
        return handle.completion(), handle.trace(self.machine.network.traced)

    def abandon(self, handles: Sequence[RequestHandle]) -> None:
        """Abandon requests: stop their kernels and let everything in flight end.

        Afterwards all queues that no kernel uses are empty, even if the requests were already over: a failed request
        may leave messages in queues, and other programs use the machine after it.
        """
        check_host_calls()
        ids = frozenset(handle.request_id for handle in handles if not handle.done)
        with self._watching_only():
            self._recover()
            if ids:
                self._stop(ids)
            self._empty_queues()
        self._waited = NONE

    def _stop(self, ids: frozenset[int]) -> None:
        self.machine.given_up = ids  # PEs ignore orders of these requests that are still in flight
        with self.pointers.keep():
            for part in self.machine.components:
                part.abandon(ids)
            self._run_out()
        for part in self.machine.components:
            part.reset()
        self.machine.given_up = frozenset()

    def _run_out(self) -> None:
        """Advance until no event is left; ignore errors of users' parts, which concern abandoned requests."""
        while True:
            try:
                self.machine.clock.advance()
            except Exception as error:
                if not isinstance(name_failure(error), PartError):
                    raise
            else:
                return

    def _recover(self) -> None:
        """Reset all parts after a user's part has failed. Raises that part's error if the machine stays blocked."""
        self.machine.do_postponed()
        if self._failure is None:
            return
        self._stop(self._lost)
        stuck = any(part.blocked() for part in self.machine.components if is_builtin(type(part)))
        if stuck or self.machine.network.undelivered:
            raise self._failure
        self._failure = None

    def take_emptied(self) -> tuple[UnreceivedMessage, ...]:
        """Return the messages that were lost since the last call because their queues were emptied."""
        messages, self._emptied = tuple(self._emptied), []
        return messages

    def _empty_queues(self) -> None:
        """Reset all queues that no kernel uses, after their last message has arrived."""
        clock = self.machine.clock
        busy = {pe for launch in self.launches_in_flight for pe in launch.targets}
        queues = [part for part in self.machine.components if isinstance(part, QueuePart)]
        while any(part.has_in_flight(busy) for part in queues) and clock.next_time() < NEVER:
            clock.advance(clock.next_time())
        messages = [message for part in queues if part.queue_pairs for message in part.pending_messages]
        for part in queues:
            part.empty(busy)
        self._emptied += [self._locate(m) for m in messages if m.pe not in busy and m.peer not in busy]

    def unreceived(self, pes: Iterable[PeCoord] | None = None) -> tuple[UnreceivedMessage, ...]:
        """Return the messages to ``pes`` (None: to all PEs with queues) that no kernel has received.

        Messages in flight and those of queues just removed are included; messages of a failed launch are not.
        """
        parts = [part for part in self.machine.components if isinstance(part, QueuePart) and part.queue_pairs]
        if pes is not None:
            parts = [queue_part(self.machine, pe) for pe in pes]
        messages = [self._locate(message) for part in parts for message in part.pending_messages]
        return tuple(message for message in messages if not self._has_failed(message.launch))

    def _has_failed(self, launch: int) -> bool:
        outcome = self._handles[launch].outcome
        return outcome is not None and outcome.error is not None

    def _locate(self, message: UnreceivedMessage) -> UnreceivedMessage:
        """Return the message with its source: the sending kernel's file, or the program line that called the kernel."""
        msg = self._handles[message.launch].msg
        if not isinstance(msg, KernelLaunchMsg):
            return message
        called = f"(called at {msg.called_at})"
        return replace(message, source=called if msg.called_at else f"of {program_file(msg.kernel)}")

    @property
    def launches_in_flight(self) -> tuple[KernelLaunchMsg, ...]:
        """The launches that have not completed."""
        in_flight = (handle.msg for handle in self._handles if not handle.done)
        return tuple(msg for msg in in_flight if isinstance(msg, KernelLaunchMsg))

    def replay(self) -> None:
        """Replay the op-log up to now. Each record is replayed once."""
        if self.enable_data:
            self._replay.replay(self.machine.clock.time)
            self._keeping.note_replay()

    def _values_of(self, array: Operand) -> np.ndarray[Any, Any]:
        """Return the elements of a kernel's array. Raises NoDataError in a run without data."""
        if not self.enable_data:
            raise self._keeping.refusal("tl.value")
        self._keeping.read(prod(array.shape), "tl.value")
        self.replay()
        return self._store.read(array.space, array.address, array.shape, array.dtype, array.strides)

    def _unwritten(self, space: str, address: int, nbytes: int) -> None:
        for observer in self.observers:
            observer.unwritten(self._replay.current, space, address, nbytes)

    @property
    def phase2_stats(self) -> ReplayStats:
        """The counts of phase 2 so far."""
        return self._replay.stats

    def read_memory(self, pa: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the current bytes at a physical address (uint8). Raises NoDataError in a run without data."""
        if not self.enable_data:
            raise self._keeping.refusal(f"the {nbytes:,} bytes at {pa:#x}")
        self.replay()
        return self._store.read(self.machine.addresses.place_of(pa).space, pa, (nbytes,), U8)

    @property
    def tracks_writes(self) -> bool:
        """True if the run records which bytes were written: an observer needs data."""
        return self._store.is_tracked

    def written(self, pa: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return a bool for each byte from ``pa`` on: True if written. Raises RunError unless ``tracks_writes``."""
        self.replay()
        return self._store.written(self.machine.addresses.place_of(pa).space, pa, nbytes)

    def retire(self) -> None:
        """Record that memory was freed: a later allocation at these addresses does not inherit the old bytes."""
        self._reuses = self.tracks_writes

    def renew(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Record that ``ranges`` of (address, bytes) were allocated: their bytes count as unwritten."""
        if self._reuses:
            self.replay()  # the writes of the last owner
            for pa, nbytes in ranges:
                self._store.forget(self.machine.addresses.place_of(pa).space, pa, nbytes)
