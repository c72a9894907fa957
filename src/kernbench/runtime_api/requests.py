"""Requests of a host program: submit them, wait for them, and record their results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from kernbench.ccl.queues import lines_of, make_unreceived_error
from kernbench.common.errors import AbandonedError, InputError, IpcqError, SimulationDeadlock
from kernbench.common.values import value
from kernbench.engine.engine import GraphEngine
from kernbench.engine.queues import UnreceivedMessage
from kernbench.engine.requests import Completion, RequestHandle
from kernbench.messages.requests import (
    HostMsg,
    IpcqInitMsg,
    IpcqRemoveMsg,
    KernelLaunchMsg,
    MemoryReadMsg,
    MemoryWriteMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    PeCoord,
    PeDmaMsg,
)
from kernbench.policy.address.phyaddr import AddressFormat, PhysAddr
from kernbench.runtime_api.layout import TensorKey
from kernbench.runtime_api.rank_scheduler import RankScheduler
from kernbench.runtime_api.ranks import WaitText, Worker, Workers


class LostMessages:
    """The messages of one context that no PE received before their queues were removed or reset.

    Each message is reported in exactly one IpcqError. Messages lost because of another failure are not reported as
    errors: they are listed after a failed run.
    """

    __slots__ = ("_errors", "_lost", "_n_raised", "_swept")

    def __init__(self) -> None:
        self._lost: list[UnreceivedMessage] = []
        self._swept: list[UnreceivedMessage] = []
        self._errors: list[IpcqError] = []
        self._n_raised = 0

    def add(self, messages: Iterable[UnreceivedMessage]) -> None:
        """Note messages that were lost without a failure."""
        self._lost += messages

    def sweep(self, message: UnreceivedMessage) -> None:
        """Note a message that was lost because of another failure."""
        self._swept.append(message)

    def raise_new(self) -> None:
        """Raise IpcqError for the messages lost since the last call, if any."""
        new = self._lost[self._n_raised :]
        self._n_raised = len(self._lost)
        if new:
            self._errors.append(make_unreceived_error(new))
            raise self._errors[-1]

    def raise_new_if_well(self) -> None:
        """Raise IpcqError as ``raise_new`` does, unless it would hide another error that is being handled.

        In that case, a later call reports the messages.
        """
        if sys.exception() is None:
            self.raise_new()

    def has_raised(self, error: Exception) -> bool:
        """Return True when ``error`` reports lost messages of this context."""
        return any(raised is error for raised in self._errors)

    def list_lines(self, *, after_failure: bool) -> tuple[str, ...]:
        """Return a report line for each lost message."""
        messages = [*self._lost, *self._swept] if after_failure else self._lost
        return tuple(f"not received: {line}" for line in lines_of(messages))


RequestPhase: TypeAlias = Literal["h2d", "d2h", "init", "map", "unmap", "queues", "launch", "dma", "other"]
PHASES: tuple[RequestPhase, ...] = get_args(RequestPhase)


@value
class Purpose:
    """The phase of a request, its SIP (None: several, or unknown) and the bytes that it moves.

    ``algorithm``: the algorithm of a collective.
    """

    phase: RequestPhase
    sip: int | None
    nbytes: int = 0
    algorithm: str | None = None


def purpose_of(msg: HostMsg, fmt: AddressFormat) -> Purpose:
    """Return the purpose of a request.

    The phase of a transfer is ``h2d`` (host to device), ``d2h`` (device to host) or ``init`` (the device fills memory).
    Other phases are ``launch``, ``map``, ``unmap``, ``dma``, ``queues`` (installation or removal) and ``other``.
    """
    match msg:
        case KernelLaunchMsg():
            sips = {sip for sip, _, _ in msg.targets}
            return Purpose("launch", sips.pop() if len(sips) == 1 else None, algorithm=msg.algorithm)
        case MemoryWriteMsg() | MemoryReadMsg():
            phase: RequestPhase = "d2h"
            if isinstance(msg, MemoryWriteMsg):
                phase = "h2d" if msg.pattern is None else "init"
            return Purpose(phase, PhysAddr.decode(msg.pa, fmt).sip_id, msg.nbytes)
        case MmuMapMsg() | MmuUnmapMsg():
            return Purpose("map" if isinstance(msg, MmuMapMsg) else "unmap", msg.sip)
        case PeDmaMsg():
            return Purpose("dma", msg.pe[0], msg.nbytes * msg.repeat)
        case IpcqInitMsg() | IpcqRemoveMsg():
            return Purpose("queues", msg.pe[0])
        case _:
            return Purpose("other", None)


@value(kw_only=True)
class RequestRecord:
    """A request that has ended. Times are in ns; ``pe_exec_ns``: the execution time of a launch on each PE.

    ``phase``: as ``purpose_of`` returns it. ``nbytes``: bytes moved over the host's link or filled. ``algorithm``: the
    algorithm of a collective.
    """

    request_id: int
    phase: str
    name: str
    sip: int | None
    nbytes: int
    ok: bool
    t_start_ns: float
    t_end_ns: float
    total_ns: float
    pe_exec_ns: Mapping[PeCoord, float]
    algorithm: str | None = None


@value
class _Submitted:
    handle: RequestHandle
    name: str
    purpose: Purpose
    worker: Worker
    about: WaitText | None
    together: Sequence[RequestHandle] = ()

    def __str__(self) -> str:
        return f"{self.purpose.phase} {self.name!r}" if self.about is None else self.about()


class Requests:
    """The requests of one context and their results.

    ``lost``: messages that no PE received. ``on_submit`` is called with each request. ``is_capturing``: launches are
    captured, and transfers refused.
    """

    __slots__ = (
        "_completions",
        "_correlation_id",
        "_engine",
        "_failed_in_order",
        "_fmt",
        "_records",
        "_scheduler",
        "_unseen",
        "_why_dropped",
        "_workers",
        "is_capturing",
        "lost",
        "on_submit",
    )

    def __init__(
        self, engine: GraphEngine, scheduler: RankScheduler, workers: Workers, correlation_id: str = ""
    ) -> None:
        self._engine, self._scheduler, self._workers = engine, scheduler, workers
        self._correlation_id = correlation_id
        self._fmt = AddressFormat(engine.spec.address.format)
        self._unseen: dict[int, _Submitted] = {}
        self._records: dict[int, RequestRecord] = {}
        self._completions: list[Completion] = []
        self._why_dropped = ""
        self.lost = LostMessages()
        self.on_submit: Callable[[RequestHandle, Purpose], None] | None = None
        self.is_capturing = False
        self._failed_in_order: list[RequestHandle] = []

    def check(self) -> None:
        """Raise KernelError or SecondThreadError if the caller may not call the machine."""
        self._workers.check()

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The requests that the program waited for, in the order of submission."""
        return tuple(self._records[at] for at in sorted(self._records))

    @property
    def last_completion(self) -> Completion | None:
        """The completion of the first failed request; without failures, the last completion that a wait returned."""
        failed = (completion for completion in self._completions if not completion.ok)
        return next(failed, self._completions[-1] if self._completions else None)

    @property
    def any_submitted(self) -> bool:
        """True when the program has submitted any request."""
        return bool(self._unseen or self._records)

    def submit_together(self, messages: Iterable[HostMsg]) -> list[RequestHandle]:
        """Start requests that form one piece of work: if one request fails, the others are stopped."""
        handles: list[RequestHandle] = []
        handles += [self.submit(msg, together=handles) for msg in messages]
        return handles

    def submit(
        self, msg: HostMsg, about: WaitText | None = None, together: Sequence[RequestHandle] = ()
    ) -> RequestHandle:
        """Start a request now; a request without a correlation id gets that of the context.

        ``about``: the description of the request in reports of waits. ``together``: the requests of the same piece of
        work, in order of submission.
        """
        self.check()
        self._scheduler.check()
        if isinstance(msg, MemoryWriteMsg | MemoryReadMsg):
            self.refuse_in_capture("copies between the host and the machine")
        elif not isinstance(msg, MmuMapMsg | MmuUnmapMsg):
            self.refuse_in_capture("uses a collective, its queues or torch.launch")
        if not msg.correlation_id:
            msg = replace(msg, correlation_id=self._correlation_id)
        handle = self._engine.submit(msg)
        purpose = purpose_of(msg, self._fmt)
        worker = self._workers.current
        self._unseen[handle.request_id] = _Submitted(handle, msg.name, purpose, worker, about, together)
        if self.on_submit is not None:
            self.on_submit(handle, purpose)
        return handle

    def refuse_in_capture(self, action: str) -> None:
        """Raise InputError while launches are captured; ``action``: what the program does, as text."""
        if self.is_capturing:
            raise InputError(
                f"a graph of launches is being captured, and the program {action}, which a replay cannot repeat; do so "
                f"before the capture, with copy_ into a tensor that the graph reads"
            )

    def unseen(self, handle: RequestHandle) -> bool:
        """Return True when no wait has returned the request's completion, so its error, if any, has not been raised."""
        return handle.request_id in self._unseen

    def is_of_another_rank(self, handle: RequestHandle) -> bool:
        """Return True, in a rank, for a request of another rank whose end no wait has seen."""
        submitted, worker = self._unseen.get(handle.request_id), self._workers.current
        return submitted is not None and worker.spawned and submitted.worker is not worker

    def unseen_of(self, worker: Worker) -> tuple[str, ...]:
        """Return the requests of a worker whose end no wait has seen, as text."""
        return tuple(str(submitted) for submitted in self._unseen.values() if submitted.worker is worker)

    def wait(self, handles: Sequence[RequestHandle]) -> list[Completion]:
        """Advance time until all requests are done, and return their completions.

        Raises the error of the first failed request. After a SimulationDeadlock, no later call waits implicitly for
        the requests in flight, since the wait would deadlock again. If a kernel failed on some PEs and left others
        waiting, the kernel's error is raised instead of the SimulationDeadlock. An AbandonedError names the failure
        that ended the request. After a failed launch, the other requests of the same piece of work are stopped, and
        their queues are reset.
        """
        try:
            self._scheduler.wait(handles, self._describe)
        except AbandonedError as abandoned:
            raise AbandonedError(": ".join(filter(None, [str(abandoned), self._why_dropped]))) from abandoned
        except BaseException as failure:
            if not self._workers.current.spawned:
                self._recover_from(failure, handles)
            raise
        finally:
            self._see(handle for handle in handles if handle.done)
        if self._failed_in_order:
            failed = [handle for handle in self._failed_in_order if self.unseen(handle)]
            self._failed_in_order = [handle for handle in failed if self.is_of_another_rank(handle)]
            mine = [handle for handle in failed if handle not in self._failed_in_order]
            if mine:
                self.wait(mine[:1])
        return [handle.completion() for handle in handles]

    def raise_at_next_wait(self, handle: RequestHandle) -> None:
        """Let the next wait of its rank, for any request, raise the error of this one, if it fails."""
        handle.notify(self._note_failure)

    def _note_failure(self, handle: RequestHandle) -> None:
        if handle.outcome is not None and handle.outcome.error is not None:
            self._failed_in_order.append(handle)

    def transfer(self, messages: Iterable[HostMsg]) -> None:
        """Submit all messages at once, so that they overlap, then wait for all."""
        self.wait([self.submit(msg) for msg in messages])

    def give_way(self) -> None:
        """Let other ranks run, and advance time to the next completion of any request in flight."""
        worker, in_flight = self._workers.current, [sent for sent in self._unseen.values() if not sent.handle.done]
        by_worker = [request for request in in_flight if request.worker is worker]
        self._scheduler.give_way((request.handle for request in in_flight), lambda: _describe_turn(by_worker))

    def drain(self, worker: Worker | None = None) -> None:
        """Wait for every request, or every request of ``worker``, that no wait has seen."""
        self.wait([request.handle for request in self._unseen.values() if worker is None or request.worker is worker])

    def find_failures(self, workers: Collection[Worker]) -> dict[Worker, Exception]:
        """Return the first error of each worker among its ended requests that no wait has seen."""
        return self._find_first_failures(request for request in self._unseen.values() if request.worker in workers)

    def abandon(
        self, workers: Collection[Worker] | None = None, why: str = "", *, blamed: bool = True, later: bool = False
    ) -> dict[Worker, Exception]:
        """Drop the requests in flight of these workers, or of all: the machine stops them.

        Ended requests are still recorded. ``why``: the error text for waits for the dropped requests. ``blamed``: the
        workers have failed, and the failure explains all messages that are lost with the requests. Without ``blamed``,
        the failure explains only lost messages of requests that have failed or can never end. ``later``: the machine
        stops the requests when it is next used.

        Return the error of each worker with a request that had failed on one PE while other PEs still executed it.
        """
        dropped = [request for request in self._unseen.values() if workers is None or request.worker in workers]
        handles = [request.handle for request in dropped]
        self._why_dropped = why
        at_fault = None if blamed else [request.handle for request in dropped if self._is_hopeless(request)]
        if later:
            self._postpone_giving_up(handles)
        elif self._scheduler.machine_answers:
            self._give_up(handles, at_fault)
        self._drop(handles)
        return self._find_first_failures(dropped)

    def _give_up(self, handles: Iterable[RequestHandle], at_fault: Iterable[RequestHandle] | None = None) -> None:
        """Have the machine stop requests. Messages in queues are then lost, except those that other requests sent.

        ``at_fault``: the requests whose lost messages the failure explains; None: all requests.
        """
        ids = None if at_fault is None else {handle.request_id for handle in at_fault}
        self._engine.abandon([handle for handle in handles if not handle.done])
        for message in self._engine.take_emptied():
            if ids is None or message.launch in ids:
                self.lost.sweep(message)
            else:
                self.lost.add([message])

    def _recover_from(self, failure: BaseException, handles: Sequence[RequestHandle]) -> None:
        """Abandon the requests that are of no use after a failed wait for ``handles``, unless other ranks proceed.

        If a failed kernel led to a deadlock, raise the kernel's error.
        """
        if self._scheduler.busy:
            return
        if isinstance(failure, SimulationDeadlock):
            program = self._workers.current
            failed = self.abandon([program], blamed=False)
            if program in failed:
                raise failed[program] from failure
        elif isinstance(failure, Exception):
            self._end_failed_launches(handles)
        else:
            self._postpone_giving_up(handles)
            self._drop(handles)

    def _postpone_giving_up(self, handles: Iterable[RequestHandle]) -> None:
        """Have the machine stop requests when it is next used, because simulating until they end may take long."""

        def give_up() -> None:
            with suppress(Exception):  # the machine may have been interrupted in an inconsistent state
                self._give_up(handles)

        self._engine.machine.postpone(give_up)

    def _end_failed_launches(self, handles: Sequence[RequestHandle]) -> None:
        """End the requests submitted together with the failed launches among ``handles``."""
        submitted = [self._unseen[handle.request_id] for handle in handles if self.unseen(handle)]
        failed = [
            request
            for request in submitted
            if request.purpose.phase == "launch" and self._find_error(request) is not None
        ]
        if failed and self._scheduler.machine_answers:
            siblings = [handle for request in failed for handle in request.together]
            self._give_up(siblings, at_fault=[*siblings, *(request.handle for request in failed)])
            self._drop(siblings)

    def _is_hopeless(self, submitted: _Submitted) -> bool:
        """Return True for a request that has failed, or that can never end."""
        return not submitted.handle.done or self._find_error(submitted) is not None

    def _find_error(self, submitted: _Submitted) -> Exception | None:
        return submitted.handle.completion().error if submitted.handle.done else None

    def _find_first_failures(self, submitted: Iterable[_Submitted]) -> dict[Worker, Exception]:
        failed: dict[Worker, Exception] = {}
        for request in submitted:
            error = self._find_error(request)
            if error is not None and not isinstance(error, AbandonedError):
                failed.setdefault(request.worker, error)
        return failed

    def forget(self) -> None:
        """Drop all requests, without waiting and without using the machine. Ended requests are still recorded."""
        self._drop([request.handle for request in self._unseen.values()])

    def _drop(self, handles: Sequence[RequestHandle]) -> None:
        self._see(handle for handle in handles if handle.done)
        for handle in handles:
            self._unseen.pop(handle.request_id, None)

    def _describe(self, handle: RequestHandle) -> str:
        submitted = self._unseen.get(handle.request_id)
        return f"request {handle.request_id}" if submitted is None else str(submitted)

    def _see(self, handles: Iterable[RequestHandle]) -> None:
        for handle in handles:
            submitted = self._unseen.pop(handle.request_id, None)
            if submitted is not None:
                self._record(submitted)

    def _record(self, submitted: _Submitted) -> None:
        completion, trace = self._engine.get_completion(submitted.handle)
        self._completions.append(completion)
        pe_exec_ns, msg = trace.pe_exec_ns, submitted.handle.msg
        if msg.request_id in self._engine.machine.passed.launches:  # the kernels of its sample stand for its own
            sample = self._records.get(self._engine.machine.passed.sample_of(msg.request_id))
            pe_exec_ns = pe_exec_ns if sample is None else sample.pe_exec_ns
        self._records[completion.request_id] = RequestRecord(
            request_id=completion.request_id,
            phase=submitted.purpose.phase,
            name=submitted.name,
            sip=submitted.purpose.sip,
            nbytes=submitted.purpose.nbytes,
            ok=completion.ok,
            t_start_ns=completion.t_start,
            t_end_ns=completion.t_end,
            total_ns=trace.total_ns,
            pe_exec_ns=pe_exec_ns,
            algorithm=submitted.purpose.algorithm,
        )


def _describe_turn(under_way: Sequence[_Submitted]) -> str:
    return "its next turn" + (f", with {', '.join(map(str, under_way))} in flight" if under_way else "")


class Work:
    """Requests in flight; named after PyTorch's class."""

    __slots__ = ("_handles", "_requests")

    def __init__(self, handles: Sequence[RequestHandle], requests: Requests) -> None:
        self._handles, self._requests = tuple(handles), requests

    @property
    def handles(self) -> tuple[RequestHandle, ...]:
        """The requests, in the order of their submission."""
        return self._handles

    def on_end(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` when the last request has ended, now if it has; never for a launch that was captured."""
        for handle in self._handles[-1:]:
            handle.notify(lambda _: notify())

    def wait(self, timeout: object = None) -> bool:
        """Block until all requests are done, and return True. Raises the error of a failed request.

        ``timeout`` is accepted for PyTorch programs and has no effect. A request that can never end raises
        SimulationDeadlock.
        """
        self._requests.wait(self._handles)
        return True

    def is_completed(self) -> bool:
        """Return True when all requests are done at the current simulated time."""
        return all(handle.done for handle in self._handles)


def is_queued(handle: RequestHandle) -> bool:
    """Return True for a launch that entered the queue of its SIP."""
    return isinstance(handle.msg, KernelLaunchMsg) and handle.msg.in_order


@value
class TensorUse:
    """The use of a tensor by a request. ``writes``: it may write the tensor; otherwise it only reads."""

    handle: RequestHandle
    writes: bool


class Uses:
    """The tensors that are arguments of requests in flight.

    The host must not access them before the requests are done.
    """

    __slots__ = ("_requests", "_using")

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._using: dict[TensorKey, list[TensorUse]] = {}

    def note(self, handle: RequestHandle, keys: Iterable[TensorKey], *, writes: bool = True) -> None:
        """Note that ``handle`` uses these tensors; with ``writes`` False it only reads them."""
        for key in dict.fromkeys(keys):
            self._using[key] = [*self._list_uses(key), TensorUse(handle, writes)]

    def settle(self, key: TensorKey, *, writes: bool = True) -> None:
        """Wait for all requests in flight, of any worker, that use a tensor.

        With ``writes`` False the caller only reads, so the call waits only for requests that write the tensor.
        """
        using = [use.handle for use in self._list_uses(key) if writes or use.writes]
        if using:
            self._requests.wait(using)
        if not self.under_way(key):
            self._using.pop(key, None)

    def settle_queued(self, key: TensorKey) -> None:
        """Wait for the launches in the queue of a SIP that use a tensor."""
        queued = [handle for handle in self.under_way(key) if is_queued(handle)]
        if queued:
            self._requests.wait(queued)

    def is_exchanged(self, key: TensorKey) -> bool:
        """Return True while a request other than the launches of queues uses a tensor."""
        return any(not handle.done and not is_queued(handle) for handle in self.under_way(key))

    def under_way(self, key: TensorKey) -> list[RequestHandle]:
        """Return the requests in flight that use a tensor."""
        return [use.handle for use in self._list_uses(key)]

    def _list_uses(self, key: TensorKey) -> list[TensorUse]:
        return [use for use in self._using.get(key, ()) if self._requests.unseen(use.handle)]
