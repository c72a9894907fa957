"""A transfer: one transaction on the network, cut into packets by its source port as they are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.common.errors import TransportError
from kernbench.common.units import ps_to_ns
from kernbench.common.values import value
from kernbench.core.clock import NEVER
from kernbench.transport.route import Pace

if TYPE_CHECKING:
    from kernbench.transport.port import Port
    from kernbench.transport.route import Passage, Route


@value(kw_only=False)
class Supply:
    """A source makes packets ``first`` … ``first + count - 1`` available one after another from ``start_ps`` on."""

    first: int
    count: int
    start_ps: int
    pace: Pace


@dataclass(frozen=True, slots=True)
class Hop:
    """A transfer on one link: its first byte entered at ``start_ps``, its last byte left at ``tail_ps``."""

    src: str
    dst: str
    start_ps: int
    tail_ps: int


class HopTimes:
    """Per link of a traced transfer: when its first packet was granted and when its last byte had left."""

    __slots__ = ("starts", "tails")

    def __init__(self, n_links: int) -> None:
        self.starts = [-1] * n_links
        self.tails = [-1] * n_links


class Packet:
    """A packet on its way."""

    __slots__ = ("hop", "last", "links", "need", "size", "tail", "transfer")

    def __init__(self, transfer: Transfer, size: int, last: bool, hop: int, tail: int) -> None:
        self.transfer = transfer
        self.links = transfer.route.links
        self.size = size
        self.last = last
        self.hop = hop  # the link it wants next
        self.need = size if hop + 1 < len(self.links) else 0  # FIFO space it needs there: a destination takes all
        self.tail = tail  # when its last byte is where its head waits


class Transfer:
    """S bytes from a port along a route.

    Times in ps: ``injected_ps``, ``delivered_ps`` (NEVER until then), ``head_ps`` (first byte at the destination).
    While it is ``express`` it has no packets and follows its ``passage``; ``admission``
    numbers express transfers in the order they were admitted, which is the order they use a link in. ``row``: of the
    log, if it is one.
    """

    __slots__ = (
        "admission",
        "arg",
        "delivered_ps",
        "done",
        "express",
        "head_ps",
        "hop_times",
        "injected_ps",
        "last_bytes",
        "n_full",
        "nbytes",
        "next_packet",
        "passage",
        "port",
        "route",
        "row",
        "serial",
        "start_ps",
        "supplied",
        "supplies",
        "supply_index",
    )

    def __init__(
        self,
        port: Port,
        route: Route,
        nbytes: int,
        serial: int,
        done: Callable[[Transfer], None] | None,
        arg: object,
    ) -> None:
        if nbytes < 1:
            raise TransportError(f"a transfer carries at least one byte, not {nbytes}")
        self.port = port
        self.route = route
        self.nbytes = nbytes
        self.serial = serial
        self.done = done
        self.arg = arg
        size = route.packet_bytes
        self.n_full = n_full = 0 if nbytes <= size else (nbytes - 1) // size
        self.last_bytes = nbytes - n_full * size
        self.next_packet = 0
        self.supplies: list[Supply] | None = None
        self.supply_index = 0
        self.supplied = n_full + 1
        self.injected_ps = self.delivered_ps = self.head_ps = NEVER
        self.start_ps = 0
        self.passage: Passage | None = None
        self.admission = -1
        self.express = False
        self.hop_times: HopTimes | None = None
        self.row = -1

    def delivered(self, now: int) -> None:
        """Its last byte is there."""
        self.delivered_ps = now
        self.port.undelivered -= 1
        done = self.done
        if done is not None:
            done(self)

    @property
    def delivered_ns(self) -> float:
        """When the last byte was delivered; TransportError before that."""
        if self.delivered_ps == NEVER:
            raise TransportError(f"transfer {self.serial} has not been delivered; run the network first")
        return ps_to_ns(self.delivered_ps)

    @property
    def latency_ns(self) -> float:
        """From injection to delivery of the last byte."""
        return self.delivered_ns - ps_to_ns(self.injected_ps)

    @property
    def packets(self) -> int:
        """How many packets it is cut into."""
        return self.n_full + 1

    @property
    def hops(self) -> tuple[Hop, ...]:
        """What it did on each link, in order; TransportError when the network did not trace it."""
        if self.hop_times is None:
            raise TransportError("hops are kept only when the network traces them (Network.trace_hops)")
        return tuple(
            Hop(link.src, link.dst, start, tail)
            for link, start, tail in zip(self.route.links, self.hop_times.starts, self.hop_times.tails, strict=True)
        )

    def whole_supply(self, start_ps: int) -> Supply | None:
        """What makes all of it available in one stretch from ``start_ps`` or later on; None when nothing does."""
        only = self.supplies[0] if self.supplies is not None and len(self.supplies) == 1 else None
        if only is None or only.count != self.packets or only.start_ps < start_ps:
            return None
        return only

    def size_of(self, packet: int) -> int:
        """Bytes of packet number ``packet``."""
        return self.last_bytes if packet == self.n_full else self.route.packet_bytes

    def available(self, packet: int) -> tuple[int, int]:
        """When the first and the last byte of ``packet`` are at the source, in ps. Packets are asked for in order."""
        if self.supplies is None:
            return 0, 0
        supply = self.supplies[self.supply_index]
        while packet >= supply.first + supply.count:
            self.supply_index += 1
            supply = self.supplies[self.supply_index]
        head = supply.start_ps + (packet - supply.first) * supply.pace.packet_ps
        return head, head + (supply.pace.last_ps if packet == self.n_full else supply.pace.packet_ps)

    def curtail_supplies(self, count: int) -> None:
        """Forget what was promised beyond the first ``count`` packets."""
        kept: list[Supply] = []
        for supply in self.supplies or ():
            if supply.first < count:
                n = min(supply.count, count - supply.first)
                kept.append(Supply(supply.first, n, supply.start_ps, supply.pace))
        self.supplies = kept
        self.supplied = count
