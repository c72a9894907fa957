"""The transport by itself: links, routes and transfers on a clock."""

from kernbench.transport import AT_ONCE, Hop, Junction, Link, Network, Pace, Port, Profile, Route, Supply, Transfer, Way

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
