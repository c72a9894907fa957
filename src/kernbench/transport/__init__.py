"""Transport: packets with credits over directed links. Links own time; see docs/transport.md."""

from kernbench.transport.link import Link
from kernbench.transport.network import Network
from kernbench.transport.port import Port
from kernbench.transport.route import AT_ONCE, Pace, Profile, Route
from kernbench.transport.transfer import Hop, Supply, Transfer

__all__ = ["AT_ONCE", "Hop", "Link", "Network", "Pace", "Port", "Profile", "Route", "Supply", "Transfer"]
