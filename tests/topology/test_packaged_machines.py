"""The machines that come with kernbench: found by name, sound, and with the public figures that their files name."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from kernbench.common.errors import ConfigError, UnknownNameError
from kernbench.topology.builder import (
    Topology,
    list_machines,
    packaged_machines,
    resolve_topology,
    topology_file,
)
from kernbench.topology.hbm_spec import HbmSpec

ADDED = ("big-sip", "edge", "one-cube", "ring16", "wafer")


def test_the_names() -> None:
    assert tuple(packaged_machines()) == ("default", *ADDED)
    assert [name for name, _ in list_machines()] == ["default", *ADDED]
    assert all(about and not about.startswith("#") for _, about in list_machines())


@pytest.mark.parametrize("name", ADDED)
def test_each_is_sound_and_draws_no_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        machine = resolve_topology(name)
    assert (machine.name, machine.spec.cube.hbm.mapping) == (name, "hash")
    assert machine.spec.cube.hbm.refresh == "all-bank"
    assert machine.spec.address.format == ("wide" if name in ("big-sip", "wafer") else "narrow")


def _shape(machine: Topology) -> tuple[int, int, int]:
    spec = machine.spec
    return spec.num_sips, spec.cubes_per_sip, spec.pes_per_cube


def test_the_sizes() -> None:
    shapes = {name: _shape(resolve_topology(name)) for name in ADDED}
    assert shapes == {
        "big-sip": (1, 64, 8),
        "edge": (1, 1, 4),
        "one-cube": (1, 1, 8),
        "ring16": (16, 2, 4),
        "wafer": (1, 256, 8),
    }
    assert resolve_topology("ring16").spec.system.sips.topology == "ring_1d"


def _tera_operations(machine: Topology, dtype: str) -> float:
    """Return the peak of a SIP."""
    return 2 * machine.spec.pe.gemm.macs_per_ns[dtype] * machine.spec.pes_per_sip / 1000


def _peak_gbs(machine: Topology) -> float:
    """Return the peak of all slices of a cube."""
    return machine.spec.cube.hbm.slices * machine.spec.cube.slice_peak_gbs


def test_a_sip_of_ring16_is_a_trainium2() -> None:
    machine = resolve_topology("ring16")
    assert _tera_operations(machine, "f16") == pytest.approx(667, rel=0.01)
    assert _tera_operations(machine, "f8e4m3") == pytest.approx(1299, rel=0.01)
    assert _tera_operations(machine, "f32") == pytest.approx(181, rel=0.01)
    assert machine.spec.hbm_bytes_per_sip == 96 << 30
    assert machine.spec.pe.tcm.bytes == 24 << 20
    assert 4 * 2 * machine.spec.system.links.sip_to_sip.bw_gbs == 1280


def test_a_cube_of_big_sip_is_a_stack_of_hbm4_with_the_ratio_of_a_b200() -> None:
    machine = resolve_topology("big-sip")
    assert (_peak_gbs(machine), machine.spec.cube.hbm.bytes) == (2048, 32 << 30)
    assert _tera_operations(machine, "f16") / 64 / _peak_gbs(machine) * 1000 == pytest.approx(281, rel=0.1)


def test_the_wafer_fits_a_wafer() -> None:
    spec = resolve_topology("wafer").spec
    side = 16 * spec.cube.size_mm.w + 15 * (spec.sip.links.cube_to_cube.length_mm or 0)
    assert side == 207.5
    assert 2 * side**2 < 300**2
    assert spec.num_pes * spec.pe.tcm.bytes == 40 << 30
    assert _peak_gbs(resolve_topology("wafer")) == pytest.approx(819.2)


def test_the_edge_part_has_the_memory_of_an_orin() -> None:
    machine = resolve_topology("edge")
    assert (_peak_gbs(machine), machine.spec.cube.hbm.bytes) == (pytest.approx(204.8), 64 << 30)
    assert _tera_operations(machine, "i8") == pytest.approx(275 / 2, rel=0.05)
    assert not machine.spec.cube.hbm.is_assumed


@pytest.mark.parametrize(
    ("text", "near"), [("wafr", "wafer"), ("big_sip", "big-sip"), ("Default", "default"), ("ring-16", "ring16")]
)
def test_a_slip_in_a_name(text: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UnknownNameError, match=f"unknown machine '{text}'; there are: default, .*did you mean '{near}'"
    ):
        resolve_topology(text)


def test_a_path_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("./wafer", "wafer.yaml", str(tmp_path / "wafer")):
        with pytest.raises(ConfigError, match="no such file"):
            resolve_topology(text)
    Path("mine").write_text(Path(topology_file("edge")).read_text())
    Path("edge").write_text("")
    assert resolve_topology("mine").digest == resolve_topology("edge").digest
    assert (resolve_topology("mine").name, resolve_topology("edge").name) == ("mine", "edge")
    with pytest.raises(ConfigError, match="empty"):
        resolve_topology("./edge")


def test_peak_and_sustained() -> None:
    cube = resolve_topology("default").spec.cube
    assert cube.slice_text == "a slice: peak 204.8, sustained 182.9 GB/s"
    ideal = cube.model_copy(update={"hbm": HbmSpec(slices=8, bytes_per_slice=1 << 30, num_pcs=8, quantum_bytes=2048)})
    assert (ideal.slice_peak_gbs, ideal.slice_bw_gbs) == (256, pytest.approx(204.8))
