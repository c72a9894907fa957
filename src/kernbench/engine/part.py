"""The base class of parts, and what each place of the machine calls of the part that stands there.

A class of a user's may override what its place calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import cached_property
from math import inf
from random import Random
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from kernbench.common.errors import KernbenchError, UnsupportedError
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.core.clock import NEVER
from kernbench.core.log import NONE, Row
from kernbench.di.part import InnerAttrs, Part
from kernbench.messages.control import PeReport
from kernbench.messages.requests import HostMsg
from kernbench.topology.graph import Node
from kernbench.transport import Junction, RateStretch, Transfer, VaryingRate

if TYPE_CHECKING:
    from kernbench.engine.machine import Machine

A = TypeVar("A", bound=InnerAttrs)


@value
class Outcome:
    """The end of a host request, and the row of the log that ended it."""

    error: Exception | None = None
    reports: tuple[PeReport, ...] = field(default=())
    last: Row = NONE


Done = Callable[[Outcome], None]


class Component(Part):
    """A part of the machine at ``node``.

    A subclass says what a packet pays to enter (``overhead_ns``), takes the messages that are delivered to it
    (``receive``) and, if the host may address it, its requests (``accept``). Made on first use; made once per machine.
    """

    junction: Junction | None = None
    """Where it decides about the transfers that pass, if it does"""

    def __init__(self, node: Node, machine: Machine) -> None:
        self.node = node
        self.machine = machine
        self.clock = machine.clock

    @property
    def now_ns(self) -> float:
        """The simulated time."""
        return ps_to_ns(self.clock.time)

    @cached_property
    def random(self) -> Random:
        """Numbers by chance: each part has its own, and they are the same in every run."""
        return Random(self.node.id)

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
    def rate_gbs(self) -> float | None:
        """The bandwidth of each link out of this part, each alone: ``attrs.rate_gbs``; None: that of the link.

        Override it to model a limiter: a number is read once, when the links out of this part are made, and is a part
        of routes and their closed forms. A method ``rate_gbs(self, now_ns)`` returns the rate at ``now_ns`` and until
        which ns it holds (``inf``: for ever); packets of such a part never go express. No link is faster than itself.
        """
        return self.node.rate_gbs

    @cached_property
    def link_rate(self) -> float | VaryingRate | None:
        """``rate_gbs`` as links need it. UnsupportedError for what is no rate."""
        rate: object = self.rate_gbs
        if callable(rate):
            return VaryingRate(self.rate_at)
        return None if rate is None else _sound_rate(f"{self.node.id}: rate_gbs of {self.node.impl}", rate)

    @property
    def says_rate(self) -> bool:
        """True for a part that says what passes it: by ``rate_gbs``, or by an attribute of that name."""
        return self.link_rate is not None or self.node.rate_gbs is not None

    def rate_at(self, now_ps: int) -> RateStretch:
        """Return the rate of the part at ``now_ps``, and until when it holds. UnsupportedError for what is no rate."""
        rate: object = self.rate_gbs
        if callable(rate):
            return _ask_rate(rate, now_ps)
        said = self.node.rate_gbs if rate is None else rate
        return RateStretch(_sound_rate(f"{self.node.id}: rate_gbs of {self.node.impl}", said), NEVER)

    @property
    def handles_serially(self) -> bool:
        """True for CPUs: their overhead is time of the CPU, one message after another, not time on the link."""
        return False

    def receive(self, message: object, transfer: Transfer) -> None:
        """Take a message that was delivered to this part. UnsupportedError when it is not for such a part."""
        sender = transfer.route.links[0].src
        what = type(message).__name__
        raise UnsupportedError(f"{self.node.id} ({self.node.kind}) cannot take a {what}, which {sender} sent")

    def accept(self, msg: HostMsg, done: Done) -> None:
        """Start a request of the host and call ``done`` when it is over."""
        raise UnsupportedError(f"{self.node.id} ({self.node.kind}) does not serve {type(msg).__name__}")

    def begin(self) -> None:
        """Start what this part does by itself: it has been made."""

    def blocked(self) -> tuple[str, ...]:
        """Return a line for each thing that is stuck here, for a deadlock report that names this part."""
        return ()

    def failures(self) -> tuple[tuple[int, PeReport], ...]:
        """Request and report of PEs that have failed while others have yet to report, as far as this part knows."""
        return ()

    def abandon(self, request_ids: frozenset[int]) -> None:
        """Stop what runs here for requests that are given up."""

    def reset(self) -> None:
        """Forget what was under way; nothing is any more."""

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The parts that links lead to from here: of an extra part in the order of its ``links``."""
        return tuple(edge.dst for edge in self.machine.graph.out_edges(self.node.id))

    def attrs_as(self, model: type[A]) -> A:
        """Return the typed ``attrs`` of this part."""
        if not isinstance(self.node.attrs, model):
            raise KernbenchError(f"{self.node.id}: {self.node.impl} needs attrs of {model.__name__}")
        return self.node.attrs


def is_builtin(cls: type) -> bool:
    """Return True for a class that ships with kernbench; others are users'."""
    return cls.__module__.startswith("kernbench.")


def sound_overhead_ns(part: Component) -> float:
    """Return its ``overhead_ns``. UnsupportedError for what is no time."""
    return sound_ns(f"{part.node.id}: overhead_ns of {part.node.impl}", part.overhead_ns)


def sound_ns(what: str, found: object) -> float:
    """``found`` as a time. UnsupportedError if it is none."""
    if not isinstance(found, int | float | np.number) or not 0 <= found < inf:
        raise UnsupportedError(f"{what} is {found!r}, must be a number of ns, at least 0")
    return float(found)


LONGEST_NS = 1e12
"""A rate that holds beyond this holds for ever: no run comes so far"""


def _sound_rate(what: str, found: object, *, may_stop: bool = False) -> float:
    """``found`` as GB/s. UnsupportedError if it is none, and for 0 unless the links ``may_stop``."""
    sound = isinstance(found, int | float | np.number) and not isinstance(found, bool) and 0 <= found < inf
    if not sound or not (found or may_stop):
        limit = "at least 0" if may_stop else "more than 0"
        raise UnsupportedError(f"{what} is {found!r}, must be a number of GB/s, {limit}")
    return float(found)  # type: ignore[arg-type]  # it is a number


def _ask_rate(rate_gbs: Callable[[float], object], now_ps: int) -> RateStretch:
    """Return what a part says of its rate at ``now_ps``. UnsupportedError for what is no rate, or no later time."""
    now_ns = ps_to_ns(now_ps)
    found = rate_gbs(now_ns)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise UnsupportedError(f"rate_gbs({now_ns:.12g}) is {found!r}, must be a rate in GB/s, and until which ns")
    gbs, until_ns = found
    gbs = _sound_rate(f"the rate of rate_gbs({now_ns:.12g})", gbs, may_stop=True)
    if not isinstance(until_ns, int | float | np.number) or not until_ns > now_ns:
        raise UnsupportedError(f"rate_gbs({now_ns:.12g}) holds until {until_ns!r}, must be ns later than it is")
    if not gbs and until_ns >= LONGEST_NS:
        raise UnsupportedError(f"rate_gbs({now_ns:.12g}) is 0 GB/s until {until_ns:g} ns: nothing would ever pass")
    return RateStretch(gbs, max(now_ps + 1, ns_to_ps(float(until_ns))) if until_ns < LONGEST_NS else NEVER)


_MADE = ("abandon", "blocked", "failures", "reset")  # of every part, once it has been made
_PASSED = ("overhead_ns", "rate_gbs")  # when a link into the part, or out of it, is made
_TRANSIT = (*_PASSED, "forward", "hold_ns", "hold_packet_ns")  # when the head of a transfer, or a packet, enters it
_ENTERED = (*_PASSED, "handles_serially")  # the same, where messages end
_MEMORY = (*_ENTERED, "receive", "run", "serve")
_CPU = (*_ENTERED, "overhead_ps", "receive", "handle")
_CONTROL_CPU = (*_CPU, "run", "handling_ns")

CALLED: dict[str, tuple[str, ...]] = {
    "host": (*_ENTERED, "accept", "receive", "run", "handle"),
    "switch": _TRANSIT,
    "pcie_ep": _TRANSIT,
    "io_cpu": _CONTROL_CPU,
    "io_noc": _TRANSIT,
    "ucie": _TRANSIT,
    "sip_port": _TRANSIT,
    "noc_router": _TRANSIT,
    "xbar": _TRANSIT,
    "hbm_ctrl": _MEMORY,
    "m_cpu": _CONTROL_CPU,
    "sram": _MEMORY,
    "pe_cpu": _CPU,
    "pe_scheduler": ("block_sizes", "product_of", "submit"),
    "pe_dma": (*_ENTERED, "accept", "receive", "start", "write"),
    "pe_fetch_store": ("fetch_ps", "store_ps"),
    "pe_gemm": ("tile_ps",),
    "pe_math": ("operation_ps", "submit"),
    "pe_tcm": ("read_ps", "write_ps"),
    "pe_mmu": (),
    "pe_ipcq": ("overhead_ns", "overhead_ps", "arrived"),
}
"""By kind, beside what is called of every part."""

EXTRA = (*_ENTERED, "overhead_ps", "receive")
"""Of an extra part; beside it, what its own classes call of themselves"""

COMPONENT_CALLS = frozenset((*_MADE, *_ENTERED, "overhead_ps", "receive", "accept"))
"""What the base class has."""
CALLED_BY_BASE = frozenset(("forward", "hold_ns", "hold_packet_ns", "serve"))
"""What the builtin class of a kind calls of itself: a class that is not derived from it has to go without."""
LOOK_ALIKES = ("hold", "hold_packet", "time_ps")
"""What is not called, but looks like it: ``hold_ns``, ``hold_packet_ns`` and a memory's ``serve`` are."""
OTHER_CALLS = frozenset((*LOOK_ALIKES, *(name for names in CALLED.values() for name in names))) - COMPONENT_CALLS
"""What the builtin classes of some kinds have beside it, or users may take for that."""


def called_at(kind: str) -> tuple[str, ...]:
    """Return the methods that the machine calls of a part of this kind, sorted; other kinds are extra parts."""
    return tuple(sorted((*_MADE, *CALLED.get(kind, EXTRA))))
