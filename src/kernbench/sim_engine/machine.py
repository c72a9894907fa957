"""The machine in simulation: the wired network and the components, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, pairwise
from typing import Any, TypeVar

from kernbench.common.errors import KernbenchError, UnsupportedError
from kernbench.di.registry import REGISTRY
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.sim_engine.address_map import AddressMap
from kernbench.sim_engine.clock import Clock
from kernbench.sim_engine.component import Component, sound_overhead_ns
from kernbench.sim_engine.hooks import Hooks, OpEnded, OpStarted, Sent
from kernbench.sim_engine.memories import Memories
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.places import CALLED, check_parts
from kernbench.sim_engine.record_content import ContentMaker
from kernbench.sim_engine.recorder import Recorder
from kernbench.sim_engine.transport import Network, Port, Route, Transfer
from kernbench.topology.graph import Graph, Node

C = TypeVar("C", bound=Component)
T = TypeVar("T")


class Machine:
    """Everything components share: clock, network, addresses, allocators, op-log, hooks, and each other by node id.

    Without ``keep_data`` the op-log has no operands to replay. InputError for classes of parts that define what their
    places never call.
    """

    def __init__(self, graph: Graph, *, keep_data: bool = True) -> None:
        check_parts(graph.nodes.values())
        self.graph = graph
        self.spec = graph.spec
        self.clock = Clock()
        transport = graph.spec.transport
        self.header_bytes = transport.header_bytes
        self.network = Network(transport.packet_bytes, clock=self.clock, express=transport.express)
        self.hooks = Hooks()
        self.addresses = AddressMap(graph.spec)
        contents = ContentMaker(self.addresses, graph.spec.pe.gemm.tile_sizes)
        self.recorder = Recorder(OpLog(), contents, keep_data=keep_data)
        self.memories = Memories(graph.spec)
        self._planner = RoutePlanner(graph)
        self._link_index = {(e.src, e.dst): i for i, e in enumerate(graph.edges)}
        self._components: dict[str, Component] = {}
        self._routes: dict[tuple[str, str, str | None], Route] = {}
        self._shared: dict[type, Any] = {}
        self.next_op = count(1).__next__  # a number for a new operation
        self.given_up: frozenset[int] = frozenset()  # requests whose kernels are not started any more
        self._delivered = self._deliver  # bound once

    def component(self, node_id: str) -> Component:
        """The component at ``node_id``. UnknownNameError when the machine has no such part."""
        found = self._components.get(node_id)
        if found is None:
            node = self.graph.node(node_id)
            cls = REGISTRY.lookup(node.impl)
            assert issubclass(cls, Component), "checked when the machine was made"
            with _named(node):
                found = self._components[node_id] = cls(node, self)
        return found

    def part(self, node_id: str, cls: type[C]) -> C:
        """The component at ``node_id`` as a ``cls``. UnsupportedError when another implementation cannot stand in."""
        found = self.component(node_id)
        if not isinstance(found, cls):
            needed = f"derive it from {cls.__module__}.{cls.__qualname__}"
            raise UnsupportedError(f"{node_id}: {type(found).__name__} does not do what {cls.__name__} does; {needed}")
        return found

    def shared(self, cls: type[T]) -> T:
        """The one object of ``cls`` that parts of this machine share; ``cls()`` makes it when it is first asked for."""
        found: T | None = self._shared.get(cls)
        if found is None:
            found = self._shared[cls] = cls()
        return found

    @property
    def components(self) -> tuple[Component, ...]:
        """The components made so far, in the order of their first use."""
        return tuple(self._components.values())

    def begin_op(self, event: OpStarted) -> None:
        """Log an operation that begins, and tell who listens."""
        self.recorder.started(event)
        if self.hooks.op_started.listeners:
            self.hooks.op_started.emit(event)

    def end_op(self, op: int) -> None:
        """Operation ``op`` is over."""
        self.recorder.ended(op, self.clock.time)
        if self.hooks.op_ended.listeners:
            self.hooks.op_ended.emit(OpEnded(op, self.clock.time))

    def route(self, src: str, dst: str, via_port: str | None = None) -> Route:
        """The way from one part to another (cached); its links are made on first use.

        ``via_port``: the scale-up link to leave the SIP by, where that leads straight to the other.
        """
        key = (src, dst, via_port)
        found = self._routes.get(key)
        if found is None:
            nodes = self._planner.route(src, dst, via_port)
            for a, b in pairwise(nodes):
                if (a, b) not in self.network.links:
                    self._wire(a, b)
            found = self._routes[key] = self.network.route(nodes)
        return found

    def _wire(self, src: str, dst: str) -> None:
        edge = self.graph.edge(src, dst)
        entered = self.component(dst)
        with _named(self.graph.node(dst)):
            entry_ns = _entry_ns(entered)
        self.network.link(
            src,
            dst,
            bw_gbs=edge.bw_gbs,
            overhead_ns=entry_ns + edge.length_mm * self.spec.ns_per_mm + edge.overhead_ns,
            fifo_bytes=edge.fifo_bytes,
            index=self._link_index[src, dst],
        )

    def make(
        self, port: Port, src: str, dst: str, nbytes: int, message: object, via_port: str | None = None
    ) -> Transfer:
        """A transfer of ``message``, to be injected by the caller; it is handed to the component at ``dst``."""
        transfer = self.network.make(port, self.route(src, dst, via_port), nbytes, self._delivered, message)
        if self.hooks.sent.listeners:
            self.hooks.sent.emit(Sent(transfer, message))
        return transfer

    def send(self, src: str, dst: str, nbytes: int, message: object, channel: str = "") -> Transfer:
        """Send ``message`` from the port of ``src`` for ``channel`` now."""
        transfer = self.make(self.network.port(src, channel), src, dst, nbytes, message)
        self.network.inject(transfer)
        return transfer

    def send_header(self, src: str, dst: str, message: object, channel: str = "") -> Transfer:
        """Send a message that is a header only."""
        return self.send(src, dst, self.header_bytes, message, channel)

    def header_latency_ps(self, src: str, dst: str) -> int:
        """How long a header takes on an empty machine, without the handling at its end."""
        return self.route(src, dst).latency_ps(self.header_bytes)

    def sideband_ps(self, src: str, dst: str, nbytes: int, via_port: str | None = None) -> int:
        """Delay of a credit of ``nbytes`` from one part to another: the way's own time, and it occupies nothing."""
        return self.network.sideband_ps(self.route(src, dst, via_port), nbytes)

    def _deliver(self, transfer: Transfer) -> None:
        self.component(transfer.route.links[-1].dst).receive(transfer.arg, transfer)


@contextmanager
def _named(node: Node) -> Iterator[None]:
    """What the code of a part fails with says which part it was."""
    try:
        yield
    except KernbenchError:
        raise
    except Exception as error:
        error.add_note(f"in {node.id}, which is {node.impl}")
        raise


def _entry_ns(part: Component) -> float:
    """What entering ``part`` adds to the way."""
    serial = "handles_serially" in CALLED[part.node.kind] and part.handles_serially
    return 0.0 if serial else sound_overhead_ns(part)
