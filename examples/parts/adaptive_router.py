"""A router that goes around busy links: of the ways on, it takes the one whose next two links are free soonest.

As the crossbar of an IO chiplet it spreads what goes to another SIP over the ports that lead there:

    kernbench probe --case pe-cross-sip-hbm \\
        --set sip.components.io_noc.impl=examples.parts.adaptive_router.AdaptiveRouter

In the mesh of a cube: ``--set cube.components.noc_router.impl=examples.parts.adaptive_router.AdaptiveRouter``.
"""

from collections.abc import Sequence

from kernbench.components.passive import NocRouter
from kernbench.sim_engine.transport import Link, Transfer, Way


class AdaptiveRouter(NocRouter):
    """Asked once for each transfer, when its head enters the router; the packets follow the head."""

    def forward(self, transfer: Transfer, ways: Sequence[Way]) -> Way:
        """The first way is the usual one: it wins when no other is better."""
        return min(ways, key=lambda way: max(map(free_at_ns, way.links[:2])))


def free_at_ns(link: Link) -> float:
    """When a link will have carried what it carries now and what waits for it."""
    return link.busy_until_ns + link.queued_bytes / link.bw_gbs
