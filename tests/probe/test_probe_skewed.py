"""What probes report of the skewed machine, part by part, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from probe_oracle import hbm_ns

from kernbench.common.ids import HOST
from kernbench.probe.cases import CASES, Absent, Site
from kernbench.probe.measure import probe_cases
from kernbench.probe.report import ProbeReport
from skewed import set_up_ns, skewed, way

HEADER, NBYTES = 24, 4096
HBM_ACCESS_NS, SRAM_ACCESS_NS, SRAM_GBS = 33.1, 4.6, 197


@pytest.fixture(scope="module")
def reports() -> dict[str, ProbeReport]:
    found = probe_cases(skewed(), CASES, details=False)
    return {each.case: each for each in found if isinstance(each, ProbeReport)}


def test_every_case_is_on_this_machine(reports: dict[str, ProbeReport]) -> None:
    assert list(reports) == [case.name for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_parts_of_a_latency(reports: dict[str, ProbeReport], case: Any) -> None:
    """Nodes and set-up, wires, memory that the drain does not hide, data and a header over their bottlenecks."""
    report = reports[case.name]
    placed = case.place(Site(skewed().topology_obj))
    assert not isinstance(placed, Absent)
    flow = next(each for each in placed if each.initiator == report.initiator)
    there, back = way(skewed(), flow.initiator, flow.memory), way(skewed(), flow.memory, flow.initiator)
    data, answer = (back, there) if flow.reading else (there, back)
    drain = NBYTES / data.narrowest_gbs
    if flow.memory.endswith("sram"):
        access, own = SRAM_ACCESS_NS, NBYTES / SRAM_GBS
    else:
        access, own = HBM_ACCESS_NS, float(hbm_ns(skewed().spec, flow.pa, NBYTES))
    wires = there.wire_ns + back.wire_ns
    set_up = 0.0 if flow.initiator == HOST else set_up_ns(skewed())
    slack = there.slack_ns + back.slack_ns + 0.01
    parts = report.single.breakdown
    assert parts.wire_ps / 1000 == pytest.approx(wires, abs=slack)
    assert parts.overhead_ps / 1000 == pytest.approx(set_up + there.head_ns + back.head_ns - wires, abs=slack)
    assert parts.drain_ps / 1000 == pytest.approx(drain + HEADER / answer.narrowest_gbs, abs=slack)
    assert parts.memory_ps / 1000 == pytest.approx(access + max(0.0, own - drain), abs=slack)
    assert (parts.queue_ps > 0) == (case.name == "pe-hotspot")
