"""Nodes that decide about the transfers that come to them: which way each goes on, and when.

A transfer is decided about once, when its head is there; its packets follow its head. A head that is held waits before
it enters the FIFO, and so does all that comes behind it by the same link.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.transport.hop import arrive
from kernbench.transport.state import Link, Packet, Transfer


class Junction:
    """The far end of links (``Network.link``) whose transfers are decided about.

    ``decide(transfer, hop)`` returns for how many ps the head of a transfer is held. If the node ``divides`` what
    comes, it may also send it another way from link number ``hop`` of its route on (``Network.redirect``).
    """

    __slots__ = ("_decide", "_entered_at", "_under_way", "divides")

    def __init__(self, decide: Callable[[Transfer, int], int], *, divides: bool) -> None:
        self.divides = divides
        self._decide = decide
        self._under_way: set[Transfer] = set()  # their heads have come, and their last packets have not
        self._entered_at: dict[Link, int] = {}  # when the last packet enters, or has entered, the FIFO behind a link

    def arrive(self, packet: Packet) -> None:
        """The head of ``packet`` is at the node."""
        transfer, link = packet.transfer, packet.links[packet.hop - 1]
        held_ps = 0
        try:
            if transfer not in self._under_way:
                self._under_way.add(transfer)
                held_ps = self._decide(transfer, packet.hop)
        finally:  # where a decision fails the packet goes on all the same, so that nothing is stuck behind it
            self._enter(packet, link, held_ps)

    def _enter(self, packet: Packet, link: Link, held_ps: int) -> None:
        """Let ``packet`` into the FIFO, ``held_ps`` from now."""
        now = link.clock.time
        when = now + held_ps
        if packet.last:
            self._under_way.remove(packet.transfer)
        packet.follow()
        # Behind what came before it by this link, which may enter at this very instant, or later.
        before = self._entered_at.get(link, -1)
        self._entered_at[link] = when = max(when, before)
        if before < when == now:
            arrive(packet)
        else:
            link.clock.call_at(when, arrive, packet, link.arrive_rank)
