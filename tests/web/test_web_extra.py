"""Parts of ``cube.extra`` and ``pe.extra`` on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from headless import Page as Tab
from web_support import observe_run

from kernbench.runtime_api.bench_registry import Bench
from kernbench.runtime_api.types import DeviceSelector
from kernbench.sim_engine.component import Memory, MemoryAccess
from kernbench.topology.builder import Topology, resolve_topology
from kernbench.topology.drawing.shapes import shapes_of
from kernbench.web.activity import ObservedRun, collect_memory_spans
from kernbench.web.machine_view import view_machine
from kernbench.web.page import make_page

SCRATCH = "sip0.cube0.scratch"


class Slow(Memory):
    """An access takes 10 ns."""

    def serve(self, access: MemoryAccess) -> float:
        return 10.0


@pytest.fixture(scope="module")
def extended() -> Topology:
    return resolve_topology(
        "default",
        (
            "system.sips={count: 1, topology: ring_1d}",
            "sip.cube_mesh={w: 1, h: 1}",
            "cube.extra.scratch={impl: test_web_extra.Slow, bytes: 1MiB, links: [{to: sram, bw_gbs: 64}]}",
            "pe.extra.pad={impl: test_web_extra.Slow, bytes: 64KiB, links: [{to: pe_dma, bw_gbs: 64}]}",
        ),
    )


@pytest.fixture(scope="module")
def run(extended: Topology) -> ObservedRun:
    """A read and a write of the scratch memory by a kernel."""

    def through(x_ptr: int, ptr: int, *, tl: Any) -> None:
        tl.store(ptr, tl.load(x_ptr, 16, "f32"))
        tl.store(x_ptr, tl.load(ptr, 16, "f32"))

    def program(torch: Any) -> None:
        torch.launch("through", through, torch.zeros(16), torch.map_memory(SCRATCH))

    bench = Bench(name="through", description="by way of a scratch memory", function=program, file="")
    return observe_run(extended, bench, DeviceSelector("all"), ())


def test_it_is_as_large_as_it_is_drawn(extended: Topology) -> None:
    nodes: Any = view_machine(extended)["nodes"]
    shapes = shapes_of(extended.topology_obj)
    for part, size in ((SCRATCH, shapes.middle), ("sip0.cube0.pe3.pad", shapes.pe_part)):
        at = nodes["id"].index(part)
        assert (nodes["w"][at], nodes["h"][at]) == pytest.approx(size, abs=1e-4)
        assert nodes["memory"][at] == 1


def test_a_memory_is_busy_while_it_serves(extended: Topology, run: ObservedRun) -> None:
    at = list(extended.topology_obj.nodes).index(SCRATCH)
    busy = collect_memory_spans(run.log, run.end_ps)[at]
    assert [end - start for start, end in zip(busy.starts, busy.ends, strict=True)] == [10_000, 10_000]


def test_the_page_tells_of_it(extended: Topology, run: ObservedRun, tab: Tab, tmp_path: Path) -> None:
    make_page(extended, run).write(tmp_path / "page.html")
    tab.problems.clear()
    tab.open((tmp_path / "page.html").as_uri())
    tab.ask(f"KB.select('node', KB.machine.nodeById.get('{SCRATCH}')) || 0")
    tab.settle()
    told = tab.ask("document.getElementById('details').innerText")
    assert SCRATCH in told
    assert "test_web_extra.Slow" in told
    assert "of the time" in told  # how busy it was
    assert tab.problems == []
