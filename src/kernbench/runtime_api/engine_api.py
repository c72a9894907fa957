"""What the runtime needs of an engine: ``sim_engine.engine.GraphEngine`` has it, and so have the engines of tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from kernbench.messages.requests import HostMsg, PeCoord
from kernbench.policy.address.allocator import PEMemAllocator
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.topology.spec import TopologySpec


class RequestHandle(Protocol):
    """A submitted request."""

    @property
    def request_id(self) -> int:
        """Its number, in the order of submission."""

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""


class Completion(Protocol):
    """How a request ended; times in ns."""

    @property
    def request_id(self) -> int:
        """The number of the request."""

    @property
    def ok(self) -> bool:
        """False when it failed."""

    @property
    def error(self) -> Exception | None:
        """Why it failed."""

    @property
    def t_start(self) -> float:
        """When it was submitted."""

    @property
    def t_end(self) -> float:
        """When it was over."""


class RequestTrace(Protocol):
    """What a request took, in ns."""

    @property
    def total_ns(self) -> float:
        """From submission to completion."""

    @property
    def pe_exec_ns(self) -> Mapping[PeCoord, float]:
        """How long each PE ran its kernel; empty for other requests."""


class Engine(Protocol):
    """A machine that carries out requests in simulated time. It takes back only handles that it gave."""

    @property
    def spec(self) -> TopologySpec:
        """The machine's configuration."""

    @property
    def enable_data(self) -> bool:
        """Whether numbers are computed, not only times."""

    @property
    def now(self) -> float:
        """The simulated time in ns."""

    @property
    def allocators(self) -> Mapping[PeCoord, PEMemAllocator]:
        """The memories of the PEs."""

    @property
    def used_allocators(self) -> Mapping[PeCoord, PEMemAllocator]:
        """Those of them that anything was asked of."""

    def va_allocator(self, sip: int) -> VirtualAllocator:
        """The virtual addresses of a SIP."""

    def submit(self, msg: HostMsg) -> Any:
        """Start a request at the current time; returns its RequestHandle at once."""

    def wait(self, handle: Any) -> Completion:
        """Let time pass until the request is over; raises its error."""

    def watch(self, handle: Any) -> None:
        """Have ``next_ended`` stop when this request is over."""

    def unwatch(self, handle: Any) -> None:
        """Take ``watch`` back."""

    def next_ended(self) -> Sequence[Any]:
        """Let time pass until a watched request is over; those that are, in the order in which they ended.

        They are watched no more. SimulationDeadlock when none ever can be over.
        """

    def abandon(self, handles: Sequence[Any]) -> None:
        """Stop what the requests have under way, and leave the machine so that it can be used again."""

    def get_completion(self, handle: Any) -> tuple[Completion, RequestTrace]:
        """How a request that is over went."""

    def read_memory(self, pa: int, nbytes: int) -> np.ndarray[Any, Any]:
        """The bytes at a physical address as they are now; only with data."""
