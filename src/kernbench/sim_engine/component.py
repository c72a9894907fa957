"""The base of every part that does something: it knows its node, its machine, and takes messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kernbench.common.errors import KernbenchError, UnsupportedError
from kernbench.common.units import ns_to_ps
from kernbench.di.part import InnerAttrs, Part
from kernbench.messages.control import PeReport
from kernbench.messages.requests import HostMsg

if TYPE_CHECKING:
    from kernbench.sim_engine.machine import Machine
    from kernbench.sim_engine.transport.transfer import Transfer
    from kernbench.topology.graph import Node

A = TypeVar("A", bound=InnerAttrs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a host request ended."""

    error: Exception | None = None
    reports: tuple[PeReport, ...] = field(default=())


Done = Callable[[Outcome], None]


class Component(Part):
    """A part of the machine at ``node``.

    A subclass says what a packet pays to enter (``overhead_ns``), takes the messages that are delivered to it
    (``receive``) and, if the host may address it, its requests (``accept``). Made on first use; made once per machine.
    """

    def __init__(self, node: Node, machine: Machine) -> None:
        self.node = node
        self.machine = machine
        self.clock = machine.clock

    @property
    def overhead_ns(self) -> float:
        """Time that passing through this part, or entering it, costs a packet: ``attrs.overhead_ns``.

        Override it to model another router; it is read once, when the links to this part are made.
        """
        return self.node.overhead_ns

    @property
    def overhead_ps(self) -> int:
        """``overhead_ns`` in ps."""
        return ns_to_ps(sound_overhead_ns(self))

    @property
    def handles_serially(self) -> bool:
        """True for CPUs: their overhead is time of the CPU, one message after another, not time on the link."""
        return False

    def receive(self, message: object, transfer: Transfer) -> None:
        """Take a message that was delivered to this part. UnsupportedError when it is not for such a part."""
        raise UnsupportedError(f"{self.node.id} ({self.node.kind}) cannot take a {type(message).__name__}")

    def accept(self, msg: HostMsg, done: Done) -> None:
        """Start a request of the host and call ``done`` when it is over."""
        raise UnsupportedError(f"{self.node.id} ({self.node.kind}) does not serve {type(msg).__name__}")

    def blocked(self) -> tuple[str, ...]:
        """What is stuck here, a line each, for a deadlock report that names this part."""
        return ()

    def failures(self) -> tuple[tuple[int, PeReport], ...]:
        """Request and report of PEs that have failed while others have yet to report, as far as this part knows."""
        return ()

    def abandon(self, request_ids: frozenset[int]) -> None:
        """Stop what runs here for requests that are given up."""

    def reset(self) -> None:
        """Forget what was under way; nothing is any more."""

    def attrs_as(self, model: type[A]) -> A:
        """The typed ``attrs`` of this part."""
        if not isinstance(self.node.attrs, model):
            raise KernbenchError(f"{self.node.id}: {self.node.impl} needs attrs of {model.__name__}")
        return self.node.attrs


def sound_overhead_ns(part: Component) -> float:
    """Its ``overhead_ns``. UnsupportedError for what is no time."""
    found: object = part.overhead_ns
    if not isinstance(found, int | float | np.floating) or not 0 <= found < inf:
        node = part.node
        raise UnsupportedError(
            f"{node.id}: overhead_ns of {node.impl} is {found!r}, must be a number of ns, at least 0"
        )
    return float(found)
