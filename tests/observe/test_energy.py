"""Energy of a run: by hand, conserved, the same with and without data and observation, and believable."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import kernbench as kb
from compiled import compiled
from kernbench.common.dtypes import ALL
from kernbench.common.operators import OPERATORS
from kernbench.common.special import EnergyClass
from kernbench.components.hbm_ctrl import HBM_ROWS, HbmCtrl
from kernbench.components.memory import Memory, MemoryAccess
from kernbench.components.pe_math import PeMath, name_elements
from kernbench.components.pe_tcm import TCM_BYTES
from kernbench.di.part import PartUse
from kernbench.engine.engine import GraphEngine
from kernbench.engine.recorder import MathSize, size_of
from kernbench.messages.commands import Command, Opcode
from kernbench.messages.requests import PeDmaMsg
from kernbench.observe.energy import EnergyCounts, RunEnergy
from kernbench.observe.energy_events import list_events, measure_power
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.result.run_sections import ENERGY
from kernbench.topology.builder import resolve_topology

SLOW = "ccl-allreduce"
SMALL: dict[str, dict[str, Any]] = {
    "matmul-composite": {"m": 64, "k": 128, "n": 64, "epilogue": "bias_gelu"},
    "ipcq-allreduce": {"n_elem": 512},
    "ccl-allreduce": {},
    "attention": {"lq": 32, "lk": 64},
}
BENCHES = pytest.mark.parametrize(
    "bench", [*(name for name in SMALL if name != SLOW), pytest.param(SLOW, marks=pytest.mark.slow)]
)


def energy_of(run: kb.Run) -> RunEnergy:
    return run.outcome[ENERGY]


def count_of(energy: RunEnergy, *works: str) -> float:
    return sum(entry.count for entry in energy.work if entry.work in works)


def counts_of(run: kb.Run) -> EnergyCounts:
    machine = run.engine.machine
    assert machine.spec.energy is not None
    return EnergyCounts(machine, machine.spec.energy, machine.log.columns())


def pj_of(energy: RunEnergy) -> dict[str, float]:
    return {share.place: share.pj for share in (*energy.parts, *energy.links)}


class Runs(dict[str, kb.Run]):
    """Observed runs of small benches, each simulated at its first use."""

    def __missing__(self, name: str) -> kb.Run:
        run = self[name] = kb.run(name, params=SMALL[name])
        return run


@pytest.fixture(scope="module")
def observed() -> Mapping[str, kb.Run]:
    return Runs()


def test_a_product_by_hand() -> None:
    """512³ in f16 by blocks: 134,217,728 MACs, and the other counts of the example in docs/energy.md."""
    run = kb.run("matmul-composite", params={"m": 512, "k": 512, "n": 512, "variant": "blocked"})
    energy = energy_of(run)
    assert (energy.macs, energy.tile_macs, energy.hbm_bytes) == (134_217_728, 134_217_728, 180_224 * 32)
    assert count_of(energy, HBM_ROWS) == 10_784
    assert count_of(energy, TCM_BYTES) == 22_020_096
    assert count_of(energy, "byte mm") == pytest.approx(50_085_723, abs=1)
    places, links = pj_of(energy), ("host_to_switch", "switch_to_sip")
    by_hand = {
        "pe_gemm": 96.637,
        "hbm_ctrl": 160.327 + 9.803,
        "pe_tcm": 55.050,
        "xbar": 2.886,
        "io_to_cube": 4.196,
    }
    assert {place: places[place] / 1e6 for place in by_hand} == pytest.approx(by_hand, rel=1e-4)
    assert (places["noc_router"] + places["io_noc"]) / 1e6 == pytest.approx(2.099, rel=3e-4)
    assert sum(places[link] for link in links) / 1e6 == pytest.approx(109.105, rel=1e-4)
    assert energy.pj / 1e6 == pytest.approx(464.234, rel=1e-4)
    assert energy.split is not None
    assert energy.split.launches_pj / 1e6 == pytest.approx(303.018, rel=1e-4)
    assert (energy.split.copies_pj + energy.split.rest_pj) / 1e6 == pytest.approx(161.216, rel=1e-4)
    assert (energy.static_watts, energy.static_all_watts) == pytest.approx((13.610, 383.93), rel=1e-4)
    assert (energy.static_pj / 1e6, energy.static_all_pj / 1e6) == pytest.approx((708.5, 19_986), rel=1e-4)
    assert energy.edp == pytest.approx(energy.total_pj * 1e-12 * run.latency_ns * 1e-9)


@pytest.mark.slow
def test_an_allreduce_by_hand() -> None:
    """A ring of 8 PEs, 1 MiB of f32 each: 1,835,008 additions and as many copies."""
    params = {"algorithm": "ring_allreduce_rs_ag", "n_elem": 262_144}
    energy = energy_of(kb.run("ipcq-allreduce", params=params))
    assert energy.hbm_bytes == 786_432 * 32
    assert count_of(energy, HBM_ROWS) == 29_520
    assert count_of(energy, TCM_BYTES) == 82_837_504
    assert count_of(energy, name_elements("add", "f32")) == count_of(energy, name_elements("copy", "f32")) == 1_835_008
    assert count_of(energy, "byte mm") == pytest.approx(458_307_877, abs=1)
    assert energy.split is not None
    figures = energy.pj, energy.split.launches_pj, energy.split.copies_pj + energy.split.rest_pj
    assert [pj / 1e6 for pj in figures] == pytest.approx([2_127.293, 826.018, 1_301.275], rel=1e-4)
    assert (energy.static_pj / 1e6, energy.static_all_pj / 1e6) == pytest.approx((2_049.6, 57_816), rel=1e-4)


@BENCHES
def test_energy_is_conserved(observed: Mapping[str, kb.Run], bench: str) -> None:
    energy, counts = energy_of(observed[bench]), counts_of(observed[bench])
    assert sum(counts.by_part().values()) == pytest.approx(energy.pj, rel=1e-9)
    assert sum(pj_of(energy).values()) == pytest.approx(energy.pj, rel=1e-9)
    assert sum(work.pj for work in energy.work) == pytest.approx(energy.pj, rel=1e-9)
    split = energy.split
    assert split is not None
    assert split.launches_pj + split.copies_pj + split.rest_pj == pytest.approx(energy.pj, rel=1e-9)
    assert sum(launch.pj for launch in split.launches) == pytest.approx(split.launches_pj, rel=1e-9)


@BENCHES
def test_each_part_and_link_is_in_its_group(observed: Mapping[str, kb.Run], bench: str) -> None:
    energy = energy_of(observed[bench])
    places, by = pj_of(energy), energy.by
    control = ("host", "io_cpu", "m_cpu", "pe_cpu", "pe_scheduler", "pe_dma", "pe_ipcq")
    assert by.control == pytest.approx(sum(places.get(kind, 0.0) for kind in control))
    assert by.die_links == pytest.approx(places.get("cube_to_cube", 0.0) + places.get("io_to_cube", 0.0))
    assert by.sip_links == places.get("sip_to_sip", 0.0)
    assert by.host_links == pytest.approx(places["host_to_switch"] + places["switch_to_sip"])
    routers = ("xbar", "noc_router", "io_noc")
    assert by.routers == pytest.approx(sum(places.get(kind, 0.0) for kind in routers))
    assert (by.hbm, by.tcm, by.sram) == (places["hbm_ctrl"], places["pe_tcm"], places.get("sram", 0.0))
    assert (by.macs, by.math) == (places.get("pe_gemm", 0.0), places.get("pe_math", 0.0))
    assert by.others == 0
    assert sum(getattr(by, field.name) for field in fields(by)) == pytest.approx(energy.pj)


@BENCHES
@pytest.mark.parametrize("window_ns", [1.0, 37.3, 1000.0, 1e6])
def test_power_over_time_is_conserved(observed: Mapping[str, kb.Run], bench: str, window_ns: float) -> None:
    run = observed[bench]
    assert run.live is not None
    assert run.live.log is not None
    counts = counts_of(run)
    curve = measure_power(counts, run.live.log.seen, window_ns)
    assert curve.pj == pytest.approx(counts.ledger.pj, rel=1e-9)
    assert abs(curve.unplaced_pj) <= 1e-9 * counts.ledger.pj + 27.8 * energy_of(run).held_bytes
    assert (curve.total > -1e-6).all()
    assert (0, 0) in curve.watts


@BENCHES
def test_counters_are_those_of_the_observed_tables(observed: Mapping[str, kb.Run], bench: str) -> None:
    run = observed[bench]
    assert run.live is not None
    assert run.live.log is not None
    machine, view = run.engine.machine, run.live.log.seen
    carried: dict[str, int] = {}
    for route, nbytes in zip(view.transfers.route.tolist(), view.transfers.nbytes.tolist(), strict=True):
        for link in machine.network.watch.routes[route].links:
            carried[f"{link.src} → {link.dst}"] = carried.get(f"{link.src} → {link.dst}", 0) + nbytes
    assert carried == {f"{link.src} → {link.dst}": link.nbytes for link in counts_of(run).links}
    slices = [part.work for part in machine.components if isinstance(part, HbmCtrl)]
    served = int(view.turns.bursts.sum()) * 32
    assert served + sum(work.held for work in slices) == sum(work.read + work.written for work in slices)
    assert int((view.turns.bursts - view.turns.hits).sum()) == sum(work.rows for work in slices)
    events = list_events(counts_of(run), view)
    assert events.sum_pj == pytest.approx(energy_of(run).pj - sum(work.held for work in slices) * 27.8, rel=1e-9)


@BENCHES
def test_counts_are_equal_without_data_and_observation(observed: Mapping[str, kb.Run], bench: str) -> None:
    run = observed[bench]
    plain = kb.run(bench, params=SMALL[bench], observe=False)
    empty = kb.run(bench, params=SMALL[bench], observe=False, data="none", verify=False)
    for other in (plain, empty):
        assert energy_of(other).work == energy_of(run).work
        assert (other.latency_ns, other.report.events) == (run.latency_ns, run.report.events)


def test_energy_off_changes_nothing_else(observed: Mapping[str, kb.Run]) -> None:
    run = observed["attention"]
    off = kb.run("attention", kb.load_machine("default", overrides={"energy": None}), params=SMALL["attention"])
    assert (off.latency_ns, off.report.events, off.digest) == (run.latency_ns, run.report.events, run.digest)
    assert bytes(off.engine.machine.log.rows) == bytes(run.engine.machine.log.rows)
    assert "energy" not in off.to_dict()
    with pytest.raises(kb.InputError, match="energy of its machine is null"):
        _ = off.energy
    assert run.energy == energy_of(run)


@pytest.mark.parametrize(
    ("key", "place"),
    [("wire_pj_per_byte_mm", "noc"), ("tcm_pj_per_byte", "pe_tcm"), ("mac_pj.f16", "pe_gemm"), ("issue_pj", "pe_cpu")],
)
def test_doubling_a_key_doubles_its_share_and_nothing_else(
    observed: Mapping[str, kb.Run], key: str, place: str
) -> None:
    run, energy = observed["matmul-composite"], compiled().configuration["energy"]
    for name in key.split("."):
        energy = energy[name]
    doubled = compiled(f"energy.{key}={2 * energy}").spec.energy
    machine = run.engine.machine
    assert doubled is not None
    before, after = (
        EnergyCounts(machine, spec, machine.log.columns()).ledger.works
        for spec in (compiled().spec.energy, doubled)
        if spec is not None
    )
    assert before.keys() == after.keys()
    moved = {entry for entry in before if before[entry] != after[entry]}
    assert place in {name for name, _ in moved}
    assert all(after[entry] == pytest.approx([before[entry][0], 2 * before[entry][1]]) for entry in moved)
    assert sum(before[entry][1] for entry in moved) == pytest.approx(
        sum(pj for _, pj in after.values()) - sum(pj for _, pj in before.values())
    )


@pytest.mark.parametrize("bench", ["ipcq-allreduce", "attention"])
def test_math_is_counted_as_the_commands_say(observed: Mapping[str, kb.Run], bench: str) -> None:
    machine = observed[bench].engine.machine
    sizes: dict[MathSize, int] = {}
    for subject in machine.log.whats:
        if isinstance(subject, Command) and subject.op is Opcode.MATH:
            sizes[size_of(subject)] = sizes.get(size_of(subject), 0) + 1
    counted: dict[MathSize, int] = {}
    for part in machine.components:
        if isinstance(part, PeMath):
            for size, commands in part.sizes.items():
                counted[size] = counted.get(size, 0) + commands
    assert counted == sizes
    assert sizes


def test_epilogues_are_counted_by_element(observed: Mapping[str, kb.Run]) -> None:
    energy = energy_of(observed["matmul-composite"])
    assert count_of(energy, name_elements("add", "f16")) == count_of(energy, name_elements("gelu", "f16")) == 64 * 64


def test_every_operator_has_an_energy_class() -> None:
    names = [field.name for field in fields(type(OPERATORS["add"])) if field.default is not field.default_factory]
    assert "energy_class" not in names, "a new operator states its class"
    assert {operator.energy_class for operator in OPERATORS.values()} == set(get_args(EnergyClass))
    classes = {"add": "add", "scale": "mul", "exp": "special", "cast": "move", "where": "move", "cumsum": "add"}
    assert {name: OPERATORS[name].energy_class for name in classes} == classes
    energy = compiled().spec.energy
    assert energy is not None
    assert all(energy.element_pj(op.energy_class, dtype.name) > 0 for op in OPERATORS.values() for dtype in ALL)


def hbm_pj_a_bit(machine: str, nbytes: int, stride: int, times: int, op: str) -> float:
    """The energy of a slice a bit, for descriptors of ``nbytes``, ``stride`` bytes apart."""
    engine = GraphEngine(kb.load_machine(machine).topology)
    pa = PhysAddr.pe_hbm_addr(
        0, 0, 0, 0, 0, engine.machine.spec.cube.hbm.bytes_per_slice, engine.machine.addresses.format
    ).encode()
    message = PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=nbytes, op=op, repeat=times, stride_bytes=stride, outstanding=16)
    engine.wait(engine.submit(message))
    energy = engine.machine.spec.energy
    assert energy is not None
    works = EnergyCounts(engine.machine, energy, engine.machine.log.columns()).ledger.works
    return sum(pj for (place, _), (_, pj) in works.items() if place == "hbm_ctrl") / (8 * nbytes * times)


@pytest.mark.parametrize("machine", ["default", "one-cube", "big-sip"])
@pytest.mark.parametrize("op", ["read", "write"])
def test_a_bit_of_hbm_costs_what_is_published(machine: str, op: str) -> None:
    assert 3.5 < hbm_pj_a_bit(machine, 4096, 4096, 64, op) < 3.8
    assert 3.5 < hbm_pj_a_bit(machine, 512, 512, 512, op) < 3.8
    far = (1 << 16) + (1 << 20)
    limits = {256: (3.8, 4.0), 64: (5.1, 5.4), 32: (6.8, 7.1)}
    if op == "read":  # writes that a slice holds back have not opened their rows
        for nbytes, (least, most) in limits.items():
            assert least < hbm_pj_a_bit(machine, nbytes, far, 96, op) < most


def test_ideal_memory_counts_pieces_and_calls_them_an_estimate() -> None:
    overrides = {"cube.hbm.timing": "ideal"}
    run = kb.run("attention", kb.load_machine("default", overrides=overrides), params=SMALL["attention"])
    energy = run.energy
    assert energy.hbm_bytes % 64 == 0
    slices = [part.work for part in run.engine.machine.components if isinstance(part, HbmCtrl)]
    assert count_of(energy, HBM_ROWS) == sum(-(-(work.read + work.written) // 1024) for work in slices)
    assert "bytes and rows of HBM with timing: ideal" in energy.estimates
    assert energy.split is not None
    assert energy.split.rest_pj < 0.5 * energy.pj


EXTRA = "cube.extra.scratch={impl: my_parts.Mine, links: [{to: r0_0, bw_gbs: 64}], bytes: 1MiB}"


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the user's, that YAML can name."""
    module = ModuleType("my_parts")
    monkeypatch.setitem(sys.modules, "my_parts", module)
    return module


def use_scratch(module: ModuleType, cls: type) -> EnergyCounts:
    """Read 256 bytes of a user's memory three times; return the counts."""
    vars(module)["Mine"] = cls
    engine = GraphEngine(resolve_topology("one-cube", [EXTRA]))
    machine = engine.machine
    window = next(node.window for node in machine.graph.extra_nodes if node.window is not None)
    pa = PhysAddr.cube_sram_addr(0, 0, 0, window.offset, machine.addresses.format).encode()
    message = PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=256, op="read", repeat=3)
    engine.wait(engine.submit(message))
    assert machine.spec.energy is not None
    return EnergyCounts(machine, machine.spec.energy, machine.log.columns())


class Timed(Memory):
    """A memory of 5 ns."""

    def serve(self, access: MemoryAccess) -> float:
        return 5.0


def test_a_users_part_states_its_energy(mine: ModuleType) -> None:
    uses: list[PartUse] = []

    class Mine(Timed):
        def energy_pj(self, use: PartUse) -> float:
            uses.append(use)
            return 2.0 * use.bytes_out

    counts = use_scratch(mine, Mine)
    assert uses == [PartUse(bytes_in=3 * 32, bytes_out=3 * 256, accesses=3, busy_ns=15.0)]
    assert counts.ledger.by_place()["scratch"] == 2.0 * 3 * 256
    assert not counts.faults
    assert not counts.unstated


def test_a_users_part_without_an_energy_is_named(mine: ModuleType) -> None:
    counts = use_scratch(mine, Timed)
    assert "scratch" not in counts.ledger.by_place()
    assert list(counts.unstated) == ["my_parts.Mine (scratch): its class states no energy_pj, so it counts 0"]


@pytest.mark.parametrize("answer", [None, "7", float("nan"), float("inf"), -1.0, True, ValueError("no idea")])
def test_a_wrong_energy_is_reported_and_counts_0(mine: ModuleType, answer: object) -> None:
    class Mine(Timed):
        def energy_pj(self, use: PartUse) -> float:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]

    counts = use_scratch(mine, Mine)
    assert "scratch" not in counts.ledger.by_place()
    (fault,) = counts.faults
    assert fault.startswith("my_parts.Mine: energy_pj ")
    assert "test_energy.py:" in fault


def test_a_run_of_an_earlier_version_has_no_energy_and_says_so(observed: Mapping[str, kb.Run], tmp_path: Path) -> None:
    document = observed["attention"].to_dict()
    (tmp_path / "run.json").write_text(json.dumps(document))
    loaded = kb.load(tmp_path / "run.json")
    assert isinstance(loaded, kb.Run)
    assert loaded.energy.pj == pytest.approx(observed["attention"].energy.pj)
    assert loaded.energy.by == observed["attention"].energy.by
    del document["energy"], document["configuration"]["energy"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    old = kb.load(tmp_path / "old.json")
    assert isinstance(old, kb.Run)
    assert old.latency_ns == loaded.latency_ns
    assert old.machine.digest == loaded.digest
    with pytest.raises(kb.InputError, match="this run has no energy, since its file has none"):
        _ = old.energy
