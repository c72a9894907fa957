"""Tests of ``load_machine``: what it takes, what it gives, and what it refuses."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import yaml

import kernbench as kb
from kernbench.topology.builder import packaged_machines


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_way_to_a_machine_gives_the_same_one() -> None:
    named = kb.load_machine("one-cube")
    file = packaged_machines()["one-cube"]
    mapping = yaml.safe_load(Path(file).read_text())
    ways = (kb.load_machine(each) for each in (file, Path(file), mapping, named, named.topology))
    assert {each.digest for each in ways} == {named.digest}
    assert kb.load_machine({**yaml.safe_load(named.to_yaml())}) == named
    assert (named.name, named.num_sips, named.num_cubes, named.num_pes) == ("one-cube", 1, 1, 8)


def test_without_a_name_it_is_that_of_the_folder(tmp_path: Path) -> None:
    assert kb.load_machine().name == "default"
    (tmp_path / "topology.yaml").write_text(kb.load_machine("edge").to_yaml())
    assert kb.load_machine().num_pes == 4


def test_a_repr_is_a_line_for_each_level() -> None:
    lines = repr(kb.load_machine("edge").with_({"cube.hbm.num_pcs": 4})).splitlines()
    assert lines[0].startswith("machine 'edge', 1 value changed (")
    assert [line.split()[0] for line in lines[1:]] == ["host", "SIPs", "cubes", "PEs", "memory", "compute", "power"]
    assert len(lines) <= 10


def test_overrides_leave_the_machine_as_it_is() -> None:
    base = kb.load_machine("one-cube")
    other = base.with_({"cube.hbm.num_pcs": 4, "pe.tcm.bytes": "8 MiB"})
    assert (base.spec.cube.hbm.num_pcs, other.spec.cube.hbm.num_pcs) == (8, 4)
    assert other.spec.pe.tcm.bytes == 8 << 20
    assert base != other


def test_it_is_pickled_as_its_document() -> None:
    machine = kb.load_machine("default")
    stored = pickle.dumps(machine)
    assert len(stored) < 50_000
    assert pickle.loads(stored) == machine


def test_a_drawing_is_a_figure() -> None:
    machine = kb.load_machine("one-cube")
    assert machine.draw().get_axes()
    assert "<svg" in machine._repr_html_()


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ("one-cub", {}, "did you mean 'one-cube'"),
        ({"cube": {}}, {}, "missing key 'system'"),
        (7, {}, "must be a machine: a name, a file, a mapping"),
        ("one-cube", {"cube.hbm.num_pc": 4}, "did you mean 'num_pcs'"),
        ("one-cube", {"cube.hbm.num_pcs": {1}}, "its values are numbers, texts, lists and mappings"),
        ("one-cube", ["cube.hbm.num_pcs=4"], "must be a mapping of paths"),
    ],
)
def test_what_is_no_machine_is_refused_with_what_is(source: object, overrides: object, message: str) -> None:
    with pytest.raises(kb.InputError, match=message):
        kb.load_machine(source, overrides=overrides)  # type: ignore[arg-type]
