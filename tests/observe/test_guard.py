"""A fault of what explains a run never costs the run: it is said, and the rest stands."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

import kernbench as kb
from kernbench.cli.main import main
from kernbench.common.errors import ExplanationError
from kernbench.observe import critical_path, guard, roofline, sanitizer, trace
from kernbench.observe.guard import STRICT, guarded
from kernbench.runtime_api import run_explanation

SAYS = "explanation failed: KeyError: 4 (test_guard.py:"
MACHINE = ("--topology", "one-cube")


def fault(*_: object) -> NoReturn:
    raise KeyError(4)


@pytest.fixture(autouse=True)
def _as_for_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fault is raised in a file of the tests, which is no program of the user's here."""
    monkeypatch.delenv(STRICT)
    monkeypatch.setattr(guard, "program_line", lambda _: None)
    monkeypatch.chdir(tmp_path)


FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "path": lambda patch: patch.setattr(critical_path.PathFinder, "of_run", fault),
    "bounds": lambda patch: patch.setattr(run_explanation, "roofline", fault),
    "verdict": lambda patch: patch.setattr(run_explanation, "judge_run", fault),
}
"""Where the verdict fails, and with it the explanation"""


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_stands_without_its_explanation(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    whole = kb.run("matmul-composite", "one-cube", verify=True)
    FAULTS[name](monkeypatch)
    run = kb.run("matmul-composite", "one-cube", verify=True)
    assert (run.status, run.exit_code, run.verified) == ("OK", 0, True)
    assert (run.latency_ns, run.report, run.checks) == (whole.latency_ns, whole.report, whole.checks)
    assert run.verdict.sentence.startswith(SAYS)
    document = run.to_dict()
    assert document["verdict"]["sentence"] == document["explanation_failed"] == run.verdict.sentence
    assert "explanation" not in document
    for explained in (run, pickle.loads(pickle.dumps(run))):
        with pytest.raises(ExplanationError, match="KeyError: 4"):
            explained.explain()
    with pytest.raises(ExplanationError, match="KeyError: 4"):
        run.page("page.html")
    assert [*Path().iterdir()] == []


def test_what_is_worked_out_later_may_fail_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_explanation, "_sum_lines", fault)
    run = kb.run("hello-send", "one-cube")
    assert run.verdict.sentence.startswith("maps and queues"), "the verdict needs no lines"
    assert run.to_dict()["explanation_failed"].startswith(SAYS)
    with pytest.raises(ExplanationError, match="KeyError: 4"):
        run.explain()
    assert pickle.loads(pickle.dumps(run)).unexplained.text.startswith(SAYS)


def test_a_notebook_says_why_it_has_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    run = kb.run("hello-send", "one-cube")
    monkeypatch.setattr(kb.Run, "roofline", lambda _: (_ for _ in ()).throw(ExplanationError("roofline failed: …")))
    assert "roofline failed: …" in run._repr_html_()


@pytest.mark.parametrize("name", [*FAULTS, "lines"])
def test_the_command_keeps_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    if name == "lines":
        monkeypatch.setattr(run_explanation, "_sum_lines", fault)
    else:
        FAULTS[name](monkeypatch)
    assert main(["run", "--bench", "hello-send", *MACHINE, "--explain"]) == 0
    shown = capsys.readouterr()
    assert SAYS in shown.out
    assert "OK  hello-send" in shown.out
    assert "Traceback" not in shown.err
    assert main(["run", "--bench", "hello-send", *MACHINE, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["explanation_failed"].startswith(SAYS)


FILES: dict[str, tuple[tuple[str, ...], Callable[[pytest.MonkeyPatch], None]]] = {
    "trace": (("run", "--trace", "out.json"), lambda patch: patch.setattr(trace, "_Maker", fault)),
    "roofline": (("run", "--roofline", "out.png"), FAULTS["path"]),
    "page": (("web", "--out", "out.html"), FAULTS["path"]),
    "page of lines": (("web", "--out", "out.html"), lambda patch: patch.setattr(run_explanation, "_sum_lines", fault)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_asked_for_ends_with_1_and_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (command, *options), inject = FILES[name]
    inject(monkeypatch)
    assert main([command, "--bench", "hello-send", *MACHINE, *options]) == 1
    shown = capsys.readouterr()
    assert "failed: KeyError: 4 (test_guard.py:" in shown.err
    assert "Traceback" not in shown.err
    assert [*Path().iterdir()] == [], "nothing is half-written"


def test_a_sanitizer_that_fails_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sanitizer.Sanitizer, "findings", fault)
    assert main(["run", "--bench", "hello-send", *MACHINE, "--sanitize"]) == 0
    shown = capsys.readouterr().out
    assert "sanitizer failed: KeyError: 4" in shown
    assert "nothing found" not in shown


def test_advice_that_fails_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS["bounds"](monkeypatch)
    run = kb.run("hello-send", "one-cube", advise=True)
    assert run.ok
    assert run.remarks[-1].startswith("no advice: ")


def test_a_point_of_a_sweep_keeps_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"bench.m": [16, 32]}
    whole = kb.sweep("matmul-composite", "one-cube", grid=grid, workers=1).table
    monkeypatch.setattr(roofline, "_Gatherer", fault)
    table = kb.sweep("matmul-composite", "one-cube", grid=grid, workers=1).table
    assert table.column("status") == ["ok", "ok"]
    assert table.column("sim_ns") == whole.column("sim_ns")
    assert all(str(sentence).startswith(SAYS) for sentence in table.column("run.verdict"))


class ProgramError(Exception):
    """An error of a user's own."""


@pytest.mark.parametrize("error", [kb.InputError("a filter"), MemoryError(), OSError("disk"), KeyboardInterrupt()])
def test_what_is_no_fault_of_the_explanation_passes(error: BaseException) -> None:
    with pytest.raises(type(error)), guarded("explanation"):
        raise error


def test_an_error_of_the_program_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.delenv(STRICT, raising=False)
    with pytest.raises(ProgramError), guarded("explanation"):
        raise ProgramError


def test_in_tests_faults_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STRICT, "1")
    with pytest.raises(KeyError), guarded("explanation"):
        fault()
