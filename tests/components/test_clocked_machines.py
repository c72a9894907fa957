"""What a machine does at other clocks: by hand, half of everything, closed forms, sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from compiled import SPREAD
from covering import covering
from engine_support import hbm
from ideal_memory import IDEAL
from kernbench.cli.main import main
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import MemoryReadMsg, PeDmaMsg
from kernbench.probe.cases import CASES, Site
from kernbench.probe.closed_form import compute_closed_form
from kernbench.probe.measure import run_once
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import resolve_topology
from skewed import FILE as SKEWED

FILES = ["default", str(SKEWED)]


def kernel_ps(program: Any, n: int, *overrides: str, file: str = "default") -> int:
    """How long a kernel runs on PE 0, from its start until its last command is over."""
    with RuntimeContext[Any](GraphEngine(resolve_topology(file, overrides))) as torch:
        torch.launch("program", program, torch.zeros(4), n)
        (report,) = [handle.outcome.reports for handle in torch.engine.handles if handle.outcome.reports][-1]
        return int(report.end_ps - report.start_ps)


def in_tcm(ptr: int, n: int, *, tl: Any) -> None:
    """Products and math on arrays that never leave the PE."""
    a, b = tl.full((96, 128), 1.0, "f16"), tl.full((128, 70), 2.0, "f16")
    for _ in range(n):
        c = tl.dot(a, b)
        a = a * 2
        tl.exp(c) + c


def one_tile(ptr: int, n: int, *, tl: Any) -> None:
    tl.dot(tl.zeros((32, 64), "f16"), tl.zeros((64, 32), "f16"))


def test_a_clock_of_2_by_hand() -> None:
    # Launch 5 ns, and an issue of 1; two more pass while the engines work. Two arrays of 4 KiB, one after the other:
    # 2 ns and 4096 / 256 = 16 each. A tile: the scheduler 1, fetch 8 KiB / 512 = 16, GEMM 16, store 2 KiB / 512 = 4.
    at_1 = 5 + 1 + 18 + 18 + 1 + 16 + 16 + 4
    assert kernel_ps(one_tile, 0) == at_1 * 1000
    assert kernel_ps(one_tile, 0, "clocks.pe=2") == at_1 * 500


@pytest.mark.parametrize(("factor", "file"), covering([2, 3, 0.5, 1.7], FILES))
def test_a_program_of_the_pe_alone_takes_a_factor_less(factor: float, file: str) -> None:
    plain = kernel_ps(in_tcm, 3, file=file)
    found = kernel_ps(in_tcm, 3, f"clocks.pe={factor}", file=file)
    assert found == pytest.approx(plain / factor, abs=100)  # half a ps for each command and stage
    if factor in (2, 0.5) and file == "default":  # every figure is whole ps, halved too
        assert found * factor == plain
    others = kernel_ps(in_tcm, 3, "clocks.noc=3", "clocks.io=0.2", file=file)
    assert others == plain


def read_ns(*overrides: str, slice_: int = 0) -> float:
    engine = GraphEngine(resolve_topology("default", ["ns_per_mm=0", *IDEAL, *overrides]), enable_data=False)
    return engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=hbm(0, 0, slice_), nbytes=4096))).t_end


def test_a_local_read_by_hand() -> None:
    # Set-up 2; the xbar 2 there, none back into the DMA but the xbar again 2; header 32 / 256; access 30; 4 KiB at
    # 204.8 GB/s, which no clock changes.
    assert read_ns() == 2 + 2 + 32 / 256 + 30 + 2 + 20
    assert read_ns("clocks.pe=2") == 1 + 2 + 32 / 256 + 30 + 2 + 20
    # The narrower of both links of the header is that to the slice, which has no clock.
    assert read_ns("clocks.noc=2") == 2 + 1 + 32 / 256 + 30 + 1 + 20
    # At half the clock the link to the PE has 128 GB/s: 32 ns for 4 KiB, and 4 ns an xbar.
    assert read_ns("clocks.noc=0.5") == 2 + 4 + 32 / 128 + 30 + 4 + 32
    assert read_ns("clocks.io=9") == read_ns()


def test_a_read_of_the_host_by_hand() -> None:
    def host_ns(*overrides: str) -> float:
        engine = GraphEngine(resolve_topology("default", ["ns_per_mm=0", *IDEAL, *overrides]), enable_data=False)
        return engine.wait(engine.submit(MemoryReadMsg(pa=hbm(0, 0, 0), nbytes=4096))).t_end

    # There and back it enters, of the IO chiplet, pcie_ep 20 and io_noc 1, and of the cube 3 routers and an xbar of 2;
    # UCIe and the switch have no clock, nor have the slowest links, those of the host.
    plain = host_ns()
    assert plain - host_ns("clocks.io=2") == 2 * (20 + 1) / 2
    assert plain - host_ns("clocks.noc=2") == 2 * (3 + 2) / 2
    assert host_ns("clocks.pe=2") == plain


@pytest.mark.parametrize(
    ("clocks", "file"), covering(["{pe: 2}", "{noc: 0.5}", "{io: 3}", "{pe: 0.7, noc: 1.9, io: 1.3}"], FILES)
)
def test_closed_forms_of_the_probe_hold_at_any_clock(clocks: str, file: str) -> None:
    topology = resolve_topology(file, [f"clocks={clocks}", "sip.cube_mesh={w: 2, h: 2}", SPREAD])
    found = {}
    for case in CASES[:10]:  # those of one initiator
        (flow,) = case.place(Site(topology.topology_obj))  # type: ignore[misc]
        machine = GraphEngine(topology, enable_data=False).machine
        (span,) = run_once(GraphEngine(topology, enable_data=False), [flow], 4096)
        found[case.name] = span.ps - compute_closed_form(machine, flow, 4096).total_ps
        # 1 ps a packet and link, where the narrowest link is not the slowest of every packet
        assert abs(found[case.name]) <= 20, case.name
    assert len(found) == 10
    if file == "default":
        assert set(found.values()) <= {-1, 0, 1}


@pytest.mark.parametrize("seed", range(4))
def test_express_or_not_takes_the_same_time(seed: int) -> None:
    rng = Random(seed)
    clocks = f"clocks={{pe: {rng.uniform(0.3, 3):.2f}, noc: {rng.uniform(0.3, 3):.2f}, io: {rng.uniform(0.3, 3):.2f}}}"
    messages = [
        PeDmaMsg(pe=(0, 0, rng.randrange(8)), pa=hbm(rng.randrange(2), 0, rng.randrange(8)), nbytes=5000, repeat=2)
        for _ in range(8)
    ]
    ends = []
    for express in ("true", "false"):
        engine = GraphEngine(resolve_topology("default", [clocks, f"transport.express={express}"]), enable_data=False)
        ends.append([engine.wait(handle).t_end for handle in [engine.submit(each) for each in messages]])
    assert ends[0] == ends[1]


def test_bounds_follow(capsys: pytest.CaptureFixture[str]) -> None:
    def compute_bound_ns(*sets: str) -> float:
        command = ["run", "--bench", "gemm-single-pe", "--explain", "--json", "--topology", "default"]
        small = [f"bench.{each}=64" for each in "mkn"]
        assert main([*command, *(word for each in (*small, *sets) for word in ("--set", each))]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["configuration"]["clocks"] == {"pe": 4.0 if sets else 1.0, "noc": 1.0, "io": 1.0}
        bounds = document["explanation"]["launches"][0]["roofline"]["bounds"]
        return float(next(each["ps"] for each in bounds if each["resource"] == "GEMM"))

    assert compute_bound_ns("clocks.pe=4") == compute_bound_ns() / 4


SWEEP = """
bench: gemm-single-pe
set: {bench.m: 32, bench.k: 64, bench.n: 32, system.sips.count: 1}
grid: {clocks.pe: [1, 2], clocks.noc: [1, 2]}
"""


@pytest.mark.slow
def test_clocks_are_axes_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(SWEEP)
    assert main(["sweep", str(tmp_path / "s.yaml"), "--jobs", "1", "--out", str(tmp_path / "out")]) == 0
    rows = pq.read_table(tmp_path / "out" / "sweep.parquet").to_pylist()
    latencies = [row["sim_ns"] for row in rows]
    assert latencies[0] > max(latencies[1:3]) > min(latencies[1:3]) > latencies[3]
    assert [json.loads(row["changed"]) for row in rows][:2] == [
        json.loads(rows[0]["changed"]),
        json.loads(rows[0]["changed"]) | {"clocks.noc": 2.0},
    ]
