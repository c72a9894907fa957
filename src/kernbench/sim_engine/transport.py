"""The transport alone: links, routes and transfers on a clock."""

from kernbench.transport import (
    AT_ONCE,
    Hop,
    Junction,
    Link,
    Network,
    Pace,
    Packet,
    Port,
    Profile,
    RateStretch,
    Route,
    Supply,
    Transfer,
    VaryingRate,
    Way,
)

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
