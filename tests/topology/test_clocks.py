"""Clocks: which numbers of a machine they change, and that nothing else is another machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import Field

from compiled import compiled
from kernbench.cli.main import main
from kernbench.common.config import parse_document
from kernbench.common.errors import ConfigError
from kernbench.components.passive import NocRouter
from kernbench.di.part import PartAttrs
from kernbench.sim_engine.component import ThinkingPart
from kernbench.topology.builder import compile_topology, resolve_topology
from kernbench.topology.clocks import DRIVEN
from kernbench.topology.export import machine_document
from skewed import FILE as SKEWED

Leaf = tuple[str, Any]


def leaves(data: Any, path: str = "") -> Iterator[Leaf]:
    """The numbers of a configuration, by path."""
    if isinstance(data, dict):
        for key, each in data.items():
            yield from leaves(each, f"{path}.{key}".lstrip("."))
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield path, data


def numbers(*overrides: str, file: str = "default") -> dict[str, float]:
    return dict(leaves(resolve_topology(file, overrides).spec.model_dump(mode="json")))


FACTORS = {"pe": 2.0, "noc": 0.5, "io": 3.0}
NO_CLOCK = (
    "system.",
    "sip.links.io_to_cube",
    "sip.links.cube_to_cube",
    "sip.components.ucie",
    "cube.hbm",
    "cube.links.xbar_to_hbm",
    "cube.components.hbm_ctrl",
    "cube.components.ucie",
)


def driving(path: str) -> str | None:
    """The clock of a path, by the table of docs/topology.md."""
    if path.startswith(NO_CLOCK):
        return None
    return {"pe": "pe", "cube": "noc", "sip": "io"}.get(path.partition(".")[0])


@pytest.mark.parametrize("file", ["default", str(SKEWED)])
@pytest.mark.parametrize("clock", FACTORS)
def test_a_clock_changes_what_it_drives_and_nothing_else(clock: str, file: str) -> None:
    before, after = numbers(file=file), numbers(f"clocks.{clock}={FACTORS[clock]}", file=file)
    assert before.keys() == after.keys()
    for path, number in before.items():
        factor = 1.0
        if driving(path) == clock:
            key = next((key for key in reversed(path.split(".")) if key.endswith(("_ns", "_gbs"))), "")
            rate = key.endswith(("_gbs", "_per_ns"))
            factor = FACTORS[clock] if rate else 1 / FACTORS[clock] if key.endswith("_ns") else 1.0
        assert after[path] == pytest.approx(number * factor, rel=1e-12), path


def test_whatever_a_clock_does_not_change_is_a_count_a_size_or_a_length() -> None:
    """A rate or a latency whose key does not say so would be forgotten."""
    counts = {
        *("w", "h", "count", "bytes", "slices", "num_pcs", "pe_per_corner", "size_mm", "length_mm", "ns_per_mm"),
        *("tile_m", "tile_k", "tile_n", "tiles_in_flight", "stage_slots", "dma_channels", "banks", "tlb_entries"),
        *("queue_entries", "efficiency", "express", "queue"),
    }
    for path in numbers(file=str(SKEWED)).keys() | numbers().keys():
        key = path.rpartition(".")[2]
        unit = any(part.endswith(("_ns", "_gbs")) for part in path.split("."))
        assert unit or key in counts or key.endswith("_bytes") or path.startswith(("cube.hbm.", "energy.")), path


def test_every_place_of_a_clock_is_there_and_has_one() -> None:
    spec = compiled().spec
    places = [place for each in DRIVEN.values() for place in each]
    assert len(places) == len(set(places))
    for place in places:
        entry: Any = spec
        for name in place.split("."):
            entry = dict(entry)[name]


def test_a_clock_of_2_is_the_machine_whose_figures_are_changed_by_hand() -> None:
    by_hand = [
        "cube.noc.link_bw_gbs=512",
        *(f"cube.links.{each}.bw_gbs=512" for each in ("xbar_to_router", "pe_to_xbar", "router_to_ucie")),
        *(f"cube.links.{each}.bw_gbs=512" for each in ("router_to_sram", "router_to_m_cpu")),
        "cube.components.noc_router.attrs.overhead_ns=0.5",
        "cube.components.xbar.attrs.overhead_ns=1",
        "cube.components.m_cpu.attrs.overhead_ns=2.5",
        "cube.components.sram.attrs={overhead_ns: 1, access_ns: 2.5}",
    ]
    assert resolve_topology("default", ["clocks.noc=2"]).digest == resolve_topology("default", by_hand).digest


def test_clocks_of_1_are_no_clocks() -> None:
    plain, ones = resolve_topology("default"), resolve_topology("default", ["clocks={pe: 1, noc: 1.0}"])
    assert plain.digest == ones.digest
    assert plain.resolved_yaml() == ones.resolved_yaml()
    assert "clocks" not in plain.resolved_yaml()
    assert plain.configured is plain.spec
    assert "clocked_config" not in machine_document(ones)


@pytest.mark.parametrize("clock", FACTORS)
def test_they_work_on_every_machine(clock: str) -> None:
    for file in ("default", str(SKEWED)):
        plain, clocked = resolve_topology(file), resolve_topology(file, [f"clocks.{clock}={FACTORS[clock]}"])
        assert plain.digest != clocked.digest
        assert clocked.configured.clocks.changed == {clock: FACTORS[clock]}
        assert clocked.spec.clocks.changed == {}


def test_a_resolved_file_is_the_same_machine() -> None:
    clocked = resolve_topology("default", ["clocks={pe: 2, io: 0.3}"])
    text = clocked.resolved_yaml()
    assert yaml.safe_load(text)["clocks"] == {"pe": 2.0, "io": 0.3}
    again = compile_topology(parse_document(text, "again.yaml"))
    assert (again.digest, again.resolved_yaml()) == (clocked.digest, text)


# --- parts of users ---------------------------------------------------------------------------------------------------


class SlowAttrs(NocRouter.Attrs):  # type: ignore[name-defined,misc]
    pause_ns: float = 40.0
    table_ns: tuple[float, ...] = (4.0, 8.0)
    speeds_gbs: dict[str, float] = Field(default={"far": 10.0})
    n_slots: int = 4


class Slow(NocRouter):
    Attrs = SlowAttrs


class EchoAttrs(PartAttrs):
    answer_ns: float = 6.0


class Echo(ThinkingPart):
    Attrs = EchoAttrs

    def run(self) -> Any:
        yield self.inbox.get()


HERE = __name__


def test_attributes_of_users_parts_follow() -> None:
    routers = f"cube.components.noc_router.impl={HERE}.Slow"
    topology = resolve_topology("default", [routers, "clocks.noc=2", "cube.components.noc_router.attrs.rate_gbs=30"])
    found = topology.topology_obj.node("sip0.cube0.r0_0").attrs
    assert isinstance(found, SlowAttrs)
    assert (found.overhead_ns, found.rate_gbs, found.pause_ns, found.n_slots) == (0.5, 60, 20, 4)
    assert (found.table_ns, found.speeds_gbs) == ((2, 4), {"far": 20})


@pytest.mark.parametrize(("place", "neighbour", "clock"), [("cube", "r0_0", "noc"), ("pe", "pe_dma", "pe")])
def test_extra_parts_and_their_links_follow(place: str, neighbour: str, clock: str) -> None:
    links = f"links: [{{to: {neighbour}, bw_gbs: 64, overhead_ns: 3, length_mm: 7}}]"
    extra = f"{place}.extra={{echo: {{impl: {HERE}.Echo, attrs: {{overhead_ns: 5}}, {links}}}}}"
    graph = resolve_topology("default", [extra, f"clocks.{clock}=2"]).topology_obj
    node = "sip0.cube0.echo" if place == "cube" else "sip0.cube0.pe0.echo"
    attrs, edge = graph.node(node).attrs, graph.in_edges(node)[0]
    assert isinstance(attrs, EchoAttrs)
    assert (attrs.overhead_ns, attrs.answer_ns) == (2.5, 3)
    assert (edge.bw_gbs, edge.overhead_ns, edge.length_mm) == (128, 1.5, 7)


def test_a_part_whose_name_looks_like_a_unit_keeps_its_counts() -> None:
    extra = (
        "cube.extra.far_ns={impl: builtin.sram, bytes: 1MiB, attrs: {access_ns: 8}, links: [{to: r0_0, bw_gbs: 64}]}"
    )
    graph = resolve_topology("default", [extra, "clocks.noc=2"]).topology_obj
    node = graph.node("sip0.cube0.far_ns")
    assert node.window is not None
    assert (node.window.nbytes, graph.sram_bw_gbs(node.id)) == (1 << 20, 128)


# --- what is shown, and slips -----------------------------------------------------------------------------------------


def test_the_command_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "-v", "--topology", "default", "--set", "clocks.pe=2", "--set", "clocks.io=4"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert next(x for x in lines if x[:1] == ["clocks"])[:8] == ["clocks", "pe", "2,", "noc", "1,", "io", "4", "times"]
    assert ["pe.gemm.macs_per_ns.f16", "pe", "4096", "8192"] in lines
    assert ["sip.components.io_cpu.attrs.overhead_ns", "io", "10", "2.5"] in lines
    assert not any(line[:1] == ["pe.mmu.tlb_miss_ns"] for line in lines)  # twice nothing is nothing


def test_the_json_document_has_both() -> None:
    found = machine_document(resolve_topology("default", ["clocks.pe=2"]))
    assert (found["config"]["clocks"], found["config"]["pe"]["dma"]["setup_ns"]) == ({"pe": 2.0}, 2.0)
    assert found["clocked_config"]["pe"]["dma"]["setup_ns"] == 1.0
    assert "clocks" not in found["clocked_config"]
    cpu = next(node for node in found["nodes"] if node["id"] == "sip0.cube0.pe0.pe_cpu")
    assert cpu["attrs"]["launch_ns"] == 2.5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("clocks.pe=0", "clocks.pe: found 0, must be greater than 0"),
        ("clocks.noc=-2", "clocks.noc: found -2, must be greater than 0"),
        ("clocks.io=.nan", "clocks.io: found nan, must be"),
        ("clocks.io=.inf", "clocks.io: found inf, must be"),
        ("clocks.io=fast", "clocks.io: found 'fast', must be a number"),
        ("clocks.pe=true", "clocks.pe: found true, must be a number"),
        ("clocks.cpu=2", "clocks.cpu: unknown key 'cpu'; allowed here: pe, noc, io"),
        ("clocks=2", "clocks: found 2, must be a mapping of keys"),
        ("clocks.pe=1e-9", "clocks.pe: found 1e-09, must be at least 1e-06"),
    ],
)
def test_slips(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as failure:
        resolve_topology("default", [override])
    assert message in str(failure.value)


def test_a_clock_too_far_from_1_is_refused_with_what_it_would_make() -> None:
    with pytest.raises(ConfigError) as failure:
        resolve_topology("default", ["clocks.pe=1e-6", "pe.dma.setup_ns=1e9"])
    assert "clocks.pe: found 1e-06: pe.dma.setup_ns would be 1e+15, which must be 0 to 1e+12" in str(failure.value)


def test_a_line_of_a_file_is_named(tmp_path: Path) -> None:
    text = Path(resolve_topology("default").source).read_text()
    (tmp_path / "t.yaml").write_text(f"{text}clocks:\n  pe: 2\n  nok: 1\n")
    with pytest.raises(ConfigError) as failure:
        resolve_topology(tmp_path / "t.yaml")
    assert f"t.yaml:{len(text.splitlines()) + 3}:3: clocks.nok: unknown key 'nok'; did you mean 'noc'?" in str(
        failure.value
    )
