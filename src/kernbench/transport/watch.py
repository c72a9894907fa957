"""What transport writes down when somebody asks: transfers, what held each of them up, and what links carried."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kernbench.core.log import NONE, By, Row
from kernbench.core.observed import Carries, Observed, TransferFields, held_by_link

About: TypeAlias = "tuple[Carries, Row, int]"
"""What a transfer is, of which row it is a part (NONE: of none, or of its cause's) and which transfer it answers"""

if TYPE_CHECKING:
    from kernbench.transport.state import Input, Link, Packet, Route, Transfer


class Watch:
    """The observer of a network; idle until it is told to ``begin``.

    Of a transfer that goes by packets it keeps where one of them had last to wait behind another transfer. ``on``:
    somebody asked; ``keeps_links``: for links, too. ``routes``: those of the transfers so far.
    """

    __slots__ = (
        "_about",
        "_ahead",
        "_granted",
        "_held",
        "_left",
        "_number_of",
        "_numbers",
        "_observed",
        "_part",
        "keeps_links",
        "on",
        "routes",
    )

    _observed: Observed
    _part: Callable[[str], int]
    _about: Callable[[Transfer], About]

    def __init__(self) -> None:
        self.on = False
        self.keeps_links = False
        self.routes: list[Route] = []
        self._number_of: dict[Route, int] = {}
        self._numbers: dict[Transfer, int] = {}  # of those under way
        self._ahead: dict[int, int] = {}  # of those under way, the one sent before it from the same port
        self._held: dict[int, tuple[int, int]] = {}  # where they waited last: the link, and behind whom
        self._granted: dict[Link, int] = {}  # who had it last
        self._left: dict[Input, int] = {}  # who was sent from it, or left the FIFO behind it, last

    def begin(self, observed: Observed, part: Callable[[str], int], about: Callable[[Transfer], About]) -> None:
        """From now on write to ``observed``; ``part`` knows the number of a node, ``about`` what a transfer is."""
        self.on, self.keeps_links, self._observed = True, observed.links is not None, observed
        self._part, self._about = part, about

    def sent(self, transfer: Transfer) -> None:
        """It is put on its port."""
        route, nbytes, (what, of, cause) = transfer.route, transfer.nbytes, self._about(transfer)
        at = self._number_of.get(route)
        if at is None:
            at = self._number_of[route] = len(self.routes)
            self.routes.append(route)
        src, dst = self._part(route.links[0].src), self._part(route.links[-1].dst)
        by = By.NOTHING if cause < 0 else By.LINK
        number = self._numbers[transfer] = self._observed.open_transfer(
            TransferFields(
                of=of,
                src=src,
                dst=dst,
                nbytes=nbytes,
                start=transfer.injected_ps,
                end=NONE,
                cause=cause,
                by=by,
                zero_load=route.latency_ps(nbytes),
                held_by=NONE,
                behind=NONE,
                what=what,
                route=at,
            )
        )
        self._ahead[number] = self._left.get(transfer.port, number)
        self._left[transfer.port] = number
        transfer.done = partial(self._delivered, transfer.done)

    def granted(self, link: Link, source: Input, packet: Packet, now: int) -> None:
        """``packet`` of ``source`` gets ``link``, whose figures are still those of before."""
        transfer = packet.transfer
        number = self._numbers[transfer]
        if packet.hop:
            came, ahead = packet.came, self._left.get(source, number)
            self._left[source] = number
        else:
            first = transfer.next_packet == 1
            came = max(transfer.injected_ps, transfer.available(transfer.next_packet - 1)[0])
            ahead = self._ahead[number] if first else number
        if ahead == number:
            came = max(came, source.ready_at)
        if came < now:
            blocked = source.ready_at == now and link.free_at < now
            who = ahead if blocked else self._granted.get(link, number)
            if who != number:
                self._held[number] = link.index, who
        self._granted[link] = number
        packet.came = now + link.hop_ps
        if self.keeps_links:
            self.carried(transfer, link, now, now + link.serialise_ps(packet.size), packet.size)

    def placed(self, transfer: Transfer, link: Link, source: Input) -> None:
        """A packet of what was express has been granted ``link``."""
        self._granted[link] = self._left[source] = self._numbers[transfer]

    def carried(self, transfer: Transfer, link: Link, start: int, end: int, nbytes: int) -> None:
        """A link was busy with one or more packets."""
        links = self._observed.links
        if links is not None:
            links += (self._numbers[transfer], link.index, start, end, nbytes)

    def _delivered(self, done: Callable[[Transfer], None] | None, transfer: Transfer) -> None:
        number, end = self._numbers.pop(transfer), transfer.delivered_ps
        held_by, behind = self._waited_for(number, transfer, end)
        self._observed.close_transfer(number, end, held_by, behind)
        if done is not None:
            done(transfer)

    def _waited_for(self, number: int, transfer: Transfer, end: int) -> tuple[int, int]:
        """What the last byte waited for, and who had that."""
        ahead, link = self._ahead.pop(number), self._held.pop(number, None)
        if end == transfer.injected_ps + transfer.route.latency_ps(transfer.nbytes):
            return NONE, NONE
        if transfer.supplies is not None:
            supplied = self._observed.last_turn(self._observed.transfer(number).cause)
            if supplied >= 0:
                turn = self._observed.turn(supplied)
                if link is None or end == turn.end + transfer.route.total_overhead_ps:
                    return supplied, turn.cause if turn.by == By.BANK else NONE
        if link is None:
            link = transfer.route.links[0].index, NONE if ahead == number else ahead
        return held_by_link(link[0]), link[1]
