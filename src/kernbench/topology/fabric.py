"""Which SIPs the scale-up links join, as a list of directed links; every other room asks here.

A link leaves by a port on one side and arrives by the port on the opposite side of the peer, so a ring of two SIPs has
two links in each direction: 0.E to 1.W and 1.E to 0.W are different wires.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.common.values import value
from kernbench.topology.grid import OPPOSITE, Side
from kernbench.topology.spec import SipsSpec


@value
class SipPort:
    """One end of scale-up wiring at a SIP: its number there, its side (None when fully connected), the SIP beyond."""

    sip: int
    index: int
    side: Side | None
    peer: int


@value
class FabricLink:
    """A directed scale-up link between two ports."""

    src: SipPort
    dst: SipPort


def sip_neighbours(sips: SipsSpec, sip: int) -> dict[Side, int]:
    """The SIP beyond each side that has a port, in the order E, W, N, S; empty for kinds without sides."""
    grid = sips.grid
    if sips.topology in {"ring_1d", "ring_1d_unidir"}:
        return grid.neighbours(sip, ("E", "W"), wrap=True)
    if sips.two_dimensional:
        return grid.neighbours(sip, wrap=sips.topology == "torus_2d")
    return {}


def sip_ports(sips: SipsSpec, sip: int) -> tuple[SipPort, ...]:
    """The scale-up ports of a SIP, in the order that breaks ties between ways."""
    if sips.topology == "fully_connected":
        peers = (peer for peer in range(sips.count) if peer != sip)
        return tuple(SipPort(sip, index, None, peer) for index, peer in enumerate(peers))
    beyond = sip_neighbours(sips, sip).items()
    return tuple(SipPort(sip, index, side, peer) for index, (side, peer) in enumerate(beyond))


def fabric_links(sips: SipsSpec) -> Iterator[FabricLink]:
    """Every directed scale-up link, by sending SIP and port. In ``ring_1d_unidir`` only the E ports send."""
    ports = [port for sip in range(sips.count) for port in sip_ports(sips, sip)]
    by_ends = {(port.sip, port.side, port.peer): port for port in ports}
    for port in ports:
        if sips.topology != "ring_1d_unidir" or port.side == "E":
            far_side = OPPOSITE[port.side] if port.side else None
            yield FabricLink(port, by_ends[port.peer, far_side, port.sip])
