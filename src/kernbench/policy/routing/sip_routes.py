"""Ways between SIPs over scale-up links: the fewest hops; ties broken by port (E, W, N, S, or the index)."""

from __future__ import annotations

from collections import deque
from functools import cached_property

from kernbench.topology.fabric import FabricLink, fabric_links
from kernbench.topology.spec import SipsSpec


class SipRoutes:
    """Shortest ways in the directed graph of SIPs; links are listed by SIP and port, which is the order of ties."""

    def __init__(self, sips: SipsSpec) -> None:
        self._sips = sips
        self._distances: dict[int, dict[int, int]] = {}

    def between(self, src: int, dst: int, via_port: str | None = None) -> tuple[FabricLink, ...] | None:
        """The links from one SIP to another; None when no scale-up way leads there.

        ``via_port`` asks to leave by the port on that side, which counts when it leads straight to ``dst``.
        """
        asked = (link for link in self._outgoing[src] if link.src.side == via_port and link.dst.sip == dst)
        direct = next(asked, None) if via_port is not None else None
        if direct is not None:
            return (direct,)
        distance = self._distance_to(dst)
        if src not in distance:
            return None
        links: list[FabricLink] = []
        while src != dst:
            step = next(link for link in self._outgoing[src] if distance.get(link.dst.sip) == distance[src] - 1)
            links.append(step)
            src = step.dst.sip
        return tuple(links)

    @cached_property
    def _outgoing(self) -> dict[int, list[FabricLink]]:
        found: dict[int, list[FabricLink]] = {sip: [] for sip in range(self._sips.count)}
        for link in fabric_links(self._sips):
            found[link.src.sip].append(link)
        return found

    @cached_property
    def _incoming(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {sip: [] for sip in range(self._sips.count)}
        for link in fabric_links(self._sips):
            found[link.dst.sip].append(link.src.sip)
        return found

    def _distance_to(self, dst: int) -> dict[int, int]:
        """Hops to ``dst`` from every SIP that can reach it."""
        known = self._distances.get(dst)
        if known is not None:
            return known
        distance, waiting = {dst: 0}, deque([dst])
        while waiting:
            sip = waiting.popleft()
            for before in self._incoming[sip]:
                if before not in distance:
                    distance[before] = distance[sip] + 1
                    waiting.append(before)
        self._distances[dst] = distance
        return distance
