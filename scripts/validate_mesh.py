"""Compare the transport with the cycle-accurate reference mesh: draws docs/figures/mesh_latency.png, prints the tables.

Takes some minutes on two cores.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

from mesh.load import LoadPlan, measure_full_load
from mesh.network import MeshSpec
from mesh.reference import (
    compare_curve,
    compare_flows,
    comparison_tables,
    draw_mesh_latency,
    gate_table,
    load_reference,
)

ROOT = Path(__file__).parents[1]
PLAN = LoadPlan(warmup_cycles=3000, cycles=10_000, messages=15_000)
FLOW_PLAN = LoadPlan(cycles=150_000)
RESOLUTION = 0.002
FIFO_FLITS = (8, 16, 32, 64, 128, None)


def main() -> None:
    """Run everything."""
    reference = load_reference(ROOT / "tests/data/mesh.json")
    with ProcessPoolExecutor() as pool:
        units = [(c, u) for c in reference.curves for u in ((None,) if c.packet_flits == 1 else (None, 1))]
        jobs = [pool.submit(compare_curve, c, PLAN, RESOLUTION, u) for c, u in units]
        flows = pool.map(partial(compare_flows, plan=FLOW_PLAN), reference.contention)
        depths = [pool.submit(measure_full_load, MeshSpec(fifo_flits=f), "uniform", PLAN) for f in FIFO_FLITS]
        by_message = [job.result() for job, (_, unit) in zip(jobs, units, strict=True) if unit is None]
        by_flit = [job.result() for job, (_, unit) in zip(jobs, units, strict=True) if unit == 1]
        draw_mesh_latency(by_message, ROOT / "docs/figures/mesh_latency.png")
        print(comparison_tables(by_message))
        print("\n## Arbitration by the flit\n")
        print(comparison_tables(by_flit))
        print("\n## Flows that share a link\n")
        print(gate_table(chain.from_iterable(flows)))
        print("\n## FIFO depth, uniform, 1-flit packets, accepted at 1.0\n")
        for fifo, accepted in zip(FIFO_FLITS, depths, strict=True):
            print(f"| {fifo or 'unbounded'} | {accepted.result():.3f} |")


if __name__ == "__main__":
    main()
