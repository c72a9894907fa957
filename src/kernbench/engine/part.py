"""The base class of parts, and the methods that each place of the machine calls on its part.

A user's class may override the methods that its place calls.
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
    """The end of a host request, and the row of the log that ended the request."""

    error: Exception | None = None
    reports: tuple[PeReport, ...] = field(default=())
    last: Row = NONE


Done = Callable[[Outcome], None]


class Component(Part):
    """A part of the machine at ``node``.

    A subclass defines the time that a packet needs to enter (``overhead_ns``), and handles delivered messages
    (``receive``). If the host may address the part, the subclass also handles requests (``accept``). A machine makes
    each part once, at its first use.
    """

    junction: Junction | None = None
    """The junction that decides about transfers through the part, if the part decides"""

    def __init__(self, node: Node, machine: Machine) -> None:
        self.node = node
        self.machine = machine
        self.clock = machine.clock

    @property
    def now_ns(self) -> float:
        """The simulated time in ns."""
        return ps_to_ns(self.clock.time)

    @cached_property
    def random(self) -> Random:
        """The part's random generator, seeded with its node id: the numbers are the same in every run."""
        return Random(self.node.id)

    @property
    def overhead_ns(self) -> float:
        """Time in ns that a packet needs to pass or enter this part: ``attrs.overhead_ns``.

        Override this property to model another router. The machine reads it once, when it makes the links to this part.
        """
        return self.node.overhead_ns

    @property
    def overhead_ps(self) -> int:
        """``overhead_ns`` in ps."""
        return ns_to_ps(sound_overhead_ns(self))

    @property
    def rate_gbs(self) -> float | None:
        """The bandwidth in GB/s of each link out of this part: ``attrs.rate_gbs``; None: the link's bandwidth.

        Override this property to model a limiter. The machine reads a number once, when it makes the links out of this
        part, and routes and their closed forms use the number. A method ``rate_gbs(self, now_ns)`` returns the rate at
        ``now_ns`` and the time in ns until which the rate holds (``inf``: for ever). Packets over links with such a
        varying rate never go express. The rate never raises the bandwidth of a link.
        """
        return self.node.rate_gbs

    @cached_property
    def link_rate(self) -> float | VaryingRate | None:
        """``rate_gbs`` as links use it: a number, a VaryingRate or None. Raises UnsupportedError if it is no rate."""
        rate: object = self.rate_gbs
        if callable(rate):
            return VaryingRate(self.rate_at)
        return None if rate is None else _sound_rate(f"{self.node.id}: rate_gbs of {self.node.impl}", rate)

    @property
    def says_rate(self) -> bool:
        """True if the part limits its links, by its ``rate_gbs`` or by the attribute of that name."""
        return self.link_rate is not None or self.node.rate_gbs is not None

    def rate_at(self, now_ps: int) -> RateStretch:
        """Return the rate from ``now_ps`` on, with its end. Raises UnsupportedError if it is no rate."""
        rate: object = self.rate_gbs
        if callable(rate):
            return _ask_rate(rate, now_ps)
        rate_gbs = self.node.rate_gbs if rate is None else rate
        return RateStretch(_sound_rate(f"{self.node.id}: rate_gbs of {self.node.impl}", rate_gbs), NEVER)

    @property
    def handles_serially(self) -> bool:
        """True for CPUs: the overhead of a message occupies the CPU, and adds no latency to the link."""
        return False

    def receive(self, message: object, transfer: Transfer) -> None:
        """Handle a message that was delivered to this part. Raises UnsupportedError for a message of a wrong type."""
        sender = transfer.route.links[0].src
        message_type = type(message).__name__
        raise UnsupportedError(f"{self.node.id} ({self.node.kind}) cannot take a {message_type}, which {sender} sent")

    def accept(self, msg: HostMsg, done: Done) -> None:
        """Start a request of the host, and call ``done`` when the request is over.

        Raises UnsupportedError if the part does not serve such requests.
        """
        raise UnsupportedError(f"{self.node.id} ({self.node.kind}) does not serve {type(msg).__name__}")

    def begin(self) -> None:
        """Start the part's own activity; the machine calls this once, after it has made the part."""

    def blocked(self) -> tuple[str, ...]:
        """Return a line for each blocked activity of this part, for the deadlock report."""
        return ()

    def failures(self) -> tuple[tuple[int, PeReport], ...]:
        """Return (request id, report) of each failed PE that this part has recorded while other reports are pending."""
        return ()

    def abandon(self, request_ids: frozenset[int]) -> None:
        """Stop the activities of this part for abandoned requests."""

    def reset(self) -> None:
        """Reset the part's state; nothing is in flight any more."""

    @property
    def neighbours(self) -> tuple[str, ...]:
        """The parts that outgoing links lead to; for an extra part in the order of its ``links``."""
        return tuple(edge.dst for edge in self.machine.graph.out_edges(self.node.id))

    def attrs_as(self, model: type[A]) -> A:
        """Return the typed ``attrs`` of this part. Raises KernbenchError if they are of another model."""
        if not isinstance(self.node.attrs, model):
            raise KernbenchError(f"{self.node.id}: {self.node.impl} needs attrs of {model.__name__}")
        return self.node.attrs


def is_builtin(cls: type) -> bool:
    """Return True for a class that ships with kernbench, False for a user's class."""
    return cls.__module__.startswith("kernbench.")


def sound_overhead_ns(part: Component) -> float:
    """Return the ``overhead_ns`` of ``part``. Raises UnsupportedError if it is no time."""
    return sound_ns(f"{part.node.id}: overhead_ns of {part.node.impl}", part.overhead_ns)


def sound_ns(label: str, time_ns: object) -> float:
    """Return ``time_ns`` as a float. Raises UnsupportedError, which begins with ``label``, if it is no time."""
    if not isinstance(time_ns, int | float | np.number) or not 0 <= time_ns < inf:
        raise UnsupportedError(f"{label} is {time_ns!r}, must be a number of ns, at least 0")
    return float(time_ns)


LONGEST_NS = 1e12
"""A rate that holds until this time or longer counts as constant, since no run reaches this time"""


def _sound_rate(label: str, rate: object, *, may_stop: bool = False) -> float:
    """Return ``rate`` in GB/s. Raises UnsupportedError if it is no rate, or 0 without ``may_stop``."""
    sound = isinstance(rate, int | float | np.number) and not isinstance(rate, bool) and 0 <= rate < inf
    if not sound or not (rate or may_stop):
        limit = "at least 0" if may_stop else "more than 0"
        raise UnsupportedError(f"{label} is {rate!r}, must be a number of GB/s, {limit}")
    return float(rate)  # type: ignore[arg-type]  # it is a number


def _ask_rate(rate_gbs: Callable[[float], object], now_ps: int) -> RateStretch:
    """Return the rate of a part at ``now_ps``. Raises UnsupportedError for no rate, or an end that is not later."""
    now_ns = ps_to_ns(now_ps)
    stretch = rate_gbs(now_ns)
    if not isinstance(stretch, tuple | list) or len(stretch) != 2:
        raise UnsupportedError(
            f"rate_gbs({now_ns:.12g}) is {stretch!r}, must be a rate in GB/s and the ns until which it holds"
        )
    gbs, until_ns = stretch
    gbs = _sound_rate(f"the rate of rate_gbs({now_ns:.12g})", gbs, may_stop=True)
    if not isinstance(until_ns, int | float | np.number) or not until_ns > now_ns:
        raise UnsupportedError(f"rate_gbs({now_ns:.12g}) holds until {until_ns!r}, must be a later time in ns")
    if not gbs and until_ns >= LONGEST_NS:
        raise UnsupportedError(f"rate_gbs({now_ns:.12g}) is 0 GB/s until {until_ns:g} ns: nothing would ever pass")
    return RateStretch(gbs, max(now_ps + 1, ns_to_ps(float(until_ns))) if until_ns < LONGEST_NS else NEVER)


_ANY_PART = ("abandon", "blocked", "failures", "reset")  # on every part, once it is made
_PASSED = ("overhead_ns", "rate_gbs")  # when a link into the part, or out of the part, is made
_TRANSIT = (*_PASSED, "forward", "hold_ns", "hold_packet_ns")  # when the head of a transfer, or a packet, enters
_ENTERED = (*_PASSED, "handles_serially")  # on parts where messages end: also as ``_PASSED``
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
"""By kind, the methods that the machine calls on a part; they do not include ``_ANY_PART``."""

EXTRA = (*_ENTERED, "overhead_ps", "receive")
"""The methods that the machine calls on an extra part. The part's own classes may call more."""

COMPONENT_CALLS = frozenset((*_ANY_PART, *_ENTERED, "overhead_ps", "receive", "accept"))
"""The methods that the base class defines."""
CALLED_BY_BASE = frozenset(("forward", "hold_ns", "hold_packet_ns", "serve"))
"""The methods that only the builtin class of a kind calls, so that a user's class must derive from it."""
LOOK_ALIKES = ("hold", "hold_packet", "time_ps")
"""Names that nothing calls, similar to the called ``hold_ns``, ``hold_packet_ns`` and a memory's ``serve``."""
OTHER_CALLS = frozenset((*LOOK_ALIKES, *(name for names in CALLED.values() for name in names))) - COMPONENT_CALLS
"""The methods that the machine calls on some kinds only, beyond the base class, and the look-alikes."""


def called_at(kind: str) -> tuple[str, ...]:
    """Return the methods that the machine calls on a part of this kind, sorted; an unknown kind is an extra part."""
    return tuple(sorted((*_ANY_PART, *CALLED.get(kind, EXTRA))))
