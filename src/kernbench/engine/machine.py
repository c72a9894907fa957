"""The simulated machine: its parts, network and allocators, each constructed at its first use.

``Component`` is the base class of parts. ``di/part.py`` lists the methods that each place calls on its part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import cached_property
from itertools import count, pairwise
from math import inf
from random import Random
from typing import Any, TypeVar

import numpy as np

from kernbench.common.errors import KernbenchError, NoDataError, UnsupportedError
from kernbench.common.units import ns_to_ps, ps_to_ns
from kernbench.common.values import value
from kernbench.core.clock import NEVER, Clock
from kernbench.core.log import NONE, Cause, FoldedLaunch, Kind, Log, Row
from kernbench.di.part import InnerAttrs, Part, called_at
from kernbench.di.registry import REGISTRY
from kernbench.engine.address_map import AddressMap
from kernbench.engine.hooks import Hooks
from kernbench.engine.passed_launches import PassedLaunches
from kernbench.engine.recorder import ContentMaker, Observation, OpStarted, Recorder
from kernbench.engine.records import RecordViews
from kernbench.messages.commands import Operand
from kernbench.messages.control import ControlMessage, PeReport
from kernbench.messages.requests import HostMsg, PeCoord
from kernbench.policy.address.allocator import CubeMemAllocator, PEMemAllocator, address_config
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.policy.routing.planner import RouteChoices, RoutePlanner
from kernbench.topology.graph import Graph, Node
from kernbench.topology.spec import TopologySpec
from kernbench.transport import Junction, Link, Network, Port, RateStretch, Route, Transfer, VaryingRate, Way

A = TypeVar("A", bound=InnerAttrs)
C = TypeVar("C", bound="Component")
T = TypeVar("T")

CONTROL_MESSAGES = "control messages"
"""Name of a count: the messages of the control path to a part"""


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

    - ``n_control_messages``: the number of messages of the control path to the part.
    - ``n_accesses``: the number of delivered messages, counted by memories and thinking parts.
    - ``busy_ps``: the time that processes of a thinking part have passed in waits of a fixed duration.
    """

    junction: Junction | None = None
    """The junction that decides about transfers through the part, if the part decides"""

    def __init__(self, node: Node, machine: Machine) -> None:
        self.node = node
        self.machine = machine
        self.clock = machine.clock
        self.n_control_messages = self.n_accesses = self.busy_ps = 0

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

    def counts(self) -> Mapping[str, int]:
        """Return counts that the part adds up from the begin of the run, by name; parts of a SIP share names."""
        return {CONTROL_MESSAGES: self.n_control_messages}

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


class Memories:
    """The physical allocators by coordinates, and the allocators of virtual addresses by SIP."""

    def __init__(self, spec: TopologySpec) -> None:
        self.config = address_config(spec)
        self._pes = _PeAllocators(self, spec)
        self.pes: Mapping[PeCoord, PEMemAllocator] = self._pes
        self._spec = spec
        self._cubes: dict[tuple[int, int], CubeMemAllocator] = {}
        self._va: dict[int, VirtualAllocator] = {}

    @property
    def used_pes(self) -> Mapping[PeCoord, PEMemAllocator]:
        """The allocators in use, by PE."""
        return self._pes.allocators

    def cube(self, sip: int, cube: int) -> CubeMemAllocator:
        """Return the SRAM allocator of a cube."""
        allocator = self._cubes.get((sip, cube))
        if allocator is None:
            allocator = self._cubes[sip, cube] = CubeMemAllocator(0, sip, cube, self.config)
        return allocator

    def va(self, sip: int) -> VirtualAllocator:
        """Return the allocator of a SIP's virtual addresses."""
        allocator = self._va.get(sip)
        if allocator is None:
            allocator = self._va[sip] = VirtualAllocator.for_machine(self.config, self._spec.pe.mmu.page_bytes)
        return allocator


class _PeAllocators(Mapping[PeCoord, PEMemAllocator]):
    """The allocators of all PEs of the machine, each constructed at its first use."""

    def __init__(self, memories: Memories, spec: TopologySpec) -> None:
        self._memories = memories
        self._spec = spec
        self.allocators: dict[PeCoord, PEMemAllocator] = {}

    def __getitem__(self, key: PeCoord) -> PEMemAllocator:
        allocator = self.allocators.get(key)
        if allocator is None:
            sip, cube, pe = key
            spec = self._spec
            if not (0 <= sip < spec.num_sips and 0 <= cube < spec.cubes_per_sip and 0 <= pe < spec.pes_per_cube):
                raise KeyError(key)
            allocator = self.allocators[key] = PEMemAllocator(0, sip, cube, pe, self._memories.config)
        return allocator

    def __iter__(self) -> Iterator[PeCoord]:
        for sip in range(self._spec.num_sips):
            for cube in range(self._spec.cubes_per_sip):
                yield from ((sip, cube, pe) for pe in range(self._spec.pes_per_cube))

    def __len__(self) -> int:
        return self._spec.num_pes


def _no_values(array: Operand) -> np.ndarray[Any, Any]:
    raise NoDataError(f"a machine without an engine has no values of {array}")


class Machine:
    """The state that components share: clock, network, addresses, allocators, op-log, hooks, and components by node id.

    Without ``keep_data`` the op-log has no operands to replay.
    """

    def __init__(self, graph: Graph, *, keep_data: bool = True) -> None:
        self.graph = graph
        self.spec = graph.spec
        self.clock = Clock()
        transport = graph.spec.transport
        self.header_bytes = transport.header_bytes
        self.network = Network(transport.packet_bytes, clock=self.clock, express=transport.express)
        self.hooks = Hooks()
        self.addresses = AddressMap(graph.spec)
        self.log = Log()
        self.recorder = Recorder(self.log, keep_data=keep_data)
        self.contents = ContentMaker(self.addresses.place_of, graph.spec.pe.gemm.tile_sizes)
        self.observation: Observation | None = None
        self.op_log = RecordViews(self.log, self.contents, graph)
        self.passed = PassedLaunches()
        self.memories = Memories(graph.spec)
        self._planner = RoutePlanner(graph)
        self._choices = RouteChoices(graph, self._planner)
        self._components: dict[str, Component] = {}
        self._routes: dict[tuple[str, str, str | None], Route] = {}
        self._senders: dict[tuple[str, str, str], tuple[Port, Route]] = {}  # by source, destination and channel
        self._ways: dict[tuple[Link, ...], tuple[Way, ...]] = {}
        self._shared: dict[type, Any] = {}
        self.caches: list[Callable[[], None]] = []  # each drops results that parts would compute anew
        self.next_op = count(1).__next__  # a number for a new operation
        self.given_up: frozenset[int] = frozenset()  # abandoned requests, whose kernels are not started any more
        self._postponed: list[Callable[[], None]] = []
        # Returns the current elements of an array; the engine replaces it.
        self.values_of: Callable[[Operand], np.ndarray[Any, Any]] = _no_values
        self.delivered = self._deliver  # the callback at the end of a message's transfer, bound once

    def component(self, node_id: str) -> Component:
        """Return the component at ``node_id``. Raises UnknownNameError if the machine has no such part."""
        component = self._components.get(node_id)
        if component is None:
            node = self.graph.node(node_id)
            cls = REGISTRY.lookup(node.impl)
            assert issubclass(cls, Component), "checked when the machine was made"
            with _name_part(node):
                component = cls(node, self)
                component.begin()
            self._components[node_id] = component
        return component

    def part(self, node_id: str, cls: type[C]) -> C:
        """Return the component at ``node_id``. Raises UnsupportedError if its class does not derive from ``cls``."""
        component = self.component(node_id)
        if not isinstance(component, cls):
            needed = f"derive it from {cls.__module__}.{cls.__qualname__}"
            raise UnsupportedError(
                f"{node_id}: {type(component).__name__} does not do what {cls.__name__} does; {needed}"
            )
        return component

    def shared(self, cls: type[T], make: Callable[[], T] | None = None) -> T:
        """Return the only object of ``cls`` that parts of this machine share; the first call makes it."""
        instance: T | None = self._shared.get(cls)
        if instance is None:
            instance = self._shared[cls] = (make or cls)()
        return instance

    def forget(self) -> None:
        """Drop the caches of all parts, for a machine that is not expected to continue. No result changes."""
        for drop in self.caches:
            drop()

    def fold(self, launches: Collection[FoldedLaunch]) -> set[int]:
        """Fold the rows of launches that are over, with what is observed of them; return those that are folded now."""
        folded = self.log.fold(launches)
        if folded and self.observation is not None:
            self.observation.fold(self.log)
        return folded

    def postpone(self, task: Callable[[], None]) -> None:
        """Run ``task`` before the next use of the machine, or never if there is none."""
        self._postponed.append(task)

    def do_postponed(self) -> None:
        """Run all postponed tasks, in order; a task that raises does not stop later tasks."""
        tasks, self._postponed = self._postponed, []
        with ExitStack() as stack:
            for task in reversed(tasks):
                stack.callback(task)

    @property
    def components(self) -> tuple[Component, ...]:
        """The components made so far, in the order of their first use."""
        return tuple(self._components.values())

    def observe(self, *, links: bool = False) -> None:
        """Record transfers, memory grants and, with ``links``, packets from now on; call this before time passes."""
        links = links or (self.observation is not None and self.observation.tables.links is not None)
        self.observation = Observation(self.log, self.recorder, self.network, links=links)

    def begin_op(self, event: OpStarted, cause: Cause) -> Row:
        """Log an operation that begins after ``cause``."""
        return self.recorder.started(event, cause)

    def end_op(self, op: int, last: Row = NONE) -> Row:
        """Log the end of operation ``op``; ``last`` is the child row that ended it, if it has children."""
        return self.recorder.ended(op, self.clock.time, last)

    def route(self, src: str, dst: str, via_port: str | None = None) -> Route:
        """Return the route from one part to another. The first call plans it and makes its links; routes are cached.

        ``via_port``: the scale-up link by which the route leaves the SIP, if that link leads straight to the
        destination's SIP.
        """
        key = (src, dst, via_port)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = self._make_route(self._planner.route(src, dst, via_port))
        return route

    def ways(self, planned: tuple[Link, ...]) -> tuple[Way, ...]:
        """Return the ways of a transfer: first the links ``planned``, then the alternatives with as few hops."""
        ways = self._ways.get(planned)
        if ways is None:
            alternatives = self._choices.instead_of((planned[0].src, *Way(planned).nodes))
            ways = Way(planned), *(Way(self._make_route(nodes).links) for nodes in alternatives)
            self._ways[planned] = ways
        return ways

    def _make_route(self, nodes: tuple[str, ...]) -> Route:
        for a, b in pairwise(nodes):
            if (a, b) not in self.network.links:
                self._wire(a, b)
        return self.network.make_route(nodes)

    def _wire(self, src: str, dst: str) -> None:
        edge = self.graph.edge(src, dst)
        destination, source = self.component(dst), self.component(src)
        divided = source.junction is not None and source.junction.divides
        with _name_part(self.graph.node(dst)):
            serial = "handles_serially" in called_at(destination.node.kind) and destination.handles_serially
            entry_ns = 0.0 if serial else sound_overhead_ns(destination)
            destination_gbs = _constant(destination.link_rate)
        with _name_part(self.graph.node(src)):
            rate = source.link_rate
        bw_gbs = min(edge.bw_gbs, _constant(rate) or edge.bw_gbs)
        # A part slower than the link into the part buffers all waiting packets, so a stream never meets a full FIFO.
        # With routes that turn in any direction, full FIFOs could wait for each other in a cycle.
        unbounded = divided or (destination_gbs is not None and destination_gbs < bw_gbs)
        self.network.link(
            src,
            dst,
            bw_gbs=bw_gbs,
            overhead_ns=entry_ns + self.spec.wire_ns(edge.length_mm) + edge.overhead_ns,
            fifo_bytes=None if unbounded else edge.fifo_bytes,
            index=self.graph.edge_number(src, dst),
            junction=destination.junction,
            rate=rate if isinstance(rate, VaryingRate) else None,
        )

    def make(
        self, port: Port, src: str, dst: str, nbytes: int, message: object, via_port: str | None = None
    ) -> Transfer:
        """Return a transfer of ``message`` to the component at ``dst``; the caller injects the transfer."""
        return self.network.make(port, self.route(src, dst, via_port), nbytes, self.delivered, message)

    def send(self, src: str, dst: str, nbytes: int, message: object, channel: str = "") -> Transfer:
        """Send ``message`` now, from the port of ``src`` for ``channel``."""
        key = (src, dst, channel)
        port, route = self._senders.get(key) or self._make_sender(key)
        return self.network.post(port, route, nbytes, self.delivered, message)

    def _make_sender(self, key: tuple[str, str, str]) -> tuple[Port, Route]:
        src, dst, channel = key
        sender = self._senders[key] = (self.network.port(src, channel), self.route(src, dst))
        return sender

    def send_header(self, src: str, dst: str, message: object, channel: str = "") -> Transfer:
        """Send a message that consists of a header."""
        return self.send(src, dst, self.header_bytes, message, channel)

    def send_control(self, src: str, dst: str, message: ControlMessage, cause: Cause) -> None:
        """Send a control message. Its row begins after ``cause``, and closes when the receiver has handled it."""
        log, request_id = self.log, message.request_id
        row = log.open(
            log.part(src),
            Kind.CONTROL,
            self.clock.time,
            cause,
            subject=log.intern(type(message).__name__),
            launch=request_id,
            parent=log.requests.get(request_id, NONE),
        )
        transfer = self.make(self.network.port(src, "control"), src, dst, self.header_bytes, message)
        transfer.row = row
        self._components[dst].n_control_messages += 1
        self.network.inject(transfer)

    def sideband_ps(self, src: str, dst: str, nbytes: int, via_port: str | None = None) -> int:
        """Return the delay in ps of a credit of ``nbytes``: the zero-load latency of its route."""
        return self.route(src, dst, via_port).latency_ps(nbytes)

    def _deliver(self, transfer: Transfer) -> None:
        node_id = transfer.route.links[-1].dst
        (self._components.get(node_id) or self.component(node_id)).receive(transfer.arg, transfer)


def _constant(rate: float | VaryingRate | None) -> float | None:
    """Return ``rate`` if it is constant; None for a varying rate, or without a rate."""
    return None if isinstance(rate, VaryingRate) else rate


@contextmanager
def _name_part(node: Node) -> Iterator[None]:
    """Add a note with the part's name to an error that the part's code raises."""
    try:
        yield
    except KernbenchError:
        raise
    except Exception as error:
        error.add_note(f"in {node.id}, which is {node.impl}")
        raise
