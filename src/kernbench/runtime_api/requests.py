"""The one place where a host program submits requests and waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kernbench.common.errors import SimulationDeadlock
from kernbench.messages.requests import HostMsg, PeCoord
from kernbench.policy.address.phyaddr import AddressFormat
from kernbench.runtime_api.engine_api import Completion, Engine, RequestHandle
from kernbench.runtime_api.phases import Purpose, purpose_of


class Waiter(Protocol):
    """How a host program lets simulated time pass. Every wait of the runtime comes through here."""

    def wait(self, handles: Sequence[RequestHandle]) -> None:
        """Return when all are done; may raise the error of one of them before the others are."""


class EngineWaiter:
    """The wait of a program that is alone: it drives the engine itself."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def wait(self, handles: Sequence[RequestHandle]) -> None:
        """Advance the engine until all are done."""
        for handle in handles:
            self._engine.wait(handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A request that is over. Times in ns; ``pe_exec_ns`` is how long each PE ran, for a launch.

    ``phase`` is one of those of ``phases.purpose_of``; ``nbytes`` are those moved over the host's link or filled.
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


@dataclass(frozen=True, slots=True)
class _Submitted:
    handle: RequestHandle
    name: str
    purpose: Purpose


class Requests:
    """Submits for one context, and keeps what came of every request."""

    __slots__ = ("_completions", "_correlation_id", "_engine", "_fmt", "_records", "_unseen", "_waiter")

    def __init__(self, engine: Engine, waiter: Waiter, correlation_id: str = "") -> None:
        self._engine, self._waiter = engine, waiter
        self._correlation_id = correlation_id
        self._fmt = AddressFormat(engine.spec.address.format)
        self._unseen: dict[int, _Submitted] = {}
        self._records: dict[int, RequestRecord] = {}
        self._completions: list[Completion] = []

    @property
    def records(self) -> tuple[RequestRecord, ...]:
        """The requests that were waited for, in the order of submission."""
        return tuple(self._records[at] for at in sorted(self._records))

    @property
    def last_completion(self) -> Completion | None:
        """The completion of a failed request if there is one, else of the one seen last."""
        failed = (completion for completion in self._completions if not completion.ok)
        return next(failed, self._completions[-1] if self._completions else None)

    @property
    def any_submitted(self) -> bool:
        """Whether the program has asked anything of the machine."""
        return bool(self._unseen or self._records)

    def submit(self, msg: HostMsg) -> RequestHandle:
        """Start a request now; it gets the context's correlation id unless it has its own."""
        if not msg.correlation_id:
            msg = replace(msg, correlation_id=self._correlation_id)
        handle: RequestHandle = self._engine.submit(msg)
        self._unseen[handle.request_id] = _Submitted(handle, msg.name, purpose_of(msg, self._fmt))
        return handle

    def unseen(self, handle: RequestHandle) -> bool:
        """Whether nobody has waited for the request yet: its error, if any, is still to be raised."""
        return handle.request_id in self._unseen

    def wait(self, handles: Sequence[RequestHandle]) -> list[Completion]:
        """Let time pass until all are done; at once for what is done. Raises the error of the first that failed.

        After a SimulationDeadlock nothing that is under way is waited for unasked: it would be the same again.
        """
        try:
            self._waiter.wait(handles)
        except SimulationDeadlock:
            self.abandon()
            raise
        finally:
            self._see(handle for handle in handles if handle.done)
        completions = [self._engine.get_completion(handle)[0] for handle in handles]
        failed = next((each.error for each in completions if each.error is not None), None)
        if failed is not None:
            raise failed
        return completions

    def transfer(self, messages: Iterable[HostMsg]) -> None:
        """Submit all, then wait for all: they overlap."""
        self.wait([self.submit(msg) for msg in messages])

    def drain(self) -> None:
        """Wait for every request that nobody has waited for."""
        self.wait([submitted.handle for submitted in self._unseen.values()])

    def abandon(self) -> None:
        """Wait for nothing any more; what is done is still recorded."""
        self._see([submitted.handle for submitted in self._unseen.values() if submitted.handle.done])
        self._unseen.clear()

    def _see(self, handles: Iterable[RequestHandle]) -> None:
        for handle in handles:
            submitted = self._unseen.pop(handle.request_id, None)
            if submitted is not None:
                self._record(submitted)

    def _record(self, submitted: _Submitted) -> None:
        completion, trace = self._engine.get_completion(submitted.handle)
        self._completions.append(completion)
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
            pe_exec_ns=trace.pe_exec_ns,
        )
