"""Packaged machines on the command line: by name, with benches, and slips."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernbench.topology.builder import packaged_machines

Run = Callable[..., Any]
ADDED = [name for name in packaged_machines() if name != "default"]
BENCHES = ("gemm-single-pe", "attention", "tp-mlp", "ccl-allreduce")


def _check_run(ran: Any) -> None:
    assert (ran.code, "FAIL" in ran.out, "warning" in ran.err) == (0, False, False)
    assert "PASS" in ran.out


@pytest.mark.parametrize("machine", ADDED)
def test_hello(kernbench: Run, machine: str) -> None:
    ran = kernbench("run", "--bench", "hello-send", "--topology", machine, "--verify-data")
    _check_run(ran)
    assert f"machine: {machine} (" in ran.out


@pytest.mark.slow
@pytest.mark.parametrize("bench", BENCHES)
@pytest.mark.parametrize("machine", ADDED)
def test_benches(kernbench: Run, machine: str, bench: str) -> None:
    _check_run(kernbench("run", "--bench", bench, "--topology", machine, "--verify-data"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "bench", "parameter"),
    [("edge", "ipcq-allreduce", "bench.world_size=4"), ("ring16", "tp-block", "bench.heads=16")],
)
def test_benches_that_need_a_parameter(kernbench: Run, machine: str, bench: str, parameter: str) -> None:
    """docs/machines.md names it."""
    assert kernbench("run", "--bench", bench, "--topology", machine).code == 2
    _check_run(kernbench("run", "--bench", bench, "--topology", machine, "--set", parameter, "--verify-data"))


def _idle_read_ns(kernbench: Run, machine: str, size: str) -> float:
    ran = kernbench("probe", "--case", "pe-local-hbm", "--topology", machine, "--size", size, "--json")
    return float(json.loads(ran.out)["cases"][0]["transaction"]["latency_ns"])


@pytest.mark.parametrize("machine", packaged_machines())
def test_an_idle_local_read(kernbench: Run, machine: str) -> None:
    least, most = (40, 45) if machine == "default" else (100, 150)
    assert least <= _idle_read_ns(kernbench, machine, "64") <= most


def test_list_names_the_machines(kernbench: Run) -> None:
    ran = kernbench("list")
    assert "--topology NAME" in ran.out
    assert all(name in ran.out for name in packaged_machines())
    listed = json.loads(kernbench("list", "--json").out)["machines"]
    assert [each["name"] for each in listed] == list(packaged_machines())
    assert all(each["description"] for each in listed)


SWEEP = "bench: gemm-single-pe\ntopology: {}\ngrid:\n  cube.hbm.num_pcs: [4, 8]\n"


@pytest.mark.parametrize("command", [("topology",), ("probe",), ("run", "--bench", "hello-send"), ("sweep", "s.yaml")])
def test_a_slip_in_a_name(kernbench: Run, command: tuple[str, ...]) -> None:
    Path("s.yaml").write_text(SWEEP.format("default"))
    ran = kernbench(*command, "--topology", "one-cub")
    assert (ran.code, ran.out) == (2, "")
    assert "unknown machine 'one-cub'; there are: default, big-sip, edge, one-cube, ring16, wafer" in ran.err
    assert "did you mean 'one-cube'?" in ran.err
    assert "Traceback" not in ran.err


def test_a_sweep_names_a_machine(kernbench: Run) -> None:
    sizes = "".join(f"  bench.{axis}: 64\n" for axis in "mkn")
    Path("s.yaml").write_text(SWEEP.format("one-cube") + f"set:\n{sizes}")
    ran = kernbench("sweep", "s.yaml", "--jobs", "1")
    assert ran.code == 0
    assert "one-cube" in ran.out


def test_a_slip_in_a_sweep(kernbench: Run) -> None:
    Path("s.yaml").write_text(SWEEP.format("one-cub"))
    ran = kernbench("sweep", "s.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "s.yaml:2:11: topology: unknown machine 'one-cub'; there are: default, " in ran.err
    assert "did you mean 'one-cube'?" in ran.err


def test_a_file_beside_a_sweep_is_no_slip(kernbench: Run) -> None:
    Path("beside").mkdir()
    Path("beside/mine").write_text(Path(packaged_machines()["one-cube"]).read_text())
    sizes = "".join(f"  bench.{axis}: 64\n" for axis in "mkn")
    Path("beside/s.yaml").write_text(SWEEP.format("mine") + f"set:\n{sizes}")
    assert kernbench("sweep", "beside/s.yaml", "--jobs", "1").code == 0


def test_a_machine_says_what_it_has(kernbench: Run) -> None:
    ran = kernbench("topology", "--topology", "edge")
    assert ran.code == 0
    assert "4 x 16 GiB a cube; a slice: peak 51.2, sustained 46.48 GB/s" in ran.out


@pytest.fixture
def runs(kernbench: Run) -> tuple[str, str]:
    """Return the files of a run on two machines."""
    for machine in ("one-cube", "edge"):
        ran = kernbench("run", "--bench", "hello-send", "--topology", machine, "--explain", "--json")
        Path(f"{machine}.json").write_text(ran.out)
    return "one-cube.json", "edge.json"


def test_compare_tells_two_machines_apart_as_an_architect_does(kernbench: Run, runs: tuple[str, str]) -> None:
    ran = kernbench("compare", *runs, "-v")
    assert ran.code == 0
    (line,) = (line for line in ran.out.splitlines() if line.startswith("what differs: "))
    assert line.startswith("what differs: PEs a cube 8 → 4; MACs of f16 a ns and PE 4096 → 8192; ")
    assert "8 channels of hbm3 (204.8 GB/s peak) → 4 channels of lpddr5 (51.2 GB/s peak)" in line
    assert "from cube to cube" not in line
    assert "from SIP to SIP" not in line
    assert re.search(r"; \d\d parameters of the machines in all$", line)
    # Every key is in the table.
    assert "cube.hbm.bytes_per_slice" in ran.out


def test_compare_says_what_else_differs(kernbench: Run, runs: tuple[str, str]) -> None:
    """A bench that differs is not lost among the machines' parameters, and neither is a clock."""
    ran = kernbench(
        "run",
        "--bench",
        "hello-send",
        "--topology",
        "edge",
        "--set",
        "bench.text=other",
        "--set",
        "clocks.pe=2",
        "--explain",
        "--json",
    )
    Path("other.json").write_text(ran.out)
    out = kernbench("compare", runs[0], "other.json").out
    assert "what differs: bench.text hello from PE 0 → other; PEs a cube 8 → 4; " in out
    assert "clocks of PEs, NoC, IO 1, 1, 1 → 2, 1, 1" in out


def test_compare_of_a_file_with_other_values(kernbench: Run, runs: tuple[str, str]) -> None:
    """What no machine has is not told as one."""
    document = json.loads(Path(runs[1]).read_text())
    document["configuration"]["system"]["sips"]["count"] = "many"
    document["configuration"]["pe"]["gemm"]["macs_per_ns"] = {}
    Path("odd.json").write_text(json.dumps(document))
    ran = kernbench("compare", runs[0], "odd.json")
    assert ran.code == 0
    assert "what differs: PEs a cube 8 → 4; a slice of HBM" in ran.out
