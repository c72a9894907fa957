"""Which traffic a case is on which machine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from kernbench.common.errors import InputError, UnknownNameError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.probe.cases import CASES, Absent, Site, find_case, transaction
from kernbench.probe.measure import probe_case, run_once
from kernbench.probe.report import NotHere, ProbeReport
from kernbench.topology.builder import Topology

MakeMachine = Callable[..., Topology]

ONE_CUBE = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1")


def test_the_catalogue() -> None:
    assert [case.name for case in CASES] == [
        "h2d-local",
        "h2d-far",
        "d2h-local",
        "d2h-far",
        "pe-local-hbm",
        "pe-same-cube-hbm",
        "pe-adjacent-cube-hbm",
        "pe-far-cube-hbm",
        "pe-cross-sip-hbm",
        "pe-sram",
        "pe-hotspot",
        "pe-all-local",
    ]


def test_an_unknown_case_lists_all() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown probe case 'pe-dram'; there are: h2d-local, .*pe-all-local"):
        find_case("pe-dram")


@pytest.mark.parametrize(
    ("overrides", "absent"),
    [
        (("system.sips.count=1",), {"pe-cross-sip-hbm": "one SIP"}),
        (ONE_CUBE, {"h2d-far": "one cube", "d2h-far": "one cube", "pe-adjacent-cube-hbm": "", "pe-far-cube-hbm": ""}),
        (
            ("cube.pe_layout.pe_per_corner=1", "cube.pe_layout.corners=[NW]", "cube.hbm.slices=1"),
            {"pe-same-cube-hbm": "one HBM slice", "pe-hotspot": "one PE", "pe-all-local": "one PE"},
        ),
    ],
)
def test_what_a_machine_cannot_have(
    make_machine: MakeMachine, overrides: tuple[str, ...], absent: dict[str, str]
) -> None:
    site = Site(make_machine(*overrides).topology_obj)
    found = {case.name: case.place(site) for case in CASES}
    missing = {name: placed.why for name, placed in found.items() if isinstance(placed, Absent)}
    assert missing.keys() == absent.keys()
    assert all(word in missing[name] for name, word in absent.items())


def test_an_absent_case_is_a_report(make_machine: MakeMachine) -> None:
    found = probe_case(make_machine("system.sips.count=1"), find_case("pe-cross-sip-hbm"))
    assert found == NotHere(
        case="pe-cross-sip-hbm",
        description="a PE reads the farthest slice of the next SIP",
        why="the machine has one SIP only",
    )


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(
            ("sip.cube_mesh.w=3", "sip.cube_mesh.h=1", "sip.io_chiplet.edge=S", "address.format=wide"),
            marks=pytest.mark.slow,
        ),
        pytest.param(("system.sips.count=3", "system.sips.topology=switch", *ONE_CUBE), marks=pytest.mark.slow),
        (
            "cube.hbm.slices=4",
            "cube.noc.w=2",
            "cube.noc.h=3",
            "sip.cube_mesh.h=2",
            "system.sips.topology=ring_1d_unidir",
        ),
    ],
)
def test_any_machine_can_be_probed(make_machine: MakeMachine, overrides: tuple[str, ...]) -> None:
    machine = make_machine(*overrides)
    for case in CASES:
        found = probe_case(machine, case)
        if isinstance(found, ProbeReport):
            assert found.single.latency_ps >= found.single.closed_form_ps
            # Streams of several PEs in one slice come to the same banks, each in rows of its own.
            assert found.sustained.utilisation >= 0.95 or found.crowd is not None, case.name


def test_farthest_is_what_takes_longest(machine: Topology) -> None:
    site = Site(machine.topology_obj)
    far = find_case("h2d-far").place(site)
    assert not isinstance(far, Absent)
    longest = run_once(GraphEngine(machine, enable_data=False), far, 64)[0].ps
    for cube in range(machine.spec.cubes_per_sip):
        other = site.host_flow(site.slices(0, [cube])[0], reading=False)
        assert run_once(GraphEngine(machine, enable_data=False), [other], 64)[0].ps <= longest


def test_flows_on_one_slice_have_addresses_of_their_own(machine: Topology) -> None:
    flows = find_case("pe-hotspot").place(Site(machine.topology_obj))
    assert not isinstance(flows, Absent)
    spans = sorted((flow.pa, flow.pa + flow.room_bytes) for flow in flows)
    assert len({flow.memory for flow in flows}) == 1
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_successive_transactions_stay_in_their_room(machine: Topology) -> None:
    flow = Site(machine.topology_obj).pe_read_sram((0, 0, 0))
    messages = [transaction(flow, 10 << 20, number) for number in range(10)]
    addresses = {msg.pa for msg in messages if isinstance(msg, PeDmaMsg)}
    assert addresses == {flow.pa + step * (10 << 20) for step in range(3)}


@pytest.mark.parametrize("nbytes", [0, -1, (32 << 20) + 1])
def test_a_size_without_room_is_refused(machine: Topology, nbytes: int) -> None:
    with pytest.raises(InputError, match="pe-sram takes 1 byte to 32 MiB"):
        probe_case(machine, find_case("pe-sram"), nbytes)
