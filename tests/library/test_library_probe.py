"""Tests of ``kb.probe_case``: the command's document, tables, and what is refused."""

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


def test_a_case_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    found = kb.probe_case("pe-sram", "one-cube", size="1KiB")
    assert main(["probe", "--case", "pe-sram", "--topology", "one-cube", "--size", "1KiB", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found.to_dict()
    assert found.table.column("case") == ["pe-sram"]
    assert found.hops.column("last_byte_ns")[-1] == found.table.column("latency_ns")[0]
    assert found.sizes.column("nbytes")[0] == 4096
    assert repr(found).splitlines()[0].startswith("pe-sram: ")
    assert len(repr(found).splitlines()) <= 10


def test_several_cases_and_those_that_are_not_here() -> None:
    found = kb.probe_case(["pe-local-hbm", "pe-cross-sip-hbm"], "one-cube")
    assert found.table.column("case") == ["pe-local-hbm"]
    assert repr(found).splitlines()[-1] == "not on this machine: pe-cross-sip-hbm"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"case": "pe-sra"}, "did you mean 'pe-sram'"),
        ({"case": [3]}, "must be names of cases"),
        ({"size": "much"}, "size: "),
        ({"size": 0}, "must be at least 1 byte"),
        ({"machine": "one"}, "unknown machine 'one'"),
    ],
)
def test_wrong_calls_raise_with_what_is_allowed(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(kb.InputError, match=message):
        kb.probe_case(**{"case": "pe-sram", "machine": "one-cube", **asked})
