"""Records of transport for observers: transfers, what held each of them up, and what links carried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from kernbench.core.log import NONE, Row
from kernbench.core.observed import Carries, Observed, held_by_link
from kernbench.transport.state import Input, Link, Route, Transfer

About: TypeAlias = "tuple[Carries, Row, int]"
"""What a transfer is, of which row it is a part (NONE: of none, or of its cause's) and which transfer it answers"""


class Watch:
    """The observer of a network; idle until it is told to ``begin``.

    Of a transfer that goes by packets it keeps where one of them had last to wait behind another transfer. ``on``:
    somebody asked; ``keeps_links``: for links, too. ``routes``: those of the transfers so far.
    """

    __slots__ = ("_about", "_held", "_observed", "_part", "_taken", "_ways", "keeps_links", "on", "routes")

    _observed: Observed
    _part: Callable[[str], int]
    _about: Callable[[Transfer], About]

    def __init__(self) -> None:
        self.on = False
        self.keeps_links = False
        self.routes: list[Route] = []
        self._ways: dict[Route, tuple[int, int, int]] = {}  # from which part to which, and its number
        self._taken: dict[tuple[Link, ...], int] = {}  # the numbers of routes that parts on the way have chosen
        self._held: dict[int, tuple[int, int]] = {}  # transfers under way: where they waited last, and behind whom

    def begin(self, observed: Observed, part: Callable[[str], int], about: Callable[[Transfer], About]) -> None:
        """Write to ``observed`` from now on; ``part`` numbers nodes, ``about`` describes transfers."""
        self.on, self.keeps_links, self._observed = True, observed.links is not None, observed
        self._part, self._about = part, about

    def open_transfer(self, transfer: Transfer) -> None:
        """Open the row of a transfer that is put on its port."""
        route, nbytes, port = transfer.route, transfer.nbytes, transfer.port
        way = self._ways.get(route)
        if way is None:
            src, dst = self._part(route.links[0].src), self._part(route.links[-1].dst)
            way = self._ways[route] = src, dst, len(self.routes)
            self.routes.append(route)
        transfer.number = self._observed.open_transfer(
            way, nbytes, transfer.injected_ps, route.latency_ps(nbytes), self._about(transfer)
        )
        transfer.ahead, port.left = port.left, transfer.number
        transfer.done = partial(self._close_transfer, transfer.done)

    def note_detour(self, transfer: Transfer) -> None:
        """Note that a part on its way has chosen how a transfer goes on."""
        route = transfer.route
        taken = self._taken.setdefault(route.links, len(self.routes))
        if taken == len(self.routes):
            self.routes.append(route)
        self._observed.redirect_transfer(transfer.number, taken, route.latency_ps(transfer.nbytes))

    def note_grant(self, link: Link, source: Input, transfer: Transfer, now: int) -> None:
        """Note a grant of ``link``, which, or whose input, another packet had before; its figures are still of then.

        It has waited if one of them came free only now.
        """
        number = transfer.number
        if transfer.port is not source:
            ahead, source.left = source.left, number
        else:
            ahead = transfer.ahead if transfer.next_packet == 1 else number
        if link.free_at == now:
            ahead = link.had
        elif source.ready_at < now:
            ahead = number
        if ahead not in (number, NONE):
            self._held[number] = link.index, ahead
        link.had = number

    def note_stall(self, link: Link, transfer: Transfer) -> None:
        """Note that a packet has waited for space behind ``link``: in front is nobody in particular."""
        self._held[transfer.number] = link.index, NONE

    def note_packet_grant(self, transfer: Transfer, link: Link, source: Input) -> None:
        """Note that a packet of a transfer that was express has been granted ``link``."""
        link.had = source.left = transfer.number

    def note_traffic(self, transfer: Transfer, link: Link, start: int, end: int, nbytes: int) -> None:
        """Note that a link was busy with one or more packets."""
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
        """Return what the last byte waited for, and which transfer was in front."""
        link = self._held.pop(transfer.number, None)
        if transfer.supplies is not None:
            supplied = self._observed.supplied_by(transfer.number)
            if supplied is not None:
                turn, over, before = supplied
                if link is None or end == over + transfer.route.total_overhead_ps:
                    return turn, before
        if link is None:
            link = transfer.route.links[0].index, transfer.ahead
        return held_by_link(link[0]), link[1]
