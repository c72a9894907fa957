"""Machines, and the reports of all cases on one of four cubes a SIP."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compiled import compiled
from kernbench.probe.cases import CASES
from kernbench.probe.measure import probe_cases
from kernbench.probe.report import NotHere, ProbeReport
from kernbench.topology.builder import Topology

MakeMachine = Callable[..., Topology]


@pytest.fixture(scope="session")
def make_machine() -> MakeMachine:
    """The packaged machine with ``--set`` texts applied; each is compiled once."""
    made: dict[tuple[str, ...], Topology] = {}

    def make(*overrides: str) -> Topology:
        if overrides not in made:
            made[overrides] = compiled(*overrides)
        return made[overrides]

    return make


@pytest.fixture(scope="session")
def machine(make_machine: MakeMachine) -> Topology:
    """Two SIPs of four cubes of four PEs, refreshed as they are measured."""
    few_pes = "cube.pe_layout={pe_per_corner: 2, corners: [NW, SE]}", "cube.hbm.slices=4"
    return make_machine("sip.cube_mesh={w: 2, h: 2}", "cube.hbm.refresh=spread", *few_pes)


@pytest.fixture(scope="session")
def reports(machine: Topology) -> dict[str, ProbeReport]:
    """Every case, with details."""
    found = list(probe_cases(machine, CASES, details=True))
    assert not [each for each in found if isinstance(each, NotHere)]
    return {each.case: each for each in found if isinstance(each, ProbeReport)}
