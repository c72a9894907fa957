"""The section ``energy``: packaged figures, merging, digests, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from compiled import compiled
from kernbench.common.errors import ConfigError
from kernbench.topology.area import CUBE, IO_CHIPLET, measure_area
from kernbench.topology.builder import resolve_topology
from kernbench.topology.energy_spec import ESTIMATES, AreaKey, EnergySpec, read_packaged

TEXT = (Path(__file__).parents[2] / "src/kernbench/defaults/energy.yaml").read_text(encoding="utf-8")


def test_the_packaged_file_has_every_key_with_a_comment() -> None:
    assert EnergySpec.packaged().model_dump(mode="json") == read_packaged()
    top = [line for line in TEXT.splitlines() if line[0] not in "# "]
    assert all("#" in line for line in top if line != "area_mm2:")


def test_estimates_of_reports_are_those_of_the_file() -> None:
    said = {match[1] for match in re.finditer(r"^ *(\w+):.*#.*estimate", TEXT, re.MULTILINE)}
    named = {part for key in ESTIMATES for part in key.split(".")}
    assert said - set(get_args(AreaKey)) - {"area_mm2"} <= named
    assert {key.partition(".")[0] for key in ESTIMATES} <= said | {"mac_pj", "math_pj"}


def test_a_machine_states_only_what_differs() -> None:
    energy = compiled("energy.mac_pj.f16=0.5", "energy.math_pj.add={f16: 0.2}").spec.energy
    packaged = EnergySpec.packaged()
    assert energy is not None
    assert energy.mac_pj == {**packaged.mac_pj, "f16": 0.5}
    assert energy.math_pj["add"] == {**packaged.math_pj["add"], "f16": 0.2}
    assert energy.math_pj["mul"] == packaged.math_pj["mul"]
    edge = resolve_topology("edge").spec.energy
    assert edge is not None
    assert (edge.hbm_read_pj_per_byte, edge.hbm_write_pj_per_byte, edge.hbm_standby_w) == (25.6, 25.6, 0.05)
    assert (edge.hbm_read_pj_per_byte + edge.hbm_io_pj_per_byte) / 8 == 4.0, "pJ a bit in all"


def test_energy_is_no_part_of_the_digest_and_a_part_of_the_configuration() -> None:
    plain, cheap, off = compiled(), compiled("energy.ucie_pj_per_byte=1"), compiled("energy=null")
    assert plain.digest == cheap.digest == off.digest
    assert plain.configuration["energy"]["ucie_pj_per_byte"] == 4.0
    assert cheap.configuration["energy"]["ucie_pj_per_byte"] == 1.0
    assert off.configuration["energy"] is None
    assert "energy" in cheap.resolved_yaml()


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ("energy.ucie_pj_per_bite=1", "did you mean 'ucie_pj_per_byte'"),
        ("energy.area_mm2.pe_cpx=1", "did you mean 'pe_cpu'"),
        ("energy.pass_pj_per_byte.xbarr=1", "did you mean 'xbar'"),
        ("energy.mac_pj.f17=1", "did you mean 'f16'"),
        ("energy.math_pj.add.f31=1", "did you mean 'f32'"),
        ("energy.ucie_pj_per_byte=much", "must be a plain number"),
        ("energy.ucie_pj_per_byte=.nan", "must be a finite number"),
        ("energy.ucie_pj_per_byte=.inf", "must be a finite number"),
        ("energy.ucie_pj_per_byte=-1", "must be at least 0"),
        ("energy.ucie_pj_per_byte=1.1e9", "must be at most 1e"),
        ("pe.gemm.macs_per_ns.i32=10", "state energy.mac_pj.i32 in pJ"),
    ],
)
def test_hostile_keys_are_refused_by_name(stated: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compiled(stated)
    text = str(refused.value)
    assert said in text
    assert stated.partition("=")[0] in text


def test_a_file_is_refused_with_its_line(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "topology.yaml").read_text(encoding="utf-8")
    (tmp_path / "machine.yaml").write_text(f"{text}energy:\n  tcm_pj_per_byte: -2\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"machine.yaml:{len(text.splitlines()) + 2}"):
        resolve_topology(tmp_path / "machine.yaml")


def test_areas_and_static_power_of_the_default_machine() -> None:
    area = measure_area(compiled())
    assert area is not None
    cube, io = area.dies
    assert (cube.kind, cube.dies, io.kind, io.dies) in {(CUBE, 32, IO_CHIPLET, 2), (IO_CHIPLET, 2, CUBE, 32)}
    assert area.die_of[0, 0].static_w + area.die_of[0, None].static_w == pytest.approx(13.610, rel=1e-4)
    assert area.static_w == pytest.approx(383.93, rel=1e-4)
    assert area.die_of[0, 0].mm2 == pytest.approx(105.758, rel=1e-4)
    assert area.die_of[0, 0].full == pytest.approx(1.0576, rel=1e-3)
    assert measure_area(compiled("energy=null")) is None


def test_clocks_change_no_area_and_raise_the_peak() -> None:
    plain, fast = measure_area(compiled()), measure_area(compiled("clocks.pe=2"))
    assert plain is not None
    assert fast is not None
    assert fast.mm2 == plain.mm2
    assert fast.peak_w > plain.peak_w
