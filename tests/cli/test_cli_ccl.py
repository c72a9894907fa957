"""What ``--ccl`` and ``./ccl.yaml`` make of a run: the algorithm that is named, warnings, and bad files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., object]

SMALL = ("--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1", "--set", "cube.pe_layout.pe_per_corner=1")
RING = "algorithms:\n  mine: { module: ring_allreduce, topology: ring_1d, %s }\n"
INTERCUBE = """algorithms:
  a: { module: intercube_allreduce, topology: none, validator: row_per_cube, root_cube: 9 }
"""
PROGRAM = """
def worker(rank, torch):
    torch.ahbm.set_device(rank)
    torch.distributed.init_process_group("ahbm")
    t = torch.full((64,), rank + 1.0, name="t")
    for _ in range(2):
        torch.distributed.all_reduce(t)
    torch.distributed.destroy_process_group()


def run(torch):
    torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
"""


@pytest.fixture
def run(kernbench: Run, tmp_path: Path) -> Run:
    """A program with two all-reduces, under a configuration that lies in another folder."""
    (tmp_path / "prog.py").write_text(PROGRAM)
    (tmp_path / "conf").mkdir()

    def with_ccl(text: str, *more: str, bench: str = "prog.py") -> object:
        (tmp_path / "conf" / "ccl.yaml").write_text(text)
        return kernbench("run", "--bench", bench, "--ccl", "conf/ccl.yaml", *SMALL, *more)

    return with_ccl


@pytest.mark.parametrize("as_json", [False, True])
def test_what_took_the_place_of_the_configured_algorithm_is_in_the_report(run: Run, as_json: bool) -> None:
    ran = run(RING % "validator: row_per_cube", *(["--json"] if as_json else []))
    assert ran.code == 0
    assert ran.err.count("warning: all_reduce: the configured 'mine' cannot do this: tensor 't'") == 1
    assert "sip_allreduce does it instead" in ran.err
    assert f"at {Path.cwd() / 'prog.py'}:7" in ran.err
    assert "warning" not in ran.out
    if as_json:
        document = json.loads(ran.out)
        told = {(each["name"], each["algorithm"]) for each in (*document["launches"], *document["kernels"])}
        assert told == {("all_reduce", "sip_allreduce")}
    else:
        assert "Launch 'all_reduce by sip_allreduce' on" in ran.out


def test_the_configured_algorithm_is_in_the_report_when_it_ran(run: Run) -> None:
    ran = run(RING % "", "--json", "--trace", "trace.json")
    assert (ran.code, "warning" in ran.err) == (0, False)
    assert [each["algorithm"] for each in json.loads(ran.out)["launches"]] == ["mine"]
    assert "all_reduce by mine" in Path("trace.json").read_text()


@pytest.mark.parametrize("as_json", [False, True])
def test_strict_ends_the_run(run: Run, as_json: bool) -> None:
    ran = run(f"defaults: {{ strict: true }}\n{RING % 'validator: row_per_cube'}", *(["--json"] if as_json else []))
    assert ran.code == 2
    assert "nothing may take its place (strict in ccl.yaml)" in ran.err
    assert "Traceback" not in ran.err + ran.out


def test_the_line_of_the_bench_names_what_ran(run: Run) -> None:
    (Path("conf") / "mine.py").write_text("def refuse(tensor, world_size, topology):\n    raise ValueError('no')\n")
    ran = run(RING % "validator: mine.refuse", "--verify-data", bench="ccl-allreduce")
    assert "sip_allreduce (ws=2): 2 OK" in ran.out
    assert "its validator raised ValueError: no; sip_allreduce does it instead" in ran.err


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("root_cube: 3", "conf/ccl.yaml:2:54: algorithms.mine.root_cube: algorithm 'mine' does not know 'root_cube'"),
        ("reduce_op: mean", "algorithms.mine.reduce_op: found 'mean', must be one of: sum, max, min, avg"),
        ("chunk_size: 64KiB", "algorithms.mine.chunk_size: found 65536; a message has to fit a slot (slot_size 4096)"),
        ("validator: gone.py:check", "conf/ccl.yaml:2: algorithm 'mine': validator 'gone.py:check': no such file"),
        ("mapper: own.gone", "conf/ccl.yaml:2: algorithm 'mine': mapper 'own.gone': module 'own'"),
    ],
)
def test_a_bad_file_is_told_before_anything_runs(run: Run, entry: str, says: str) -> None:
    (Path("conf") / "own.py").touch()
    ran = run(RING % entry)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.startswith("error: conf/ccl.yaml:2:")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (RING % "chunk_size: 1", "algorithm 'mine' has chunk_size=1 (conf/ccl.yaml:2)"),
        (RING % "world_size: 3", "algorithm 'mine' has world_size=3 (conf/ccl.yaml:2), this machine 2 SIPs"),
        (INTERCUBE, "algorithm 'a' has root_cube=9 (conf/ccl.yaml:2)"),
    ],
)
def test_what_does_not_fit_the_machine_is_told_with_its_line(run: Run, text: str, says: str) -> None:
    ran = run(text, bench="ccl-allreduce")
    assert ran.code == 2
    assert says in ran.err


RAW = ("ipcq-allreduce", "--set", "bench.algorithm=mine", "--explain")
PLAN = """
from kernbench.messages.steps import Chunk, await_message, load, reduce, send, store

def schedule(*, rank, world_size, n_elem, kernel_to="E", kernel_late=False):
    mine = Chunk(0, n_elem)
    coming, going = await_message("W", n_elem), send(kernel_to, 0)
    first = [coming, going] if kernel_late else [going, coming]
    return [load(0, mine), *first, reduce(0, 0, "W", "sum"), store(0, mine)]
"""


def of_plan(more: str) -> str:
    (Path.cwd() / "conf" / "plan.py").write_text(PLAN)
    return f"algorithms:\n  mine: {{ module: plan.py, topology: ring_1d, world_size: 2, {more} }}\n"


def test_an_explanation_of_a_schedule_says_what_its_steps_do(run: Run) -> None:
    ran = run(of_plan("n_elem: 64"), *RAW[1:], "-v", bench=RAW[0])
    for text in (
        "Steps of plan",
        "1   load, 64 f32",
        "2   send E, 64 f32",
        "4   reduce (add), 64 f32",
        "5   store, 64 f32",
    ):
        assert text in ran.out
    assert "Steps on the path that waited for others" in ran.out
    assert "<" not in ran.out.partition("Steps of")[2].partition("\n")[0]
    document = json.loads(run(of_plan("n_elem: 64"), *RAW[1:], "--json", bench=RAW[0]).out)
    launch, *_ = document["explanation"]["launches"]
    assert (launch["schedule"], Path(launch["file"]).name) == ("plan", "plan.py")
    assert [each["step"] for each in launch["lines"]][:2] == ["load, 64 f32", "send E, 64 f32"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("kernel_late: true", "waits for a message of queue W, at step 2 of plan (await W, 64 f32); no message from"),
        ("kernel_to: N", "step 2 of plan (send N, 64 f32)"),
    ],
)
def test_a_schedule_that_fails_names_its_step(run: Run, more: str, says: str) -> None:
    ran = run(of_plan(f"n_elem: 64, {more}"), *RAW[1:], bench=RAW[0])
    assert ran.code == 1
    assert says in ran.err
