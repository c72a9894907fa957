"""Public names of installed queues and their plan; the code is in ``install`` and ``queues``."""

from kernbench.ccl.install import (
    IpcqPlan,
    NeighborTable,
    Peer,
    PlacedPe,
    RankLayout,
    edges_of,
    layout_of,
    plan_of,
)
from kernbench.ccl.queues import InstalledQueues, prepare_queues

__all__ = [
    "InstalledQueues",
    "IpcqPlan",
    "NeighborTable",
    "Peer",
    "PlacedPe",
    "RankLayout",
    "edges_of",
    "layout_of",
    "plan_of",
    "prepare_queues",
]
