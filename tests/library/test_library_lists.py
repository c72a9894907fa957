"""Tests of lists and descriptions, and of machines and parts as plain data: what commands print."""

from __future__ import annotations

import json

import pytest

import kernbench as kb
from kernbench.cli.main import main
from kernbench.library import part_checks
from kernbench.probe.part_suite import PartCheck


def printed(capsys: pytest.CaptureFixture[str], *command: str, code: int = 0) -> object:
    """The document that a command prints."""
    assert main([*command, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_everything_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    found = kb.list_all()
    assert found.verdict.startswith(f"{len(kb.list_benches())} benches, {len(kb.list_machines())} machines, ")
    assert printed(capsys, "list") == found.to_dict()
    assert [row["name"] for row in found.to_dict()["algorithms"]] == kb.list_algorithms().column("name")
    assert kb.list_probe_cases().column("name")[-1] == "memory"


def test_a_bench(capsys: pytest.CaptureFixture[str]) -> None:
    found = kb.describe_bench("matmul_composite")
    assert found.bench.name == "matmul-composite"
    assert printed(capsys, "list", "matmul-composite") == found.to_dict()
    assert "m=" in repr(found)
    with pytest.raises(kb.UnknownNameError, match="matmul-composite"):
        kb.describe_bench("matmul-composit")


def test_a_timing(capsys: pytest.CaptureFixture[str]) -> None:
    found = kb.describe_timing("hbm3e")
    assert found.title == "hbm3e (assumed)"
    assert printed(capsys, "topology", "--timing", "hbm3e") == found.to_dict()
    assert {"key": "refi_ns", "value": "3900 ns"}.items() <= next(
        row for row in found.table.to_dicts() if row["key"] == "refi_ns"
    ).items()
    assert len(repr(found).splitlines()) <= 10


def test_a_machine(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    machine = kb.load_machine("edge", overrides={"clocks.pe": 2})
    assert printed(capsys, "topology", "--topology", "edge", "--set", "clocks.pe=2") == machine.to_dict()
    assert sum(machine.links.column("links")) == len(machine.to_dict()["edges"])
    assert sum(machine.parts.column("parts")) == len(machine.to_dict()["nodes"])
    assert {"pe"} == {*machine.clocks.column("clock")}
    assert machine.facts["PEs"] == "4, 4 a cube"
    machine.page(tmp_path / "edge.html")  # type: ignore[operator]
    assert (tmp_path / "edge.html").read_text(encoding="utf-8").startswith("<!doctype html>")  # type: ignore[operator]


def test_a_part(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    checks = (PartCheck("switch", "keeps time", None, "5 ns"), PartCheck("switch", "ends", "it does not"))
    monkeypatch.setattr(part_checks, "make_checks", lambda *_: iter(checks))
    heard: list[PartCheck] = []
    found = kb.check_part("builtin.switch", on_check=heard.append)
    assert not found.ok
    assert tuple(heard) == found.checks == checks
    assert printed(capsys, "check-part", "builtin.switch", code=1) == found.to_dict()
    assert repr(found) == "builtin.switch: 1 of 2 checks hold\n  switch  ends: it does not"
