"""The engine of ``kernbench run``: it remembers the requests, and stops at limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.common.errors import RunError
from kernbench.common.units import format_ns, ns_to_ps
from kernbench.core.clock import NEVER
from kernbench.engine.engine import GraphEngine, RequestHandle
from kernbench.engine.observer import Observer
from kernbench.messages.requests import HostMsg
from kernbench.topology.builder import Topology

# Asking for the time of day costs as much as a few events.
EVENTS_PER_LOOK = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a run may go: in simulated ns, in seconds of the user's time; None: as far as it takes."""

    sim_ns: float | None = None
    wall_s: float | None = None


class LimitReached(RunError):  # noqa: N818 - it says what happened
    """A run that was stopped because it reached a limit."""


class RunEngine(GraphEngine):
    """A GraphEngine that keeps the handles of all requests, and raises LimitReached where one waits."""

    def __init__(
        self, topology: Topology, enable_data: bool, limits: Limits, *, observers: Sequence[Observer] = ()
    ) -> None:
        super().__init__(topology, enable_data, observers=observers)
        self.handles: list[RequestHandle] = []
        self._limits = limits
        self._last_ps = NEVER if limits.sim_ns is None else ns_to_ps(limits.sim_ns)
        self._deadline = None if limits.wall_s is None else time.monotonic() + limits.wall_s

    def submit(self, msg: HostMsg) -> RequestHandle:
        """Start a request now and return at once."""
        handle = super().submit(msg)
        self.handles.append(handle)
        return handle

    def advance(self) -> None:
        """Let time pass up to the limits."""
        self._check_limits()
        until = NEVER if self._limits.sim_ns is None else self._last_ps
        self.machine.clock.advance(until, None if self._deadline is None else EVENTS_PER_LOOK)

    def out_of_time(self) -> LimitReached:
        """The error of a run that has taken as long as it may."""
        return LimitReached(f"stopped by --max-wall-s {self._limits.wall_s:g}, {self._reached}")

    @property
    def _reached(self) -> str:
        return f"at {format_ns(self.now)} simulated, after {self.n_events:,} events"

    def _check_limits(self) -> None:
        if self.machine.clock.next_time() > self._last_ps:
            raise LimitReached(f"stopped by --max-sim-ns {self._limits.sim_ns:g}, {self._reached}")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise self.out_of_time()
