"""Random programs on random machines, from a seed: products, loads and stores, sums, and messages between PEs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from interventions import Experiment, spread
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_registry import Bench, load_bench

_MACHINE: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("pe.tcm.read_bw_gbs", (128, 256, 512, 1024)),
    ("pe.tcm.write_bw_gbs", (128, 256, 512)),
    ("pe.math.bytes_per_ns", (64, 128, 256, 512)),
    ("pe.math.startup_ns", (0, 2, 20)),
    ("pe.dma.setup_ns", (0, 2, 10, 100)),
    ("pe.components.pe_cpu.attrs.issue_ns", (0, 1, 10, 50)),
    ("pe.components.pe_cpu.attrs.launch_ns", (0, 5, 100)),
    ("pe.components.pe_scheduler.attrs.issue_ns", (0, 1, 5)),
    ("pe.components.pe_scheduler.attrs.tiles_in_flight", (2, 4, 8)),
    ("pe.components.pe_ipcq.attrs.overhead_ns", (0, 2, 20)),
    ("cube.hbm.num_pcs", (2, 4, 8)),
    ("cube.components.noc_router.attrs.overhead_ns", (0, 1, 10, 50)),
    ("cube.components.xbar.attrs.overhead_ns", (0, 2, 10)),
    ("cube.components.ucie.attrs.overhead_ns", (2, 8, 40)),
    ("cube.components.m_cpu.attrs.overhead_ns", (1, 5, 50)),
    ("sip.components.io_cpu.attrs.overhead_ns", (2, 10, 100)),
    ("sip.components.pcie_ep.attrs.overhead_ns", (5, 20, 200)),
    ("cube.noc.link_bw_gbs", (64, 128, 256)),
    ("sip.links.cube_to_cube.bw_gbs", (32, 128, 256)),
    ("ns_per_mm", (0.0, 0.01, 0.1)),
)


def random_experiment(seed: int) -> Experiment:
    """Return the program and the machine of a seed."""
    chance = np.random.default_rng(seed)
    chosen = chance.choice(len(_MACHINE), size=chance.integers(0, 5), replace=False)
    machine = spread("default", *(f"{_MACHINE[at][0]}={chance.choice(_MACHINE[at][1])}" for at in sorted(chosen)))
    make = _PROGRAMS[chance.integers(len(_PROGRAMS))]
    return make(chance, machine)


def _product(chance: np.random.Generator, machine: Any) -> Experiment:
    m, k, n = (int(chance.choice((32, 64, 96, 128, 200))) for _ in range(3))
    variant = chance.choice(("ref_ref", "load_ref", "load_load", "blocked"))
    epilogue = chance.choice(("none", "none", "relu"))
    sizes = (f"bench.m={m}", f"bench.k={k}", f"bench.n={n}")
    return Experiment(
        load_bench("matmul-composite"), machine, (*sizes, f"bench.variant={variant}", f"bench.epilogue={epilogue}")
    )


def _kernel(chance: np.random.Generator, machine: Any) -> Experiment:
    """Loads, sums, dots and stores in a random order, on one PE or on all of a cube or two."""
    steps = [str(chance.choice(("load", "load", "add", "exp", "dot", "store"))) for _ in range(chance.integers(3, 12))]
    rows, pes, cubes = int(chance.choice((16, 32, 64))), int(chance.choice((1, 4, 8))), int(chance.choice((1, 2)))

    def work(x: int, *, tl: Any) -> None:
        at = x + tl.program_id(0) * rows * 64 * 2
        a = tl.load(at, (rows, 64), "f16")
        b = tl.load(at, (64, 64), "f16") if rows == 64 else None
        for step in steps:
            match step:
                case "load":
                    a = tl.load(at, (rows, 64), "f16")
                case "add":
                    a = a + a
                case "exp":
                    a = tl.exp(a)
                case "dot" if b is not None:
                    a = tl.cast(tl.dot(a, b), "f16")
                case "store":
                    tl.store(at, a)
        tl.store(at, a)

    def program(torch: Any) -> None:
        dp = DPPolicy(pe="row_wise", cube="row_wise", num_pes=pes, num_cubes=cubes)
        torch.launch("work", work, torch.zeros(rows * pes * cubes, 64, dtype="f16", dp=dp))

    return Experiment(_bench(program), machine)


def _messages(chance: np.random.Generator, machine: Any) -> Experiment:
    """An all-reduce on raw queues."""
    n = int(chance.choice((256, 1024, 4096)))
    algorithm = chance.choice(
        ("ring_allreduce_tcm", "ring_allreduce_hbm", "ring_allreduce_rs_ag", "hierarchical_allreduce")
    )
    return Experiment(load_bench("ipcq-allreduce"), machine, (f"bench.n_elem={n}", f"bench.algorithm={algorithm}"))


def _attention(chance: np.random.Generator, machine: Any) -> Experiment:
    return Experiment(load_bench(str(chance.choice(("attention", "hello-send", "va-offset-verify")))), machine)


def _bench(program: Callable[[Any], None]) -> Bench:
    return Bench(name="random", description="a random program", function=program)


_PROGRAMS = (_product, _product, _kernel, _kernel, _messages, _attention)
