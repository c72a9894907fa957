"""No noise of floats in what commands print as JSON, on a machine whose odd figures make some."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from kernbench.cli import sweep_command
from kernbench.evaluation.sweep_driver import InlineWorker
from kernbench.library import sweeps
from kernbench.topology.energy_spec import AreaKey
from skewed import FILE

Run = Callable[..., Any]
MACHINE = ("--topology", str(FILE))
SMALL = ("--set", "bench.m=64", "--set", "bench.k=70", "--set", "bench.n=50")
GRID = """\
bench: gemm-single-pe
set: { bench.k: 32, bench.n: 32 }
grid: { pe.dma.setup_ns: [2.7, 5.1], bench.m: [32] }
"""
SHARES = ("utilisation", "occupancy", "fairness", "beyond", "useful_macs")


def numbers(document: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document, with the name that it has, or the list it is in."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield from numbers(value, key)
    elif isinstance(document, list):
        for value in document:
            yield from numbers(value, name)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield name, document


def assert_clean(text: str) -> dict[str, float]:
    """Times are whole ps, GB/s have three decimals, shares six; the figures by name, the last of each."""
    found: dict[str, float] = {}
    for name, value in numbers(json.loads(text)):
        if name in get_args(AreaKey):  # areas of the machine's file, such as that of a MAC per ns
            continue
        if name.endswith(("_ns", ".ns", "_gbs")) or name == "ns":
            assert value == round(value, 3), name
        elif name.endswith(SHARES):
            assert value == round(value, 6), name
        found[name] = value
    return found


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points of a sweep run here."""
    monkeypatch.setattr(sweeps, "LocalWorkers", InlineWorkers)
    monkeypatch.setattr(sweep_command, "begin_server", lambda: None)


class InlineWorkers(InlineWorker):
    """This process, whatever is asked for."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs

    def __enter__(self) -> InlineWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""


def test_a_run_its_explanation_and_its_comparison(kernbench: Run, tmp_path: Path) -> None:
    of_bench = ("run", "--bench", "gemm-single-pe", *MACHINE, *SMALL, "--explain", "--json")
    one, other = kernbench(*of_bench), kernbench(*of_bench, "--set", "bench.m=33", "--verify-data")
    assert assert_clean(one.out)["sim_ns"] > 0
    assert assert_clean(other.out)["pe_exec_ns"] > 0
    (tmp_path / "a.json").write_text(one.out)
    (tmp_path / "b.json").write_text(other.out)
    assert assert_clean(kernbench("compare", "a.json", "b.json", "--json").out)["a_ns"] >= 0


def test_ranks(kernbench: Run) -> None:
    found = kernbench("run", "--bench", "ccl-allreduce", *MACHINE, "--json")
    assert found.code == 0
    assert assert_clean(found.out)["total_ns"] > 0


def test_a_probe(kernbench: Run) -> None:
    found = assert_clean(kernbench("probe", *MACHINE, "--case", "pe-hotspot", "--json").out)
    assert found["mean_ns"] > 0
    assert 0 < found["fairness"] <= 1


def test_a_machine_is_shown_as_it_was_given(kernbench: Run) -> None:
    given = ("--set", "pe.dma.setup_ns=2.71828", "--set", "ns_per_mm=0.0137123")
    assert assert_clean(kernbench("topology", *MACHINE, "--json").out)["access_ns"] == 4.6
    config = json.loads(kernbench("topology", *MACHINE, *given, "--json").out)["config"]
    assert (config["pe"]["dma"]["setup_ns"], config["ns_per_mm"]) == (2.71828, 0.0137123)


def test_a_sweep_and_the_comparison_of_its_points(kernbench: Run, tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(GRID)
    swept = kernbench("sweep", "grid.yaml", *MACHINE, "--out", "out", "--jobs", "1", "--json")
    assert assert_clean(swept.out)["launch.ns"] > 0
    assert_clean(kernbench("compare", "out/sweep.parquet", "out/sweep.parquet", "--json").out)
    for file in (tmp_path / "out").glob("*.json"):
        assert_clean(file.read_text())
    _, *rows = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()
    assert len(rows) == 2
    for row in rows:
        times = {name: value for name, value in numbers(json.loads(row)["row"]) if name.endswith("ns")}
        assert times == {name: round(value, 3) for name, value in times.items()}


def test_a_page(kernbench: Run) -> None:
    found = kernbench("web", "--bench", "gemm-single-pe", *MACHINE, *SMALL, "--out", "page.html", "--json")
    assert assert_clean(found.out)["sim_ns"] > 0
