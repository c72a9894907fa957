"""Measure what coarse packets cost in accuracy and save in events: four workloads on the default machine.

    python scripts/coarse_packets.py            measure, and write the package's figures and the table of the docs
    python scripts/coarse_packets.py --table    write the table of the figures that are there

Needs PyTorch. Every run is without data. A size of 1 KiB is that of the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import kernbench as kb
from kernbench.common.files import write_bytes
from kernbench.common.units import format_size
from kernbench.result.coarse_packets import FIGURES, Measured, PacketFigures, read_measured

DOCS = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- coarse packets -->", "<!-- end of coarse packets -->"
SIZES = 1024, 4096, 16384
CUBES = 16
PRODUCT = """
import torch
x = torch.zeros(512, 4096, dtype=torch.float16, device="cuda")
w = torch.zeros(4096, 4096, dtype=torch.float16, device="cuda")
torch.nn.functional.linear(x, w)
"""
LAYER = """
import torch
from torch import nn
torch.set_default_device("cuda"), torch.set_default_dtype(torch.bfloat16)
layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True, dropout=0.0)
"""
PREFILL = LAYER + "with torch.no_grad():\n    layer.train()(torch.zeros(1, 64, 512))\n"
DECODE = LAYER + "with torch.no_grad():\n    layer.train()(torch.zeros(8, 1, 512))\n"
SCRIPTS = {
    "product (512, 4096) × (4096, 4096), f16": PRODUCT,
    "prefill of a layer, width 512, 64 tokens, bf16": PREFILL,
    "decode of the layer, batch 8": DECODE,
}
REDUCE = "all-reduce of 64 PEs, 64 KiB each, ring"


def measure_all() -> Measured:
    """Return the figures of all workloads and sizes."""
    measured: Measured = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in SCRIPTS.items():
            script = Path(folder) / "workload.py"
            script.write_text(text, encoding="utf-8")
            measured[name] = {size: _measure_script(script, size) for size in SIZES}
            print(name, measured[name], flush=True)
    measured[REDUCE] = {size: _measure_reduce(size) for size in SIZES}
    return measured


def _machine_with(size: int) -> kb.CompiledMachine:
    fifos = {"transport.fifo_bytes": None}  # four packets
    spread = {"cube.hbm.refresh": "spread"}  # a launch that waits for a refresh would hide the difference
    return kb.load_machine("default", overrides={"transport.packet_bytes": size, **fifos, **spread})


def _measure_script(script: Path, size: int) -> PacketFigures:
    machine, settings = _machine_with(size), {"torch.cubes": CUBES}
    return _figures_of(
        kb.run(script=script, machine=machine, as_cuda=True, data=False, observe=False, settings=settings)
    )


def _measure_reduce(size: int) -> PacketFigures:
    params = {"algorithm": "ring_allreduce_tcm", "world_size": 64, "n_elem": 1 << 15}
    return _figures_of(kb.run("ipcq-allreduce", _machine_with(size), data=False, observe=False, params=params))


def _figures_of(run: kb.Run) -> PacketFigures:
    run.raise_for_status()
    return PacketFigures(run.latency_ns, run.report.events)


def table_of(measured: Measured) -> str:
    """Return the table of the docs in Markdown: for each size, events, and the time or its difference in %."""
    lines = ["| workload | " + " | ".join(format_size(size) for size in SIZES) + " |", "|---|" + "---|" * len(SIZES)]
    for name, rows in measured.items():
        lines.append(f"| {name} | " + " | ".join(_cell(rows, size) for size in SIZES) + " |")
    return "\n".join(lines)


def _cell(rows: Mapping[int, PacketFigures], size: int) -> str:
    row, base_ns = rows[size], rows[min(rows)].ns
    time = f"{row.ns / 1000:,.1f} µs" if size == min(rows) else f"{100 * (row.ns / base_ns - 1):+.1f} %"
    return f"{time}, {row.events:,} events"


def write_table(measured: Measured) -> None:
    """Replace the table in the docs."""
    page = DOCS.read_text(encoding="utf-8")
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    write_bytes(DOCS, f"{head}{BEGIN}\n{table_of(measured)}\n{END}{tail}".encode())


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only write the table")
    if not parser.parse_args(arguments).table:
        rows = {name: {str(size): asdict(row) for size, row in sizes.items()} for name, sizes in measure_all().items()}
        write_bytes(Path(str(FIGURES)), (json.dumps(rows, indent=1, ensure_ascii=False) + "\n").encode())
    write_table(read_measured())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
