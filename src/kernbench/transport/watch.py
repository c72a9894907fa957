"""Records of transport for observers: transfers, the resource that delayed each transfer, and packets on links."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from kernbench.core.log import NONE, Row
from kernbench.core.observed import Carries, Observed, held_by_link
from kernbench.transport.state import Link, PacketInput, Route, Transfer

About: TypeAlias = "tuple[Carries, Row, int]"
"""The content of a transfer, the row that it belongs to (NONE: no row, or its cause's), and the transfer that it
answers"""


class Watch:
    """The observer of a network, idle until ``begin``.

    For a transfer by packets the watch stores the link at which a packet last waited, and the transfer in front.
    ``on``: the watch has begun. ``keeps_links``: the watch also records packets on links. ``routes``: the routes of all
    transfers so far.
    """

    __slots__ = ("_about", "_blockers", "_detours", "_observed", "_part", "_ways", "keeps_links", "on", "routes")

    _observed: Observed
    _part: Callable[[str], int]
    _about: Callable[[Transfer], About]

    def __init__(self) -> None:
        self.on = False
        self.keeps_links = False
        self.routes: list[Route] = []
        self._ways: dict[Route, tuple[int, int, int]] = {}  # (source part, destination part, number of the route)
        self._detours: dict[tuple[Link, ...], int] = {}  # numbers of routes that parts on the way have chosen
        self._blockers: dict[int, tuple[int, int]] = {}  # by transfer: (link of its last wait, transfer ahead)

    def begin(self, observed: Observed, part: Callable[[str], int], about: Callable[[Transfer], About]) -> None:
        """Write to ``observed`` from now on; ``part`` numbers nodes, ``about`` describes transfers."""
        self.on, self.keeps_links, self._observed = True, observed.links is not None, observed
        self._part, self._about = part, about

    def open_transfer(self, transfer: Transfer) -> None:
        """Open the row of a transfer that enters its port."""
        route, nbytes, port = transfer.route, transfer.nbytes, transfer.port
        way = self._ways.get(route)
        if way is None:
            src, dst = self._part(route.links[0].src), self._part(route.links[-1].dst)
            way = self._ways[route] = src, dst, len(self.routes)
            self.routes.append(route)
        transfer.number = self._observed.open_transfer(
            way, nbytes, transfer.injected_ps, route.latency_ps(nbytes), self._about(transfer)
        )
        transfer.ahead, port.last_sent = port.last_sent, transfer.number
        transfer.done = partial(self._close_transfer, transfer.done)

    def note_detour(self, transfer: Transfer) -> None:
        """Record that a part on the way has chosen another route for a transfer."""
        route = transfer.route
        number = self._detours.setdefault(route.links, len(self.routes))
        if number == len(self.routes):
            self.routes.append(route)
        self._observed.redirect_transfer(transfer.number, number, route.latency_ps(transfer.nbytes))

    def note_grant(self, link: Link, source: PacketInput, transfer: Transfer, now: int) -> None:
        """Record a grant of ``link`` after another transfer used ``link`` or ``source``; call it before the grant.

        The packet has waited if the link or the input came free only now.
        """
        number = transfer.number
        if transfer.port is not source:
            ahead, source.last_sent = source.last_sent, number
        else:
            ahead = transfer.ahead if transfer.next_packet == 1 else number
        if link.free_at == now:
            ahead = link.last_granted
        elif source.ready_at < now:
            ahead = number
        if ahead not in (number, NONE):
            self._blockers[number] = link.index, ahead
        link.last_granted = number

    def note_stall(self, link: Link, transfer: Transfer) -> None:
        """Record that a packet has waited for FIFO space behind ``link``, where no single transfer delayed it."""
        self._blockers[transfer.number] = link.index, NONE

    def note_packet_grant(self, transfer: Transfer, link: Link, source: PacketInput) -> None:
        """Record that ``link`` was granted to a packet of a former express transfer."""
        link.last_granted = source.last_sent = transfer.number

    def note_traffic(self, transfer: Transfer, link: Link, start: int, end: int, nbytes: int) -> None:
        """Record that a link was busy with one or more packets."""
        links = self._observed.links
        if links is not None:
            links += (transfer.number, link.index, start, end, nbytes)

    def _close_transfer(self, done: Callable[[Transfer], None] | None, transfer: Transfer) -> None:
        end = transfer.delivered_ps
        if self._observed.close_transfer(transfer.number, end):
            self._observed.note_held(transfer.number, *self._find_blocker(transfer, end))
        if done is not None:
            done(transfer)

    def _find_blocker(self, transfer: Transfer, end: int) -> tuple[int, int]:
        """Return the resource that the last byte waited for, and the turn or transfer that occupied it."""
        link = self._blockers.pop(transfer.number, None)
        if transfer.supplies is not None:
            supplied = self._observed.supplied_by(transfer.number)
            if supplied is not None:
                turn, over, before = supplied
                if link is None or end == over + transfer.route.total_overhead_ps:
                    return turn, before
        if link is None:
            link = transfer.route.links[0].index, transfer.ahead
        return held_by_link(link[0]), link[1]
