"""Measure products of PyTorch on the default machine: the table of costs in docs/pytorch.md.

    python scripts/product_costs.py                    # prints it
    python scripts/product_costs.py --write            # puts it into the page
    python scripts/product_costs.py --only 'linear*'   # only some rows

Each row is one product of a run without data, in simulated ns. The lower
bound is the time of the matrix units for all multiplications, or of the memories for the weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch.nn import functional

import kernbench.torch  # noqa: F401 - installs the device "ahbm"
from kernbench.common.files import write_bytes
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.context import NoParams, RuntimeContext
from kernbench.runtime_api.frontends import frontend_settings
from kernbench.topology.builder import resolve_topology

PAGE = Path(__file__).parents[1] / "docs" / "pytorch.md"
BEGIN, END = "<!-- costs of products -->", "<!-- end of costs of products -->"


@dataclass(frozen=True)
class Row:
    """A row of the table: a product of shape (m, k, n), ``linear`` or ``x @ w``, on a number of cubes and PEs."""

    label: str
    shape: tuple[int, int, int]
    cubes: int = 1
    pes: int = 8
    is_linear: bool = True

    def measure(self) -> tuple[float, float, str]:
        """Return the ns of the launch, its lower bound in ns, and the name of the bound."""
        m, k, n = self.shape
        topology = resolve_topology("default")
        settings = frontend_settings([f"torch.cubes={self.cubes}", f"torch.pes={self.pes}", "torch.queue=0"])
        with RuntimeContext(GraphEngine(topology, enable_data=False), params=NoParams(), frontends=settings) as context:
            x = torch.empty(m, k, dtype=torch.float16, device="ahbm")
            w = torch.empty(*((n, k) if self.is_linear else (k, n)), dtype=torch.float16, device="ahbm")
            multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
            multiply = functional.linear if self.is_linear else torch.matmul
            with torch.no_grad():
                multiply(x, w)
            launches = [trace for trace in context.traces if trace.pe_exec_ns]
            duration_ns = sum(trace.total_ns for trace in launches)
        n_pes, spec = self.cubes * self.pes, topology.spec
        compute_ns = m * k * n / spec.pe.gemm.macs_per_ns["f16"] / n_pes
        read_ns = 2 * k * n / (n_pes * spec.cube.slice_bw_gbs)
        bound = (compute_ns, "matrix units") if compute_ns > read_ns else (read_ns, "memory")
        return duration_ns, *bound


ROWS = (
    Row("`torch.mm` 512³ on one PE (`torch.pes=1`)", (512, 512, 512), pes=1, is_linear=False),
    Row("`torch.mm` 1024³, eight PEs of a cube", (1024, 1024, 1024), is_linear=False),
    Row("`torch.mm` 512 × 4096 × 4096, the same PEs", (512, 4096, 4096), is_linear=False),
    Row("linear layer 4096 → 14336, one row, 128 PEs (`torch.cubes=16`)", (1, 4096, 14336), 16),
    Row("the same as `x @ w`, `w` (4096, 14336) stored by rows", (1, 4096, 14336), 16, is_linear=False),
    Row("linear layer 4096 → 14336, 64 rows, 128 PEs", (64, 4096, 14336), 16),
    Row("linear layer 4096 → 4096, 512 rows, 128 PEs", (512, 4096, 4096), 16),
    Row("the same as `x @ w`, `w` (4096, 4096) stored by rows", (512, 4096, 4096), 16, is_linear=False),
    Row("linear layer 2048 → 2048, 2048 rows, 128 PEs", (2048, 2048, 2048), 16),
    Row("linear layer 4096 → 4096, 512 rows, 32 PEs (`torch.cubes=4`)", (512, 4096, 4096), 4),
    Row("linear layer 2048 → 2048, 128 rows, 32 PEs", (128, 2048, 2048), 4),
)


def tabulate(rows: Sequence[Row]) -> str:
    """Return the table of these rows."""
    lines = ["| operation | duration | lower bound | ratio |", "|---|---|---|---|"]
    for row in rows:
        duration_ns, bound_ns, name = row.measure()
        ratio = duration_ns / bound_ns
        lines.append(f"| {row.label} | {duration_ns:,.0f} | {bound_ns:,.0f}: {name} | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put it into docs/pytorch.md")
    parser.add_argument("--only", default="*", help="labels of the rows to measure, as a pattern")
    options = parser.parse_args()
    rows = [row for row in ROWS if fnmatchcase(row.label, options.only)]
    if not rows:
        parser.error(f"--only {options.only!r} is no label's pattern; labels: {'; '.join(row.label for row in ROWS)}")
    if options.write and len(rows) < len(ROWS):
        parser.error("--write puts the whole table into the page: leave out --only")
    table = tabulate(rows)
    if not options.write:
        print(table)
        return
    before, _, behind = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    write_bytes(PAGE, f"{before}{BEGIN}\n\n{table}\n\n{END}{behind.partition(END)[2]}".encode())


if __name__ == "__main__":
    main()
