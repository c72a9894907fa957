"""Parts in transit: packets pass through them; their overhead is on the links that enter them.

A class of a user's may decide which way packets take, and when they go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.errors import UnsupportedError
from kernbench.common.units import ns_to_ps
from kernbench.di.registry import register
from kernbench.engine.machine import Machine
from kernbench.engine.part import Component, sound_ns
from kernbench.topology.graph import Node
from kernbench.transport import Junction, Packet, Transfer, Way


class TransitPart(Component):
    """A part that packets pass through. What it costs them is ``overhead_ns``; what else it does is up to a subclass.

    A class that overrides ``forward`` or ``hold_ns`` is asked once for each transfer that enters the part, when its
    head does (``overhead_ns`` is over by then); its packets follow the head. One that overrides ``hold_packet_ns`` is
    asked for each packet. Such transfers never go express.
    """

    def __init__(self, node: Node, machine: Machine) -> None:
        super().__init__(node, machine)
        cls = type(self)
        self._asks_way = cls.forward is not TransitPart.forward
        self._asks_hold = cls.hold_ns is not TransitPart.hold_ns
        self._asks_packets = cls.hold_packet_ns is not TransitPart.hold_packet_ns
        if self._asks_way or self._asks_hold or self._asks_packets:
            hold_packet = self._hold_packet_ps if self._asks_packets else None
            self.junction = Junction(self._forward_head, divides=self._asks_way, hold_packet=hold_packet)

    @property
    def rate_gbs(self) -> float | None:
        """The bandwidth of each link out of this part, as of every part.

        A class that holds heads or packets paces by itself: what ``attrs.rate_gbs`` is to it, its links have their own.
        """
        return None if self._asks_hold or self._asks_packets else super().rate_gbs

    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        """Choose the way by which ``transfer`` goes on, one of ``ways``.

        The first is the one that it takes when nobody decides; for each other link out of this part that begins a way
        with the fewest hops there is one. FIFOs behind a part that overrides this are unbounded.
        """
        return ways[0]

    def hold_ns(self, transfer: Transfer) -> float:
        """Return how long the head of ``transfer`` waits here before it asks for its link.

        What comes behind it by the same link stays behind it.
        """
        return 0.0

    def hold_packet_ns(self, packet: Packet) -> float:
        """Return how long ``packet`` waits here, from when its turn has come until it asks for its link.

        Its turn comes when its head is here, and all that came before it by the same link has gone on. What comes by
        other links does not wait for it.
        """
        return 0.0

    def reset(self) -> None:
        """Begin anew, with the same numbers by chance."""
        if self.junction is not None:
            self.random.seed(self.node.id)

    def _forward_head(self, transfer: Transfer, hop: int) -> int:
        """Send the head of ``transfer`` on, from link number ``hop`` of its route; return how many ps it is held."""
        if self._asks_way:
            self._ask_way(transfer, hop)
        return ns_to_ps(sound_ns("hold_ns()", self.hold_ns(transfer))) if self._asks_hold else 0

    def _hold_packet_ps(self, packet: Packet) -> int:
        return ns_to_ps(sound_ns("hold_packet_ns()", self.hold_packet_ns(packet)))

    def _ask_way(self, transfer: Transfer, hop: int) -> None:
        links = transfer.route.links
        planned, *others = self.machine.ways(links[hop:])
        passed = {link.src for link in links[:hop]}
        ways = (planned, *(way for way in others if passed.isdisjoint(way.nodes)))
        found: object = self.forward(transfer, ways)
        way = next((each for each in ways if each is found), None)
        if way is None:
            what = "None" if found is None else f"a {type(found).__name__}"
            raise UnsupportedError(f"forward() returned {what}, which is none of the ways it was given ({len(ways)})")
        if way is not planned:
            self.machine.network.redirect(transfer, hop, way.links)


@register("builtin.switch", kind="switch")
class Switch(TransitPart):
    """The switch between the host and the SIPs."""


@register("builtin.pcie_ep", kind="pcie_ep")
class PcieEp(TransitPart):
    """A SIP's PCIe endpoint."""


@register("builtin.noc_router", kind=("noc_router", "io_noc"))
class NocRouter(TransitPart):
    """A router of a cube's mesh, or the crossbar of an IO chiplet. Derive from it to model another one."""


@register("builtin.ucie", kind=("ucie", "sip_port"))
class Ucie(TransitPart):
    """One side of a die-to-die link."""


@register("builtin.xbar", kind="xbar")
class Xbar(TransitPart):
    """The crossbar of a corner: PEs, HBM slices and the corner's router."""
