"""Transport: packets with credits over directed links. Links own time; see docs/transport.md."""

from kernbench.sim_engine.transport.link import Link
from kernbench.sim_engine.transport.network import Network
from kernbench.sim_engine.transport.port import Port
from kernbench.sim_engine.transport.route import AT_ONCE, Pace, Profile, Route
from kernbench.sim_engine.transport.transfer import Hop, Supply, Transfer

__all__ = ["AT_ONCE", "Hop", "Link", "Network", "Pace", "Port", "Profile", "Route", "Supply", "Transfer"]
