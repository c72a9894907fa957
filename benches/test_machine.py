"""Compiling machines and bringing them up: time and memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kernbench.engine.engine import GraphEngine
from kernbench.topology.builder import Topology, resolve_topology

BIG = ["system.sips.count=16"]
# The peak of the memory image, not of the process: that one starts with what it was forked from.
PEAK = """
from pathlib import Path
from kernbench.topology.builder import resolve_topology
from kernbench.engine.engine import GraphEngine
engine = GraphEngine(resolve_topology("default", ["system.sips.count=16"]))
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) // 1024)
"""


def test_compile_and_instantiate_the_default_machine(benchmark) -> None:
    benchmark.pedantic(lambda: GraphEngine(resolve_topology("default")), rounds=10, warmup_rounds=2)


def test_compile_16_sips(benchmark) -> None:
    engine = benchmark.pedantic(lambda: GraphEngine(resolve_topology("default", BIG)), rounds=3)
    benchmark.extra_info["nodes"] = len(engine.topology.topology_obj.nodes)


def test_memory_of_16_sips(benchmark) -> None:
    """Peak memory of a process that has compiled 16 SIPs and imported all it needs."""
    run = lambda: subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)  # noqa: E731
    done = benchmark.pedantic(run, rounds=1)
    benchmark.extra_info["peak_mib"] = int(done.stdout)


@pytest.mark.parametrize("command", ["import kernbench", "import kernbench.cli.commands"])
def test_start_up(benchmark, command: str) -> None:
    benchmark.pedantic(lambda: subprocess.run([sys.executable, "-c", command], check=True), rounds=5, warmup_rounds=1)


def test_every_component_of_a_machine(benchmark, topology: Topology) -> None:
    """All components of the default machine, though a run makes only those it uses."""

    def make() -> int:
        engine = GraphEngine(topology)
        for node_id in topology.topology_obj.nodes:
            engine.component(node_id)
        return len(topology.topology_obj.nodes)

    benchmark.extra_info["components"] = benchmark.pedantic(make, rounds=3)
