"""Small runs of every registered bench on random machines, to be explained: from a seed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernbench.common.data_policy import DataPolicy
from kernbench.common.errors import ConfigError, InputError
from kernbench.engine.engine import GraphEngine
from kernbench.observe.critical_path_model import CriticalPath, PathPart
from kernbench.observe.trace_log import TraceLog
from kernbench.runtime_api.bench_registry import load_bench
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.run_explanation import RunExplanation, explain_run
from kernbench.topology.builder import Topology, resolve_topology

MACHINE_KEYS: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("system.sips.count", (1, 2, 3, 4)),
    ("sip.cube_mesh.w", (1, 2, 3)),
    ("sip.cube_mesh.h", (1, 2, 3)),
    ("cube.hbm.timing", ("hbm2", "hbm3e", "hbm4", "lpddr5", "lpddr5x", "ddr5", "ideal")),
    ("cube.hbm.num_pcs", (2, 4)),
    ("cube.hbm.queue_entries", (4, 16)),
    ("cube.hbm.refresh", ("spread", "none")),
    ("cube.hbm.quantum_bytes", (256, 8192)),
    ("transport.packet_bytes", (256, 512, 4096)),
    ("transport.fifo_bytes", ("null",)),
    ("transport.express", ("false",)),
    ("pe.components.pe_scheduler.attrs.tiles_in_flight", (2, 3, 8)),
    ("pe.dma.ordering", ("relaxed",)),
    ("pe.mmu.tlb_entries", (4,)),
    ("pe.dma.setup_ns", (0, 40)),
    ("pe.components.pe_ipcq.attrs.overhead_ns", (0, 30)),
    ("cube.components.noc_router.attrs.overhead_ns", (0, 15)),
    ("cube.noc.link_bw_gbs", (32, 64)),
    ("sip.links.cube_to_cube.bw_gbs", (16, 32)),
)
SIZES = range(1, 10)
BENCHES: dict[str, tuple[str, ...]] = {
    "attention": ("heads", "lq", "lk", "d"),
    "ccl-allreduce": ("n_elem",),
    "gemm-single-pe": ("m", "k", "n"),
    "hello-send": (),
    "ipcq-allreduce": ("n_elem",),
    "matmul-composite": ("m", "k", "n"),
    "qkv-gemm": ("m", "width", "head_dim"),
    "qkv-gemm-multi-pe": ("m", "width"),
    "tp-block": ("tokens",),
    "tp-mlp": ("tokens", "hidden", "ffn"),
    "va-offset-verify": ("rows_per_pe", "columns"),
}
"""Each bench that is one simulation, with the parameters that are sizes"""
ALGORITHMS = ("ring_allreduce_tcm", "ring_allreduce_hbm", "ring_allreduce_sram", "ring_allreduce_rs_ag")


@dataclass(frozen=True)
class ExplainedRun:
    """A run of ``bench``, explained, and all its paths."""

    bench: str
    settings: tuple[str, ...]
    explanation: RunExplanation

    @property
    def paths(self) -> Iterator[CriticalPath]:
        yield self.explanation.path
        yield from (launch.path for launch in self.explanation.launches)

    def untraced(self) -> Iterator[str]:
        """Yield what is wrong with the paths."""
        for path in self.paths:
            if any(step.part is PathPart.UNTRACED for step in path.steps):
                yield f"{self.bench} {' '.join(self.settings)}: the path of {path.launch_id} ends before its begin"
            if sum(step.ps for step in path.steps) != path.ps:
                yield f"{self.bench} {' '.join(self.settings)}: the steps of {path.launch_id} do not add up"


def explain_bench(name: str, machine: Topology, params: tuple[str, ...], settings: tuple[str, ...]) -> ExplainedRun:
    log = TraceLog()
    engines: list[GraphEngine] = []

    def make(topology: Topology, _: object) -> GraphEngine:
        engines.append(GraphEngine(topology, DataPolicy(keep=False), observers=[log]))
        return engines[0]

    result = run_bench(topology=machine, bench_fn=load_bench(name), engine_factory=make, params=params)
    explanation = explain_run(log, engines[0].handles, result.completion.t_start, result.completion.t_end)
    return ExplainedRun(name, settings, explanation)


def random_explained_run(name: str, seed: int) -> ExplainedRun | None:
    """Run a bench with random sizes on a random machine; None where it does not fit that machine."""
    chance = np.random.default_rng((seed, *map(ord, name)))
    sizes = tuple(f"bench.{key}={chance.choice(SIZES)}" for key in BENCHES[name])
    if name == "ipcq-allreduce":
        sizes += (f"bench.algorithm={chance.choice(ALGORITHMS)}",)
    keys = sorted(chance.choice(len(MACHINE_KEYS), size=chance.integers(1, 6), replace=False))
    changes = tuple(
        f"{key}={chance.choice(np.array(values, object))}" for key, values in (MACHINE_KEYS[at] for at in keys)
    )
    base = str(chance.choice(("default", "one-cube", "edge")))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            machine = resolve_topology(base, changes)
            return explain_bench(name, machine, sizes, (*sizes, f"--topology {base}", *changes))
        except (ConfigError, InputError):
            return None
