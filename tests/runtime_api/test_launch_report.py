"""What a run did, and where its time went, as the command line shows it."""

from __future__ import annotations

from typing import Any

import pytest

from compiled import compiled
from kernbench.engine.engine import GraphEngine
from kernbench.messages.requests import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.launch_report import report_run
from kernbench.runtime_api.run_explanation import RunExplanation, explain_run
from kernbench.topology.builder import Topology
from observed import log_of, logged

SMALL = ("sip.cube_mesh.w=1", "sip.cube_mesh.h=1", "system.sips.count=1")


@pytest.fixture(scope="module")
def small() -> Topology:
    return compiled(*SMALL)


def two_kernels(torch: Any) -> None:
    """A product, twice, and a sum."""
    a = torch.zeros(64, 64, dtype="f16", name="A")
    c = torch.zeros(64, 64, dtype="f16", name="C")
    for _ in range(2):
        torch.launch("product", "gemm_composite", a, a, c, 64, 64, 64, "f16")
    torch.launch("copy", "offset_copy", a, c, 64, 0, "f16")


def explained(machine: Topology) -> tuple[GraphEngine, RunExplanation]:
    engine = logged(machine)
    result = run_bench(topology=machine, bench_fn=two_kernels, engine_factory=lambda *_: engine)
    if result.error is not None:
        raise result.error
    return engine, explain_run(log_of(engine), engine.handles, 0.0, result.sim_ns)


def test_a_run_without_launches_has_no_engines(small: Topology) -> None:
    engine = GraphEngine(small, enable_data=False)
    engine.wait(engine.submit(PeDmaMsg(pe=(0, 0, 0), pa=PhysAddr.hbm_addr(0, 0, 0, 0).encode(), nbytes=4096)))
    report = report_run(engine)
    assert (report.launches, report.engines) == ((), ())
    assert report.traffic.hbm_out == 4096
    assert report.traffic.hbm_in == 32
    assert report.traffic.to_machine == 0


def test_launches_add_up(small: Topology) -> None:
    engine, found = explained(small)
    report = report_run(engine)
    assert [(each.name, each.launches) for each in report.launches] == [("product", 2), ("copy", 1)]
    for launch, split in zip(found.longest_of_each_name(), report.launches, strict=True):
        assert split.total_ns == pytest.approx(launch.path.ps / 1000)
        assert sum(share.ns for share in split.shares) == pytest.approx(split.slowest_ns)


def test_the_verdict_on_a_run_takes_the_median_launch_of_a_name(small: Topology) -> None:
    """The longest of three launches of a name is bound by GEMM, the others copy."""

    def program(torch: Any) -> None:
        a = torch.zeros(256, 256, dtype="f16", name="A")
        c = torch.zeros(256, 256, dtype="f16", name="C")
        torch.launch("work", "offset_copy", a, c, 64, 0, "f16")
        torch.launch("work", "gemm_composite", a, a, c, 256, 256, 256, "f16")
        torch.launch("work", "offset_copy", a, c, 64, 0, "f16")

    engine = logged(small)
    result = run_bench(topology=small, bench_fn=program, engine_factory=lambda *_: engine)
    run = explain_run(log_of(engine), engine.handles, 0.0, result.sim_ns)
    [longest] = run.longest_of_each_name()
    median = sorted(run.launches, key=lambda launch: launch.ps)[1].verdict
    assert longest.verdict.phrase != median.phrase
    [kernels] = [spending for spending in run.verdict.spent if spending.what == "kernels"]
    assert [reason.resource for reason in kernels.why] == [median.phrase]


def fails(torch: Any) -> None:
    two_kernels(torch)
    raise ValueError("after the work")


@pytest.mark.parametrize("program", [two_kernels, fails])
def test_links_carry_what_the_program_sends(small: Topology, program: Any) -> None:
    """Freeing what it leaves sends messages too, after the end of the time that the run takes."""
    engine = GraphEngine(small, enable_data=False)
    result = run_bench(topology=small, bench_fn=program, engine_factory=lambda *_: engine)
    report = report_run(engine, result.links)
    now = report_run(engine)
    assert engine.now > result.sim_ns
    for link in result.links:
        assert link.utilisation == pytest.approx(link.busy_ns / result.sim_ns)
    assert report.traffic.to_machine < now.traffic.to_machine
    assert sum(link.nbytes for link in result.links if link.src == "host") == report.traffic.to_machine


def test_every_launch_and_the_run_are_explained(small: Topology) -> None:
    _, found = explained(small)
    assert [launch.name for launch in found.launches] == ["product", "product", "copy"]
    for each in (found, *found.launches):
        assert sum(part.ps for part in each.path.parts) == each.path.ps == each.roofline.measured_ps
        binding = each.roofline.largest
        assert binding is not None
        assert binding.ps + sum(gap.ps for gap in each.roofline.differences) == each.path.ps
    assert sum(launch.path.ps for launch in found.launches) < found.path.ps


def test_lines_of_a_kernel(small: Topology) -> None:
    _, found = explained(small)
    launch = found.launches[0]
    assert launch.program.file.endswith("kernels/gemm.py")
    (line,) = launch.lines
    busy = {each.engine: each.ns for each in line.busy}
    assert busy["GEMM"] == 4 * 16
    assert set(busy) == {"DMA in", "fetch", "GEMM", "store", "DMA out"}
    assert line.path_ns * 1000 == sum(part.ps for part in line.parts)


def test_the_sizes_of_blocks_stand_in_report_and_explanation(small: Topology) -> None:
    engine, found = explained(small)
    assert {split.name: split.blocks for split in report_run(engine).launches} == {"product": ("64×64×64",), "copy": ()}
    product, *_ = [each for each in found.launches if each.name == "product"]
    assert [line.blocks for line in product.lines if line.blocks] == [("64×64×64",)]
