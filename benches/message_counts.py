"""What a queue message of four unlike programs costs: events, records, calls of Python functions. A row each.

usage: python benches/message_counts.py [WORD ...]   only the programs whose names have a word

Everything that a program does is counted, from its first line to its last: queues, copies, launch, kernels, phase 2.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kernbench.ccl.config import CclConfig
from kernbench.ccl.install import load_ccl_config
from kernbench.engine.engine import GraphEngine
from kernbench.engine.queues import QueuePart
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.topology.builder import resolve_topology

ROOT = Path(__file__).parents[1]
RING = ("bench.world_size=256", "bench.n_elem=16")
RS_AG = ("bench.algorithm=ring_allreduce_rs_ag", "bench.world_size=256", "bench.n_elem=4096")
SMALL_RS_AG = (RS_AG[0], "bench.world_size=32", "bench.n_elem=512")


@dataclass(frozen=True)
class Program:
    """A bench with its parameters; ``ccl``: a file, and what it is changed by."""

    name: str
    bench: str
    params: tuple[str, ...] = ()
    ccl: Path = ROOT / "ccl.yaml"
    changes: tuple[str, ...] = ()
    data: bool = True

    def config(self) -> CclConfig:
        """What configures its collectives."""
        return load_ccl_config(self.ccl, self.changes)


PROGRAMS = (
    Program("ring, 256 PEs, 64 B", "ipcq-allreduce", RING),
    Program("rs_ag, 32 PEs, 2 KiB, timing only", "ipcq-allreduce", SMALL_RS_AG, data=False),
    Program("rs_ag, 256 PEs, 16 KiB, timing only", "ipcq-allreduce", RS_AG, data=False),
    Program("examples/my_allreduce.py", str(ROOT / "examples/my_allreduce.py"), ccl=ROOT / "examples/ccl.yaml"),
    Program("hierarchical", "ccl-allreduce", changes=("defaults.algorithm=hierarchical_allreduce",)),
)


def row_of(program: Program) -> str:
    """The counts of ``program``, a message each, as a row of a table."""
    bench, config, machine = load_bench(program.bench), program.config(), resolve_topology(None)
    engine = GraphEngine(machine, enable_data=program.data)
    calls: Counter[str] = Counter()

    def count(_: object, event: str, __: object) -> None:
        calls[event] += 1

    sys.setprofile(count)
    try:
        result = run_bench(
            topology=machine,
            bench_fn=bench,
            engine_factory=lambda *_: engine,
            params=program.params,
            verify=program.data,
            ccl=config,
        )
    finally:
        sys.setprofile(None)
    result.raise_for_status()
    queues = [part for part in engine.machine.components if isinstance(part, QueuePart)]
    n = sum(use.messages for part in queues for use in part.traffic.values())
    figures = (engine.n_events / n, len(engine.op_log) / n, calls["call"] / n, calls["c_call"] / n)
    return f"| {program.name} | {n:,} | " + " | ".join(f"{figure:,.1f}" for figure in figures) + " |"


if __name__ == "__main__":
    print("| program | messages | events | records | Python calls | calls of C |\n| --- |" + " ---: |" * 5)
    for each in PROGRAMS:
        if not sys.argv[1:] or any(word in each.name for word in sys.argv[1:]):
            print(row_of(each), flush=True)
