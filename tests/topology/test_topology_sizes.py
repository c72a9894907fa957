"""What is too large to compile, or no number to compute with, is refused before it is tried."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernbench.cli.main import main
from kernbench.common.config import Path, apply_overrides, parse_document, path_text
from kernbench.common.errors import ConfigError
from kernbench.di.registry import Registry
from kernbench.topology.builder import compile_topology, resolve_topology
from kernbench.topology.cube_spec import NocSpec, PeLayoutSpec
from kernbench.topology.fields import SizeMm
from kernbench.topology.rules import MOST_PARTS_AND_LINKS, Census, count_machine
from kernbench.topology.spec import CubeMeshSpec, IoChipletSpec, SipsSpec, TopologySpec


def census_of(spec: TopologySpec) -> Census:
    cube, sip = spec.cube, spec.sip
    found = count_machine(spec.system.sips, sip.cube_mesh, sip.io_chiplet, cube.noc, cube.pe_layout, cube.hbm)
    return sum(found.values(), Census())


def refused(text: str, registry: Registry, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compile_topology(apply_overrides(parse_document(text, "t.yaml"), overrides), registry)
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("system.sips={count: 1, topology: ring_1d}", "cube.noc={w: 5, h: 1, link_bw_gbs: 1}"),
        ("system.sips={count: 2, topology: ring_1d}", "cube.hbm.slices=16"),
        ("system.sips={count: 3, topology: ring_1d_unidir}", "sip.cube_mesh={w: 1, h: 3}"),
        ("system.sips={count: 6, topology: torus_2d, w: 3, h: 2}", "sip.cube_mesh={w: 2, h: 1}"),
        ("system.sips={count: 4, topology: torus_2d, w: 4, h: 1}", "sip.cube_mesh={w: 1, h: 1}"),
        ("system.sips={count: 6, topology: mesh_2d_no_wrap, w: 2, h: 3}", "cube.pe_layout.corners=[SE]"),
        ("system.sips={count: 5, topology: fully_connected}", "sip.io_chiplet.edge=W", "sip.cube_mesh={w: 3, h: 2}"),
        ("system.sips={count: 3, topology: switch}", "cube.pe_layout.pe_per_corner=1", "sip.io_chiplet.edge=S"),
    ],
)
def test_parts_and_links_are_known_before_they_are_made(compiled: Any, overrides: tuple[str, ...]) -> None:
    graph = compiled(*overrides).topology_obj
    assert census_of(graph.spec) == Census(len(graph.nodes), len(graph.edges))


@pytest.mark.parametrize(
    ("overrides", "path", "parts"),
    [
        (("cube.noc.w=4000", "cube.noc.h=4000"), "cube.noc", "512,002,900 parts and 2,047,490,330 links"),
        (("cube.noc.w=1000000",), "cube.noc", "128,002,900 parts"),
        (("cube.hbm.slices=800000", "cube.hbm.bytes_per_slice=4096"), "cube.hbm.slices", "25,603,156 parts"),
        (
            (
                "address.format=wide",
                "system.sips={count: 1024, topology: fully_connected}",
                "sip.cube_mesh={w: 1, h: 1}",
            ),
            "system.sips",
            "parts",
        ),
        (("address.format=wide", "system.sips.count=1000", "sip.cube_mesh={w: 16, h: 16}"), "sip.cube_mesh", "parts"),
    ],
)
def test_a_machine_that_cannot_be_compiled_is_refused(
    overrides: tuple[str, ...], path: str, parts: str, default_text: str, registry: Registry
) -> None:
    (found,) = refused(default_text, registry, *overrides)
    assert f" {path}: the machine would have " in found
    assert parts in found
    assert f"at most {MOST_PARTS_AND_LINKS:,} in all: it would take some " in found


def test_the_place_in_the_file_is_named(default_text: str, registry: Registry) -> None:
    text = default_text.replace("noc: { w: 4, h: 4,", "noc: { w: 4000, h: 4000,")
    line = text[: text.index("noc: { w: 4000")].count("\n") + 1
    (found,) = refused(text, registry)
    assert found.startswith(f"t.yaml:{line}:8: cube.noc: the machine would have 512,002,900 parts")


def test_all_that_narrow_addresses_reach_is_far_from_the_limit() -> None:
    """16 SIPs of 32 cubes of 16 PEs, on a grid of 16 routers a cube; four times as many routers are fine too."""
    sips, mesh = SipsSpec(count=16, topology="fully_connected"), CubeMeshSpec(w=8, h=4)
    chiplet = IoChipletSpec(edge="N", size_mm=SizeMm(w=1, h=1))
    layout = PeLayoutSpec(pe_per_corner=4, corners=("NW", "NE", "SW", "SE"))
    hbm = resolve_topology("default").spec.cube.hbm.model_copy(update={"slices": 16})
    noc = NocSpec(w=8, h=8, link_bw_gbs=1)
    counted = sum(count_machine(sips, mesh, chiplet, noc, layout, hbm).values(), Census())
    assert counted.total < MOST_PARTS_AND_LINKS / 10


@pytest.mark.parametrize("command", ["topology", "probe", "run"])
def test_the_command_line_refuses_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--bench", "gemm-single-pe"] if command == "run" else []
    assert main([command, *more, "--set", "cube.noc.w=4000", "--set", "cube.noc.h=4000"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "cube.noc: the machine would have 512,002,900 parts and 2,047,490,330 links" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("cube.components.m_cpu.attrs.dma_channels=1000000000", "must be at most 1024"),
        ("cube.hbm.num_pcs=1073741824", "must be at most 1024"),
        ("system.sips.count=1000000007", "must be at most 1e+06"),
        ("transport.header_bytes=1GiB", "must be at most 65536"),
        ("ns_per_mm=1e9", "must be at most 1000"),
        (
            "pe.gemm={tile_m: 1000000, tile_k: 1000000, tile_n: 1000000, dtype_acc: f32, macs_per_ns: {f16: 4}}",
            "f16, mu",
        ),
    ],
)
def test_counts_that_cost_memory_or_ages(override: str, message: str, default_text: str, registry: Registry) -> None:
    found = refused(default_text, registry, override)
    assert any(message in line for line in found)


def numbers(data: Any, path: Path = ()) -> Iterator[Path]:
    """The keys whose values are numbers or sizes."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from numbers(value, (*path, key))
    elif (isinstance(data, int | float) and not isinstance(data, bool)) or str(data)[0].isdigit():
        yield path


@pytest.mark.parametrize("absurd", ["1e308", "-1", ".nan", ".inf", "-.inf", "1e400", str(10**30), "''", "[]", "true"])
def test_no_number_is_absurd(absurd: str, default_text: str, registry: Registry) -> None:
    paths = [path_text(path) for path in numbers(parse_document(default_text, "t.yaml").data)]
    found = refused(default_text, registry, *(f"{path}={absurd}" for path in paths))
    complained = {line.removeprefix(f"--set {path}={absurd}: ").split(": ")[0] for line in found for path in paths}
    assert complained >= set(paths)
