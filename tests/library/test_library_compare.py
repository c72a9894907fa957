"""Tests of ``kb.compare``: runs, sweeps and files side by side, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import kernbench as kb
from kernbench.cli.main import main


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs() -> tuple[kb.Run, kb.Run]:
    one, other = (
        kb.run("attention", kb.load_machine("one-cube").with_({"cube.hbm.num_pcs": n}), lq=32, lk=64) for n in (2, 8)
    )
    return one, other


def test_two_runs_and_their_files(runs: tuple[kb.Run, kb.Run], capsys: pytest.CaptureFixture[str]) -> None:
    found = kb.compare(*runs)
    for name, run in zip("ab", runs, strict=True):
        Path(f"{name}.json").write_text(json.dumps(run.to_dict()))
    assert main(["compare", "a.json", "b.json", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {**found.to_dict(), "a": "a.json", "b": "b.json"}
    assert kb.compare("a.json", Path("b.json")).to_dict() == printed
    assert found.verdict.startswith("B takes ")
    assert " less (-" in found.verdict
    assert found.differing.column("path") == ["cube.hbm.num_pcs"]
    assert sum(found.stages.column("ns")) == pytest.approx(found.comparison.time.ns)  # type: ignore[arg-type]
    assert found.pairs.column("b_ns") == [runs[1].latency_ns]
    assert len(repr(found).splitlines()) <= 10


def test_settings_of_front_ends_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that counts loading takes longer for that."""
    for name, *settings in (("a",), ("b", "--from-load")):
        assert main(["run", "--bench", "hello-send", "--topology", "one-cube", *settings, "--json"]) == 0
        Path(f"{name}.json").write_text(capsys.readouterr().out)
    loaded = kb.load("b.json")
    assert isinstance(loaded, kb.Run)
    assert loaded.frontends == {"torch": {"from_load": True}}
    assert "what differs: torch.from_load false → true" in kb.compare("a.json", loaded).sentences


def test_two_sweeps() -> None:
    one, other = (
        kb.sweep("hello-send", name, grid={"cube.hbm.num_pcs": [4, 8]}, workers=1) for name in ("one-cube", "edge")
    )
    assert len(kb.compare(one, other).pairs) == 2


def test_what_cannot_be_compared(runs: tuple[kb.Run, kb.Run]) -> None:
    def fails(torch: Any) -> None:
        raise ValueError("no")

    for other, message in ((7, "b: found 7, must be a run, a sweep"), ("none.json", "no such file")):
        with pytest.raises(kb.InputError, match=message):
            kb.compare(runs[0], other)  # type: ignore[arg-type]
    with pytest.raises(kb.InputError, match="there is nothing to compare"):
        kb.compare(runs[0], kb.run(fails, "one-cube"))
