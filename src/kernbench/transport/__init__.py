"""Transport: packets with credits over directed links. Links own time; see docs/transport.md."""

from kernbench.transport.network import Junction, Network
from kernbench.transport.state import Hop, Link, Port, Route, Transfer, Way
from kernbench.transport.timing import AT_ONCE, Pace, Profile, Supply

__all__ = [
    "AT_ONCE",
    "Hop",
    "Junction",
    "Link",
    "Network",
    "Pace",
    "Port",
    "Profile",
    "Route",
    "Supply",
    "Transfer",
    "Way",
]
