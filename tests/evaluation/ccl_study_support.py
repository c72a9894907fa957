"""Evaluations of collectives for tests: a small machine, few sizes, in this process."""

from __future__ import annotations

from functools import cache

from compiled import compiled
from ideal_memory import IDEAL
from kernbench.ccl.loading import find_packaged_file
from kernbench.evaluation.ccl_fabrics import Fabric, ring_of
from kernbench.evaluation.ccl_results import CclSweep
from kernbench.evaluation.ccl_study import CclStudy
from kernbench.topology.builder import Topology

SMALL = ("sip.cube_mesh.w=2", "sip.cube_mesh.h=1")
TORUS = Fabric("torus_2d", 4, 2, 2)
SIZES = (64, 5000)


def machine(*overrides: str) -> Topology:
    """The default machine with two cubes a SIP and memories without banks, changed as asked."""
    return compiled(*SMALL, *IDEAL, *overrides)


def study(**changes: object) -> CclStudy:
    """Two ways of joining SIPs, two sizes and a ring of two."""
    values = {
        "topology": machine(),
        "fabrics": (ring_of(2), TORUS),
        "sizes": SIZES,
        "ranks": (2,),
        "ring_sizes": (4096,),
        "ccl": find_packaged_file(),
    }
    return CclStudy(**(values | changes))


@cache
def small_sweep() -> CclSweep:
    """Its results."""
    return study().run()
