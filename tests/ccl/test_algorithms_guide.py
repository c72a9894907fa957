"""The author's guide: its files do what it says, and are those of ``examples/``."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.common.errors import IpcqDeadlock
from kernbench.engine.engine import GraphEngine
from kernbench.runtime_api.bench_runner import run_bench

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+?)(?:, continued)?\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the guide, where the user works."""
    for name, text in BLOCK.findall((ROOT / "docs" / "collective-authors-guide.md").read_text()):
        with (tmp_path / name).open("a") as file:
            file.write(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_allreduce", raising=False)
    return tmp_path


def body_of(text: str) -> str:
    """A module's functions: without docstring and imports."""
    return "\n".join(line for line in text.splitlines() if line.startswith((" ", "def ")) and "import" not in line)


def test_the_examples_are_those_of_the_guide(folder: Path) -> None:
    examples = ROOT / "examples"
    assert body_of((folder / "my_allreduce.py").read_text()) == body_of((examples / "my_allreduce.py").read_text())
    assert (folder / "test_my_allreduce.py").read_text() == (examples / "test_my_allreduce.py").read_text()
    assert (folder / "ccl.yaml").read_text() == (examples / "ccl.yaml").read_text()


@pytest.mark.parametrize(("ranks", "n"), [(1, 1), (2, 1000), (3, 1), (8, 1000)])
def test_the_algorithm_works_in_the_mock(folder: Path, ranks: int, n: int) -> None:
    test: Any = runpy.run_path(str(folder / "test_my_allreduce.py"))["test_every_rank_ends_with_the_sum"]
    test(ranks, n)


def test_the_algorithm_works_on_the_machine(folder: Path) -> None:
    program = runpy.run_path(str(folder / "my_allreduce.py"))["run"]
    result = run_bench(
        topology="default",
        bench_fn=program,
        engine_factory=lambda topology, device: GraphEngine(topology),
        verify=True,
    )
    assert result.completion.ok, result.completion.error
    assert [comparison.passed for comparison in result.comparisons] == [True]


def test_the_broken_one_is_reported_as_the_guide_shows(folder: Path) -> None:
    with pytest.raises(IpcqDeadlock) as caught:
        runpy.run_path(str(folder / "broken.py"))
    report = (ROOT / "docs" / "collective-authors-guide.md").read_text().split("deadlock in the mock")[1]
    shown = report.split("```")[0].splitlines()[1:]
    # Files of the guide begin with a line that names them.
    told = [line.replace("line 8", "line 9") for line in str(caught.value).splitlines()[1:]]
    for line, real in zip(shown, told, strict=True):
        assert real.startswith(line.removesuffix("…").rstrip())


def test_the_schedule_of_the_guide_is_checked_and_runs_in_the_mock(folder: Path) -> None:
    schedule = runpy.run_path(str(folder / "my_plan.py"))["schedule"]
    inputs = [np.full(5, rank, np.float32) for rank in range(8)]
    for output in run_kernel_in_mock(schedule, 8, "ring_1d", inputs, n_slots=2):
        np.testing.assert_array_equal(output, 28)
