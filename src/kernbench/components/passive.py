"""Components that packets pass through; the links into such a component include its overhead.

A user's subclass can choose the route of packets and delay them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.errors import UnsupportedError
from kernbench.common.units import ns_to_ps
from kernbench.di.registry import register
from kernbench.engine.machine import Component, Machine, sound_ns
from kernbench.topology.graph import Node
from kernbench.transport import Junction, Packet, Transfer, Way


class TransitPart(Component):
    """A component that packets pass through in ``overhead_ns``; a subclass can choose their way and delay them.

    ``forward`` and ``hold_ns``, if overridden, are called once for each transfer, when the transfer's head has entered
    and ``overhead_ns`` is over. The packets of a transfer follow its head. ``hold_packet_ns``, if overridden, is called
    for each packet. Transfers through a component that overrides any of the three never take the express path.
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
        """The bandwidth of each link out of this component, in GB/s.

        None for a class that holds heads or packets: such a class paces the traffic itself, and may use
        ``attrs.rate_gbs`` as a parameter. Only the bandwidth of each link then limits the link.
        """
        return None if self._asks_hold or self._asks_packets else super().rate_gbs

    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        """Choose the way by which ``transfer`` continues, one of ``ways``.

        The first way is the default route. There is one further way for each other link out of this component that
        starts a way with the fewest hops. FIFOs behind a component that overrides this method are unbounded.
        """
        return ways[0]

    def hold_ns(self, transfer: Transfer) -> float:
        """Return the time in ns that the head of ``transfer`` waits in this component before it requests its link.

        Later traffic for the same link stays behind the head.
        """
        return 0.0

    def hold_packet_ns(self, packet: Packet) -> float:
        """Return the time in ns that ``packet`` waits in this component before it requests its link.

        The wait begins when the packet's head has arrived and all earlier packets for the same link have left. Packets
        for other links do not wait for this packet.
        """
        return 0.0

    def reset(self) -> None:
        """Reset the component; its random numbers start again with the same sequence."""
        if self.junction is not None:
            self.random.seed(self.node.id)

    def _forward_head(self, transfer: Transfer, hop: int) -> int:
        """Forward the head of ``transfer``, from link number ``hop`` of its route on; return the head's delay in ps."""
        if self._asks_way:
            self._ask_way(transfer, hop)
        return ns_to_ps(sound_ns("hold_ns()", self.hold_ns(transfer))) if self._asks_hold else 0

    def _hold_packet_ps(self, packet: Packet) -> int:
        return ns_to_ps(sound_ns("hold_packet_ns()", self.hold_packet_ns(packet)))

    def _ask_way(self, transfer: Transfer, hop: int) -> None:
        links = transfer.route.links
        planned, *alternatives = self.machine.ways(links[hop:])
        passed = {link.src for link in links[:hop]}
        ways = (planned, *(way for way in alternatives if passed.isdisjoint(way.nodes)))
        answer: object = self.forward(transfer, ways)
        way = next((candidate for candidate in ways if candidate is answer), None)
        if way is None:
            label = "None" if answer is None else f"a {type(answer).__name__}"
            raise UnsupportedError(f"forward() returned {label}, which is not one of the {len(ways)} ways passed to it")
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
    """A router of a cube's mesh, or the crossbar of an IO chiplet. Derive from it to model another router."""


@register("builtin.ucie", kind=("ucie", "sip_port"))
class Ucie(TransitPart):
    """One end of a die-to-die link."""


@register("builtin.xbar", kind="xbar")
class Xbar(TransitPart):
    """The crossbar of a cube corner: it joins PEs, HBM slices and the corner's router."""
