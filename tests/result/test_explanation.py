"""The explanation of a run in its forms: JSON and back, tables, reports; also of documents of earlier versions."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kernbench as kb
from kernbench.cli.console import render_report
from kernbench.cli.run_tables import print_run
from kernbench.result.explanation import NOT_SAID, Explanation
from kernbench.result.run_sections import find_explanation
from kernbench.result.sections import read_plain
from kernbench.result.table import Table

BENCHES = ("hello-send", "matmul-composite", "ccl-allreduce")
LATER = (
    *("verdict", "shares", "resources", "ties", "slices", "main_launch"),
    *("ended", "run_ps", "step", "source", "tile_ps"),
)
"""Keys that documents of version 0.1.0 lack"""


@pytest.fixture(scope="module")
def runs() -> Mapping[str, kb.Run]:
    return {name: kb.run(name) for name in BENCHES}


def read(run: kb.Run, document: Any) -> Explanation:
    explanation: Explanation = read_plain(Explanation, json.loads(json.dumps(document)))
    return replace(explanation, name=run.bench)


def without(content: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(content, dict):
        return {key: without(entry, keys) for key, entry in content.items() if key not in keys}
    return [without(entry, keys) for entry in content] if isinstance(content, list) else content


def texts(explanation: Explanation) -> list[Any]:
    return [part if isinstance(part, str) else (part.title, [*part.lines()]) for part in explanation.report()]


@pytest.mark.parametrize("name", BENCHES)
def test_a_document_holds_all_of_an_explanation(runs: Mapping[str, kb.Run], name: str) -> None:
    explanation = runs[name].explain()
    again = read(runs[name], runs[name].to_dict()["explanation"])
    assert again == explanation
    assert texts(again) == texts(explanation)


def launch_thrice(torch: Any) -> None:
    a = torch.zeros(64, 64, dtype="f16", name="A")
    for n in (16, 64, 32):
        torch.launch("copy", "offset_copy", a, a, n, 0, "f16")
    torch.launch("other", "offset_copy", a, a, 64, 0, "f16")


def test_a_report_needs_only_the_longest_launch_of_each_name() -> None:
    run = kb.run(launch_thrice)
    explanation = find_explanation(run.live, every_launch=False)
    assert [launch.name for launch in explanation.launches] == ["copy", "other"]
    assert len(run.explain().launches) == 4
    assert texts(replace(explanation, name=run.bench)) == texts(run.explain())


@pytest.mark.parametrize("name", BENCHES)
def test_a_loaded_run_prints_the_same_explanation(runs: Mapping[str, kb.Run], name: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(runs[name].to_dict()))
    loaded = kb.load(tmp_path / "run.json")
    assert isinstance(loaded, kb.Run)
    reports = []
    for run in (runs[name], loaded):
        console = Console(file=io.StringIO(), width=200)
        assert print_run(console, run, explain=True, energy=False, verbose=True)
        text = console.file.getvalue()
        begin = text.index(f"\n{next(iter(run.explain().report()))}")
        reports.append(text[begin:])
    assert reports[0] == reports[1]
    assert "critical path" in reports[0]
    printed = []
    for run in (runs[name], loaded):
        console = Console(file=io.StringIO(), width=200)
        for part in render_report(run.explain().report()):
            console.print(part)
        printed.append(console.file.getvalue())
    assert printed[0] == printed[1]
    assert "Run: time of HBM slices" in printed[0]


@pytest.mark.parametrize("name", BENCHES)
def test_a_document_of_an_early_version_is_read(runs: Mapping[str, kb.Run], name: str) -> None:
    explanation = runs[name].explain()
    early = read(runs[name], without(runs[name].to_dict()["explanation"], LATER))
    assert early.verdict == NOT_SAID
    assert early.critical_path.to_dicts() == explanation.critical_path.to_dicts()
    assert (len(early.resources), len(early.slices)) == (0, 0)
    longest = early.find_main_launch()
    assert longest is not None
    assert longest.total_ns == max(launch.total_ns for launch in explanation.launches)
    assert f"Run: {NOT_SAID}" in list(early.report())
    parts = [part for part in early.report() if isinstance(part, Table) and part.title == "Run: critical path"]
    assert len(parts[0].rows) + 1 == len([*parts[0].lines()]), "the parts, and their sum"


def test_lines_have_their_text_without_the_file(runs: Mapping[str, kb.Run]) -> None:
    launch = runs["hello-send"].explain().longest_launches()[0]
    elsewhere = replace(launch, file="nowhere.py")
    assert elsewhere.lines.column("source") == launch.lines.column("source")
    assert "".join(map(str, launch.lines.column("source")))


def test_steps_of_schedules_are_in_their_waits(runs: Mapping[str, kb.Run]) -> None:
    launches = runs["ccl-allreduce"].explain().launches
    launch = next(launch for launch in launches if launch.schedule and launch.line_waits)
    wait = launch.line_waits[0]
    assert wait.waiting.step
    assert str(wait.waiting).endswith(f"step {wait.waiting.line}: {wait.waiting.step})")
    assert launch.waits.title.startswith("Steps on the path")


def test_parts_add_up_to_the_time(runs: Mapping[str, kb.Run]) -> None:
    for run in runs.values():
        explanation = run.explain()
        for time in (explanation, *explanation.launches):
            path = time.critical_path
            assert sum(part.ps for part in path) == time.path.total_ps
            assert path.shown is not None
            assert sum(part.ps for part in path.shown) == time.path.total_ps
            largest = time.roof.largest
            assert largest is not None
            assert largest.ps + sum(row.ps for row in time.beyond) == time.path.total_ps
