"""PyTorch programs whose log is bounded: launches from a queue and of graphs are folded, and reports stay equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extras import need

need("torch")

import torch  # noqa: E402

import kernbench as kb  # noqa: E402

STEPS = """import torch
x, w = torch.zeros(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
for _ in range(24):
    x = torch.relu(x @ w)
torch.cuda.synchronize()
"""
GRAPH = """import torch
x, w = torch.zeros(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
torch.relu(x @ w)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = torch.relu(x @ w)
for _ in range(24):
    graph.replay()
torch.cuda.synchronize()
"""


def run(script: Path, rows: int | str) -> tuple[kb.Run, dict[str, Any]]:
    with torch.enable_grad():
        result = kb.run(
            script=script,
            as_cuda=True,
            machine="one-cube",
            data=False,
            observe=False,
            log_rows=rows,
            settings={"torch.queue": 4},
        )
    torch.set_default_device(None)
    result.raise_for_status()
    return result, result.to_dict()


@pytest.mark.parametrize("program", [STEPS, pytest.param(GRAPH, marks=pytest.mark.slow)])
def test_the_report_is_the_same(program: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    run(script, "4M")  # the first run in a process may map other storages
    complete, expected = run(script, "4M")
    folded, document = run(script, 1000)
    assert complete.folded is None
    assert folded.folded is not None
    assert len(folded.folded.launches) > 6
    report = document.pop("folded")
    assert report["folded_rows"] == folded.folded.folded_rows
    assert document == {key: content for key, content in expected.items() if key != "folded"}
