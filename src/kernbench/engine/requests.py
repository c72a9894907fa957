"""Requests of the host: the handle of a submitted request, its completion, its time by phase, and a run's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from kernbench.common.errors import KernbenchError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import state, value
from kernbench.core.clock import NEVER
from kernbench.engine.machine import Outcome
from kernbench.messages.control import PeReport
from kernbench.messages.requests import HostMsg, PeCoord
from kernbench.transport import Transfer


@value
class Limits:
    """The limits of a run: simulated time in ns, and wall-clock time in seconds. None: no limit."""

    sim_ns: float | None = None
    wall_s: float | None = None


@value
class Completion:
    """The end of a request; times in ns."""

    request_id: int
    correlation_id: str
    t_start: float
    t_end: float
    error: Exception | None

    @property
    def ok(self) -> bool:
        """True unless the request failed."""
        return self.error is None


@value
class RequestTrace:
    """The time of a request by phase, in ns.

    - ``pe_exec_ns``: run time of the kernel on each PE. ``late_pes``: PEs that received the order after the common
      start.
    - ``network_ns``: the remaining time, in the control path and the fabric.
    - ``transfers``: the request's transfers with per-hop times, if the engine traces hops.
    """

    total_ns: float
    pe_exec_ns: Mapping[PeCoord, float]
    network_ns: float
    late_pes: tuple[PeCoord, ...]
    transfers: tuple[Transfer, ...] = field(default=(), repr=False)


@state(eq=False)
class RequestHandle:
    """A submitted request; ``done`` when it has completed, successful or failed.

    ``begun_ps``: the begin of its time: the submission, or the end of its wait in the queue of an IO_CPU.
    """

    msg: HostMsg
    submitted_ps: int
    begun_ps: int = 0
    ended_ps: int = NEVER
    outcome: Outcome | None = None
    _callbacks: list[Callable[[RequestHandle], None]] = field(init=False, default_factory=list, repr=False)

    def notify(self, callback: Callable[[RequestHandle], None]) -> None:
        """Call ``callback`` when the request has completed, now if it has."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def end(self, ended_ps: int, outcome: Outcome) -> None:
        """Complete the request."""
        self.ended_ps, self.outcome = ended_ps, outcome
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def __str__(self) -> str:
        return f"{type(self.msg).__name__} {self.msg.name!r} (request {self.request_id})"

    @property
    def request_id(self) -> int:
        """The request's number: the order of submission, from 0."""
        return self.msg.request_id

    @property
    def done(self) -> bool:
        """True if the request has completed."""
        return self.outcome is not None

    def completion(self) -> Completion:
        """Return the end of the request. Raises KernbenchError while the request is in flight."""
        return Completion(
            self.request_id,
            self.msg.correlation_id,
            ps_to_ns(self.begun_ps),
            ps_to_ns(self.ended_ps),
            self._require_outcome().error,
        )

    def trace(self, transfers: Iterable[Transfer]) -> RequestTrace:
        """Return the request's time by phase; ``transfers``: all transfers of the run.

        Raises KernbenchError while the request is in flight.
        """
        kernels: tuple[PeReport, ...] = tuple(r for r in self._require_outcome().reports if r.end_ps)
        exec_ns = {r.pe: ps_to_ns(r.end_ps - r.start_ps) for r in kernels}
        total = ps_to_ns(self.ended_ps - self.begun_ps)
        running = max((r.end_ps for r in kernels), default=0) - min((r.start_ps for r in kernels), default=0)
        within = tuple(t for t in transfers if self.begun_ps <= t.injected_ps <= self.ended_ps)
        late = tuple(r.pe for r in kernels if r.late)
        return RequestTrace(total, exec_ns, total - ps_to_ns(running), late, within)

    def _require_outcome(self) -> Outcome:
        if self.outcome is None:
            raise KernbenchError(f"request {self.request_id} has not completed yet; wait for it")
        return self.outcome
