"""Scripts as programs of the library: ``kb.run(script=...)``, ``kb.sweep(script=...)`` and sweep files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernbench as kb
from kernbench.common.errors import ConfigError, InputError
from kernbench.evaluation.sweep_loading import plan_sweep
from kernbench.runtime_api.prepared_run import prepare_run
from kernbench.runtime_api.run_request import RunRequest

SCRIPT = """
import sys
from kernbench.runtime_api.context import current_context

torch = current_context()
n = int(sys.argv[1])
x = torch.full(n, 2.0, dtype="f32")
settings = torch.frontends
print(__name__, sys.argv[1:], x.numpy().sum(), settings.torch.cubes, settings.triton.points, torch.engine.limits.wall_s)
assert n < 4096, n
"""
GRID = {"cube.hbm.slices": [4, 8]}
FILE = """\
script: train.py
args: [64, --name, m]
as_cuda: {as_cuda}
topology: one-cube
grid: {{ cube.hbm.slices: [4, 8] }}
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the script into the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_with_its_arguments_and_settings(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = kb.run(machine="one-cube", script=script, args=[64, "--name"], points=3, settings={"torch.cubes": 1})
    run.raise_for_status()
    assert "__main__ ['64', '--name'] 128.0 1 3 None" in capsys.readouterr().out
    assert run.bench == "train"
    failed = kb.run(machine="one-cube", script="train.py", args=["4096"], max_wall_s=60)
    assert not failed.ok
    assert failed.place is not None
    assert "train.py" in str(failed.place.line)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "there is no program: give a bench, a file or a function, or script=FILE"),
        ({"program": "hello-send", "script": "train.py"}, "program and script: give one of them"),
        ({"program": "hello-send", "args": ["3"]}, "args: only a script takes it"),
        ({"program": "hello-send", "as_cuda": True}, "as_cuda: only a script takes it"),
        ({"script": "train.py", "args": "--size 3"}, "args: found '--size 3', must be a list"),
        ({"script": "no.py"}, "no.py: no such file"),
        ({"script": "train.py", "points": 0}, "triton.points"),
        ({"script": "train.py", "m": 3}, "bench.m"),
    ],
)
@pytest.mark.parametrize("call", [kb.run, lambda *args, **choices: kb.sweep(*args, grid=GRID, **choices)])
def test_bad_programs_are_refused(
    script: Path, call: Callable[..., Any], choices: dict[str, Any], message: str
) -> None:
    if call is not kb.run and choices.keys() & {"points", "m"}:
        pytest.skip("a sweep has no such keyword")
    with pytest.raises((InputError, ConfigError), match=message.replace("(", "\\(")):
        call(machine="one-cube", **choices)


def test_a_sweep_of_a_script_on_workers_resumes(script: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    sweep = kb.sweep(machine="one-cube", script="train.py", args=[64], grid=GRID, workers=2, folder=folder)
    assert [row["status"] for row in sweep.table] == ["ok", "ok"]
    assert sweep.name == "train"
    journal = folder / "journal.jsonl"
    head = json.loads(journal.read_text().splitlines()[0])
    assert '"args": ["64"]' in json.dumps(head)
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]))
    again = kb.sweep(machine="one-cube", script="train.py", args=[64], grid=GRID, workers=1, folder=folder)
    assert again.table.to_dicts() == sweep.table.to_dicts()
    alone = kb.sweep(machine="one-cube", script=script, args=[64], grid=GRID, workers=1)
    assert [row["sim_ns"] for row in alone.table] == [row["sim_ns"] for row in sweep.table]


def test_a_script_on_several_machines_has_derived_columns(script: Path) -> None:
    grid = {"machine": ["one-cube", "edge"], "cube.hbm.slices": [4, 8]}
    columns = {"rate_s": "1e9 / sim_ns"}
    sweep = kb.sweep(script=script, args=[64], grid=grid, columns=columns, work=["cube.hbm.slices"], workers=1)
    assert [row["rate_s"] for row in sweep.table] == [1e9 / float(str(row["sim_ns"])) for row in sweep.table]
    assert len({row["machine_digest"] for row in sweep.table}) == 4
    assert sweep.results.about["script"] == {"args": ["64"], "as_cuda": False}
    assert list(sweep.results.about["machines"]) == grid["machine"]
    assert [column.heading for column in sweep.table.terminal_columns][-1] == "rate_s"


def test_the_identity_of_a_sweep_has_the_script_and_its_arguments(script: Path) -> None:
    (path := Path("grid.yaml")).write_text(FILE.format(as_cuda="false"))
    plan = plan_sweep(path)
    assert plan.request.program.script == str(script)
    assert plan.identity()["script"] == {"args": ["64", "--name", "m"], "as_cuda": False}
    path.write_text(FILE.format(as_cuda="true"))
    with_cuda = plan_sweep(path)
    assert with_cuda.identity() != plan.identity()
    assert with_cuda.request.program.setting_texts == ("torch.as_cuda=true",)
    digest = plan.identity()["bench file"]
    script.write_text(f"{SCRIPT}\n")
    assert plan_sweep(path).identity()["bench file"] != digest


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("grid: { cube.hbm.slices: [4] }", "missing key 'bench', or 'script' for a whole file"),
        ("bench: hello-send\nscript: train.py\ngrid: { cube.hbm.slices: [4] }", "2:1: script: bench and script"),
        ("bench: hello-send\nargs: [3]\ngrid: { cube.hbm.slices: [4] }", "2:1: args: only a script takes it"),
        ("bench: hello-send\nas_cuda: true\ngrid: { cube.hbm.slices: [4] }", "2:1: as_cuda: only a script takes it"),
        ("script: no.py\ngrid: { cube.hbm.slices: [4] }", "1:9: script: .*no.py: no such file"),
        ("script: train.py\nargs: 3\ngrid: { cube.hbm.slices: [4] }", "2:7: args"),
        ("script: train.py\ngrid: { bench.m: [4] }", "bench.m"),
    ],
)
def test_errors_of_a_script_in_a_sweep_file(script: Path, text: str, place: str) -> None:
    Path("grid.yaml").write_text(f"{text}\n")
    with pytest.raises(ConfigError, match=place):
        plan_sweep("grid.yaml")


def test_limits_are_checked(script: Path) -> None:
    with pytest.raises(InputError, match="max_wall_s: found -1, must be a number from 0"):
        prepare_run(RunRequest.of(script="train.py", max_wall_s=-1))
    assert prepare_run(RunRequest.of(script="train.py", max_wall_s=float("inf"))).limits.wall_s is None


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"program": "hello-send", "ranks": 2}, "ranks: only a script takes it"),
        ({"script": "train.py", "ranks": 0}, "ranks: found 0, must be a number from 1, or 'all'"),
        ({"script": "train.py", "ranks": "some"}, "ranks: found 'some', must be"),
    ],
)
def test_wrong_ranks_are_refused(script: Path, choices: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        kb.run(machine="one-cube", **choices)


def test_a_sweep_runs_a_script_with_ranks(script: Path) -> None:
    text = FILE.format(as_cuda="true") + "run: ranks\n"
    (path := Path("ranks.yaml")).write_text(text)
    plan = plan_sweep(path)
    assert plan.request.program.ranks == "all"
    assert plan.identity()["script"] == {"args": ["64", "--name", "m"], "as_cuda": True, "ranks": "all"}
    path.write_text("bench: hello-send\nrun: ranks\ngrid: { cube.hbm.slices: [4] }\n")
    with pytest.raises(ConfigError, match="2:6: run: only a script has ranks"):
        plan_sweep(path)
    with pytest.raises(InputError, match="reuse and ranks: give one of them"):
        kb.sweep(script="train.py", grid=GRID, ranks="all", reuse=True)
