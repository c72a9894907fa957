"""Parts that users add at ``cube.extra`` and ``pe.extra``: nodes, links, addresses, pictures; and what is refused."""

from __future__ import annotations

import pytest

from kernbench.common.config import apply_overrides, parse_document
from kernbench.common.errors import ConfigError, InputError, PhysAddrError, UnknownNameError, UnsupportedError
from kernbench.di.part import Part, PartAttrs
from kernbench.di.registry import Registry
from kernbench.engine.address_map import AddressMap
from kernbench.policy.routing.planner import RoutePlanner
from kernbench.topology.builder import Topology, compile_topology
from kernbench.topology.drawing.figure import to_svg
from kernbench.topology.export import link_rows, machine_document, machine_rows, part_rows, to_dot
from kernbench.topology.rules import Census, count_extras, count_machine

MIB = 1 << 20
SMALL = ("system.sips={count: 2, topology: ring_1d}", "sip.cube_mesh={w: 2, h: 1}")
SCRATCH = "cube.extra.scratch={impl: mine.scratch, bytes: 1MiB, attrs: {wait_ns: 3}, links: [{to: sram, bw_gbs: 64}]}"
MONITOR = "cube.extra.monitor={impl: mine.part, links: [{to: scratch, bw_gbs: 8}, {to: r0_0, bw_gbs: 16}]}"
PAD = "pe.extra.pad={impl: mine.part, bytes: 64KiB, links: [{to: pe_dma, bw_gbs: 32}, {to: xbar, bw_gbs: 32}]}"


class WaitAttrs(PartAttrs):
    wait_ns: float = 0.0


class Scratch(Part):
    Attrs = WaitAttrs


@pytest.fixture(scope="module")
def parts(registry: Registry) -> Registry:
    """The parts of ``registry``, and three for extra places."""
    found = Registry()
    for name in registry.known_impls():
        cls = registry.lookup(name)
        found.register(name, kind=registry.kinds_of(cls))(cls)
    found.register("mine.scratch", kind=("scratch", "spare"), new=True)(Scratch)
    found.register("mine.part", kind=("monitor", "pad"), new=True)(type("Mine", (Part,), {}))
    return found


def machine(text: str, parts: Registry, *overrides: str) -> Topology:
    return compile_topology(apply_overrides(parse_document(text, "t.yaml"), overrides), parts)


@pytest.fixture(scope="module")
def extended(default_text: str, parts: Registry) -> Topology:
    return machine(default_text, parts, *SMALL, SCRATCH, MONITOR, PAD)


def test_every_cube_and_every_pe_has_them(extended: Topology) -> None:
    counted = extended.topology_obj.count_of_kinds()
    assert (counted["scratch"], counted["monitor"], counted["pad"]) == (4, 4, 32)
    node = extended.topology_obj.node("sip1.cube0.scratch")
    assert (node.impl, node.attrs, node.cube_coord) == ("mine.scratch", WaitAttrs(wait_ns=3), (1, 0))
    assert extended.topology_obj.node("sip1.cube1.pe7.pad").pe_coord == (1, 1, 7)


def test_links_go_both_ways(extended: Topology) -> None:
    graph = extended.topology_obj
    cube = "sip0.cube1."
    for a, b, bw in (("scratch", "sram", 64), ("monitor", "scratch", 8), ("pe7.pad", "xbar_SE", 32)):
        there, back = graph.edge(cube + a, cube + b), graph.edge(cube + b, cube + a)
        assert there.bw_gbs == back.bw_gbs == bw
        assert there.length_mm == back.length_mm
    # The next free cell of the NoC beside the SRAM's: 1.5 mm away.
    assert graph.edge(cube + "scratch", cube + "sram").length_mm == 1.5


def test_all_of_them_are_counted_beforehand(extended: Topology) -> None:
    spec, graph = extended.spec, extended.topology_obj
    sips, mesh = spec.system.sips, spec.sip.cube_mesh
    cube = spec.cube
    builtin = count_machine(sips, mesh, spec.sip.io_chiplet, cube.noc, cube.pe_layout, cube.hbm)
    found = [*builtin.values(), *count_extras(sips, mesh, cube, spec.pe).values()]
    assert sum(found, Census()) == Census(len(graph.nodes), len(graph.edges))


@pytest.mark.parametrize(
    ("src", "dst", "way"),
    [
        ("pe0.pe_dma", "scratch", ("pe0.pe_dma", "xbar_NW", "r0_0", "monitor", "scratch")),
        ("scratch", "sram", ("scratch", "sram")),
        ("monitor", "scratch", ("monitor", "scratch")),
        ("pe0.pad", "pe0.pe_dma", ("pe0.pad", "pe0.pe_dma")),
        ("pe0.pad", "pe1.pad", ("pe0.pad", "xbar_NW", "pe1.pad")),
        ("r1_0", "pe0.pad", ("r1_0", "r0_0", "xbar_NW", "pe0.pad")),
        # Between builtin parts nothing changes, though the monitor and the scratch would be a short cut.
        ("r0_0", "sram", ("r0_0", "r1_0", "r2_0", "r2_1", "r2_2", "sram")),
    ],
)
def test_ways_have_the_fewest_hops(extended: Topology, src: str, dst: str, way: tuple[str, ...]) -> None:
    cube = "sip0.cube1."
    found = RoutePlanner(extended.topology_obj).route(cube + src, cube + dst)
    assert found == tuple(cube + each for each in way)


def test_they_are_reached_from_anywhere(extended: Topology) -> None:
    planner = RoutePlanner(extended.topology_obj)
    for dst in ("sip1.cube1.scratch", "sip1.cube1.pe3.pad"):
        for src in ("host", "sip0.cube0.pe2.pe_cpu", "sip0.io_cpu", "sip0.cube0.monitor"):
            there = planner.route(src, dst)
            assert (there[0], there[-1]) == (src, dst)
            assert len(set(there)) == len(there)
            assert planner.route(dst, src)[-1] == src


# --- addresses --------------------------------------------------------------------------------------------------------


def test_a_memory_has_addresses_behind_the_sram(extended: Topology) -> None:
    addresses, graph = AddressMap(extended.spec), extended.topology_obj
    node = graph.node("sip1.cube0.scratch")
    pa, nbytes = addresses.range_of(node)
    assert nbytes == MIB
    assert addresses.decode(pa).component_offset == 32 * MIB
    for at in (pa, pa + MIB - 1):
        assert addresses.place_of(at) == ("sram", (1, 0), pa, MIB, MIB, (node.id,))
    with pytest.raises(PhysAddrError, match=r"this machine has offset 0x0\.\.0x1ffffff, 0x2000000\.\.0x20fffff, not"):
        addresses.decode(pa + MIB)


def test_one_of_a_pe_lies_in_its_scratchpad(extended: Topology) -> None:
    addresses = AddressMap(extended.spec)
    pa, nbytes = addresses.range_of(extended.topology_obj.node("sip0.cube1.pe5.pad"))
    assert repr(addresses.decode(pa)) == "SCRATCHPAD sip=0 cube=1 pe=5 +0x0"
    assert addresses.place_of(pa) == ("sram", (0, 1, 5), pa, nbytes, nbytes, ("sip0.cube1.pe5.pad",))


def test_what_is_no_memory_has_none(extended: Topology) -> None:
    for name in ("monitor", "sram"):
        with pytest.raises(UnsupportedError, match=f"sip0.cube0.{name} has no addresses of its own"):
            AddressMap(extended.spec).range_of(extended.topology_obj.node(f"sip0.cube0.{name}"))


def test_memories_never_share_a_window(default_text: str, parts: Registry) -> None:
    odd = "cube.sram.bytes=20MiB", SCRATCH.replace("1MiB", "17MiB"), SCRATCH.replace("extra.scratch", "extra.spare")
    windows = machine(default_text, parts, *SMALL, *odd).spec.cube.extra_memories
    assert [(window.name, window.offset // MIB) for window in windows] == [("scratch", 32), ("spare", 64)]


# --- identity and looks -----------------------------------------------------------------------------------------------


def test_they_are_a_part_of_the_identity(default_text: str, parts: Registry, extended: Topology) -> None:
    plain = machine(default_text, parts, *SMALL)
    assert "extra" not in plain.spec.model_dump()["cube"]
    others = [machine(default_text, parts, *SMALL, each, MONITOR, PAD) for each in (SCRATCH, SCRATCH.replace("3", "4"))]
    assert len({each.digest for each in (plain, *others)}) == 3
    assert others[0].digest == extended.digest
    again = compile_topology(parse_document(extended.resolved_yaml(), "again"), parts)
    assert again.digest == extended.digest
    assert again.topology_obj.edges == extended.topology_obj.edges


def test_exports_show_them(extended: Topology) -> None:
    graph = extended.topology_obj
    rows = {row.kind: row for row in part_rows(graph)}
    assert (rows["scratch"].place, rows["scratch"].parts) == ("cube", 4)
    assert rows["scratch"].attrs == {"overhead_ns": 0.0, "wait_ns": 3.0}
    assert rows["pad"].place == "pe"
    assert {"scratch_to_sram", "monitor_to_r0_0", "pad_to_xbar"} < {row.link_class for row in link_rows(graph)}
    told = dict(machine_rows(extended))
    assert told["extra a cube"] == "scratch 1 MiB, monitor"
    assert told["extra a PE"] == "pad 64 KiB"
    nodes = {node["id"]: node for node in machine_document(extended)["nodes"]}
    found = nodes["sip0.cube0.scratch"]
    assert (found["kind"], found["offset"], found["bytes"]) == ("scratch", 32 * MIB, MIB)
    assert '"sip0.cube0.pe0.pad" [label="pad"' in to_dot(extended)


def test_the_drawing_shows_them(extended: Topology) -> None:
    svg = to_svg(extended)
    assert all(name in svg for name in (">scratch<", ">1 MiB<", ">monitor<", ">PAD<", ">scratch_to_sram<"))


# --- slips ------------------------------------------------------------------------------------------------------------

LINK = "links: [{to: sram, bw_gbs: 64}]"
SLIPS = [
    (f"cube.extra.a={{impl: mine.none, {LINK}}}", "a.impl: unknown component 'mine.none'; there are: "),
    (f"cube.extra.a={{impl: builtin.sram, {LINK}}}", "a.impl: 'builtin.sram' implements sram, a builtin kind; derive"),
    (f"cube.extra.a={{impl: mine.part, {LINK}}}", "a.impl: 'mine.part' implements monitor, pad, not a; write kind: mo"),
    (
        f"cube.extra.scratch={{impl: mine.scratch, attrs: {{x: 1}}, {LINK}}}",
        "scratch.attrs.x: unknown key 'x'; allowed",
    ),
    (f"cube.extra.scratch={{impl: mine.scratch, size: 1, {LINK}}}", "scratch.size: unknown key 'size'; allowed here: "),
    ("cube.extra.scratch={impl: mine.scratch}", "scratch: missing key 'links'"),
    ("cube.extra.scratch={impl: mine.scratch, links: []}", "scratch.links: found [], must have at least 1 entry"),
    (
        SCRATCH.replace("sram", "sarm"),
        "scratch.links[0].to: unknown neighbour 'sarm'; did you mean 'sram'? there are: r",
    ),
    (
        SCRATCH.replace("to: sram", "to: r0_0, bw_gbs: 1}, {to: scratch"),
        "scratch.links[1].to: unknown neighbour 'scratch'; there are: r0_0, r1_0",
    ),
    (SCRATCH.replace("bw_gbs: 64", "bw_gbs: 0"), "scratch.links[0].bw_gbs: found 0, must be greater than 0"),
    (SCRATCH.replace("64}", "64, fifo_bytes: 9}"), "scratch.links[0].fifo_bytes: found 9, must be at least 4096"),
    (SCRATCH.replace("64}", "64}, {to: sram, bw_gbs: 1}"), "scratch.links[1].to: sram is listed twice; each neighbour"),
    (SCRATCH.replace("1MiB", "481MiB"), "scratch.bytes: 481 MiB from 32 MiB on, but the SRAM and the extra memories"),
    (SCRATCH.replace("extra.scratch", "extra.Scratch"), "Scratch: 'Scratch' is no name of a part: small letters, digi"),
    (f"cube.extra.hbm0={{kind: scratch, impl: mine.scratch, {LINK}}}", "hbm0: the cube has a part 'hbm0' already"),
    (f"cube.extra.pe0={{kind: scratch, impl: mine.scratch, {LINK}}}", "pe0: the cube has a part 'pe0' already"),
    (f"cube.extra.sram={{impl: mine.scratch, {LINK}}}", "sram.kind: 'sram' is a builtin kind; an extra part has ano"),
    (PAD.replace("xbar", "sram"), "pad.links[1].to: unknown neighbour 'sram'; there are: pe_dma, pe_cpu, xbar"),
    (PAD.replace("64KiB", "65MiB"), "pad.bytes: 65 MiB from 0 B on, but the extra memories of a PE have 64 MiB of"),
]


@pytest.mark.parametrize(("text", "message"), SLIPS)
def test_a_slip_is_reported(text: str, message: str, default_text: str, parts: Registry) -> None:
    with pytest.raises(ConfigError) as caught:
        machine(default_text, parts, text)
    (found,) = str(caught.value).split("\n")
    section = text.partition(".extra")[0]
    assert found.startswith(f"--set {text}: {section}.extra.{message}")


def test_a_slip_in_a_file_has_its_line(default_text: str, parts: Registry) -> None:
    extra = "  extra:\n    scratch:\n      impl: mine.scratch\n      attrs: { latency: 3 }\n      links:\n"
    text = default_text.replace("\npe:\n", f"\n{extra}        - {{ to: sram, bw_gbs: 64.0 }}\n\npe:\n")
    line = text[: text.index("latency")].count("\n") + 1
    with pytest.raises(ConfigError, match=rf"t\.yaml:{line}:16: cube\.extra\.scratch\.attrs\.latency: unknown key"):
        machine(text, parts)


def test_parts_that_hang_on_each_other_only_are_refused(default_text: str, parts: Registry) -> None:
    a, b = SCRATCH.replace("sram", "spare"), SCRATCH.replace("extra.scratch", "extra.spare").replace("sram", "scratch")
    with pytest.raises(ConfigError) as caught:
        machine(default_text, parts, a, b)
    found = str(caught.value)
    assert "cube.extra.scratch.links: no way leads from it to the parts of the cube: only to extra parts" in found
    assert "cube.extra.spare.links[0].to: scratch lists this link already; it goes both ways" in found


def test_a_new_kind_is_registered_as_such() -> None:
    registry = Registry()
    with pytest.raises(UnknownNameError, match=r"to register a new kind for cube\.extra and pe\.extra, pass new=True"):
        registry.register("mine.a", kind="scratch")
    with pytest.raises(InputError, match=r"component 'mine\.a': sram is a builtin kind, not a new one"):
        registry.register("mine.a", kind="sram", new=True)
    registry.register("mine.a", kind="scratch", new=True)(Scratch)
    assert registry.known_kinds()[-1] == "scratch"
