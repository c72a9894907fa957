"""Transport: packets with credits over directed links. Links own time; see docs/transport.md."""

from kernbench.transport.network import Junction, Network
from kernbench.transport.pacing import RateStretch, VaryingRate
from kernbench.transport.state import Hop, Link, Packet, Port, Route, Transfer, Way
from kernbench.transport.timing import AT_ONCE, Pace, Profile, Supply

__all__ = [
    "AT_ONCE",
    "Hop",
    "Junction",
    "Link",
    "Network",
    "Pace",
    "Packet",
    "Port",
    "Profile",
    "RateStretch",
    "Route",
    "Supply",
    "Transfer",
    "VaryingRate",
    "Way",
]
