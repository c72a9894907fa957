"""Timings by name: their figures, the machines they make, and what is printed of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from compiled import compiled, packaged_topology
from kernbench.common.config import apply_overrides
from kernbench.common.errors import ConfigError, UnknownNameError
from kernbench.components.hbm.banks import BankedMemory, Histories
from kernbench.di.registry import REGISTRY
from kernbench.messages.fabric import Access
from kernbench.topology.builder import Topology, validate_topology
from kernbench.topology.cube_spec import CubeSpec
from kernbench.topology.export import machine_document, machine_rows
from kernbench.topology.hbm_export import preset_document, preset_facts, preset_named, timing_rows
from kernbench.topology.hbm_spec import DDR5, HBM2, HBM3, HBM4, LPDDR5, PRESETS, HbmTiming, TimingName, interleave

Run = Callable[..., Any]
ASSUMED = {"hbm3e": "hbm3", "lpddr5x": "lpddr5"}


def test_every_name_is_a_preset():
    assert set(get_args(TimingName)) == set(PRESETS)
    assert {name for name, preset in PRESETS.items() if preset.assumed} == set(ASSUMED)


@pytest.mark.parametrize(
    ("name", "pc_gbs", "bits", "pcs", "banks", "row_bytes", "cl_ns"),
    [
        ("hbm2", 16.0, 64, 2, (1, 4, 4), 1024, 14.0),
        ("hbm3", 25.6, 32, 2, (2, 4, 4), 1024, 12.5),
        ("hbm3e", 38.4, 32, 2, (2, 4, 4), 1024, 12.5),
        ("hbm4", 32.0, 32, 2, (2, 2, 8), 1024, 10.0),
        ("lpddr5", 12.8, 16, 1, (1, 4, 4), 2048, 21.25),
        ("lpddr5x", 17.066, 16, 1, (1, 4, 4), 2048, 21.25),
        ("ddr5", 19.2, 32, 1, (1, 8, 4), 4096, 15.0),
    ],
)
def test_the_figures(name, pc_gbs, bits, pcs, banks, row_bytes, cl_ns):
    preset = PRESETS[name]
    timing = preset.timing
    assert (timing.pc_gbs, 8 * timing.pc_gbs / preset.pin_gbps) == (pytest.approx(pc_gbs), pytest.approx(bits))
    assert (preset.bus_bits, timing.pcs_per_channel) == (bits, pcs)
    assert ((timing.stacks, timing.groups, timing.banks), timing.row_bytes, timing.cl_ns) == (banks, row_bytes, cl_ns)


@pytest.mark.parametrize(
    ("timing", "clock_ns", "cycles"),
    [
        (
            HBM2,
            1.0,
            {"rc_ns": 48, "rp_ns": 14, "rcd_ns": 14, "cl_ns": 14, "wtr_ns": 5 + 2 + 8, "rtw_ns": 14 + 2 + 2 - 5},
        ),
        (HBM3, 0.625, {"rc_ns": 72, "rp_ns": 26, "rcd_ns": 31, "cl_ns": 20, "wtr_ns": 10 + 2 + 10, "rtw_ns": 20}),
        (HBM4, 0.5, {"rc_ns": 90, "rp_ns": 33, "rcd_ns": 39, "cl_ns": 20, "wtr_ns": 10 + 2 + 13, "rtw_ns": 25}),
        (LPDDR5, 1.25, {"rc_ns": 49, "rp_ns": 15, "rcd_ns": 15, "cl_ns": 17, "wtr_ns": 23, "rtw_ns": 17 + 2 + 2 - 9}),
        (
            DDR5,
            1 / 2.4,
            {"rc_ns": 113, "rp_ns": 36, "rcd_ns": 36, "cl_ns": 36, "wtr_ns": 66, "rtw_ns": 36 + 8 + 4 - 34},
        ),
    ],
    ids=["hbm2", "hbm3", "hbm4", "lpddr5", "ddr5"],
)
def test_ns_are_the_cycles_of_the_tables(timing, clock_ns, cycles):
    """To the first decimal, as tables of ns have them; turns are from command to command."""
    assert {name: getattr(timing, name) for name in cycles} == pytest.approx(
        {name: n * clock_ns for name, n in cycles.items()}, abs=0.06
    )


@pytest.mark.parametrize(("name", "base"), ASSUMED.items())
def test_what_is_assumed_is_the_other_with_faster_bursts(name, base):
    mine, other = PRESETS[name].timing, PRESETS[base].timing
    clocked = {"ccd_s_ns"} if other.column_bus_ns is None else {"ccd_s_ns", "row_bus_ns", "column_bus_ns"}
    assert mine.model_copy(update={name: getattr(other, name) for name in clocked}) == other
    assert mine.ccd_s_ns < other.ccd_s_ns


def test_a_bus_for_all_commands_has_the_clock_of_the_data():
    """LPDDR5: a burst is two clocks, PRE, ACT-1 and ACT-2 are three, a read or a write is one."""
    shared = {name: preset.timing for name, preset in PRESETS.items() if preset.timing.column_bus_ns is not None}
    assert set(shared) == {"lpddr5", "lpddr5x"}
    for timing in shared.values():
        clock_ns = timing.ccd_s_ns / 2
        assert (timing.row_bus_ns, timing.column_bus_ns) == pytest.approx((3 * clock_ns, clock_ns))


def validated(*changes: str) -> CubeSpec:
    return validate_topology(apply_overrides(packaged_topology(), changes), REGISTRY).cube


def refused(*changes: str) -> str:
    with pytest.raises(ConfigError) as told:
        validated(*changes)
    return str(told.value)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("num_pcs", [8, 16, 64])
@pytest.mark.parametrize("link_gbs", [256, 30])
def test_a_link_that_is_too_narrow_is_told_what_to_set(name, num_pcs, link_gbs):
    """Each of the texts that the error gives, taken as it is, makes a machine."""
    links = f"cube.links.xbar_to_hbm.bw_gbs={link_gbs}"
    changes = (f"cube.hbm.timing={name}", f"cube.hbm.num_pcs={num_pcs}", links)
    if num_pcs * PRESETS[name].timing.pc_gbs <= link_gbs:
        validated(*changes)
        return
    told = refused(*changes)
    advice = re.findall(r"cube\.[a-z_.]+=[0-9.]+", told.partition("; ")[2])
    assert advice[0].startswith("cube.links.xbar_to_hbm.bw_gbs=")
    assert len(advice) == 1 + (PRESETS[name].timing.pc_gbs <= link_gbs)
    for each in advice:
        made = validated(*changes, each)
        assert made.hbm.num_pcs * PRESETS[name].timing.pc_gbs <= made.links.xbar_to_hbm.bw_gbs


@pytest.mark.parametrize("burst_ns", [0.7, 1.1, 1.3, 2.3, 3.1])
@pytest.mark.parametrize("num_pcs", [8, 64, 1024])
def test_odd_peaks_are_told_so_that_they_fit(burst_ns, num_pcs):
    small = (
        f"cube.hbm.timing={{ccd_s_ns: {burst_ns}, stacks: 1, groups: 2, banks: 2}}",
        "cube.hbm.bytes_per_slice=1GiB",
    )
    changes = (*small, f"cube.hbm.num_pcs={num_pcs}", "cube.links.xbar_to_hbm.bw_gbs=60")
    (wider,) = re.findall(r"cube\.links[a-z_.]+=[0-9.e+]+", refused(*changes))
    validated(*changes, wider)


@pytest.mark.parametrize("name", PRESETS)
def test_streams_get_what_refresh_leaves(name):
    timing = PRESETS[name].timing
    memory = BankedMemory(Histories(timing, 4, interleave(256 // timing.burst_bytes, xor=True), 128), 2048)
    nbytes = 1 << 20
    last = memory.serve(Access(0, nbytes), False, 0, nbytes, 0).last_ps
    part = nbytes * 1000 / last / (4 * timing.pc_gbs)
    assert 0.9 * (1 - timing.refresh_share) < part <= 1 - timing.refresh_share


def test_all_values_are_printed():
    assert [row.key for row in timing_rows(HBM3)] == list(HbmTiming.model_fields)
    values = {row.key: row.value for row in timing_rows(DDR5)}
    assert (values["burst_bytes"], values["rc_ns"], values["groups"], values["high"]) == ("64 B", "47.1 ns", "8", "0.8")


@pytest.mark.parametrize("name", PRESETS)
def test_sources_and_assumptions_are_printed(name):
    facts = dict(preset_facts(preset_named(name)))
    assert ("assumed" in facts) == (name in ASSUMED)
    assert facts["source"].startswith("the public data rate" if name in ASSUMED else "public tables of")
    document = preset_document(name, preset_named(name))
    assert (document["name"], document["assumed"]) == (name, name in ASSUMED)
    assert HbmTiming.model_validate(document["config"]) == PRESETS[name].timing


def test_other_names_are_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'lpddr5'"):
        preset_named("lpdr5")


def machine(name: str) -> Topology:
    return compiled(f"cube.hbm.timing={name}", "cube.hbm.num_pcs=2")


@pytest.mark.filterwarnings("ignore:.*queue_entries")
def test_a_machine_says_what_is_assumed():
    assert dict(machine_rows(machine("hbm3e")))["HBM banks"].startswith("hbm3e (assumed): 2 pseudo-channels")
    assert dict(machine_rows(machine("hbm4")))["HBM banks"].startswith("hbm4: 2 pseudo-channels")
    assert machine_document(machine("hbm3e"))["assumed"] == ["cube.hbm.timing"]
    assert "assumed" not in machine_document(machine("hbm4"))


@pytest.mark.filterwarnings("ignore:.*queue_entries")
@pytest.mark.parametrize(
    ("name", "total"), [("hbm2", 15), ("hbm3e", 15), ("hbm4", 15), ("lpddr5", 21.25), ("ddr5", 15)]
)
def test_an_access_takes_fifteen_or_cl(name, total):
    assert machine(name).spec.cube.hbm_access_ns == total


def documented() -> dict[str, list[str]]:
    """The rows of the table of named timings in docs/memory.md: cells by the first one."""
    text = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
    lines = text.partition("### Named timings")[2].partition("\n### ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    return {cells[0]: cells[1:] for cells in ([cell.strip() for cell in line.strip("|").split("|")] for line in table)}


def test_the_documentation_has_these_values():
    rows = documented()
    names = [name.strip("`") for name in rows.pop("")]
    assert names == list(PRESETS)
    seen = set()
    for head, cells in rows.items():
        keys = [key for key in re.findall(r"`(\w+)`", head) if key in HbmTiming.model_fields]
        seen.update(keys)
        for name, cell in zip(names, cells, strict=True):
            written = re.findall(r"[\d.]+", cell)
            values = [getattr(PRESETS[name].timing, key) for key in keys]
            if cell == "–":
                assert values == [None] or (keys == ["ccd_r_ns"] and PRESETS[name].timing.stacks == 1)
            elif len(written) == 1:
                assert [float(written[0])] * len(values) == pytest.approx(values, abs=0.006)
            else:
                assert list(map(float, written[: len(values)])) == pytest.approx(values, abs=0.006)
    assert set(HbmTiming.model_fields) - seen == {"row_bytes", "burst_bytes", "drain", "high", "low"}
