"""A further builtin SRAM, from the YAML alone: addresses, times, and who sees it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from kernbench.cli.main import main
from kernbench.common.errors import ConfigError
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.probe.cases import CASES, cases_of
from kernbench.probe.measure import probe_case
from kernbench.probe.report import ProbeReport
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.topology.drawing.figure import to_svg
from kernbench.web.activity import is_memory

MIB = 1 << 20
SRAM2 = "cube.extra.sram2={impl: builtin.sram, bytes: 4MiB, attrs: {access_ns: 3}, links: [{to: r1_1, bw_gbs: 128}]}"
PAD = "pe.extra.pad={impl: builtin.sram, bytes: 64KiB, attrs: {bw_gbs: 32}, links: [{to: pe_dma, bw_gbs: 64}]}"


@pytest.fixture(scope="module")
def topology() -> Topology:
    return resolve_topology("default", ["ns_per_mm=0", "sip.cube_mesh={w: 2, h: 1}", SRAM2, PAD])


def dma_ns(engine: GraphEngine, part: str, op: Any, nbytes: int = 4096) -> float:
    pa, _ = engine.addresses_of(part)
    begin = engine.now
    return round(engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=pa, nbytes=nbytes, op=op))).t_end - begin, 6)


def test_a_read_and_a_write_by_hand(topology: Topology) -> None:
    engine = GraphEngine(topology)
    # Set-up 2; xbar 2 and three routers there, two routers (r0_0 by r1_0 and r0_1: X first) and the xbar back; a header
    # at 128 GB/s; access 3; 4 KiB at 128 GB/s, the rate of its link, as the SRAM has none of its own.
    assert dma_ns(engine, "sip0.cube0.sram2", "read") == 2 + 5 + 0.25 + 3 + 5 + 32
    assert dma_ns(engine, "sip0.cube0.sram2", "write") == 2 + 5 + 32 + 3 + 5 + 0.25
    # At the DMA itself, by a link of 64 GB/s, it has 32 GB/s.
    assert dma_ns(engine, "sip0.cube0.pe0.pad", "read") == 2 + 0.5 + 128


def test_it_has_addresses_of_its_own(topology: Topology) -> None:
    engine = GraphEngine(topology)
    pa, nbytes = engine.addresses_of("sip0.cube0.sram2")
    assert nbytes == 4 * MIB
    other, _ = engine.addresses_of("sip1.cube1.sram2")
    assert engine.machine.addresses.node_of(pa + nbytes - 1) == "sip0.cube0.sram2"
    assert engine.machine.addresses.node_of(other) == "sip1.cube1.sram2"
    data = np.arange(100, dtype=np.uint8)
    engine.wait(engine.submit(MemoryWriteMsg(pa=pa, nbytes=100, data=data)))
    engine.wait(engine.submit(MemoryReadMsg(pa=pa, nbytes=100)))
    assert engine.memory_store.read("sram", pa, (100,), "i8").tolist() == data.tolist()


def through(x: int, pad: int, *, tl: Any) -> None:
    tl.store(pad, tl.load(x, 16, "f32"))
    tl.store(x, tl.load(pad, 16, "f32") * 2.0)


@pytest.mark.parametrize("part", ["sip0.cube0.sram2", "sip0.cube0.pe0.pad"])
def test_kernels_use_it(topology: Topology, part: str) -> None:
    with RuntimeContext[Any](GraphEngine(topology)) as torch:
        x = torch.ones(16)
        torch.launch("through", through, x, torch.map_memory(part))
        assert x.numpy().tolist() == [2.0] * 16


def test_accesses_take_turns_as_at_the_other(topology: Topology) -> None:
    engine = GraphEngine(topology, enable_data=False)
    pa, _ = engine.addresses_of("sip0.cube0.sram2")
    for pe in (0, 2):
        engine.submit(PeDmaMsg(pe=(0, 0, pe), pa=pa + pe * 8192, nbytes=8192))
    ends = [engine.wait(handle).t_end for handle in engine.handles]
    assert min(ends) > 100  # each alone takes 64 ns of the memory
    assert max(ends) == pytest.approx(128, abs=30)


def test_the_probe_has_a_case_of_it(topology: Topology) -> None:
    assert cases_of(resolve_topology("default").topology_obj) == CASES
    found = cases_of(topology.topology_obj)[len(CASES) :]
    assert [case.name for case in found] == ["pe-sram2", "pe-pad"]
    for case, memory, gbs in zip(found, ("sram2", "pe0.pad"), (128, 32), strict=True):
        report = probe_case(topology, case, 4096)
        assert isinstance(report, ProbeReport)
        assert report.memory == f"sip0.cube0.{memory}"
        assert report.single.breakdown.difference_ps == 0
        assert report.sustained.bottleneck_gbs == gbs
        assert report.sustained.effective_gbs == pytest.approx(gbs, rel=0.03)


def test_pictures_tables_and_pages_show_it(topology: Topology, capsys: pytest.CaptureFixture[str]) -> None:
    assert "sram2" in to_svg(topology)
    assert is_memory(topology.topology_obj.node("sip0.cube0.sram2"))
    assert main(["topology", "-v", "--topology", "default", "--set", SRAM2]) == 0
    out = capsys.readouterr().out
    assert "sram2 4 MiB" in out
    assert "sram2_to_r1_1" in out


def test_rooflines_and_traffic_count_it(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    script = tmp_path / "bench.py"
    script.write_text(
        "def fetch(x, pad, *, tl):\n"
        "    for i in range(20):\n"
        "        tl.load(pad + 65536 * i, (16384,), 'f32')\n"
        "def run(torch):\n"
        "    torch.launch('fetch', fetch, torch.zeros(4), torch.map_memory('sip0.cube0.sram2'))\n"
    )
    command = ["run", "--bench", str(script), "--topology", "default", "--set", SRAM2, "--explain", "--json"]
    assert main(command) == 0, capsys.readouterr().err
    document = json.loads(capsys.readouterr().out)
    bounds = document["explanation"]["launches"][0]["roofline"]["bounds"]
    (bound,) = [each for each in bounds if each["resource"] == "sram2"]
    assert (bound["where"], bound["amount"], bound["rate_per_ns"]) == ("sip0.cube0.sram2", 20 * 65536, 128.0)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("links: [{to: r1_1, bw_gbs: 8}]", "cube.extra.a.bytes: 'builtin.sram' is a memory: give it bytes, like 1MiB"),
        ("bytes: 1MiB, kind: sram, links: [{to: r1_1, bw_gbs: 8}]", "cube.extra.a.kind: 'sram' is a builtin kind"),
        ("bytes: 1MiB, attrs: {bw: 1}, links: [{to: r1_1, bw_gbs: 8}]", "unknown key 'bw'; allowed here: overhead_ns"),
        ("bytes: 1GiB, links: [{to: r1_1, bw_gbs: 8}]", "cube.extra.a.bytes: 1 GiB from 32 MiB on"),
    ],
)
def test_slips(entry: str, message: str) -> None:
    with pytest.raises(ConfigError) as failure:
        resolve_topology("default", [f"cube.extra.a={{impl: builtin.sram, {entry}}}"])
    assert message in str(failure.value)


def test_others_are_told_which_may_stand_there() -> None:
    with pytest.raises(
        ConfigError, match=r"'builtin.hbm_ctrl' implements hbm_ctrl, a builtin kind.*or take builtin.sram"
    ):
        resolve_topology("default", [SRAM2.replace("builtin.sram", "builtin.hbm_ctrl")])
