"""The machine in simulation: the network, the parts and the allocators, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count, pairwise
from typing import Any, TypeVar

import numpy as np

from kernbench.common.errors import KernbenchError, NoDataError, UnsupportedError
from kernbench.core.clock import Clock
from kernbench.core.log import NONE, Cause, Kind, Log, Row
from kernbench.di.registry import REGISTRY
from kernbench.engine.address_map import AddressMap
from kernbench.engine.hooks import Hooks
from kernbench.engine.part import Component, called_at, sound_overhead_ns
from kernbench.engine.recorder import ContentMaker, Observation, OpStarted, Recorder
from kernbench.engine.records import RecordViews
from kernbench.messages.commands import Operand
from kernbench.messages.control import ControlMessage
from kernbench.messages.requests import PeCoord
from kernbench.policy.address.allocator import CubeMemAllocator, PEMemAllocator, address_config
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.policy.routing.planner import RouteChoices, RoutePlanner
from kernbench.topology.graph import Graph, Node
from kernbench.topology.spec import TopologySpec
from kernbench.transport import Link, Network, Port, Route, Transfer, VaryingRate, Way


class Memories:
    """Physical allocators by coordinates, virtual ones by SIP."""

    def __init__(self, spec: TopologySpec) -> None:
        self.config = address_config(spec)
        self._pes = _PeAllocators(self, spec)
        self.pes: Mapping[PeCoord, PEMemAllocator] = self._pes
        self._spec = spec
        self._cubes: dict[tuple[int, int], CubeMemAllocator] = {}
        self._va: dict[int, VirtualAllocator] = {}

    @property
    def used_pes(self) -> Mapping[PeCoord, PEMemAllocator]:
        """The allocators of PEs that anything was asked of."""
        return self._pes.made

    def cube(self, sip: int, cube: int) -> CubeMemAllocator:
        """Return the SRAM allocator of a cube."""
        found = self._cubes.get((sip, cube))
        if found is None:
            found = self._cubes[sip, cube] = CubeMemAllocator(0, sip, cube, self.config)
        return found

    def va(self, sip: int) -> VirtualAllocator:
        """Return the virtual addresses of a SIP."""
        found = self._va.get(sip)
        if found is None:
            found = self._va[sip] = VirtualAllocator.for_machine(self.config, self._spec.pe.mmu.page_bytes)
        return found


class _PeAllocators(Mapping[PeCoord, PEMemAllocator]):
    """Allocators of all PEs of the machine; each exists from when it is asked for."""

    def __init__(self, memories: Memories, spec: TopologySpec) -> None:
        self._memories = memories
        self._spec = spec
        self.made: dict[PeCoord, PEMemAllocator] = {}

    def __getitem__(self, key: PeCoord) -> PEMemAllocator:
        found = self.made.get(key)
        if found is None:
            sip, cube, pe = key
            spec = self._spec
            if not (0 <= sip < spec.num_sips and 0 <= cube < spec.cubes_per_sip and 0 <= pe < spec.pes_per_cube):
                raise KeyError(key)
            found = self.made[key] = PEMemAllocator(0, sip, cube, pe, self._memories.config)
        return found

    def __iter__(self) -> Iterator[PeCoord]:
        for sip in range(self._spec.num_sips):
            for cube in range(self._spec.cubes_per_sip):
                yield from ((sip, cube, pe) for pe in range(self._spec.pes_per_cube))

    def __len__(self) -> int:
        return self._spec.num_pes


C = TypeVar("C", bound=Component)
T = TypeVar("T")


def _no_values(array: Operand) -> np.ndarray[Any, Any]:
    raise NoDataError(f"a machine without an engine has no values of {array}")


class Machine:
    """Everything components share: clock, network, addresses, allocators, op-log, hooks, and each other by node id.

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
        self.memories = Memories(graph.spec)
        self._planner = RoutePlanner(graph)
        self._choices = RouteChoices(graph, self._planner)
        self._components: dict[str, Component] = {}
        self._routes: dict[tuple[str, str, str | None], Route] = {}
        self._senders: dict[tuple[str, str, str], tuple[Port, Route]] = {}  # by source, destination and channel
        self._ways: dict[tuple[Link, ...], tuple[Way, ...]] = {}
        self._shared: dict[type, Any] = {}
        self.next_op = count(1).__next__  # a number for a new operation
        self.given_up: frozenset[int] = frozenset()  # requests whose kernels are not started any more
        self._postponed: list[Callable[[], None]] = []
        self.values_of: Callable[[Operand], np.ndarray[Any, Any]] = _no_values  # of an array now; the engine knows
        self.delivered = self._deliver  # what transfers of messages end with, bound once

    def component(self, node_id: str) -> Component:
        """Return the component at ``node_id``. UnknownNameError when the machine has no such part."""
        found = self._components.get(node_id)
        if found is None:
            node = self.graph.node(node_id)
            cls = REGISTRY.lookup(node.impl)
            assert issubclass(cls, Component), "checked when the machine was made"
            with _name_part(node):
                found = cls(node, self)
                found.begin()
            self._components[node_id] = found
        return found

    def part(self, node_id: str, cls: type[C]) -> C:
        """Return the component at ``node_id`` as a ``cls``. UnsupportedError if its class cannot stand in for that."""
        found = self.component(node_id)
        if not isinstance(found, cls):
            needed = f"derive it from {cls.__module__}.{cls.__qualname__}"
            raise UnsupportedError(f"{node_id}: {type(found).__name__} does not do what {cls.__name__} does; {needed}")
        return found

    def shared(self, cls: type[T], make: Callable[[], T] | None = None) -> T:
        """Return the one object of ``cls`` that parts of this machine share; the first call makes it."""
        found: T | None = self._shared.get(cls)
        if found is None:
            found = self._shared[cls] = (make or cls)()
        return found

    def postpone(self, task: Callable[[], None]) -> None:
        """Have ``task`` done before the machine is next used, which may never be."""
        self._postponed.append(task)

    def do_postponed(self) -> None:
        """Do what was postponed, all of it also when a task fails."""
        tasks, self._postponed = self._postponed, []
        with ExitStack() as stack:
            for task in reversed(tasks):
                stack.callback(task)

    @property
    def components(self) -> tuple[Component, ...]:
        """The components made so far, in the order of their first use."""
        return tuple(self._components.values())

    def observe(self, *, links: bool = False) -> None:
        """Keep from now on what transfers, memories and, if asked, links do. Nothing may have happened yet."""
        links = links or (self.observation is not None and self.observation.tables.links is not None)
        self.observation = Observation(self.log, self.recorder, self.network, links=links)

    def begin_op(self, event: OpStarted, cause: Cause) -> Row:
        """Log an operation that begins after ``cause``."""
        return self.recorder.started(event, cause)

    def end_op(self, op: int, last: Row = NONE) -> Row:
        """Operation ``op`` is over; ``last``: the row that ended it, if it is made of others."""
        return self.recorder.ended(op, self.clock.time, last)

    def route(self, src: str, dst: str, via_port: str | None = None) -> Route:
        """Return the way from one part to another: planned, with its links, at first use, and kept here.

        ``via_port``: the scale-up link to leave the SIP by, where that leads straight to the other.
        """
        key = (src, dst, via_port)
        found = self._routes.get(key)
        if found is None:
            found = self._routes[key] = self._make_route(self._planner.route(src, dst, via_port))
        return found

    def ways(self, planned: tuple[Link, ...]) -> tuple[Way, ...]:
        """Return the ways open to a transfer: the links ``planned``, and every other way of as few hops."""
        found = self._ways.get(planned)
        if found is None:
            others = self._choices.instead_of((planned[0].src, *Way(planned).nodes))
            found = Way(planned), *(Way(self._make_route(each).links) for each in others)
            self._ways[planned] = found
        return found

    def _make_route(self, nodes: tuple[str, ...]) -> Route:
        for a, b in pairwise(nodes):
            if (a, b) not in self.network.links:
                self._wire(a, b)
        return self.network.make_route(nodes)

    def _wire(self, src: str, dst: str) -> None:
        edge = self.graph.edge(src, dst)
        entered, left = self.component(dst), self.component(src)
        divided = left.junction is not None and left.junction.divides
        with _name_part(self.graph.node(dst)):
            serial = "handles_serially" in called_at(entered.node.kind) and entered.handles_serially
            entry_ns = 0.0 if serial else sound_overhead_ns(entered)
            entered_gbs = _constant(entered.link_rate)
        with _name_part(self.graph.node(src)):
            rate = left.link_rate
        bw_gbs = min(edge.bw_gbs, _constant(rate) or edge.bw_gbs)
        # A part that is slower than the link into it keeps what waits, so a stream meets no full FIFO. With turns of
        # any kind, full FIFOs could wait in a cycle.
        unbounded = divided or (entered_gbs is not None and entered_gbs < bw_gbs)
        self.network.link(
            src,
            dst,
            bw_gbs=bw_gbs,
            overhead_ns=entry_ns + self.spec.wire_ns(edge.length_mm) + edge.overhead_ns,
            fifo_bytes=None if unbounded else edge.fifo_bytes,
            index=self.graph.edge_number(src, dst),
            junction=entered.junction,
            rate=rate if isinstance(rate, VaryingRate) else None,
        )

    def make(
        self, port: Port, src: str, dst: str, nbytes: int, message: object, via_port: str | None = None
    ) -> Transfer:
        """Make a transfer of ``message``, which the caller injects; the component at ``dst`` gets it."""
        return self.network.make(port, self.route(src, dst, via_port), nbytes, self.delivered, message)

    def send(self, src: str, dst: str, nbytes: int, message: object, channel: str = "") -> Transfer:
        """Send ``message`` from the port of ``src`` for ``channel`` now."""
        key = (src, dst, channel)
        port, route = self._senders.get(key) or self._make_sender(key)
        return self.network.post(port, route, nbytes, self.delivered, message)

    def _make_sender(self, key: tuple[str, str, str]) -> tuple[Port, Route]:
        src, dst, channel = key
        made = self._senders[key] = (self.network.port(src, channel), self.route(src, dst))
        return made

    def send_header(self, src: str, dst: str, message: object, channel: str = "") -> Transfer:
        """Send a message that is a header only."""
        return self.send(src, dst, self.header_bytes, message, channel)

    def send_control(self, src: str, dst: str, message: ControlMessage, cause: Cause) -> None:
        """Send a message of the control path, after ``cause``: it is over when its receiver has handled it."""
        log, request_id = self.log, message.request_id
        row = log.open(
            log.part(src),
            Kind.CONTROL,
            self.clock.time,
            cause,
            what=log.intern(type(message).__name__),
            launch=request_id,
            parent=log.requests.get(request_id, NONE),
        )
        transfer = self.make(self.network.port(src, "control"), src, dst, self.header_bytes, message)
        transfer.row = row
        self.network.inject(transfer)

    def sideband_ps(self, src: str, dst: str, nbytes: int, via_port: str | None = None) -> int:
        """Delay of a credit of ``nbytes`` from one part to another: the way's own time, and it occupies nothing."""
        return self.route(src, dst, via_port).latency_ps(nbytes)

    def _deliver(self, transfer: Transfer) -> None:
        there = transfer.route.links[-1].dst
        (self._components.get(there) or self.component(there)).receive(transfer.arg, transfer)


def _constant(rate: float | VaryingRate | None) -> float | None:
    """The rate that never changes, if it is one."""
    return None if isinstance(rate, VaryingRate) else rate


@contextmanager
def _name_part(node: Node) -> Iterator[None]:
    """Add the name of the part to an error that its code raises."""
    try:
        yield
    except KernbenchError:
        raise
    except Exception as error:
        error.add_note(f"in {node.id}, which is {node.impl}")
        raise
