"""What the command line says of values: kept, computed when they are read, refused, or zeros."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kernbench.cli import sweep_command
from kernbench.evaluation.sweep_driver import InlineWorker
from kernbench.evaluation.sweep_table import read_sweep_table
from kernbench.library import sweeps

Run = Callable[..., Any]
SMALL = ("--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "system.sips.count=1")
LOOP = """\
def add(y, n, *, tl):
    tl.store(y, tl.load(y, n, "f32") + 16.0)

def run(torch):
    y, rounds = torch.zeros(16, name="y"), 0
    while y.numpy().max() < 100 and rounds < 20:
        torch.launch("add", add, y, 16)
        rounds += 1
    return f"{rounds} rounds"

def compares(torch):
    y = torch.zeros(16, name="y")
    torch.launch("add", add, y, 16)
    torch.testing.assert_close(y, [16.0] * 16)

def wrong(torch):
    torch.testing.assert_close(torch.zeros(16, name="y"), [16.0] * 16)

def value(torch):
    torch.launch("looks", looks, torch.zeros(16, name="y"))

def looks(y, *, tl):
    tl.value(tl.load(y, 16, "f32"))
"""


@pytest.fixture
def loop(kernbench: Run) -> str:
    """A program that goes on until its values say otherwise, in the folder where commands run."""
    Path("loop.py").write_text(LOOP)
    return "loop.py"


def test_values_are_computed_when_they_are_read(kernbench: Run, loop: str) -> None:
    ran = kernbench("run", "--bench", loop, *SMALL)
    assert ran.code == 0
    assert "data: 128 values read; 22 operations computed" in ran.out
    assert "7 rounds" in ran.out
    document = json.loads(kernbench("run", "--bench", loop, "--json", *SMALL).out)
    assert document["data"] == {
        "kept": True,
        "zeros": False,
        "stopped": "",
        "values_read": 128,
        "zeros_read": 0,
        "operations": 22,
        "nbytes": document["data"]["nbytes"],
    }


def test_a_run_that_reads_nothing_says_so(kernbench: Run, loop: str) -> None:
    ran = kernbench("run", "--bench", f"{loop}:compares", *SMALL)
    assert ran.code == 0
    assert "nothing was verified; --verify-data evaluates 1 comparison" in ran.out
    assert "data: no value was read, so nothing was computed" in ran.out


def test_without_data_reading_is_an_error_at_its_line(kernbench: Run, loop: str) -> None:
    ran = kernbench("run", "--bench", loop, "--no-data", *SMALL)
    assert ran.code == 1
    assert "error: tensor 'y': this run keeps no data" in ran.err
    assert "run it with --data, or with --no-data --zeros" in ran.err
    assert "loop.py:6" in ran.err


def test_zeros_are_counted(kernbench: Run, loop: str) -> None:
    ran = kernbench("run", "--bench", loop, "--no-data", "--zeros", *SMALL)
    assert ran.code == 0
    assert "20 rounds" in ran.out
    assert "data: none was kept; 336 values read as zeros" in ran.out


def test_zeros_are_no_values_of_a_kernel(kernbench: Run, loop: str) -> None:
    ran = kernbench("run", "--bench", f"{loop}:value", "--no-data", "--zeros", *SMALL)
    assert ran.code == 1
    assert "loop.py:23: tl.value: this run keeps no data, so there is no value to read: run it with --data" in ran.err


def test_past_the_limit_a_line_says_so_and_reading_is_an_error(kernbench: Run, loop: str) -> None:
    stopped = kernbench("run", "--bench", f"{loop}:compares", "--keep", "1KiB", *SMALL)
    assert stopped.code == 0
    assert "data: keeping stopped at " in stopped.out
    assert "simulated, past 1 KiB unread (--keep)" in stopped.out
    read = kernbench("run", "--bench", loop, "--keep", "0", *SMALL)
    assert read.code == 1
    assert "there is no value to read: keeping stopped" in read.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--zeros",), "give --no-data --zeros"),
        (("--no-data", "--keep", "1GiB"), "--keep limits the stored data"),
        (("--no-data", "--verify-data"), "--no-data and --verify-data, which needs data: give one"),
        (("--keep", "much"), "--keep: 'much' is not a size"),
        (("--reuse",), "--reuse is for runs without data: give --reuse --no-data"),
        (("--reuse", "--data"), "--reuse is for runs without data: give --reuse --no-data"),
        (("--no-data", "--reuse", "--reuse-samples", "0"), "--reuse-samples: found 0, must be at least 1"),
        (("--no-data", "--reuse", "--reuse-check", "-1"), "--reuse-check: found -1, must be at least 0"),
        (("--no-data", "--reuse-check", "5"), "--reuse-check needs --reuse: give both, or none"),
    ],
)
@pytest.mark.parametrize("command", ["run", "web"])
def test_options_that_contradict_each_other(
    kernbench: Run, loop: str, command: str, options: tuple[str, ...], message: str
) -> None:
    ran = kernbench(command, "--bench", loop, *options, *SMALL)
    assert ran.code == 2
    assert message in ran.err
    assert not Path("report.html").exists()


def test_a_bench_that_says_no(kernbench: Run, loop: str) -> None:
    Path(loop).write_text("data = False\n" + LOOP)
    assert kernbench("run", "--bench", loop, *SMALL).code == 1
    assert "7 rounds" in kernbench("run", "--bench", loop, "--data", *SMALL).out
    assert "PASS y" in kernbench("run", "--bench", f"{loop}:compares", "--verify-data", *SMALL).out


def test_where_the_time_goes_does_not_depend_on_what_is_kept(kernbench: Run) -> None:
    bench = ("run", "--bench", "matmul-composite", "--set", "bench.m=64", "--set", "bench.k=64", "--set", "bench.n=64")
    documents = [
        json.loads(kernbench(*bench, "--explain", "--json", *options, *SMALL).out)
        for options in ((), ("--no-data",), ("--keep", "2KiB"))
    ]
    assert [each.pop("data")["kept"] for each in documents] == [True, False, False]
    assert documents[0] == documents[1] == documents[2]


def test_a_page_takes_the_same_options(kernbench: Run, loop: str) -> None:
    ran = kernbench("web", "--bench", f"{loop}:value", *SMALL)
    assert ran.code == 0
    assert "16 values read" in ran.out
    assert kernbench("web", "--bench", f"{loop}:value", "--no-data", *SMALL).code == 1
    document = json.loads(kernbench("web", "--bench", f"{loop}:compares", "--verify-data", "--json", *SMALL).out)
    assert document["verification"]["verdict"] == "PASS"
    failed = kernbench("web", "--bench", f"{loop}:wrong", "--verify-data", *SMALL)
    assert failed.code == 1
    assert "FAIL y" in failed.out
    assert "error: bench 'loop': FAIL y" in failed.err


def test_a_page_without_a_run_has_no_values(kernbench: Run) -> None:
    ran = kernbench("web", "--no-data", *SMALL)
    assert ran.code == 2
    assert "there is no program" in ran.err


SWEEP = """\
bench: loop.py
set: { sip.cube_mesh.w: 1, sip.cube_mesh.h: 1, system.sips.count: 1 }
grid: { cube.hbm.slices: [8, 4] }
plots: []
"""


@pytest.fixture
def sweep(kernbench: Run, loop: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Sweep the program in this process."""
    monkeypatch.setattr(sweeps, "LocalWorkers", lambda _: nullcontext(InlineWorker()))
    monkeypatch.setattr(sweep_command, "begin_server", lambda: None)
    Path("grid.yaml").write_text(SWEEP)
    return lambda *options: kernbench("sweep", "grid.yaml", *options)


def rows() -> Any:
    return read_sweep_table(Path("results/sweep/grid/sweep.parquet")).rows


def test_a_sweep_reads_values_and_says_how_many(sweep: Run) -> None:
    assert sweep().code == 0
    assert [row["values_read"] for row in rows()] == [128, 128]


def test_a_sweep_without_data(sweep: Run) -> None:
    assert sweep("--no-data").code == 1
    assert all("this run keeps no data" in row["error"] for row in rows())


def test_a_sweep_of_zeros(sweep: Run) -> None:
    assert sweep("--no-data", "--zeros").code == 0
    assert [row["zeros_read"] for row in rows()] == [336, 336]


def test_workers_share_the_limit(sweep: Run) -> None:
    """Two loops at a time have half of it each: enough for one."""
    assert sweep("--keep", "24KiB", "--jobs", "1").code == 0
    assert sweep("--keep", "24KiB", "--jobs", "24", "--out", "shared").code == 1


def test_a_sweep_without_data_is_not_resumed_with(sweep: Run) -> None:
    Path("grid.yaml").write_text(SWEEP)
    assert sweep("--no-data", "--zeros").code == 0
    ran = sweep("--resume")
    assert ran.code == 2
    assert "data" in ran.err
