"""What an architect can get wrong in ``topology.yaml``, each reported at its line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernbench.common.config import apply_overrides, parse_document
from kernbench.common.errors import ConfigError
from kernbench.di.part import Part, PartAttrs
from kernbench.di.registry import Registry
from kernbench.policy.address.layout import AddressFormat
from kernbench.topology.builder import compile_topology, resolve_topology
from kernbench.topology.hbm_spec import HbmCtrlAttrs
from kernbench.topology.rules import CUBE_BITS, SIP_BITS, check_rules


def problems(text: str, registry: Registry, *overrides: str) -> list[str]:
    try:
        compile_topology(apply_overrides(parse_document(text, "t.yaml"), overrides), registry)
    except ConfigError as error:
        return str(error).split("\n")
    return []


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def place(text: str, word: str, nth: int = 1) -> str:
    """``line:column`` of the n-th occurrence of a word."""
    at = -1
    for _ in range(nth):
        at = text.index(word, at + 1)
    before = text[:at]
    return f"{before.count(chr(10)) + 1}:{at - before.rfind(chr(10))}"


SLIPS = [
    ("slices: 8", "slices: 7", "7 ", "cube.hbm.slices: found 7, must be a multiple of the 4 corners"),
    ("NW, NE, SW", "NW, NX, SW", "NX", "cube.pe_layout.corners[1]: found 'NX', must be one of: NW, NE, SW, SE"),
    ("NW, NE, SW", "NW, NW, SW", "NW, SW", "cube.pe_layout.corners[1]: NW is listed twice; each corner once"),
    ("[NW, NE, SW, SE]", "[]", "[]", "cube.pe_layout.corners: found [], must have at least 1 entry"),
    ("pe_per_corner: 2", "pe_per_corner: 5", "5, corners", "cube.pe_layout.pe_per_corner: 5 x 4 corners = 20 PEs in a"),
    (
        "6GiB",
        "6GB/s",
        "6GB/s",
        "cube.hbm.bytes_per_slice: '6GB/s' is not a size; write bytes or a number with one of B",
    ),
    (
        "6GiB",
        "17GiB",
        "17GiB",
        "cube.hbm.bytes_per_slice: slices x bytes_per_slice = 8 x 17 GiB = 136 GiB, but the HBM",
    ),
    ("num_pcs: 8", "num_pcs: 6", "6  ", "cube.hbm.num_pcs: found 6, must be a power of two; channel_hash: mod takes"),
    ("burst_bytes: null", "burst_bytes: 100", "100 ", "cube.hbm.burst_bytes: found 100, must be a multiple of 32,"),
    ("quantum_bytes: 2048", "quantum_bytes: 1", "1  ", "cube.hbm.quantum_bytes: found 1, must be at least a burst, wh"),
    ("bytes: 32MiB", "bytes: 1GiB", "1GiB", "cube.sram.bytes: found 1 GiB, but field sub_offset of an address has 29"),
    ("bytes: 16MiB", "bytes: 1GiB", "1GiB", "pe.tcm.bytes: found 1 GiB, but the address range of a TCM is 256 MiB"),
    ("scheduler_reserved_bytes: 4MiB", "scheduler_reserved_bytes: 16MiB", "16MiB, read", "pe.tcm.scheduler_reserved_b"),
    (
        "bytes: 32MiB",
        "bytes: 32MiB, banks: 2, bank_bytes: 512",
        "512 ",
        "cube.sram.bank_bytes: found 512, must be at le",
    ),
    ("bytes: 16MiB", "bytes: 16MiB, bank_bytes: 5000", "5000", "pe.tcm.bank_bytes: found 5000, must be a power of two"),
    ("page_bytes: 4096", "page_bytes: 5000", "5000", "pe.mmu.page_bytes: found 5000, must be a power of two"),
    ("packet_bytes: 1024", "packet_bytes: 0", "0    ", "transport.packet_bytes: found 0, must be at least 1"),
    (
        "fifo_bytes: 4096",
        "fifo_bytes: 512",
        "512  ",
        "transport.fifo_bytes: found 512, must be at least 4096: 4 packets of transport.packet_bytes, which is 1024;",
    ),
    ("ns_per_mm: 0.01", "ns_per_mm: -1", "-1", "ns_per_mm: found -1, must be at least 0"),
    ("bytes_per_slice: 6GiB", "bytes_per_slice: 6Gb", "6Gb", "cube.hbm.bytes_per_slice: '6Gb' is not a size; write by"),
    ("access_ns: null", "access_ns: 1e300", "1e300", "cube.components.hbm_ctrl.attrs.access_ns: found 1e+300, must be"),
    ("bw_gbs: 64.0", "bw_gbs: 1e300", "1e300", "system.links.host_to_switch.bw_gbs: found 1e+300, must be at most"),
    ("bw_gbs: 64.0", "bw_gbs: 1e-300", "1e-300", "system.links.host_to_switch.bw_gbs: found 1e-300, must be at least"),
    ("format: narrow", "format: broad", "broad", "address.format: found 'broad', must be one of: narrow, wide"),
    ("express: true", "express: 1", "1    ", "transport.express: found 1, must be true or false"),
    (
        "count: 2",
        "count: 17",
        "17,",
        "system.sips.count: found 17, but field sip_id of the narrow address format has 4",
    ),
    ("count: 2", "count: 0", "0, topo", "system.sips.count: found 0, must be at least 1"),
    (
        "cube_mesh: { w: 4, h: 4",
        "cube_mesh: { w: 6, h: 6",
        "{",
        "sip.cube_mesh: w x h is 36 cubes, but field sip_seg (the cube) of the narr",
    ),
    ("edge: N", "edge: NE", "NE, size", "sip.io_chiplet.edge: found 'NE', must be one of: E, W, N, S"),
    ("topology: ring_1d", "topology: ring", "ring }", "system.sips.topology: found 'ring', did you mean 'ring_1d'?"),
    (
        "efficiency: null",
        "efficiency: 1.5",
        "1.5",
        "cube.components.hbm_ctrl.attrs.efficiency: found 1.5, must be at m",
    ),
    (
        "efficiency: null",
        "efficiency: 1.0e-300",
        "1.0e-300",
        "cube.components.hbm_ctrl.attrs.efficiency: found 1e-300, mu",
    ),
    (
        "efficiency: null",
        "efficency: null",
        "efficency",
        "cube.components.hbm_ctrl.attrs.efficency: unknown key 'effic",
    ),
    ("kind: xbar", "kind: crossbar", "crossbar", "cube.components.xbar.kind: unknown kind 'crossbar'; there are"),
    ("kind: xbar", "kind: sram", "sram,      ", "cube.components.xbar.kind: found 'sram', must be 'xbar' in this"),
    ("impl: builtin.xbar", "impl: builtin.xbra", "builtin.xbra", "cube.components.xbar.impl: unknown component 'bui"),
    ("impl: builtin.xbar", "impl: builtin.sram", "builtin.sram", "cube.components.xbar.impl: 'builtin.sram' implem"),
    ("impl: builtin.xbar", "impl: no_pkg.Xbar", "no_pkg", "cube.components.xbar.impl: component 'no_pkg.Xbar': there"),
    ("dtype_acc: f32", "dtype_acc: f80", "f80", "pe.gemm.dtype_acc: unknown dtype 'f80'; there are: f32, f16"),
    ("{ f32: 1024", "{ f80: 1024", "f80", "pe.gemm.macs_per_ns.f80: unknown dtype 'f80'; there are: f32, f16"),
    (
        "length_mm: 2.0, fifo: unbounded",
        "fifo: unbounded, fifo_bytes: 9",
        "9 }",
        "sip.links.io_to_cube.fifo_bytes: a li",
    ),
    ("tile_m: 32", "tile_m: 32.5", "32.5", "pe.gemm.tile_m: found 32.5, must be a whole number"),
    ("bw_gbs: 128.0", "bw_gbs: '128'", "'128'", "system.links.sip_to_sip.bw_gbs: found '128', must be a plain number"),
    ("noc: { w: 4", "noc: { w: 0", "0, h: 4, link", "cube.noc.w: found 0, must be at least 1"),
]


@pytest.mark.parametrize(("old", "new", "at", "message"), SLIPS, ids=[slip[3].split(":")[0] for slip in SLIPS])
def test_a_slip_is_reported_at_its_place(
    old: str, new: str, at: str, message: str, default_text: str, registry: Registry
) -> None:
    text = changed(default_text, (old, new))
    start = text.index(new)
    offset = text.index(at, start)
    line, column = text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)
    found = problems(text, registry)
    assert len(found) == 1
    assert found[0].startswith(f"t.yaml:{line}:{column}: {message}")


def test_a_missing_key_points_at_its_section(default_text: str, registry: Registry) -> None:
    text = changed(default_text, ("    pe_to_xbar:     { bw_gbs: 256.0 }\n", ""), ("    slices: 8 ", "    "))
    assert problems(text, registry) == [
        f"t.yaml:{place(text, 'hbm:')}: cube.hbm: missing key 'slices'",
        f"t.yaml:{place(text, 'links:', 3)}: cube.links: missing key 'pe_to_xbar'",
    ]


def test_structural_slips_and_contradictions_are_reported_together(default_text: str, registry: Registry) -> None:
    text = changed(
        default_text,
        ("count: 2", "count: 17"),
        ("pe_to_xbar:     { bw_gbs", "pe_to_xbar:     { bandwidth"),
        ("slices: 8", "slices: 6"),
        ("impl: builtin.sram", "impl: builtin.ram"),
        ("efficiency: null", "efficiency: 0"),
    )
    assert [line.split(": ")[1] for line in problems(text, registry)] == [
        "system.sips.count",
        "cube.hbm.slices",
        "cube.links.pe_to_xbar",
        "cube.links.pe_to_xbar.bandwidth",
        "cube.components.hbm_ctrl.attrs.efficiency",
        "cube.components.sram.impl",
    ]


@pytest.mark.parametrize(
    ("sips", "message"),
    [
        ("{count: 5, topology: torus_2d}", "5 SIPs are no square, which a torus_2d needs; give w and h with w x h = 5"),
        ("{count: 6, topology: mesh_2d_no_wrap}", "for example w: 3, h: 2"),
        ("{count: 6, topology: torus_2d, w: 2, h: 2}", "found 6, but w x h = 2 x 2 = 4; they must be equal"),
        ("{count: 6, topology: torus_2d, w: 3}", "w is given without h; give both or neither"),
        ("{count: 4, topology: ring_1d, w: 2}", "only torus_2d, mesh_2d_no_wrap take w and h, not ring_1d"),
    ],
)
def test_sips_that_form_no_grid(sips: str, message: str, default_text: str, registry: Registry) -> None:
    found = problems(default_text, registry, f"system.sips={sips}")
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize(
    "sips",
    [
        "{count: 6, topology: torus_2d, w: 3, h: 2}",
        "{count: 9, topology: mesh_2d}",
        "{count: 1, topology: torus_2d}",
        "{count: 16, topology: fully_connected}",
        "{count: 3, topology: switch}",
        "{count: 1, topology: ring_1d_unidir}",
    ],
)
def test_sips_that_are_fine(sips: str, default_text: str, registry: Registry) -> None:
    assert problems(default_text, registry, f"system.sips={sips}", "sip.cube_mesh={w: 1, h: 1}") == []


def test_the_wide_format_lifts_the_limits(default_text: str, registry: Registry) -> None:
    larger = ("system.sips.count=17", "sip.cube_mesh={w: 33, h: 1}")
    assert "address.format: wide takes 1024" in problems(default_text, registry, *larger)[0]
    assert problems(default_text, registry, "address.format=wide", *larger) == []
    assert (
        "field sip_id of the wide"
        in problems(default_text, registry, "address.format=wide", "system.sips.count=1025")[0]
    )


def test_the_limits_are_those_of_the_addresses() -> None:
    for name, bits in SIP_BITS.items():
        address = AddressFormat(name)
        assert (address.sip_limit, address.cube_limit) == (1 << bits, 1 << CUBE_BITS[name])


@pytest.mark.parametrize(
    ("kind", "allowed"),
    [
        ("pe_scheduler", "allowed here: issue_ns, tiles_in_flight, stage_slots"),
        *((kind, "no keys are allowed here") for kind in ("pe_fetch_store", "pe_gemm", "pe_math", "pe_tcm", "pe_mmu")),
    ],
)
def test_parts_that_no_packet_enters_have_no_overhead(
    kind: str, allowed: str, default_text: str, registry: Registry
) -> None:
    for attrs in ("attrs.overhead_ns=5", "attrs={overhead_ns: 0}"):
        (found,) = problems(default_text, registry, f"pe.components.{kind}.{attrs}")
        assert found.endswith(f"pe.components.{kind}.attrs.overhead_ns: unknown key 'overhead_ns'; {allowed}")


@pytest.mark.parametrize(
    ("overrides", "path", "least"),
    [
        (("transport.fifo_bytes=4095",), "transport.fifo_bytes", 4096),
        (("transport.packet_bytes=4096",), "transport.fifo_bytes", 16384),
        (("transport.long_link_fifo_bytes=1KiB",), "transport.long_link_fifo_bytes", 4096),
        (("cube.links.pe_to_xbar.fifo_bytes=2048",), "cube.links.pe_to_xbar.fifo_bytes", 4096),
        (("system.links.host_to_switch.fifo_bytes=1024",), "system.links.host_to_switch.fifo_bytes", 4096),
    ],
)
def test_a_fifo_holds_four_packets(
    overrides: tuple[str, ...], path: str, least: int, default_text: str, registry: Registry
) -> None:
    (found,) = problems(default_text, registry, *overrides)
    assert f"{path}: found " in found
    assert f"must be at least {least}: 4 packets of transport.packet_bytes, which is {least // 4}" in found
    assert f"{path}=null is always enough" in found
    assert problems(default_text, registry, *overrides, f"{path}=null") == []
    assert problems(default_text, registry, *overrides, f"{path}={least}") == []


def test_mod_hashing_takes_any_number_of_channels(default_text: str, registry: Registry) -> None:
    assert problems(default_text, registry, "cube.hbm.channel_hash=mod", "cube.hbm.num_pcs=6") == []


def test_rules_wait_for_sound_sections() -> None:
    assert list(check_rules(lambda _path: None)) == []


def test_a_file_that_does_not_exist_is_one_line(registry: Registry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_topology(tmp_path / "absent.yaml", registry=registry)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


class SlowAttrs(PartAttrs):
    stall_ns: float = 3.0


class SlowRouter(Part):
    Attrs = SlowAttrs


class PlainHbm(Part):
    pass


class WrongHbm(Part):
    Attrs = SlowAttrs


class OwnHbmAttrs(HbmCtrlAttrs):
    refresh_ns: float


class OwnHbm(Part):
    Attrs = OwnHbmAttrs


@pytest.fixture
def richer(registry: Registry) -> Registry:
    """The test registry with a user's classes, for one test."""
    found = Registry()
    for name in registry.known_impls():
        cls = registry.lookup(name)
        found.register(name, kind=registry.kinds_of(cls))(cls)
    found.register("mine.router", kind="noc_router")(SlowRouter)
    for cls in (PlainHbm, WrongHbm, OwnHbm):
        found.register(f"mine.{cls.__name__}", kind="hbm_ctrl")(cls)
    return found


def test_a_users_class_brings_its_own_attrs(default_text: str, richer: Registry) -> None:
    place = "cube.components.noc_router"
    document = parse_document(default_text, "t.yaml")
    mine = apply_overrides(document, [f"{place}.impl=mine.router", f"{place}.attrs.stall_ns=7"])
    topology = compile_topology(mine, richer)
    attrs = topology.topology_obj.node("sip0.cube0.r0_0").attrs
    assert isinstance(attrs, SlowAttrs)
    assert (attrs.stall_ns, attrs.overhead_ns) == (7.0, 1.0)
    assert "stall_ns: 7.0" in topology.resolved_yaml()


def test_a_class_without_attrs_takes_those_of_its_kind(default_text: str, richer: Registry) -> None:
    assert problems(default_text, richer, "cube.components.hbm_ctrl.impl=mine.PlainHbm") == []


def test_own_attrs_must_extend_those_of_the_kind(default_text: str, richer: Registry) -> None:
    (found,) = problems(default_text, richer, "cube.components.hbm_ctrl.impl=mine.WrongHbm")
    assert "WrongHbm.Attrs must be a subclass of HbmCtrlAttrs" in found


def test_a_required_attr_that_is_missing_is_named(default_text: str, richer: Registry) -> None:
    (found,) = problems(default_text, richer, "cube.components.hbm_ctrl.impl=mine.OwnHbm")
    assert found.endswith("cube.components.hbm_ctrl.attrs: missing key 'refresh_ns'")
    text = changed(default_text, ("impl: builtin.hbm_ctrl,   attrs:", "impl: mine.OwnHbm } #"))
    (found,) = problems(text, richer)
    assert found == f"t.yaml:{place(text, 'hbm_ctrl:')}: cube.components.hbm_ctrl: missing key 'refresh_ns'"
